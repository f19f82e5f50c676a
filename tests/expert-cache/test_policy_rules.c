/* The rules of the papers, against examples computed by hand: utility, threshold, cutoff layer, activation matrices. */
#include "services/expert-cache/policies/published/balancer.h"
#include "services/expert-cache/policies/published/cutoff.h"
#include "services/expert-cache/policies/expectation.h"
#include "shared/spec/profile.h"
#include "services/expert-cache/policies/published/traces.h"
#include "shared/spec/utility.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- MoE-SpAc, algorithm 1. ---- */

static void utility_follows_frequencies_with_inertia(void **state)
{
	(void)state;
	struct utility u;
	struct error err;
	/* gamma 8: both boundaries begin at 4. {f, s, up, down after it} */
	static const uint32_t steps[][4] = {
		{3, 0, 3, 4}, /* D 3 < 4; up = floor(3.6 + 0.3) */
		{3, 0, 3, 4}, /* D 0 */
		{6, 1, 3, 4}, /* D 3 >= 3; up = floor(2.7 + 0.3) */
		{2, 0, 3, 4}, /* D -4; down = floor(3.6 + 0.4) */
		{0, 0, 3, 3}, /* D -2 holds; down = floor(3.6 + 0.2) */
		{10, 1, 3, 3}, /* D 10; up = floor(2.7 + 1.0) */
		{30, 2, 4, 3}, /* D 20; up = floor(2.7 + 2.0) */
		{0, 1, 4, 5}, /* D -30; down = floor(2.7 + 3.0) */
	};
	assert_int_equal(utility_init(&u, 2, 8, &err), 0);
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		assert_int_equal(utility_step(&u, 1, steps[i][0]), steps[i][1]);
		assert_int_equal(u.of[1].up, steps[i][2]);
		assert_int_equal(u.of[1].down, steps[i][3]);
	}
	assert_int_equal(u.of[0].score, 0);
	utility_exit(&u);
}

static void utility_stays_in_its_bounds(void **state)
{
	(void)state;
	struct utility u;
	struct error err;
	/* gamma 1: floor(1 / 2) = 0, taken as 1, or an unused expert would rise for ever. */
	assert_int_equal(utility_init(&u, 1, 1, &err), 0);
	assert_int_equal(u.of[0].up, 1);
	for (int i = 0; i < 9; i++)
		assert_int_equal(utility_step(&u, 0, 0), 0);
	/* K_u <= gamma. */
	for (uint32_t f = 1; f <= 9; f++)
		assert_int_equal(utility_step(&u, 0, f), 1);
	for (uint32_t gamma = 2; gamma <= 8; gamma++) {
		utility_begin(&u, gamma);
		assert_int_equal(u.of[0].score, 0);
		assert_int_equal(u.of[0].up, gamma / 2);
		uint32_t bound = gamma < UTILITY_BOUND ? gamma : UTILITY_BOUND;
		for (uint32_t i = 1; i <= 9; i++)
			assert_int_equal(utility_step(&u, 0, 4 * i), i < bound ? i : bound);
		for (uint32_t i = 9; i-- > 0;)
			assert_in_range(utility_step(&u, 0, 4 * i), 0, bound);
		assert_int_equal(u.of[0].score, 0);
	}
	utility_exit(&u);
}

/* A frequency among 2 tokens is one among 8; what the bound allows is kept, and boundaries begin again. */
static void utility_follows_another_length_of_steps(void **state)
{
	(void)state;
	struct utility u;
	struct error err;
	assert_int_equal(utility_init(&u, 2, 7, &err), 0);
	for (uint32_t f = 0; f <= 8; f += 4)
		utility_step(&u, 0, f);
	assert_int_equal(utility_step(&u, 0, 16), 3);
	utility_follow(&u, 7, 1);
	assert_int_equal(u.of[0].score, 1);
	assert_int_equal(u.of[0].frequency, 4);
	assert_int_equal(u.of[0].up, 1);
	assert_int_equal(u.of[0].down, 1);
	assert_int_equal(utility_step(&u, 0, 9), 1);
	utility_follow(&u, 1, 15);
	assert_int_equal(u.of[0].frequency, 72);
	assert_int_equal(u.of[0].up, 7);
	/* The same share of the tokens changes nothing; more than before is more. */
	assert_int_equal(utility_step(&u, 0, 72), 1);
	assert_int_equal(utility_step(&u, 0, 79), 2);
	assert_int_equal(u.of[1].score, 0);
	utility_exit(&u);
}

/* ---- MoE-SpAc, the balancer. ---- */

static void the_threshold_balances_the_link_against_computing(void **state)
{
	(void)state;
	struct balancer_inputs in = {
		.bound = UTILITY_BOUND, .used = {0, 1, 8, 0, 0}, .load_ns = 8, .compute_ns = 1};
	for (int s = 0; s <= UTILITY_BOUND; s++)
		in.slots_left[s] = 100;
	/* tau 1: |0 - 9|; tau 2: |8 - 8|; tau 3: |72 - 0|. */
	assert_int_equal(balancer_threshold(&in), 2);
	in.load_ns = 1;
	/* tau 1: 9; tau 2: |1 - 8| = 7; tau 3: |9 - 0| = 9. */
	assert_int_equal(balancer_threshold(&in), 2);
	in.used[1] = 9;
	in.used[2] = 0;
	/* tau 1: |0 - 9|, tau 2 and on: |9 - 0|: the first. */
	assert_int_equal(balancer_threshold(&in), 1);
}

static void what_the_link_or_the_slots_cannot_take_is_not_prefetched(void **state)
{
	(void)state;
	struct balancer_inputs in = {.bound = UTILITY_BOUND,
		.used = {0, 1, 8, 0, 0},
		.wanted = {0, 50, 2, 1, 0},
		.load_ns = 8,
		.compute_ns = 1};
	for (int s = 0; s <= UTILITY_BOUND; s++)
		in.slots_left[s] = 100;
	/* tau 2: 8 (2 + 1) > max(8, 8): not feasible; tau 3: 8 <= 72; tau 1 neither. */
	assert_int_equal(balancer_threshold(&in), 3);
	/* With drafting time of 16 per layer tau 2 is. */
	in.window_ns = 16;
	assert_int_equal(balancer_threshold(&in), 2);
	in.slots_left[2] = 2;
	assert_int_equal(balancer_threshold(&in), 3);
	for (int s = 0; s <= UTILITY_BOUND; s++)
		in.wanted[s] = 1000;
	assert_int_equal(balancer_threshold(&in), UTILITY_BOUND);
	in.bound = 2;
	assert_int_equal(balancer_threshold(&in), 2);
}

/* ---- SP-MoE. ---- */

static void the_cutoff_is_the_last_layer_whose_loads_end_with_the_drafting(void **state)
{
	(void)state;
	const double twos[4] = {2, 2, 2, 2}, late[4] = {0, 0, 0, 7};
	struct cutoff_inputs in = {.n_layers = 4,
		.n_slots = 100,
		.draft_tokens = 2,
		.draft_layer_ns = 10,
		.load_ns = 10,
		.new_experts = twos};
	/* The drafting ends at 80. L = 3: 10 + 60; L = 4: 10 + 80. */
	assert_int_equal(cutoff_solve(&in), 3);
	in.load_ns = 8;
	assert_int_equal(cutoff_solve(&in), 4);
	in.load_ns = 40;
	assert_int_equal(cutoff_solve(&in), 0);
	in.load_ns = 10;
	in.n_slots = 5;
	assert_int_equal(cutoff_solve(&in), 2);
	/* The last layer's hints come at 40, and 7 loads end at 110. */
	in.n_slots = 100;
	in.new_experts = late;
	assert_int_equal(cutoff_solve(&in), 3);
}

static void nothing_is_cut_off_before_anything_was_measured(void **state)
{
	(void)state;
	const double n[3] = {99, 99, 99};
	struct cutoff_inputs in = {
		.n_layers = 3, .n_slots = 1, .draft_tokens = 4, .new_experts = n};
	assert_int_equal(cutoff_solve(&in), 3);
	in.load_ns = 5;
	assert_int_equal(cutoff_solve(&in), 3);
	in.draft_layer_ns = 5;
	assert_int_equal(cutoff_solve(&in), 0);
}

/* ---- MoE-Infinity. ---- */

static const bool both_moe[2] = {true, true};
static const struct cache_policy_shape small = {.n_layers = 2,
	.n_experts = 4,
	.n_experts_used = 1,
	.n_slots = 4,
	.queue_max = 16,
	.moe = both_moe};

static void a_sequence_is_matched_with_the_one_most_like_it(void **state)
{
	(void)state;
	struct traces t;
	struct error err;
	assert_int_equal(traces_init(&t, &small, &err), 0);
	uint64_t iteration = 1;
	struct trace_live *live = traces_of(&t, 7, iteration);
	assert_null(traces_match(&t, live));
	traces_count(&t, live, 0, 0, 3);
	traces_count(&t, live, 1, 1, 3);
	/* Silent for long: it has ended when the next begins. */
	iteration += 1000;
	live = traces_of(&t, 8, iteration);
	traces_count(&t, live, 0, 2, 1);
	traces_count(&t, live, 1, 3, 2);
	iteration += 1000;
	live = traces_of(&t, 9, iteration);
	assert_int_equal(t.n_kept, 2);
	traces_count(&t, live, 0, 2, 5);
	const struct trace_kept *match = traces_match(&t, live);
	assert_int_equal(match->matrix.count[1 * 4 + 3], 2);
	assert_int_equal(match->top[1][0], 3);
	/* Layer 0 half like either, layer 1 like the first. */
	traces_count(&t, live, 0, 0, 5);
	traces_count(&t, live, 1, 1, 1);
	match = traces_match(&t, live);
	assert_int_equal(match->matrix.count[1 * 4 + 1], 3);
	traces_exit(&t);
}

/* What is kept up to date count by count is what the definition gives. */
static void similarities_are_mean_cosines(void **state)
{
	(void)state;
	struct traces t;
	struct error err;
	assert_int_equal(traces_init(&t, &small, &err), 0);
	struct trace_live *live = traces_of(&t, 1, 1);
	traces_count(&t, live, 0, 0, 3);
	traces_count(&t, live, 0, 1, 4);
	traces_count(&t, live, 1, 2, 1);
	live = traces_of(&t, 2, 5000);
	traces_count(&t, live, 0, 0, 1);
	/* (3, 4) and (1, 0): 3 / 5; nothing in layer 1. */
	assert_true(live->similarity[0] > 0.5999 && live->similarity[0] < 0.6001);
	traces_count(&t, live, 1, 2, 2);
	traces_count(&t, live, 0, 1, 1);
	/* 7 / (5 sqrt 2) + 1 */
	assert_true(live->similarity[0] > 1.98994 && live->similarity[0] < 1.98996);
	traces_exit(&t);
}

static void the_collection_stays_bounded_and_diverse(void **state)
{
	(void)state;
	struct traces t;
	struct error err;
	assert_int_equal(traces_init(&t, &small, &err), 0);
	uint64_t iteration = 1;
	for (uint64_t session = 1; session <= 3 * TRACES_KEPT; session++, iteration += 1000) {
		struct trace_live *live = traces_of(&t, session, iteration);
		/* One of its own kind among many alike. */
		traces_count(&t, live, 0, session == 1 ? 3 : (uint32_t)session % 2, 5);
		traces_count(&t, live, 1, 0, 1);
	}
	assert_int_equal(t.n_kept, TRACES_KEPT);
	struct trace_live *live = traces_of(&t, 1000, iteration);
	traces_count(&t, live, 0, 3, 1);
	assert_int_equal(traces_match(&t, live)->matrix.count[3], 5);
	traces_exit(&t);
}

/* ---- Ours. ---- */

/* Runs of layer 0 that use `expert`, each hinted for before by `source` (-1: not) as `hinted`. */
static void run_layer(
	struct expectation *x, uint32_t n, uint32_t expert, int source, uint32_t hinted)
{
	for (uint32_t i = 0; i < n; i++) {
		if (source >= 0) {
			struct cache_hint hint = {.expert = hinted,
				.source = (enum hint_source)source,
				.score = 0.5f};
			expectation_hint(x, &hint);
			expectation_refresh(x, 0);
		}
		struct cache_use use = {.expert = expert, .tokens = 1};
		expectation_use(x, &use);
		expectation_end(x, 0, 0, false);
	}
}

static void expectations_follow_use(void **state)
{
	(void)state;
	struct expectation x;
	struct error err;
	assert_int_equal(expectation_init(&x, &small, &err), 0);
	double before = expectation_of(&x, 2);
	run_layer(&x, 40, 2, -1, 0);
	assert_true(expectation_of(&x, 2) > 0.8);
	assert_true(expectation_of(&x, 1) < before);
	run_layer(&x, 40, 1, -1, 0);
	assert_true(expectation_of(&x, 1) > 0.7);
	assert_true(expectation_of(&x, 2) < 0.3);
	expectation_exit(&x);
}

static void hints_are_believed_as_far_as_their_source_was_right(void **state)
{
	(void)state;
	struct expectation x;
	struct error err;
	assert_int_equal(expectation_init(&x, &small, &err), 0);
	/* Source draft always says what comes, source gate always something else. */
	for (uint32_t i = 0; i < 200; i++) {
		struct cache_hint wrong = {
			.expert = (i + 2) % 4, .source = HINT_GATE, .score = 0.5f};
		expectation_hint(&x, &wrong);
		run_layer(&x, 1, i % 4, HINT_DRAFT, i % 4);
	}
	struct cache_hint right = {.expert = 1, .source = HINT_DRAFT, .score = 0.5f};
	struct cache_hint wrong = {.expert = 3, .source = HINT_GATE, .score = 0.5f};
	expectation_hint(&x, &right);
	expectation_hint(&x, &wrong);
	expectation_refresh(&x, 0);
	assert_true(expectation_of(&x, 1) > 0.9);
	for (uint32_t e = 0; e < 4; e++)
		assert_true(e == 1 || expectation_of(&x, e) < 0.15);
	assert_true(expectation_of(&x, 3) <= expectation_of(&x, 2));
	expectation_exit(&x);
}

/* What hints explain is not taken from what is expected without them. */
static void what_is_expected_without_hints_is_learnt_as_if_there_were_none(void **state)
{
	(void)state;
	struct expectation with, without;
	struct error err;
	assert_int_equal(expectation_init(&with, &small, &err), 0);
	assert_int_equal(expectation_init(&without, &small, &err), 0);
	for (uint32_t i = 0; i < 400; i++) {
		/* Three of four runs use expert 0. */
		uint32_t used = i % 4 == 3 ? 1 + i / 4 % 3 : 0;
		run_layer(&with, 1, used, HINT_DRAFT, used);
		run_layer(&without, 1, used, -1, 0);
	}
	for (uint32_t e = 0; e < 4; e++)
		assert_true(fabs(expectation_later(&with, e) - expectation_of(&without, e)) < 1e-5);
	assert_true(expectation_later(&with, 0) > 0.5);
	expectation_exit(&with);
	expectation_exit(&without);
}

static void hints_for_a_predecessors_iterations_are_forgotten(void **state)
{
	(void)state;
	struct expectation x;
	struct error err;
	assert_int_equal(expectation_init(&x, &small, &err), 0);
	struct cache_hint hint = {
		.expert = 1, .source = HINT_DRAFT, .score = 0.5f, .iteration = 1003};
	expectation_hint(&x, &hint);
	expectation_end(&x, 0, 1000, false);
	assert_true(x.layer[0].hinted[HINT_DRAFT]); /* it is for a later run */
	expectation_end(&x, 0, 10, false);
	assert_false(x.layer[0].hinted[HINT_DRAFT]);
	/* And those for the new one's hold. */
	hint.iteration = 13;
	expectation_hint(&x, &hint);
	expectation_end(&x, 0, 11, false);
	assert_true(x.layer[0].hinted[HINT_DRAFT]);
	expectation_exit(&x);
}

/* A small model runs a layer four thousand million times in some days, and then its count would begin again. */
static void runs_are_counted_while_a_session_is_new(void **state)
{
	(void)state;
	struct expectation x;
	struct error err;
	assert_int_equal(expectation_init(&x, &small, &err), 0);
	const struct cache_use use = {.expert = 1, .tokens = 1};
	uint32_t runs[2];
	for (int half = 0; half < 2; half++) {
		for (int run = 0; run < 500; run++) {
			expectation_use(&x, &use);
			expectation_end(&x, 0, 0, false);
		}
		runs[half] = x.layer[0].session_runs;
	}
	assert_true(runs[0] > 0);
	assert_int_equal(runs[0], runs[1]);
	expectation_exit(&x);
}

static double share(const struct expectation *x, uint32_t expert, int which)
{
	return (double)x->of[expert].share[which] * (double)x->layer[0].kept[which];
}

/* Estimates are put off; what they are made of is not. */
static void coarse_expectations_know_every_run(void **state)
{
	(void)state;
	struct expectation fine, coarse;
	struct error err;
	uint32_t random = 1, estimates = 0;
	assert_int_equal(expectation_init(&fine, &small, &err), 0);
	assert_int_equal(expectation_init(&coarse, &small, &err), 0);
	for (uint32_t run = 0; run < 5 * EXPECTATION_COARSE / 2; run++) {
		random = random * 1664525 + 1013904223;
		struct cache_use use = {.expert = random >> 30, .tokens = 1 + (random >> 20) % 40};
		expectation_session(&fine, 1 + run / 200);
		expectation_session(&coarse, 1 + run / 200);
		expectation_use(&fine, &use);
		expectation_use(&coarse, &use);
		assert_true(expectation_end(&fine, 0, 0, false));
		estimates += expectation_end(&coarse, 0, 0, true);
		for (uint32_t e = 0; e < 4; e++)
			for (int i = 0; i < EXPECTATION_SHARES; i++)
				assert_true(fabs(share(&fine, e, i) - share(&coarse, e, i)) < 1e-4);
	}
	assert_int_equal(estimates, 2);
	/* Whatever hints come, and as soon as somebody asks, they are new. */
	struct cache_hint hint = {.expert = 1, .source = HINT_DRAFT, .score = 0.5f};
	expectation_hint(&coarse, &hint);
	assert_true(expectation_end(&coarse, 0, 0, true));
	assert_false(expectation_end(&coarse, 0, 0, true));
	assert_true(expectation_end(&coarse, 0, 0, false));
	expectation_exit(&fine);
	expectation_exit(&coarse);
}

static void hints_for_a_later_run_outlive_the_one_before(void **state)
{
	(void)state;
	struct expectation x;
	struct error err;
	assert_int_equal(expectation_init(&x, &small, &err), 0);
	struct cache_hint hint = {
		.expert = 1, .source = HINT_DRAFT, .score = 0.5f, .iteration = 20};
	expectation_hint(&x, &hint);
	expectation_end(&x, 0, 10, false);
	assert_true(x.layer[0].hinted[HINT_DRAFT]);
	assert_int_not_equal(x.of[1].step[HINT_DRAFT], 0);
	expectation_end(&x, 0, 20, false);
	assert_false(x.layer[0].hinted[HINT_DRAFT]);
	assert_int_equal(x.of[1].step[HINT_DRAFT], 0);
	expectation_exit(&x);
}

/* A run is met with what was hinted for it, and teaches by that. */
static void hints_for_a_later_run_wait_for_the_end_of_the_next(void **state)
{
	(void)state;
	struct expectation x;
	struct error err;
	assert_int_equal(expectation_init(&x, &small, &err), 0);
	for (uint32_t i = 0; i < 200; i++)
		run_layer(&x, 1, i % 4, HINT_DRAFT, i % 4);
	uint32_t sightings = x.layer[0].count[HINT_DRAFT][0][0];
	double before = expectation_of(&x, 1);
	struct cache_hint hint = {
		.expert = 1, .source = HINT_DRAFT, .score = 0.5f, .iteration = 20};
	expectation_hint_later(&x, &hint);
	expectation_refresh(&x, 0);
	assert_true(expectation_of(&x, 1) == before);
	struct cache_use use = {.expert = 2, .tokens = 1};
	expectation_use(&x, &use);
	assert_true(expectation_end(&x, 0, 19, true)); /* though all are resident */
	assert_int_equal(x.layer[0].count[HINT_DRAFT][0][0], sightings);
	assert_true(expectation_of(&x, 1) > 0.9);
	use.expert = 1;
	expectation_use(&x, &use);
	expectation_end(&x, 0, 20, false);
	assert_int_not_equal(x.layer[0].count[HINT_DRAFT][0][0], sightings);
	assert_false(x.layer[0].hinted[HINT_DRAFT]);
	/* One of a verifier that is gone is never due. */
	hint.iteration = 40;
	expectation_hint_later(&x, &hint);
	expectation_end(&x, 0, 5, false);
	assert_false(x.layer[0].hinted[HINT_DRAFT] || x.layer[0].hinted_later[HINT_DRAFT]);
	/* Nor do its successor's hold for as long as its own would have. */
	hint.iteration = 7;
	expectation_hint_later(&x, &hint);
	expectation_end(&x, 0, 6, false);
	assert_true(x.layer[0].hinted[HINT_DRAFT]);
	expectation_end(&x, 0, 7, false);
	assert_false(x.layer[0].hinted[HINT_DRAFT]);
	expectation_exit(&x);
}

static void without_a_hint_it_is_what_is_expected_without_hints(void **state)
{
	(void)state;
	struct expectation x;
	struct error err;
	assert_int_equal(expectation_init(&x, &small, &err), 0);
	/* Sure hints make the shares worth nothing beside them, and the shares say that expert 0 comes in three of four runs. */
	for (uint32_t i = 0; i < 2000; i++) {
		uint32_t used = i % 4 == 3 ? 1 + i / 4 % 3 : 0;
		run_layer(&x, 1, used, HINT_DRAFT, used);
	}
	for (uint32_t e = 0; e < 4; e++)
		assert_true(expectation_of(&x, e) == expectation_later(&x, e));
	assert_true(expectation_of(&x, 0) > 0.5);
	struct cache_hint hint = {.expert = 2, .source = HINT_DRAFT, .score = 0.5f};
	expectation_hint(&x, &hint);
	expectation_refresh(&x, 0);
	assert_true(expectation_of(&x, 2) > 0.9 && expectation_of(&x, 0) < 0.1);
	expectation_exit(&x);
}

/* Of a long prompt's tokens seven of ten chose expert 2: nothing else has to be seen of the session. */
static void a_prompt_says_what_its_answer_will_use(void **state)
{
	(void)state;
	struct expectation x;
	struct error err;
	assert_int_equal(expectation_init(&x, &small, &err), 0);
	run_layer(&x, 100, 1, -1, 0);
	double before = expectation_of(&x, 2);
	expectation_session(&x, 2);
	struct cache_use use = {.expert = 2, .tokens = 70};
	expectation_use(&x, &use);
	use = (struct cache_use){.expert = 1, .tokens = 30};
	expectation_use(&x, &use);
	expectation_end(&x, 0, 0, false);
	assert_true(share(&x, 2, SHARE_SESSION) > 0.6 && share(&x, 2, SHARE_SESSION) < 0.7);
	assert_true(expectation_of(&x, 2) > before);
	/* What begins with a few words is not known so well. */
	expectation_session(&x, 3);
	double slow = share(&x, 2, SHARE_SLOW);
	use = (struct cache_use){.expert = 2, .tokens = LIMIT_DRAFT_SHARE + 2};
	expectation_use(&x, &use);
	expectation_end(&x, 0, 0, false);
	assert_true(share(&x, 2, SHARE_SESSION) > slow && share(&x, 2, SHARE_SESSION) < 0.9);
	/* However many come, and nobody asks. */
	for (uint32_t i = 0; i < EXPECTATION_COARSE - 1; i++) {
		use = (struct cache_use){.expert = i % 2, .tokens = 1000};
		expectation_use(&x, &use);
		assert_false(expectation_end(&x, 0, 0, true));
	}
	double sum = 0;
	for (uint32_t e = 0; e < 4; e++)
		sum += share(&x, e, SHARE_SESSION);
	assert_true(fabs(sum - 1) < 0.05);
	expectation_exit(&x);
}

/* ---- Profiles. ---- */

#define HEAD "outrider-profile 1\nlayers 2 experts 4\n"

static void profiles_are_read_back(void **state)
{
	(void)state;
	uint64_t uses[8] = {5, 0, 0, 1, 0, 0, UINT64_C(1) << 48, 0}, *read = NULL;
	struct error err = {""};
	char path[] = "/tmp/outrider-profile-XXXXXX";
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	assert_int_equal(profile_write(path, 2, 4, uses, &err), 0);
	assert_int_equal(profile_read(path, 2, 4, &read, &err), 0);
	assert_memory_equal(read, uses, sizeof(uses));
	free(read);
	assert_int_equal(profile_read(path, 2, 8, &read, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "another model"));
	remove(path);
	assert_int_equal(profile_read(path, 2, 4, &read, &err), -ENOENT);
}

static void bad_profiles_are_refused_by_line(void **state)
{
	(void)state;
	static const struct {
		const char *text, *says;
	} bad[] = {{"", "not a profile"},
		{"outrider-profile 2\nlayers 2 experts 4\n", "not a profile"},
		{"outrider-profile 1\n", "another model"}, {HEAD "0 0\n", "line 3: a line is"},
		{HEAD "0 0 1 1\n", "line 3: a line is"}, {HEAD "0 0 -1\n", "line 3: a line is"},
		{HEAD "0 0  1\n", "a line is"}, {HEAD "0 0 1\n\n0 1 1\n", "line 4: a line is"},
		{HEAD "2 0 1\n", "no such expert"}, {HEAD "0 4 1\n", "no such expert"},
		{HEAD "0 0 0\n", "uses are"}, {HEAD "0 0 281474976710657\n", "uses are"},
		{HEAD "0 0 99999999999999999999999999\n", "a line is"},
		{HEAD "0 1 1\n0 1 2\n", "line 4: the expert was named before"}};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct error err = {""};
		uint64_t *uses = NULL;
		assert_int_equal(profile_parse(bad[i].text, strlen(bad[i].text), 2, 4, &uses, &err),
			-EBADMSG);
		assert_null(uses);
		if (strstr(err.text, bad[i].says) == NULL)
			fail_msg("\"%s\" gives: %s", bad[i].text, err.text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(utility_follows_frequencies_with_inertia),
		cmocka_unit_test(utility_stays_in_its_bounds),
		cmocka_unit_test(utility_follows_another_length_of_steps),
		cmocka_unit_test(the_threshold_balances_the_link_against_computing),
		cmocka_unit_test(what_the_link_or_the_slots_cannot_take_is_not_prefetched),
		cmocka_unit_test(the_cutoff_is_the_last_layer_whose_loads_end_with_the_drafting),
		cmocka_unit_test(nothing_is_cut_off_before_anything_was_measured),
		cmocka_unit_test(a_sequence_is_matched_with_the_one_most_like_it),
		cmocka_unit_test(similarities_are_mean_cosines),
		cmocka_unit_test(the_collection_stays_bounded_and_diverse),
		cmocka_unit_test(expectations_follow_use),
		cmocka_unit_test(hints_are_believed_as_far_as_their_source_was_right),
		cmocka_unit_test(what_is_expected_without_hints_is_learnt_as_if_there_were_none),
		cmocka_unit_test(hints_for_a_predecessors_iterations_are_forgotten),
		cmocka_unit_test(runs_are_counted_while_a_session_is_new),
		cmocka_unit_test(coarse_expectations_know_every_run),
		cmocka_unit_test(hints_for_a_later_run_outlive_the_one_before),
		cmocka_unit_test(hints_for_a_later_run_wait_for_the_end_of_the_next),
		cmocka_unit_test(without_a_hint_it_is_what_is_expected_without_hints),
		cmocka_unit_test(a_prompt_says_what_its_answer_will_use),
		cmocka_unit_test(profiles_are_read_back),
		cmocka_unit_test(bad_profiles_are_refused_by_line),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
