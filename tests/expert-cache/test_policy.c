/* Each policy through its ops: what its paper says it does, and what all must do whatever happens. */
#include "tests/expert-cache/policy_rig.h"

#include "services/expert-cache/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void gate_next_takes_the_gates_hints_until_their_layer_runs(void **state)
{
	(void)state;
	struct policy policy = policy_named("gate-next", NULL);
	hint(&policy, HINT_DRAFT, 1, 1, 1);
	hint(&policy, HINT_HISTORY, 1, 2, 1);
	assert_int_equal(next(&policy), -1);
	hint(&policy, HINT_GATE, 1, 3, 0.2f);
	hint(&policy, HINT_GATE, 1, 4, 0.7f);
	hint(&policy, HINT_GATE, 2, 5, 0.1f);
	assert_int_equal(next(&policy), 14);
	run(&policy, 1, 0, 1, SLOT_NONE, SLOT_NONE);
	assert_int_equal(next(&policy), 25);
	assert_int_equal(next(&policy), -1);
	end(&policy);
}

static void sp_moe_prefetches_below_the_cutoff_layer_by_layer(void **state)
{
	(void)state;
	struct policy policy = policy_named("sp-moe", NULL);
	hint(&policy, HINT_GATE, 0, 0, 1);
	assert_int_equal(next(&policy), -1);
	/* Nothing measured: all layers. */
	hint(&policy, HINT_DRAFT, 2, 1, 0.9f);
	hint(&policy, HINT_DRAFT, 0, 2, 0.1f);
	hint(&policy, HINT_DRAFT, 0, 3, 0.4f);
	hint(&policy, HINT_DRAFT, 1, 4, 0.5f);
	assert_int_equal(next(&policy), 3);
	assert_int_equal(next(&policy), 2);
	assert_int_equal(next(&policy), 14);
	assert_int_equal(next(&policy), 21);
	/* Three loads of 10 in a drafting of 1 x 3 x 10, the first hint at 10: two layers' means fit. */
	for (int pass = 0; pass < 100; pass++) {
		for (uint32_t l = 0; l < LAYERS; l++)
			hint(&policy, HINT_DRAFT, l, 1, 0.5f);
		for (uint32_t l = 0; l < LAYERS; l++)
			run(&policy, l, 0, 1, SLOT_NONE, SLOT_NONE);
	}
	struct cache_measures measures = {.n_slots = SLOTS,
		.draft_tokens = 1,
		.load_ns = 10,
		.draft_layer_ns = 10,
		.verify_layer_ns = 10};
	policy.ops->on_measure(policy.state, &measures);
	for (uint32_t l = 0; l < LAYERS; l++)
		hint(&policy, HINT_DRAFT, l, 5, 0.5f);
	assert_int_equal(next(&policy), 5);
	assert_int_equal(next(&policy), 15);
	assert_int_equal(next(&policy), -1);
	end(&policy);
}

static void static_fetches_the_profiles_hottest_and_gives_up_the_coldest(void **state)
{
	(void)state;
	uint64_t profile[LAYERS * EXPERTS] = {0};
	profile[0 * EXPERTS + 3] = 50;
	profile[1 * EXPERTS + 2] = 70;
	profile[2 * EXPERTS + 7] = 60;
	struct policy policy = policy_named("static", profile);
	hint(&policy, HINT_DRAFT, 0, 0, 1);
	assert_int_equal(next(&policy), 12);
	assert_int_equal(next(&policy), 27);
	assert_int_equal(next(&policy), 3);
	assert_int_equal(next(&policy), -1);
	load(&policy, 0, 1, 2);
	load(&policy, 1, 2, 7);
	load(&policy, 2, 0, 3);
	load(&policy, 3, 0, 0); /* cold */
	assert_int_equal(victim(&policy, 0, 1, LOAD_DEMAND), 3);
	policy.ops->on_evict(policy.state, 3);
	/* A demand always gets one; a prefetch of something colder does not. */
	assert_int_equal(victim(&policy, 0, 1, LOAD_DEMAND), 2);
	assert_int_equal(victim(&policy, 0, 1, LOAD_PREFETCH), SLOT_NONE);
	end(&policy);
}

static void lfu_trace_prefetches_what_a_sequence_alike_used(void **state)
{
	(void)state;
	struct policy policy = policy_named("lfu-trace", NULL);
	for (int pass = 0; pass < 4; pass++)
		for (uint32_t l = 0; l < LAYERS; l++)
			run(&policy, l, 1 + l, 2 + l, SLOT_NONE, SLOT_NONE);
	assert_int_equal(next(&policy), -1);
	/* Another session begins, long after; it starts like the first. */
	policy.iteration += 1000;
	for (int pass = 0; pass < 2; pass++)
		for (uint32_t l = 0; l < LAYERS; l++) {
			struct cache_use use = {.layer = l,
				.expert = 1 + l,
				.tokens = 2,
				.slot = SLOT_NONE,
				.session = 2,
				.iteration = policy.iteration++};
			policy.ops->on_activation(policy.state, &use);
			/* The next layer first: it is nearer. */
			if (pass == 1 && l == 0) {
				int first = next(&policy);
				assert_true(first == 12 || first == 13);
			}
		}
	end(&policy);
}

static void outrider_gives_up_what_is_used_last_again(void **state)
{
	(void)state;
	struct policy policy = policy_named("outrider", NULL);
	for (uint32_t l = 0; l < LAYERS; l++)
		load(&policy, l, l, 0);
	/* All layers alike; 1 runs, so the order is 2, 0, 1. */
	for (int pass = 0; pass < 8; pass++)
		for (uint32_t l = 0; l < LAYERS; l++)
			run(&policy, l, 0, 1, l, SLOT_NONE);
	run(&policy, 0, 0, 1, 0, SLOT_NONE);
	run(&policy, 1, 0, 1, 1, SLOT_NONE);
	assert_int_equal(victim(&policy, 2, 5, LOAD_DEMAND), 1);
	policy.ops->on_evict(policy.state, 1);
	assert_int_equal(victim(&policy, 2, 5, LOAD_DEMAND), 0);
	end(&policy);
}

/* What a fourth of the passes uses, in the next layer, goes before what half of them use, in the one that has just run. */
static void outrider_gives_up_the_rare_before_the_frequent_though_its_turn_is_nearer(void **state)
{
	(void)state;
	struct policy policy = policy_named("outrider", NULL);
	load(&policy, 0, 0, 2);
	load(&policy, 1, 1, 3);
	for (uint32_t pass = 0; pass < 400; pass++)
		for (uint32_t l = 0; l < LAYERS; l++) {
			bool frequent = l == 0 && pass % 2 == 0, rare = l == 1 && pass % 4 == 1;
			run(&policy, l, 0, frequent ? 2 : rare ? 3 : 1, SLOT_NONE, SLOT_NONE);
		}
	/* Layer 1 is next, layer 0 the last to come again. */
	run(&policy, 0, 0, 1, SLOT_NONE, SLOT_NONE);
	assert_int_equal(victim(&policy, 2, 5, LOAD_DEMAND), 1);
	end(&policy);
}

/* Passes in which the source hints for what comes, or for something else. */
static void teach(struct policy *policy, enum hint_source source, uint32_t off)
{
	for (uint32_t pass = 0; pass < 200; pass++) {
		for (uint32_t l = 0; l < LAYERS; l++)
			for (uint32_t i = 0; i < 2; i++)
				hint(policy, source, l, (3 * pass + l + i + off) % EXPERTS, 0.5f);
		for (uint32_t l = 0; l < LAYERS; l++)
			run(policy, l, (3 * pass + l) % EXPERTS, (3 * pass + l + 1) % EXPERTS,
				SLOT_NONE, SLOT_NONE);
	}
}

static void outrider_prefetches_on_hints_that_were_right_and_on_no_others(void **state)
{
	(void)state;
	struct policy right = policy_named("outrider", NULL);
	teach(&right, HINT_DRAFT, 0);
	hint(&right, HINT_DRAFT, 1, 6, 0.5f);
	assert_int_equal(next(&right), 16);
	end(&right);
	struct policy wrong = policy_named("outrider", NULL);
	teach(&wrong, HINT_DRAFT, 4);
	hint(&wrong, HINT_DRAFT, 1, 6, 0.5f);
	assert_int_equal(next(&wrong), -1);
	end(&wrong);
}

/* Hints that the drafter makes for a run it names. */
static void foresee(struct policy *policy, uint32_t layer, uint32_t expert, uint64_t iteration)
{
	struct cache_hint h = {.layer = layer,
		.expert = expert,
		.source = HINT_DRAFT,
		.score = 0.5f,
		.session = 1,
		.iteration = iteration};
	policy->ops->on_hint(policy->state, &h, SLOT_NONE);
}

/* Right hints for every layer, between two passes: the last layer still counts as the one that runs, and used something else. */
static struct policy well_drafted(void)
{
	struct policy policy = policy_named("outrider", NULL);
	for (uint32_t pass = 0; pass < 200; pass++) {
		uint64_t first = policy.iteration;
		for (uint32_t l = 0; l < LAYERS; l++)
			for (uint32_t i = 0; i < 2; i++)
				foresee(&policy, l, (3 * pass + l + i) % EXPERTS, first + l);
		for (uint32_t l = 0; l < LAYERS; l++)
			run(&policy, l, (3 * pass + l) % EXPERTS, (3 * pass + l + 1) % EXPERTS,
				SLOT_NONE, SLOT_NONE);
	}
	while (next(&policy) >= 0)
		;
	return policy;
}

static void outrider_does_not_judge_a_run_by_hints_for_the_one_after_it(void **state)
{
	(void)state;
	struct policy policy = well_drafted();
	/* Each layer's own hints are believed alike, the last one's too. */
	for (uint32_t l = 0; l < LAYERS; l++)
		foresee(&policy, l, 6, policy.iteration + l);
	for (uint32_t l = 0; l < LAYERS; l++)
		assert_int_equal(next(&policy), (int)(l * 10 + 6));
	assert_int_equal(next(&policy), -1);
	/* And hold until their run: nothing came of the prefetches. */
	run(&policy, 0, 6, 7, SLOT_NONE, SLOT_NONE);
	assert_int_equal(next(&policy), 16);
	assert_int_equal(next(&policy), 26);
	assert_int_equal(next(&policy), -1);
	end(&policy);
}

static void outrider_keeps_hints_for_a_later_run_until_the_next_is_over(void **state)
{
	(void)state;
	struct policy policy = well_drafted();
	run(&policy, 0, 6, 7, SLOT_NONE, SLOT_NONE);
	/* The drafter runs ahead: layers 1 and 2 of this pass are still to come. */
	uint64_t pass = policy.iteration + LAYERS - 1;
	foresee(&policy, 2, 1, pass + 2);
	assert_int_equal(next(&policy), -1);
	run(&policy, 1, 6, 7, SLOT_NONE, SLOT_NONE);
	assert_int_equal(next(&policy), -1);
	run(&policy, 2, 6, 7, SLOT_NONE, SLOT_NONE);
	run(&policy, 0, 6, 7, SLOT_NONE, SLOT_NONE);
	assert_int_equal(next(&policy), 21);
	/* Used by the run that they were for, or not, they are gone with it. */
	run(&policy, 1, 6, 7, SLOT_NONE, SLOT_NONE);
	run(&policy, 2, 4, 5, SLOT_NONE, SLOT_NONE);
	run(&policy, 0, 6, 7, SLOT_NONE, SLOT_NONE);
	assert_int_equal(next(&policy), -1);
	end(&policy);
}

/* ---- Of every policy, whatever happens. ---- */

struct world {
	struct policy policy;
	uint64_t random;
	int held[SLOTS]; /* layer * EXPERTS + expert, -1 nothing */
	bool pinned[SLOTS];
	bool asked[SLOTS]; /* may() said yes to it in this call */
};

static uint32_t draw(struct world *w, uint32_t n)
{
	w->random = w->random * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((w->random >> 33) % n);
}

static bool may_unpinned(void *arg, uint32_t slot)
{
	struct world *w = arg;
	assert_in_range(slot, 0, SLOTS - 1);
	assert_int_not_equal(w->held[slot], -1);
	w->asked[slot] = !w->pinned[slot];
	return !w->pinned[slot];
}

static uint32_t where(const struct world *w, uint32_t layer, uint32_t expert)
{
	for (uint32_t s = 0; s < SLOTS; s++)
		if (w->held[s] == (int)(layer * EXPERTS + expert))
			return s;
	return SLOT_NONE;
}

/* Loads what is not there; a demand gets a slot as long as one is not pinned. */
static void bring(struct world *w, const struct cache_prefetch *want, enum load_reason why)
{
	uint32_t slot = SLOT_NONE, free_to_go = 0;
	for (uint32_t s = 0; s < SLOTS; s++) {
		if (w->held[s] == -1)
			slot = s;
		free_to_go += w->held[s] != -1 && !w->pinned[s];
		w->asked[s] = false;
	}
	if (slot == SLOT_NONE) {
		slot = w->policy.ops->victim(w->policy.state, want, why, may_unpinned, w);
		if (slot == SLOT_NONE) {
			assert_true(why == LOAD_PREFETCH || free_to_go == 0);
			if (why == LOAD_PREFETCH)
				w->policy.ops->put_back(w->policy.state, want);
			return;
		}
		assert_true(w->asked[slot]);
		w->held[slot] = -1;
		w->policy.ops->on_evict(w->policy.state, slot);
	}
	w->held[slot] = (int)(want->layer * EXPERTS + want->expert);
	if (why == LOAD_PREFETCH && w->policy.ops->on_begin != NULL)
		w->policy.ops->on_begin(w->policy.state, want);
	if (why == LOAD_PREFETCH && w->policy.ops->on_dropped != NULL && draw(w, 4) == 0) {
		w->policy.ops->on_dropped(w->policy.state, want->layer, want->expert);
		w->held[slot] = -1;
		return;
	}
	w->policy.ops->on_load(w->policy.state, slot, want->layer, want->expert, why);
}

static void use_something(struct world *w, uint32_t layer)
{
	struct cache_use use = {.layer = layer,
		.tokens = 1 + draw(w, 4),
		.session = draw(w, 3),
		.iteration = w->policy.iteration};
	for (uint32_t n = draw(w, 4); n-- > 0;) {
		use.expert = draw(w, EXPERTS);
		use.slot = where(w, layer, use.expert);
		if (use.slot == SLOT_NONE) {
			w->policy.ops->on_demand(w->policy.state, &use);
			struct cache_prefetch want = {.layer = layer, .expert = use.expert};
			bring(w, &want, LOAD_DEMAND);
		}
		w->policy.ops->on_activation(w->policy.state, &use);
	}
}

static void prefetch_something(struct world *w)
{
	struct cache_prefetch prefetch;
	for (uint32_t n = draw(w, 3); n-- > 0;) {
		if (!w->policy.ops->next(w->policy.state, w->policy.iteration, &prefetch))
			return;
		assert_in_range(prefetch.layer, 0, LAYERS - 1);
		assert_in_range(prefetch.expert, 0, EXPERTS - 1);
		if (where(w, prefetch.layer, prefetch.expert) == SLOT_NONE)
			bring(w, &prefetch, LOAD_PREFETCH);
	}
}

static void live_through_anything(const char *name, uint64_t seed)
{
	struct world w = {.policy = policy_named(name, NULL), .random = seed};
	for (uint32_t s = 0; s < SLOTS; s++)
		w.held[s] = -1;
	for (uint32_t step = 0; step < 3000; step++) {
		uint32_t layer = draw(&w, LAYERS);
		w.policy.iteration++;
		for (uint32_t s = 0; s < SLOTS; s++)
			w.pinned[s] = draw(&w, 4) == 0;
		use_something(&w, layer);
		for (uint32_t n = draw(&w, 6); n-- > 0;) {
			struct cache_hint h = {.layer = draw(&w, LAYERS),
				.expert = draw(&w, EXPERTS),
				.source = (enum hint_source)draw(&w, HINT_SOURCES),
				.score = (float)draw(&w, 100) / 50 - 0.5f,
				.needed_by_ns = draw(&w, 2) ? w.policy.iteration + draw(&w, 9) : 0,
				.iteration = draw(&w, 2) ? w.policy.iteration + draw(&w, 9) : 0};
			w.policy.ops->on_hint(w.policy.state, &h, where(&w, h.layer, h.expert));
		}
		prefetch_something(&w);
		assert_in_range(w.policy.ops->queued(w.policy.state), 0, LAYERS * EXPERTS);
		struct cache_measures m = {.n_slots = 1 + draw(&w, SLOTS),
			.draft_tokens = draw(&w, 8),
			.load_ns = draw(&w, 1000),
			.draft_layer_ns = draw(&w, 1000),
			.verify_layer_ns = draw(&w, 1000)};
		if (w.policy.ops->on_measure && draw(&w, 8) == 0)
			w.policy.ops->on_measure(w.policy.state, &m);
	}
	end(&w.policy);
}

static void victims_are_resident_and_allowed_whatever_happens(void **state)
{
	(void)state;
	for (size_t i = 0; cache_policies[i]; i++)
		for (uint64_t seed = 1; seed <= 10; seed++)
			live_through_anything(cache_policies[i]->name, seed);
}

static void equal_calls_give_equal_answers(void **state)
{
	(void)state;
	for (size_t i = 0; cache_policies[i]; i++) {
		struct policy a = policy_named(cache_policies[i]->name, NULL);
		struct policy b = policy_named(cache_policies[i]->name, NULL);
		for (uint32_t n = 0; n < 300; n++) {
			uint32_t layer = n % LAYERS, expert = n * 7 / 3 % EXPERTS;
			hint(&a, (enum hint_source)(n % HINT_SOURCES), layer, expert, 0.3f);
			hint(&b, (enum hint_source)(n % HINT_SOURCES), layer, expert, 0.3f);
			run(&a, layer, expert, (expert + 1) % EXPERTS, SLOT_NONE, SLOT_NONE);
			run(&b, layer, expert, (expert + 1) % EXPERTS, SLOT_NONE, SLOT_NONE);
			assert_int_equal(next(&a), next(&b));
		}
		end(&a);
		end(&b);
	}
}

/* The worker takes what is demanded before it looks at what was used: both ways a layer's uses are the layer's. */
static void demands_may_come_before_the_uses_of_earlier_layers(void **state)
{
	(void)state;
	for (size_t i = 0; cache_policies[i]; i++) {
		struct policy a = policy_named(cache_policies[i]->name, NULL);
		struct policy b = policy_named(cache_policies[i]->name, NULL);
		for (uint32_t s = 0; s < SLOTS; s++) {
			load(&a, s, s % LAYERS, s / LAYERS);
			load(&b, s, s % LAYERS, s / LAYERS);
		}
		for (uint32_t n = 0; n < 200; n++) {
			uint32_t layer = n % LAYERS, expert = n * 5 / 3 % 3;
			struct cache_use lacked = {.layer = (layer + 1) % LAYERS,
				.expert = 7,
				.tokens = 1,
				.slot = SLOT_NONE,
				.session = 1,
				.iteration = b.iteration + 1};
			b.ops->on_demand(b.state, &lacked);
			run(&a, layer, expert, 7, expert * LAYERS + layer, SLOT_NONE);
			run(&b, layer, expert, 7, expert * LAYERS + layer, SLOT_NONE);
			assert_int_equal(victim(&a, layer, 6, LOAD_DEMAND),
				victim(&b, layer, 6, LOAD_DEMAND));
		}
		end(&a);
		end(&b);
	}
}

static void the_list_of_names_is_the_table(void **state)
{
	(void)state;
	char names[256] = "";
	for (size_t i = 0; cache_policies[i]; i++) {
		size_t n = strlen(names);
		snprintf(names + n, sizeof(names) - n, "%s%s", i > 0 ? ", " : "",
			cache_policies[i]->name);
		assert_ptr_equal(cache_policy_find(cache_policies[i]->name), cache_policies[i]);
		assert_non_null(cache_policies[i]->help);
	}
	assert_string_equal(names, cache_policy_list());
	assert_null(cache_policy_find("none"));
}

static void the_shell_completes_every_policy(void **state)
{
	(void)state;
	const struct config_key *key = config_find(cache_config_keys, "policy");
	size_t n = 0;
	while (key->names[n] != NULL)
		assert_non_null(cache_policy_find(key->names[n++]));
	assert_null(cache_policies[n]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gate_next_takes_the_gates_hints_until_their_layer_runs),
		cmocka_unit_test(sp_moe_prefetches_below_the_cutoff_layer_by_layer),
		cmocka_unit_test(static_fetches_the_profiles_hottest_and_gives_up_the_coldest),
		cmocka_unit_test(lfu_trace_prefetches_what_a_sequence_alike_used),
		cmocka_unit_test(outrider_gives_up_what_is_used_last_again),
		cmocka_unit_test(
			outrider_gives_up_the_rare_before_the_frequent_though_its_turn_is_nearer),
		cmocka_unit_test(outrider_prefetches_on_hints_that_were_right_and_on_no_others),
		cmocka_unit_test(outrider_does_not_judge_a_run_by_hints_for_the_one_after_it),
		cmocka_unit_test(outrider_keeps_hints_for_a_later_run_until_the_next_is_over),
		cmocka_unit_test(victims_are_resident_and_allowed_whatever_happens),
		cmocka_unit_test(equal_calls_give_equal_answers),
		cmocka_unit_test(demands_may_come_before_the_uses_of_earlier_layers),
		cmocka_unit_test(the_list_of_names_is_the_table),
		cmocka_unit_test(the_shell_completes_every_policy),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
