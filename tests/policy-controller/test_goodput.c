/* goodput: yield's choice for a batch, within targets. Costs and acceptance are planted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <math.h>

#include <cmocka.h>

#include "services/policy-controller/controller.h"
#include "shared/base/rand.h"

#include <stdlib.h>
#include <string.h>

enum { SESSIONS_MAX = 64 };

/* A batch whose pass takes fixed + token * tokens ns; session i has its drafted tokens accepted with
 * accepts[i]. */
struct batch {
	struct policy_page page;
	struct controller controller;
	uint32_t n, n_context[SESSIONS_MAX];
	uint64_t iteration;
	uint32_t class_tpot_us[SESSIONS_MAX], class_ttft_us[SESSIONS_MAX];
	double fixed, token, accepts[SESSIONS_MAX];
	struct policy_trial trials[SESSIONS_MAX];
	double tokens, ns, k_sum[SESSIONS_MAX]; /* sums over the passes */
};

static struct batch *make_batch(const char *policy, uint32_t n, double fixed, double token)
{
	struct settings settings;
	struct batch *b = calloc(1, sizeof(*b));

	assert_non_null(b);
	config_defaults(settings_keys, &settings);
	snprintf(settings.policy, sizeof(settings.policy), "%s", policy);
	settings.k_max = 7;
	assert_int_equal(settings_check(&settings, NULL), 0);
	controller_init(&b->controller, &b->page, &settings);
	b->n = n;
	b->fixed = fixed;
	b->token = token;
	for (uint32_t i = 0; i < n; i++)
		b->n_context[i] = 100;
	return b;
}

static void set_targets(struct batch *b, int64_t tpot_ns, int64_t ttft_ns)
{
	struct settings settings = *controller_settings(&b->controller, 0);

	settings.tpot_ns = tpot_ns;
	settings.ttft_ns = ttft_ns;
	assert_int_equal(controller_set(&b->controller, &settings, 0, 1, NULL), 0);
}

static double draw(const struct batch *b, uint32_t session, uint32_t position)
{
	return rand_uniform(7, RAND_REPLAY, b->iteration * SESSIONS_MAX + session, position);
}

static void pass(struct batch *b)
{
	struct iteration_record records[SESSIONS_MAX];
	uint32_t tokens = b->n;

	b->iteration++;
	for (uint32_t i = 0; i < b->n; i++) {
		struct iteration_record *r = &records[i];
		struct policy_session knobs;

		policy_lookup(&b->page, i, i + 1, &knobs);
		uint32_t k = policy_next_k(&knobs, &b->trials[i]);
		*r = (struct iteration_record){.session = i + 1,
			.page = i,
			.iteration = b->iteration,
			.k = (uint8_t)k,
			.depth = (uint8_t)k,
			.drafted = (uint16_t)k,
			.method = DRAFT_NGRAM,
			.decision = (uint32_t)knobs.decision,
			.tpot_us = b->class_tpot_us[i],
			.ttft_us = b->class_ttft_us[i],
			.batch_sessions = (uint16_t)b->n};
		while (r->accepted < k && draw(b, i, r->accepted) < b->accepts[i])
			r->accepted++;
		r->emitted = (uint8_t)(r->accepted + 1);
		memset(r->confidence, POLICY_CONFIDENCE, k);
		r->n_context = b->n_context[i] += r->emitted;
		tokens += k;
		b->tokens += r->emitted;
		b->k_sum[i] += k;
	}
	double ns = b->fixed + b->token * tokens;
	b->ns += ns;
	for (uint32_t i = 0; i < b->n; i++) {
		records[i].batch_tokens = tokens;
		records[i].iteration_ns = (uint64_t)ns;
		records[i].finished_ns = (uint64_t)b->ns;
		assert_non_null(controller_record(&b->controller, &records[i]));
	}
	controller_settle(&b->controller);
}

static void run(struct batch *b, uint32_t passes)
{
	for (uint32_t i = 0; i < passes; i++)
		pass(b);
}

/* From here on. */
static void forget_sums(struct batch *b)
{
	b->tokens = b->ns = 0;
	memset(b->k_sum, 0, sizeof(b->k_sum));
}

/* Tokens per ns of the best fixed K for all, and in *best that K. */
static double best_fixed(const struct batch *b, uint32_t *best)
{
	double most = 0;

	for (uint32_t k = 0; k <= 7; k++) {
		double tokens = b->n;

		for (uint32_t i = 0; i < b->n; i++)
			for (uint32_t j = 1; j <= k; j++)
				tokens += pow(b->accepts[i], j);
		double rate = tokens / (b->fixed + b->token * b->n * (k + 1));
		if (rate > most) {
			most = rate;
			*best = k;
		}
	}
	return most;
}

/* Where a token costs little, drafts pay at every size of batch; where tokens are all that costs,
 * tau is 1 / (gamma + 1) and they pay at none. */
static void budgets_are_near_the_best_fixed_one(void **state)
{
	(void)state;
	for (uint32_t n = 1; n <= SESSIONS_MAX; n *= 4)
		for (int dear = 0; dear < 2; dear++) {
			struct batch *b = make_batch(
				"goodput", n, dear ? 1e4 : 5e6, dear ? 1e6 : 5e6 / 40 / n);
			uint32_t best = 0;

			for (uint32_t i = 0; i < n; i++)
				b->accepts[i] = 0.8;
			run(b, 300);
			forget_sums(b);
			run(b, 500);
			double most = best_fixed(b, &best);
			assert_true(dear ? best == 0 : best > 2);
			assert_true(b->tokens / b->ns > 0.97 * most);
			free(b);
		}
}

/* Each session has a draft budget of its own: one fixed K for both is worse. */
static void sessions_that_accept_more_draft_more(void **state)
{
	struct batch *b = make_batch("goodput", 8, 4e6, 4e5);
	uint32_t best = 0;

	(void)state;
	for (uint32_t i = 0; i < 8; i++)
		b->accepts[i] = i < 4 ? 0.95 : 0.1;
	run(b, 300);
	forget_sums(b);
	run(b, 500);
	assert_true(b->k_sum[0] > 4 * b->k_sum[7] && b->k_sum[0] / 500 > 2);
	assert_true(b->tokens / b->ns > 1.02 * best_fixed(b, &best));
	free(b);
}

/* Sessions 1 to 7 accept nearly all, and would draft much; the drafts make each pass longer for
 * session 0, which accepts nothing. */
static struct batch *uneven(const char *policy)
{
	struct batch *b = make_batch(policy, 8, 4e6, 1e5);

	for (uint32_t i = 0; i < 8; i++)
		b->accepts[i] = i > 0 ? 0.9 : 0.02;
	return b;
}

static double ns_of_passes(struct batch *b)
{
	run(b, 300);
	forget_sums(b);
	run(b, 300);
	return b->ns / 300;
}

static double k_of_all(const struct batch *b)
{
	double sum = 0;

	for (uint32_t i = 0; i < b->n; i++)
		sum += b->k_sum[i];
	return sum;
}

static void a_target_bounds_the_time_of_a_token(void **state)
{
	struct batch *free_one = uneven("goodput"), *bound = uneven("goodput"),
		     *plain = uneven("yield");

	(void)state;
	set_targets(bound, 6000000, 0);
	set_targets(plain, 6000000, 0); /* yield has no targets */
	double without = ns_of_passes(free_one), with = ns_of_passes(bound);
	assert_true(without > 7e6);
	assert_true(with < 6.1e6 && with > 5e6);
	assert_true(k_of_all(bound) > 300 && k_of_all(bound) < 0.8 * k_of_all(free_one));
	assert_true(ns_of_passes(plain) > 7e6);
	free(free_one);
	free(bound);
	free(plain);
}

/* The stricter one of the session's class and of the settings holds. */
static void so_does_the_target_of_a_class(void **state)
{
	struct batch *of_class = uneven("goodput"), *both = uneven("goodput"),
		     *first = uneven("goodput");

	(void)state;
	of_class->class_tpot_us[3] = both->class_tpot_us[3] = 12000;
	of_class->class_tpot_us[0] = 6000;
	set_targets(both, 6000000, 0);
	first->class_ttft_us[5] = 5500;
	assert_true(ns_of_passes(of_class) < 6.1e6 && k_of_all(of_class) > 300);
	assert_true(ns_of_passes(both) < 6.1e6 && k_of_all(both) > 300);
	assert_true(ns_of_passes(first) < 5.6e6 && k_of_all(first) > 300);
	free(of_class);
	free(both);
	free(first);
}

static void a_target_for_first_tokens_bounds_passes(void **state)
{
	struct batch *b = uneven("goodput");

	(void)state;
	set_targets(b, 0, 5500000);
	assert_true(ns_of_passes(b) < 5.6e6);
	assert_true(k_of_all(b) > 300);
	free(b);
}

/* Not even K = 0 keeps the target: the least lateness is that without drafts, and it is said. */
static void targets_that_cannot_be_kept_are_missed_by_the_least(void **state)
{
	struct batch *b = uneven("goodput");
	static struct explanation e;
	bool said = false;

	(void)state;
	set_targets(b, 1000000, 0);
	assert_true(ns_of_passes(b) < 5e6);
	assert_int_equal(explain_session(&b->controller, 1, &e), 0);
	for (uint32_t i = 0; i < e.n_words; i++)
		said = said || strstr(e.words[i], "No K keeps the targets") != NULL;
	assert_true(said);
	free(b);
}

/* Alone, a session keeps a target by drafting that it would miss without. */
static void drafts_help_to_keep_a_target(void **state)
{
	struct batch *b = make_batch("goodput", 1, 4e6, 1e5);

	(void)state;
	b->accepts[0] = 0.9;
	set_targets(b, 2000000, 0);
	ns_of_passes(b);
	assert_true(b->ns / b->tokens < 2e6);
	free(b);
}

static void it_explains_itself_by_tau_and_lambda(void **state)
{
	struct batch *b = uneven("goodput");
	static struct explanation e;
	bool said = false, target = false;

	(void)state;
	set_targets(b, 6000000, 0);
	run(b, 300);
	assert_int_equal(explain_session(&b->controller, 4, &e), 0);
	for (uint32_t i = 0; i < e.n_words; i++) {
		said = said || strstr(e.words[i], "1 / lambda") != NULL;
		target = target || strstr(e.words[i], "Target: 6.000 ms per token") != NULL;
	}
	assert_true(said && target);
	free(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(budgets_are_near_the_best_fixed_one),
		cmocka_unit_test(sessions_that_accept_more_draft_more),
		cmocka_unit_test(a_target_bounds_the_time_of_a_token),
		cmocka_unit_test(so_does_the_target_of_a_class),
		cmocka_unit_test(a_target_for_first_tokens_bounds_passes),
		cmocka_unit_test(targets_that_cannot_be_kept_are_missed_by_the_least),
		cmocka_unit_test(drafts_help_to_keep_a_target),
		cmocka_unit_test(it_explains_itself_by_tau_and_lambda),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
