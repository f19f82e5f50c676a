/* MoE-SpAc as a policy, in the order in which the transfer worker tells it what happens; its rules: test_policy_rules.c. */
#include "tests/expert-cache/policy_rig.h"

static void freezes_what_is_used_and_recycles_it_after(void **state)
{
	(void)state;
	struct policy policy = policy_named("spac", NULL);
	load(&policy, 0, 1, 0);
	load(&policy, 1, 0, 0);
	load(&policy, 2, 0, 1);
	run(&policy, 0, 0, 1, 1, 2);
	/* In use: the only other one goes. */
	assert_int_equal(victim(&policy, 2, 0, LOAD_DEMAND), 0);
	run(&policy, 1, 0, 1, 0, SLOT_NONE);
	/* Layer 1 runs now, layer 0 is over. */
	assert_int_not_equal(victim(&policy, 2, 0, LOAD_DEMAND), 0);
	end(&policy);
}

/* A pass over all layers of 2 n tokens' experts: layer 0 uses 5 for f of them and 6 for the rest, the others 0 and 1. */
static void pass_over(struct policy *policy, uint32_t f, uint32_t n, uint32_t slot_of_5)
{
	struct cache_use use = {.layer = 0,
		.expert = 5,
		.tokens = f,
		.slot = slot_of_5,
		.iteration = policy->iteration++};
	if (f > 0)
		policy->ops->on_activation(policy->state, &use);
	use.expert = 6;
	use.tokens = 2 * n - f;
	use.slot = SLOT_NONE;
	policy->ops->on_activation(policy->state, &use);
	for (uint32_t l = 1; l < LAYERS; l++)
		run(policy, l, 0, 1, SLOT_NONE, SLOT_NONE);
}

/* Loading takes longer than computing, and drafting so long that all of it is hidden: tau is as low as the slots allow. */
static void measure(struct policy *policy, uint32_t draft_tokens)
{
	struct cache_measures measures = {.n_slots = SLOTS,
		.draft_tokens = draft_tokens,
		.load_ns = 1000,
		.draft_layer_ns = 1000000,
		.verify_layer_ns = 100};
	policy->ops->on_measure(policy->state, &measures);
}

/* The next prefetch is of expert 5 of layer 0, or none is. */
static bool wants_5(struct policy *policy)
{
	for (int id; (id = next(policy)) != -1;)
		if (id == 5)
			return true;
	return false;
}

static void prefetches_what_is_hot_and_was_given_up(void **state)
{
	(void)state;
	struct policy policy = policy_named("spac", NULL);
	struct cache_prefetch prefetch;
	/* The prompt, then drafts of 3: expert 5 of layer 0 for 1, 2, 3, 4 of the 4 tokens, resident. */
	load(&policy, 0, 0, 5);
	pass_over(&policy, 8, 16, 0);
	measure(&policy, 3);
	for (uint32_t f = 1; f <= 4; f++)
		pass_over(&policy, f, 4, 0);
	assert_false(wants_5(&policy));
	/* Its slot is needed for another: it is wanted back, before anything of less utility. */
	policy.ops->on_evict(policy.state, 0);
	assert_int_equal(next(&policy), 5);
	/* It was not brought, and its layer runs without it. */
	assert_false(wants_5(&policy));
	pass_over(&policy, 0, 4, SLOT_NONE);
	assert_true(policy.ops->next(policy.state, 1, &prefetch));
	assert_int_equal(prefetch.layer * 10 + prefetch.expert, 5);
	/* 3, one less for a step without it. */
	assert_true(prefetch.score == 2);
	/* No slot for it now. */
	policy.ops->put_back(policy.state, &prefetch);
	assert_true(wants_5(&policy));
	/* Nor was it brought then, and its layer runs without it a second time, which changes no utility. */
	pass_over(&policy, 0, 4, SLOT_NONE);
	assert_true(wants_5(&policy));
	/* On its way when its layer has run, and there. */
	pass_over(&policy, 0, 4, SLOT_NONE);
	policy.ops->on_load(policy.state, 1, 0, 5, LOAD_PREFETCH);
	assert_false(wants_5(&policy));
	end(&policy);
}

static void gamma_begins_with_the_first_draft_after_a_prompt(void **state)
{
	(void)state;
	/* Boundaries of floor(3 / 2) = 1: 1 of 4 tokens is enough. */
	struct policy policy = policy_named("spac", NULL);
	measure(&policy, 0);
	pass_over(&policy, 0, 16, SLOT_NONE);
	measure(&policy, 3);
	pass_over(&policy, 1, 4, SLOT_NONE);
	pass_over(&policy, 1, 4, SLOT_NONE);
	assert_true(wants_5(&policy));
	end(&policy);
	/* Of floor(7 / 2) = 3: 2 of 8 are not, 3 more are. */
	policy = policy_named("spac", NULL);
	pass_over(&policy, 0, 16, SLOT_NONE);
	measure(&policy, 7);
	pass_over(&policy, 2, 8, SLOT_NONE);
	pass_over(&policy, 2, 8, SLOT_NONE);
	assert_false(wants_5(&policy));
	/* One draft that was cut short does not make another gamma. */
	measure(&policy, 6);
	pass_over(&policy, 3, 8, SLOT_NONE);
	assert_false(wants_5(&policy));
	pass_over(&policy, 6, 8, SLOT_NONE);
	assert_true(wants_5(&policy));
	end(&policy);
}

/* Steps of `drafted` tokens, until gamma has followed. No step uses expert 5. */
static void steps_of(struct policy *policy, uint32_t drafted)
{
	for (int i = 0; i < 64; i++) {
		measure(policy, drafted);
		pass_over(policy, 0, drafted + 1, SLOT_NONE);
	}
}

/* The highest utility that expert 5 gets when every step chooses it for more of its tokens. */
static uint32_t highest_of_5(struct policy *policy, uint32_t drafted)
{
	struct cache_prefetch prefetch;
	uint32_t highest = 0;
	for (uint32_t f = 1; f <= drafted + 1; f++)
		for (int more = 0; more < 2; more++) {
			pass_over(policy, more ? f : f - 1, drafted + 1, SLOT_NONE);
			while (policy->ops->next(policy->state, 1, &prefetch))
				if (prefetch.layer == 0 && prefetch.expert == 5 &&
					(uint32_t)prefetch.score > highest)
					highest = (uint32_t)prefetch.score;
		}
	return highest;
}

/* K_u is gamma, 4 at most: whatever was drafted first, utility has as many values as the drafts in force give it. */
static void gamma_follows_the_drafts_in_force(void **state)
{
	(void)state;
	static const uint32_t lengths[] = {1, 2, 3, 7, LIMIT_DRAFT_DEPTH};
	enum { N = sizeof(lengths) / sizeof(lengths[0]) };
	for (uint32_t first = 0; first < N; first++)
		for (uint32_t then = 0; then < N; then++) {
			struct policy policy = policy_named("spac", NULL);
			pass_over(&policy, 0, 16, SLOT_NONE);
			steps_of(&policy, lengths[first]);
			steps_of(&policy, lengths[then]);
			uint32_t bound = lengths[then] < 4 ? lengths[then] : 4;
			assert_int_equal(highest_of_5(&policy, lengths[then]), bound);
			end(&policy);
		}
}

/* What is above a bound that falls is at the bound: in scores, queues and among the residents. */
static void a_lower_gamma_lowers_what_waits_and_what_is_resident(void **state)
{
	(void)state;
	struct policy policy = policy_named("spac", NULL);
	struct cache_prefetch prefetch;
	load(&policy, 0, 0, 5);
	pass_over(&policy, 0, 16, 0);
	measure(&policy, 7);
	for (uint32_t f = 1; f <= 8; f++)
		pass_over(&policy, f, 8, 0);
	policy.ops->on_evict(policy.state, 0);
	assert_true(policy.ops->next(policy.state, 1, &prefetch));
	assert_int_equal(prefetch.layer * 10 + prefetch.expert, 5);
	assert_in_range((int)prefetch.score, 2, 4);
	policy.ops->put_back(policy.state, &prefetch);
	/* Each of these steps chooses it for as many of its tokens as the last did: its utility stays. */
	for (int i = 0; i < 64; i++) {
		measure(&policy, 1);
		pass_over(&policy, 2, 2, SLOT_NONE);
	}
	assert_true(policy.ops->next(policy.state, 1, &prefetch));
	assert_int_equal(prefetch.layer * 10 + prefetch.expert, 5);
	assert_int_equal((int)prefetch.score, 1);
	end(&policy);
}

static void keeps_the_order_of_what_finds_no_slot(void **state)
{
	(void)state;
	struct policy policy = policy_named("spac", NULL);
	struct cache_prefetch first;
	measure(&policy, 3);
	for (int pass = 0; pass < 2; pass++)
		for (uint32_t l = 0; l < LAYERS; l++)
			run(&policy, l, l, l + 1, SLOT_NONE, SLOT_NONE);
	/* All of one utility: the layers in the order in which they ran. */
	assert_true(policy.ops->next(policy.state, 1, &first));
	assert_int_equal(first.layer * 10 + first.expert, 0);
	policy.ops->put_back(policy.state, &first);
	assert_int_equal(next(&policy), 0);
	assert_int_equal(next(&policy), 1);
	assert_int_equal(next(&policy), 11);
	end(&policy);
}

/* The layer runs for 4 tokens, which use all of its experts once, but for `more` and `less`. */
static void use_all(struct policy *policy, uint32_t layer, uint32_t more, uint32_t less)
{
	for (uint32_t e = 0; e < EXPERTS; e++) {
		struct cache_use use = {.layer = layer,
			.expert = e,
			.tokens = e == more ? 2 : 1,
			.slot = SLOT_NONE,
			.iteration = policy->iteration};
		if (e != less)
			policy->ops->on_activation(policy->state, &use);
	}
	policy->iteration++;
}

static void a_full_queue_takes_what_is_worth_more(void **state)
{
	(void)state;
	struct policy policy = policy_named("spac", NULL);
	measure(&policy, 3);
	for (uint32_t l = 0; l < LAYERS; l++)
		use_all(&policy, l, EXPERTS, EXPERTS);
	assert_int_equal(policy.ops->queued(policy.state), 16);
	/* Layer 2's find no room until one is worth more; of layer 0, which runs, two wait no longer. */
	use_all(&policy, 2, 3, 4);
	assert_int_equal(policy.ops->queued(policy.state), 16);
	run(&policy, 0, 0, 1, SLOT_NONE, SLOT_NONE);
	assert_int_equal(policy.ops->queued(policy.state), 14);
	assert_int_equal(next(&policy), 23);
	end(&policy);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(freezes_what_is_used_and_recycles_it_after),
		cmocka_unit_test(prefetches_what_is_hot_and_was_given_up),
		cmocka_unit_test(gamma_begins_with_the_first_draft_after_a_prompt),
		cmocka_unit_test(gamma_follows_the_drafts_in_force),
		cmocka_unit_test(a_lower_gamma_lowers_what_waits_and_what_is_resident),
		cmocka_unit_test(keeps_the_order_of_what_finds_no_slot),
		cmocka_unit_test(a_full_queue_takes_what_is_worth_more),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
