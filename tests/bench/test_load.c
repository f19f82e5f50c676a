/* outrider-bench load: when requests arrive, what traces say, and what prompts consist of. */
#include "bench/src/load_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const struct load_range one = {1, 1};

static struct load_plan planned(const char *how, double rate, size_t n, double seconds)
{
	struct load_plan plan = {0};
	struct load_arrivals arrivals;
	struct error err = {""};

	assert_int_equal(load_arrivals_parse(how, &arrivals, &err), 0);
	assert_int_equal(
		load_plan_random(&plan, &arrivals, rate, n, seconds, one, one, 7, &err), 0);
	for (size_t i = 1; i < plan.n; i++)
		assert_true(plan.arrivals[i].due_s >= plan.arrivals[i - 1].due_s);
	return plan;
}

/* The mean and the squared coefficient of variation of the times between requests. */
static void gaps(const struct load_plan *plan, double *mean, double *variation)
{
	double sum = 0, squares = 0, before = 0, n = (double)plan->n;

	for (size_t i = 0; i < plan->n; i++) {
		double gap = plan->arrivals[i].due_s - before;

		before = plan->arrivals[i].due_s;
		sum += gap;
		squares += gap * gap;
	}
	*mean = sum / n;
	*variation = squares / n / (*mean * *mean) - 1;
}

/* Times between requests of a gamma process vary by 1 / shape; Poisson's shape is 1. */
static void random_arrivals_have_their_rate_and_variation(void **state)
{
	static const struct {
		const char *how;
		double variation;
	} cases[] = {{"poisson", 1}, {"gamma:0.25", 4}, {"gamma:1", 1}, {"gamma:5", 0.2}};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct load_plan plan = planned(cases[i].how, 5, 40000, 0);
		double mean, variation;

		assert_int_equal(plan.n, 40000);
		gaps(&plan, &mean, &variation);
		assert_true(fabs(mean * 5 - 1) < 0.04);
		assert_true(fabs(variation / cases[i].variation - 1) < 0.1);
		load_plan_free(&plan);
	}
}

static void bursts_come_in_their_time_only(void **state)
{
	struct load_plan plan = planned("bursts:2,3", 10, 0, 500);

	(void)state;
	assert_true(plan.n > 4500 && plan.n < 5500);
	for (size_t i = 0; i < plan.n; i++)
		assert_true(fmod(plan.arrivals[i].due_s, 5) < 2 + 1e-9);
	load_plan_free(&plan);
}

static void closed_requests_are_due_at_once(void **state)
{
	struct load_plan plan = planned("closed", 10, 9, 0);

	(void)state;
	assert_int_equal(plan.n, 9);
	assert_true(plan.closed && plan.arrivals[8].due_s <= 0);
	load_plan_free(&plan);
}

static void bad_processes_are_refused(void **state)
{
	static const char *const bad[] = {"", "poison", "gamma", "gamma:0", "gamma:x", "gamma:1x",
		"bursts:1", "bursts:0,1", "bursts:1,2,3", "bursts:1,-2"};
	struct load_arrivals arrivals;
	struct error err;

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		err.text[0] = '\0';
		assert_int_equal(load_arrivals_parse(bad[i], &arrivals, &err), -EINVAL);
		assert_non_null(strstr(err.text, "--arrivals"));
	}
}

static int read_trace(const char *text, const struct load_replay *replay, struct load_plan *plan,
	struct error *err)
{
	char path[] = "/tmp/test-load-XXXXXX";
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
	*plan = (struct load_plan){0};
	int code = load_plan_trace(plan, path, replay, err);
	unlink(path);
	return code;
}

static const struct load_replay as_it_is = {1, 1, 0, 0};

static void azure_traces_are_read(void **state)
{
	const struct load_replay faster = {2, 0.5, 0, 0}, few = {1, 1, 2, 0}, early = {1, 1, 0, 3};
	static const char text[] = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
				   "2023-11-16 23:59:59.5000000,374,44\r\n"
				   "2023-11-17 00:00:01.2500000,396,109\r\n"
				   "2023-11-17 00:00:04,1,0\r\n";
	struct load_plan plan;
	struct error err = {""};

	(void)state;
	assert_int_equal(read_trace(text, &as_it_is, &plan, &err), 0);
	assert_int_equal(plan.n, 3);
	assert_true(fabs(plan.arrivals[1].due_s - 1.75) < 1e-4);
	assert_true(fabs(plan.arrivals[2].due_s - 4.5) < 1e-4);
	assert_int_equal(plan.arrivals[1].prompt_tokens, 396);
	assert_int_equal(plan.arrivals[1].output_tokens, 109);
	assert_int_equal(plan.arrivals[2].output_tokens, 1); /* an answer has a token */
	load_plan_free(&plan);
	assert_int_equal(read_trace(text, &faster, &plan, &err), 0);
	assert_true(fabs(plan.arrivals[2].due_s - 2.25) < 1e-4);
	assert_int_equal(plan.arrivals[0].prompt_tokens, 187);
	load_plan_free(&plan);
	assert_int_equal(read_trace(text, &few, &plan, &err), 0);
	assert_int_equal(plan.n, 2);
	load_plan_free(&plan);
	assert_int_equal(read_trace(text, &early, &plan, &err), 0);
	assert_int_equal(plan.n, 2);
	load_plan_free(&plan);
	/* The newer traces have an offset from UTC, and other columns may be there. */
	assert_int_equal(read_trace("GeneratedTokens,Other,ContextTokens,TIMESTAMP\n"
				    "5,x,9,2024-05-10 00:00:00.009930+00:00\n"
				    "6,x,8,2024-05-10 00:00:00.509930+00:00\n",
				 &as_it_is, &plan, &err),
		0);
	assert_true(fabs(plan.arrivals[1].due_s - 0.5) < 1e-4);
	assert_int_equal(plan.arrivals[1].prompt_tokens, 8);
	load_plan_free(&plan);
}

static void fill_prompt(const struct load_plan *plan, size_t i, uint32_t shared, int32_t *out)
{
	static const int32_t avoid[] = {3};
	const struct load_prompts prompts = {.vocabulary = 1000,
		.avoid = avoid,
		.n_avoid = 1,
		.first = -1,
		.shared = shared,
		.groups = 2,
		.seed = 5};

	load_prompt(&prompts, plan, i, out);
	for (uint32_t t = 0; t < plan->arrivals[i].prompt_tokens; t++)
		assert_true(out[t] >= 0 && out[t] < 1000 && out[t] != 3);
}

/* Equal blocks of Mooncake's prompts are equal tokens, at half the length too. */
static void mooncake_prompts_share_their_blocks(void **state)
{
	const struct load_replay half = {1, 0.5, 0, 0};
	static int32_t a[1000], b[1000];
	struct load_plan plan;
	struct error err = {""};

	(void)state;
	assert_int_equal(
		read_trace("{\"timestamp\": 0, \"input_length\": 1100, \"output_length\": 500, "
			   "\"hash_ids\": [0, 1, 2]}\n"
			   "{\"timestamp\": 3052, \"input_length\": 1200, \"output_length\": 490, "
			   "\"hash_ids\": [0, 3, 2]}\n",
			&half, &plan, &err),
		0);
	assert_int_equal(plan.n, 2);
	assert_true(fabs(plan.arrivals[1].due_s - 3.052) < 1e-9);
	assert_int_equal(plan.arrivals[0].prompt_tokens, 550);
	fill_prompt(&plan, 0, 0, a);
	fill_prompt(&plan, 1, 0, b);
	assert_memory_equal(a, b, 256 * sizeof *a);
	assert_memory_equal(a + 512, b + 512, 38 * sizeof *a);
	size_t alike = 0;
	for (size_t t = 256; t < 512; t++)
		alike += a[t] == b[t];
	assert_true(alike < 10);
	load_plan_free(&plan);
}

static void bad_traces_are_refused_by_line(void **state)
{
	static const struct {
		const char *text, *says;
	} cases[] = {
		{"TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,1\n", "GeneratedTokens is missing"},
		{"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1\n", ":2: "},
		{"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,2\n"
		 "2023-11-16 18:15:45,1,2\n",
			":3: it is earlier"},
		{"TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,2\n", ":2: TIMESTAMP now"},
		{"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,-1,2\n", ":2: "},
		{"TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"},
		{"{\"timestamp\": 0, \"input_length\": 1}\n", ":1: output_length"},
		{"{\"timestamp\": 0, \"input_length\": \"1\", \"output_length\": 1}\n",
			":1: input_length"},
		{"{\"timestamp\": 0,\n", ":1: "},
		{"", "no requests"},
	};
	struct load_plan plan;

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct error err = {""};

		assert_int_equal(read_trace(cases[i].text, &as_it_is, &plan, &err), -EINVAL);
		assert_non_null(strstr(err.text, cases[i].says));
		load_plan_free(&plan);
	}
}

static void prompts_of_a_group_begin_alike(void **state)
{
	struct load_plan plan = {0};
	int32_t prompt[4][64];

	(void)state;
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(
			load_plan_add(&plan, &(struct load_arrival){.prompt_tokens = 64}, NULL, 0),
			0);
	for (size_t i = 0; i < 4; i++)
		fill_prompt(&plan, i, 40, prompt[i]);
	assert_memory_equal(prompt[0], prompt[2], 40 * sizeof(int32_t));
	assert_memory_equal(prompt[1], prompt[3], 40 * sizeof(int32_t));
	assert_memory_not_equal(prompt[0], prompt[1], 40 * sizeof(int32_t));
	assert_memory_not_equal(prompt[0] + 40, prompt[2] + 40, 24 * sizeof(int32_t));
	load_plan_free(&plan);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_arrivals_have_their_rate_and_variation),
		cmocka_unit_test(bursts_come_in_their_time_only),
		cmocka_unit_test(closed_requests_are_due_at_once),
		cmocka_unit_test(bad_processes_are_refused),
		cmocka_unit_test(azure_traces_are_read),
		cmocka_unit_test(mooncake_prompts_share_their_blocks),
		cmocka_unit_test(bad_traces_are_refused_by_line),
		cmocka_unit_test(prompts_of_a_group_begin_alike),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
