/* A draft model for targets whose vocabulary has another size, or other tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/drafter/fake_verifier.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DRAFT "models/outrider-demo-draft-small-q8_0.gguf"

enum { K = 6 };
static const int32_t prompt[] = {30, 40, 50, 60, 70};

static struct gguf *draft_file;
static uint32_t n_draft;
static char target_path[] = "/tmp/outrider-vocabulary-XXXXXX";

static struct fixture {
	struct drafter_config config;
	struct worker worker;
	struct fake fake;
} f;

static void put(FILE *out, const void *data, size_t n)
{
	assert_int_equal(fwrite(data, 1, n, out), n);
}

static void put_u32(FILE *out, uint32_t v)
{
	put(out, &v, sizeof(v));
}

static void put_u64(FILE *out, uint64_t v)
{
	put(out, &v, sizeof(v));
}

static void put_string(FILE *out, const char *s, size_t n)
{
	put_u64(out, n);
	put(out, s, n);
}

static void put_key(FILE *out, const char *key, uint32_t type)
{
	put_string(out, key, strlen(key));
	put_u32(out, type);
}

/* A file with n tokens, the draft's as far as it has them, but for token `changed`. Returns the tokenizer's
 * fingerprint. */
static uint64_t write_target(uint32_t n, uint32_t changed)
{
	FILE *out = fopen(target_path, "wb");
	struct error err = {""};
	struct gguf *gguf;
	struct tokenizer *tokenizer;
	assert_non_null(out);
	put(out, "GGUF", 4);
	put_u32(out, 3);
	put_u64(out, 0);
	put_u64(out, 3);
	put_key(out, "tokenizer.ggml.model", 8);
	put_string(out, "gpt2", 4);
	put_key(out, "tokenizer.ggml.merges", 9);
	put_u32(out, 8);
	put_u64(out, 0);
	put_key(out, "tokenizer.ggml.tokens", 9);
	put_u32(out, 8);
	put_u64(out, n);
	for (uint32_t i = 0; i < n; i++) {
		char padding[32];
		struct gguf_string s = gguf_array_string(draft_file, "tokenizer.ggml.tokens", i);
		snprintf(padding, sizeof(padding), "[PAD%u]", i);
		if (i < n_draft && i != changed)
			put_string(out, s.data, s.bytes);
		else
			put_string(out, padding, strlen(padding));
	}
	assert_int_equal(fclose(out), 0);
	assert_int_equal(gguf_open(target_path, &gguf, &err), 0);
	if (tokenizer_load(gguf, &tokenizer, &err))
		fail_msg("%s", err.text);
	uint64_t fingerprint = tokenizer_fingerprint(tokenizer);
	tokenizer_free(&tokenizer);
	gguf_close(&gguf);
	return fingerprint;
}

static int open_all(void **state)
{
	struct error err = {""};
	uint64_t n;
	enum gguf_value_type type;
	(void)state;
	if (access(DRAFT, R_OK) != 0) {
		print_message("# SKIP " DRAFT " is not here\n");
		return 0;
	}
	assert_int_equal(gguf_open(DRAFT, &draft_file, &err), 0);
	assert_int_equal(gguf_get_array(draft_file, "tokenizer.ggml.tokens", &type, &n, &err), 0);
	n_draft = (uint32_t)n;
	int fd = mkstemp(target_path);
	assert_true(fd >= 0);
	close(fd);
	return 0;
}

static int close_all(void **state)
{
	(void)state;
	if (draft_file)
		unlink(target_path);
	gguf_close(&draft_file);
	return 0;
}

static void start(void)
{
	struct error err = {""};
	if (!draft_file)
		skip();
	memset(&f, 0, sizeof(f));
	config_defaults(drafter_config_keys, &f.config);
	strcpy(f.config.draft, DRAFT);
	assert_int_equal(
		config_set("run_ahead=off", "test", drafter_config_keys, &f.config, &err), 0);
	assert_int_equal(drafter_config_resolve(&f.config, &err), 0);
	if (worker_init(&f.worker, &f.config, NULL, NULL, &err) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(worker_start(&f.worker, &err), 0);
}

/* The verifier's regions for a target with n tokens. */
static void offer(uint32_t n, uint32_t changed)
{
	fake_open(&f.fake, write_target(n, changed));
	strcpy(f.fake.header->model_path, target_path);
	fake_offer(&f.fake, &f.worker);
}

static struct fake_drafted draft(uint64_t uid)
{
	fake_begin(&f.fake, 0, uid, DRAFT_MODEL, prompt, 5);
	return fake_draft(&f.fake, 0, K);
}

static void end(void)
{
	worker_exit(&f.worker);
	fake_close(&f.fake);
}

static void assert_not_refused(void)
{
	char refusal[400];
	worker_refusal(&f.worker, refusal, sizeof(refusal));
	assert_string_equal(refusal, "");
}

static void a_target_padded_to_more_tokens_gets_the_same_drafts(void **state)
{
	(void)state;
	start();
	offer(n_draft, UINT32_MAX);
	struct fake_drafted same = draft(100);
	fake_close(&f.fake);
	offer(n_draft + 64, UINT32_MAX);
	struct fake_drafted padded = draft(101);
	assert_not_refused();
	assert_int_equal(padded.method, DRAFT_MODEL);
	assert_int_equal(padded.n, K);
	assert_memory_equal(padded.token, same.token, K * sizeof(int32_t));
	end();
}

/* The draft model's favourite lies beyond the target's vocabulary: it has to say something else. */
static void tokens_that_the_target_lacks_are_never_drafted(void **state)
{
	(void)state;
	start();
	offer(n_draft, UINT32_MAX);
	struct fake_drafted all = draft(100);
	uint32_t n = 71;
	for (int i = 0; i < K; i++)
		n = (uint32_t)all.token[i] > n ? (uint32_t)all.token[i] : n;
	fake_close(&f.fake);
	/* Without the largest token that it drafted. */
	offer(n, UINT32_MAX);
	struct fake_drafted fewer = draft(101);
	assert_not_refused();
	assert_int_equal(fewer.method, DRAFT_MODEL);
	assert_int_equal(fewer.n, K);
	for (int i = 0; i < K; i++)
		assert_in_range(fewer.token[i], 0, n - 1);
	assert_memory_not_equal(fewer.token, all.token, K * sizeof(int32_t));
	/* At random too, with a bias that the target has no token for. */
	struct session_page *page = fake_begin(&f.fake, 1, 200, DRAFT_MODEL, prompt, 5);
	page->request.sampling.temperature = 1.5f;
	page->request.sampling.n_biases = 1;
	page->request.sampling.biases[0] = (struct logit_bias){.token = (int32_t)n, .bias = 1000};
	for (uint64_t seed = 1; seed <= 8; seed++) {
		page->request.sampling.seed = seed;
		page->request.sampling.coupling = seed % 2 ? COUPLING_GUMBEL : COUPLING_MAXIMAL;
		atomic_store(&page->uid, 200 + seed);
		struct fake_drafted r = fake_draft(&f.fake, 1, K);
		assert_int_equal(r.n, K);
		for (int i = 0; i < K; i++) {
			assert_in_range(r.token[i], 0, n - 1);
			for (uint32_t j = 0; j < r.n_support[i]; j++)
				assert_in_range(r.q[i][j].token, 0, n - 1);
		}
	}
	end();
}

/* The target emits a token of its own: from there on the session's drafts are n-grams, the others' are not. */
static void a_token_that_the_draft_model_lacks_ends_its_drafts_for_the_session(void **state)
{
	(void)state;
	start();
	offer(n_draft + 64, UINT32_MAX);
	struct fake_drafted r = draft(100);
	assert_int_equal(r.method, DRAFT_MODEL);
	struct session_page *page = session_at(f.fake.header, f.fake.header, 0);
	int32_t own = (int32_t)n_draft + 7;
	fake_commit(page, r.token, 2);
	fake_commit(page, &own, 1);
	fake_commit(page, prompt, 2);
	r = fake_draft(&f.fake, 0, K);
	assert_int_equal(r.method, DRAFT_NGRAM);
	assert_int_equal(r.token[0], prompt[2]);
	fake_begin(&f.fake, 1, 101, DRAFT_MODEL, prompt, 5);
	assert_int_equal(fake_draft(&f.fake, 1, K).method, DRAFT_MODEL);
	assert_not_refused();
	end();
}

static void one_other_string_is_refused_by_its_number(void **state)
{
	char refusal[400];
	(void)state;
	start();
	offer(n_draft + 64, 77);
	assert_int_equal(draft(100).method, DRAFT_NGRAM);
	worker_refusal(&f.worker, refusal, sizeof(refusal));
	assert_non_null(strstr(refusal, "token 77 "));
	assert_non_null(strstr(refusal, "[PAD77]"));
	assert_non_null(strstr(refusal, DRAFT));
	assert_non_null(strstr(refusal, target_path));
	end();
}

static void a_target_file_that_is_not_the_verifiers_is_refused(void **state)
{
	char refusal[400];
	(void)state;
	start();
	offer(n_draft + 64, UINT32_MAX);
	assert_int_equal(draft(100).method, DRAFT_MODEL);
	/* Replaced behind the verifier's back. */
	struct fake old = f.fake;
	fake_open(&f.fake, old.header->tokenizer_fingerprint + 1);
	strcpy(f.fake.header->model_path, target_path);
	fake_close(&old);
	fake_offer(&f.fake, &f.worker);
	assert_int_equal(draft(101).method, DRAFT_NGRAM);
	worker_refusal(&f.worker, refusal, sizeof(refusal));
	assert_non_null(strstr(refusal, "not the one that the verifier has"));
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_target_padded_to_more_tokens_gets_the_same_drafts),
		cmocka_unit_test(tokens_that_the_target_lacks_are_never_drafted),
		cmocka_unit_test(
			a_token_that_the_draft_model_lacks_ends_its_drafts_for_the_session),
		cmocka_unit_test(one_other_string_is_refused_by_its_number),
		cmocka_unit_test(a_target_file_that_is_not_the_verifiers_is_refused),
	};
	return cmocka_run_group_tests(tests, open_all, close_all);
}
