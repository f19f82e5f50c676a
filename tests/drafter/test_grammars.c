/* Drafts of a session with a grammar: once the drafter has it, it proposes what may follow. The target is the demo model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "shared/model/text/tokenizer.h"
#include "tests/drafter/fake_verifier.h"
#include "tests/until.h"

#define TARGET "models/outrider-demo-moe-q4_0.gguf"
#define DRAFT "models/outrider-demo-draft-small-q8_0.gguf"

static struct tokenizer *tokenizer;

struct fixture {
	struct drafter_config config;
	struct worker worker;
	struct fake fake;
};

static int open_tokenizer(void **state)
{
	struct gguf *gguf;
	struct error err = {""};

	(void)state;
	int rc = gguf_open(TARGET, &gguf, &err);
	if (rc == 0)
		rc = tokenizer_load(gguf, &tokenizer, &err);
	gguf_close(&gguf);
	if (rc != 0)
		print_error("%s\n", err.text);
	return rc;
}

static int close_tokenizer(void **state)
{
	(void)state;
	tokenizer_free(&tokenizer);
	return 0;
}

static struct fixture *make(const char *draft)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct error err = {""};

	assert_non_null(f);
	config_defaults(drafter_config_keys, &f->config);
	snprintf(f->config.draft, sizeof(f->config.draft), "%s", draft);
	assert_int_equal(drafter_config_resolve(&f->config, &err), 0);
	assert_int_equal(worker_init(&f->worker, &f->config, NULL, NULL, &err), 0);
	assert_int_equal(worker_start(&f->worker, &err), 0);
	fake_open(&f->fake, tokenizer_fingerprint(tokenizer));
	strcpy(f->fake.header->model_path, TARGET);
	fake_offer(&f->fake, &f->worker);
	return f;
}

static void end(struct fixture *f)
{
	worker_exit(&f->worker);
	fake_close(&f->fake);
	free(f);
}

/* A session whose output must match. */
static struct session_page *begin(struct fixture *f, uint32_t page, uint64_t uid,
	enum draft_method method, const int32_t *prompt, uint32_t n, const char *regex)
{
	struct session_page *p = fake_begin(&f->fake, page, uid, method, prompt, n);

	/* The drafter looks when it is asked first. */
	p->request.grammar_kind = GRAMMAR_REGEX;
	p->request.stops_bytes = 3;
	memcpy(p->request.stops, "ab", 3);
	p->request.grammar_bytes = (uint32_t)strlen(regex);
	memcpy(p->request.stops + 3, regex, strlen(regex));
	return p;
}

static int32_t byte(char c)
{
	for (int32_t i = 0; i < (int32_t)tokenizer_n_vocab(tokenizer); i++) {
		struct gguf_string text = tokenizer_piece(tokenizer, i, false);

		if (text.bytes == 1 && text.data[0] == c)
			return i;
	}
	fail_msg("no token is \"%c\"", c);
	return -1;
}

static void ngrams_are_cut_where_the_grammar_forbids_them(void **state)
{
	struct fixture *f = make("");
	const int32_t a = byte('a'), d = byte('1'), x = byte('x');
	const int32_t prompt[] = {d, x, a, d, d, x};
	const int32_t all[] = {a, d, d, x};

	(void)state;
	begin(f, 0, 100, DRAFT_NGRAM, prompt, 6, "[1a]*");
	UNTIL(fake_draft(&f->fake, 0, 4).n == 3);
	assert_memory_equal(fake_draft(&f->fake, 0, 4).token, all, 3 * sizeof(int32_t));
	/* Nothing of it is allowed. */
	begin(f, 1, 101, DRAFT_NGRAM, prompt, 6, "[1x]*");
	UNTIL(fake_draft(&f->fake, 1, 4).n == 0);
	/* A session without a grammar in a page that had one. */
	fake_begin(&f->fake, 1, 102, DRAFT_NGRAM, prompt, 6);
	assert_int_equal(fake_draft(&f->fake, 1, 4).n, 4);
	end(f);
}

static bool are_digits(const struct fake_drafted *r)
{
	for (uint32_t i = 0; i < r->n; i++) {
		struct gguf_string text = tokenizer_piece(tokenizer, r->token[i], false);

		for (size_t j = 0; j < text.bytes; j++)
			if (text.data[j] < '0' || text.data[j] > '9')
				return false;
		if (text.bytes == 0)
			return false;
	}
	return r->n > 0;
}

static bool drafts_digits(struct fixture *f)
{
	struct fake_drafted r = fake_draft(&f->fake, 0, 4);

	return r.method == DRAFT_MODEL && r.n == 4 && are_digits(&r);
}

static void the_draft_model_picks_what_the_grammar_allows(void **state)
{
	struct fixture *f = make(DRAFT);
	const int32_t prompt[] = {500, 501, 502, 503, 504, 505};
	const int32_t more[] = {byte('7'), byte('x')};

	(void)state;
	struct session_page *page = begin(f, 0, 100, DRAFT_MODEL, prompt, 6, "[0-9]{200,}");
	/* Its first chain was drafted without: a token that is committed begins another one. */
	fake_draft(&f->fake, 0, 4);
	for (int i = 0; i < 5; i++)
		fake_commit(page, more, 1);
	UNTIL(drafts_digits(f) || (usleep(40000), fake_commit(page, more, 1), false));
	/* What breaks the grammar ends it, and drafts go on. */
	fake_commit(page, more + 1, 1);
	assert_int_equal(fake_draft(&f->fake, 0, 4).n, 4);
	end(f);
}

static void a_grammar_that_is_wrong_is_drafted_without(void **state)
{
	struct fixture *f = make("");
	const int32_t prompt[] = {5, 6, 7, 5, 6};

	(void)state;
	struct session_page *page = begin(f, 0, 100, DRAFT_NGRAM, prompt, 5, "(");
	assert_int_equal(fake_draft(&f->fake, 0, 3).n, 3);
	/* Sizes that cannot be. */
	page = begin(f, 1, 101, DRAFT_NGRAM, prompt, 5, "1");
	page->request.grammar_bytes = UINT32_MAX;
	assert_int_equal(fake_draft(&f->fake, 1, 3).n, 3);
	page = begin(f, 2, 102, DRAFT_NGRAM, prompt, 5, "1");
	page->request.grammar_kind = 77;
	assert_int_equal(fake_draft(&f->fake, 2, 3).n, 3);
	/* The thread comes to this one behind them. */
	begin(f, 3, 103, DRAFT_NGRAM, prompt, 5, "1");
	UNTIL(fake_draft(&f->fake, 3, 3).n == 0);
	assert_int_equal(fake_draft(&f->fake, 0, 3).n, 3);
	end(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ngrams_are_cut_where_the_grammar_forbids_them),
		cmocka_unit_test(the_draft_model_picks_what_the_grammar_allows),
		cmocka_unit_test(a_grammar_that_is_wrong_is_drafted_without),
	};

	return cmocka_run_group_tests_name("grammars", tests, open_tokenizer, close_tokenizer);
}
