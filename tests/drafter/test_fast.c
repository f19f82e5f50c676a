/* The device's own library reads texts for the draft model (the setting `arithmetic`): where an answer's
 * bytes are free of its drafts, and nowhere else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/drafter/fake_verifier.h"
#include "tests/drafter/narrow.h"

#include "kernels/arithmetic.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#define MODEL "tests/data/golden/models/llama-dense.f32.gguf"
enum { TEXT = 40, SHORT = 8, K = 2 };

struct fixture {
	struct drafter_config config;
	struct worker worker;
	struct fake fake;
	struct worker_device_state now;
	int32_t text[TEXT];
};

static char draft[] = "/tmp/outrider-test-fast-XXXXXX";

/* A draft model on the CPU, which may go to the device. */
static struct fixture *make(const char *arithmetic)
{
	static struct fixture f;
	const char *const settings[] = {
		"run_ahead=off", "device=simt", "kv_tokens=4200", "context=1024", "chunk=256"};
	struct tokenizer *tokenizer;
	struct gguf *gguf;
	struct error err = {""};
	memset(&f, 0, sizeof(f));
	config_defaults(drafter_config_keys, &f.config);
	strcpy(f.config.draft, draft);
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
		assert_int_equal(
			config_set(settings[i], "test", drafter_config_keys, &f.config, &err), 0);
	assert_int_equal(config_set(arithmetic, "test", drafter_config_keys, &f.config, &err), 0);
	assert_int_equal(drafter_config_resolve(&f.config, &err), 0);
	if (worker_init(&f.worker, &f.config, NULL, NULL, &err) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(worker_start(&f.worker, &err), 0);
	assert_int_equal(gguf_open(draft, &gguf, &err), 0);
	assert_int_equal(tokenizer_load(gguf, &tokenizer, &err), 0);
	fake_open(&f.fake, tokenizer_fingerprint(tokenizer));
	tokenizer_free(&tokenizer);
	gguf_close(&gguf);
	fake_offer(&f.fake, &f.worker);
	for (uint32_t i = 0; i < TEXT; i++)
		f.text[i] = 3 + (int32_t)(i * 37 % 350);
	return &f;
}

static void place(struct fixture *f)
{
	f->now = fake_place(&f->worker, true);
	assert_true(f->now.there);
	assert_string_equal(f->now.refusal, "");
}

static void end(struct fixture *f)
{
	worker_exit(&f->worker);
	fake_close(&f->fake);
}

enum how { GREEDY, SAMPLED, MAXIMAL, BUDGETED, HOWS };

static void begin(struct fixture *f, uint32_t i, uint64_t uid, enum how how, uint32_t n)
{
	struct session_request *request =
		&fake_begin(&f->fake, i, uid, DRAFT_MODEL, f->text, n)->request;
	request->sampling.temperature = how == SAMPLED || how == MAXIMAL ? 0.9f : 0;
	request->sampling.coupling = how == MAXIMAL ? COUPLING_MAXIMAL : COUPLING_GUMBEL;
	request->sampling.seed = 7;
	request->budgeted = how == BUDGETED;
}

/* Drafts for a session of each kind, all in one round. */
static void draft_round(struct fixture *f, uint64_t uid, struct fake_drafted out[HOWS])
{
	for (uint32_t i = 0; i < HOWS; i++)
		begin(f, i, uid + i, (enum how)i, TEXT - i);
	for (uint32_t i = 0; i < HOWS; i++)
		fake_ask(&f->fake, i, uid + i, TEXT - i, K, i + 1 == HOWS);
	for (uint32_t i = 0; i < HOWS; i++) {
		static struct fake_drafted r;
		bool there = false;
		/* A busy machine emulates slowly. */
		for (int tries = 0; !there && tries < 20; tries++)
			there = fake_reply(&f->fake, &r);
		assert_true(there);
		assert_int_equal(r.method, DRAFT_MODEL);
		assert_int_equal(r.n, K);
		out[r.page] = r;
	}
}

static bool is_same(const struct fake_drafted *one, const struct fake_drafted *other)
{
	return memcmp(one->token, other->token, K * sizeof(*one->token)) == 0 &&
	       memcmp(one->confidence, other->confidence, K * sizeof(*one->confidence)) == 0 &&
	       memcmp(one->n_support, other->n_support, K * sizeof(*one->n_support)) == 0 &&
	       memcmp(one->q, other->q, K * sizeof(one->q[0])) == 0;
}

static uint64_t fast_tokens(const struct fixture *f)
{
	return f->worker.model->fast_tokens;
}

static void what_an_answer_depends_on_is_exact(void **state)
{
	(void)state;
	static struct fake_drafted cpu[HOWS], device[HOWS];
	struct fixture *f = make("arithmetic=auto");
	draft_round(f, 100, cpu);
	assert_int_equal(fast_tokens(f), 0);
	place(f);
	assert_in_range(f->now.arithmetic, ARITHMETIC_FAST, UINT32_MAX);
	draft_round(f, 200, device);
	/* Those of the greedy and of the sampled session; and, if there was time for it, those before the
	 * last one of such sessions as were there when the model moved. */
	uint64_t fast = fast_tokens(f), own = 2 * TEXT - 1;
	assert_true(fast == own || fast == own + own - 2);
	assert_false(is_same(&cpu[GREEDY], &device[GREEDY]));
	assert_int_equal(cpu[GREEDY].token[0], device[GREEDY].token[0]);
	assert_true(fabsf(cpu[GREEDY].confidence[0] - device[GREEDY].confidence[0]) < 0.02f);
	assert_false(is_same(&cpu[SAMPLED], &device[SAMPLED]));
	assert_true(cpu[MAXIMAL].support && is_same(&cpu[MAXIMAL], &device[MAXIMAL]));
	assert_true(is_same(&cpu[BUDGETED], &device[BUDGETED]));
	end(f);
}

static void a_few_tokens_are_exact(void **state)
{
	(void)state;
	struct fixture *f = make("arithmetic=auto");
	static struct fake_drafted cpu, device;
	begin(f, 0, 100, GREEDY, SHORT);
	cpu = fake_draft(&f->fake, 0, K);
	place(f);
	begin(f, 0, 200, GREEDY, SHORT);
	device = fake_draft(&f->fake, 0, K);
	assert_int_equal(device.method, DRAFT_MODEL);
	assert_true(is_same(&cpu, &device));
	assert_int_equal(fast_tokens(f), 0);
	end(f);
}

static void check_exact(const char *arithmetic)
{
	static struct fake_drafted cpu[HOWS], device[HOWS];
	struct fixture *f = make(arithmetic);
	draft_round(f, 100, cpu);
	place(f);
	draft_round(f, 200, device);
	assert_int_equal(f->now.arithmetic, KERNELS_ARITHMETIC);
	assert_int_equal(fast_tokens(f), 0);
	for (uint32_t i = 0; i < HOWS; i++)
		assert_true(is_same(&cpu[i], &device[i]));
	end(f);
}

static void a_setting_keeps_all_drafts_exact(void **state)
{
	(void)state;
	check_exact("arithmetic=exact");
}

static void without_a_library_drafts_are_exact(void **state)
{
	(void)state;
	setenv("OUTRIDER_SIMT_LIBRARY", "missing", 1);
	check_exact("arithmetic=auto");
	setenv("OUTRIDER_SIMT_LIBRARY", "broken", 1);
	check_exact("arithmetic=auto");
	unsetenv("OUTRIDER_SIMT_LIBRARY");
}

static int make_file(void **state)
{
	(void)state;
	int fd = mkstemp(draft);
	assert_true(fd >= 0);
	close(fd);
	narrow_file(MODEL, draft);
	return 0;
}

static int remove_file(void **state)
{
	(void)state;
	return unlink(draft);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_an_answer_depends_on_is_exact),
		cmocka_unit_test(a_few_tokens_are_exact),
		cmocka_unit_test(a_setting_keeps_all_drafts_exact),
		cmocka_unit_test(without_a_library_drafts_are_exact),
	};
	return cmocka_run_group_tests(tests, make_file, remove_file);
}
