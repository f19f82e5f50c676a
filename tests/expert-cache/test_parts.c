/* The parts of the expert-cache that need no process: budgets, hints, the LRU order. */
#include "services/expert-cache/budget.h"
#include "services/expert-cache/policies/prefetch_queue.h"
#include "services/expert-cache/policies/policy.h"
#include "shared/base/log.h"

#include <stdarg.h>
#include <setjmp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct slots_geometry geometry_of(uint32_t layers, uint32_t experts, uint32_t used)
{
	struct slots_geometry geometry = {.slot_bytes = 3 << 20,
		.n_layers = layers,
		.n_experts = experts,
		.n_experts_used = used,
		.n_total = layers * experts};
	return geometry;
}

static uint32_t slots_for(const char *text, const struct slots_geometry *geometry)
{
	struct budget budget = {.n_slots = 0};
	struct error err = {.text = ""};
	int status = budget_slots(text, geometry, 0, &budget, &err);
	if (status != 0)
		fail_msg("%s: %s", text, err.text);
	assert_int_equal(budget.bytes, budget.n_slots * geometry->slot_bytes);
	return budget.n_slots;
}

static void budgets_become_slots(void **state)
{
	(void)state;
	struct slots_geometry g = geometry_of(6, 32, 1);
	assert_int_equal(slots_for("all", &g), 192);
	assert_int_equal(slots_for("100%", &g), 192);
	assert_int_equal(slots_for("30%", &g), 58); /* 57.6 */
	assert_int_equal(slots_for("50%", &g), 96);
	assert_int_equal(slots_for("min", &g), 16); /* 1 expert of 15 drafted tokens and one */
	assert_int_equal(slots_for("60M", &g), 20);
	assert_int_equal(slots_for("0.1G", &g), 34);
	assert_int_equal(slots_for("900G", &g), 192);
	g = geometry_of(6, 32, 4);
	assert_int_equal(slots_for("min", &g), 32); /* a layer has no more */
}

static void bad_budgets_are_refused_with_the_reason(void **state)
{
	(void)state;
	struct slots_geometry g = geometry_of(6, 32, 4);
	struct error err;
	struct budget n;
	static const char *const bad[] = {
		"", "%", "-5%", "0", "101%", "12P", "12 %", "nan", "inf", "allx", "1e999"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_true(budget_slots(bad[i], &g, 0, &n, &err) < 0);
		assert_non_null(strstr(err.text, "budget"));
	}
	assert_true(budget_slots("10%", &g, 0, &n, &err) < 0);
	assert_non_null(strstr(err.text, "32"));
	assert_non_null(strstr(err.text, "96.0 MiB"));
	const struct memory_limit limit = {
		(uint64_t)1 << 32, (uint64_t)1 << 31, "this machine", false};
	struct budget small = {.bytes = 1 << 20, .asked_bytes = 1 << 20};
	assert_int_equal(budget_check_memory(&small, &limit, 0, 0, 0, 0, &err), 0);
	/* More than the machine has is refused, also where all experts are less. */
	assert_int_equal(budget_slots("900000G", &g, 0, &n, &err), 0);
	assert_int_equal(n.n_slots, g.n_total);
	assert_int_equal(budget_check_memory(&n, &limit, 0, 0, 0, 0, &err), -ENOMEM);
	assert_non_null(strstr(err.text, "at most"));
	/* What they have already needs no room. */
	struct budget large = {.bytes = 1ull << 60, .asked_bytes = 1 << 20};
	assert_int_equal(budget_check_memory(&large, &limit, 0, 0, 0, 0, &err), -ENOMEM);
	assert_int_equal(budget_check_memory(&large, &limit, 1ull << 60, 0, 0, 0, &err), 0);
}

static struct cache_prefetch hint_of(uint32_t layer, uint32_t expert, float score, uint64_t by)
{
	return (struct cache_prefetch){
		.layer = layer, .expert = expert, .score = score, .needed_by_ns = by};
}

static void prefetches_come_by_score_once_each_and_obsolete_ones_never(void **state)
{
	(void)state;
	struct prefetch_queue hints;
	struct error err;
	assert_int_equal(prefetch_queue_init(&hints, 2, 16, 8, &err), 0);
	struct cache_prefetch h;
	/* Scores 1..8; expert 3's time passes. */
	for (uint32_t e = 0; e < 8; e++) {
		h = hint_of(0, e, (float)(1 + e * 5 % 8), e == 3 ? 100 : 0);
		prefetch_queue_add(&hints, &h);
	}
	h = hint_of(0, 1, 20, 0); /* again, and better: 6 becomes 20 */
	prefetch_queue_add(&hints, &h);
	h = hint_of(1, 0, 1.5f, 0); /* full: takes the place of score 1 */
	prefetch_queue_add(&hints, &h);
	h = hint_of(1, 1, 0.25f, 0); /* full: worse than all */
	prefetch_queue_add(&hints, &h);
	h = hint_of(1, 2, (float)NAN, 0);
	prefetch_queue_add(&hints, &h);
	assert_int_equal(hints.n, 8);
	prefetch_queue_remove(&hints, 0, 2); /* score 3 */
	prefetch_queue_remove(&hints, 1, 5); /* is not there */
	static const float expected[] = {20, 7, 5, 4, 2, 1.5f};
	for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
		assert_true(prefetch_queue_take(&hints, 200, &h));
		if (h.score != expected[i])
			fail_msg("hint %zu has score %g, not %g", i, (double)h.score,
				(double)expected[i]);
	}
	assert_false(prefetch_queue_take(&hints, 200, &h));
	assert_int_equal(hints.n, 0);
	prefetch_queue_exit(&hints);
}

static bool may_all(void *arg, uint32_t slot)
{
	(void)arg;
	(void)slot;
	return true;
}

static bool may_not(void *arg, uint32_t slot)
{
	return slot != *(const uint32_t *)arg;
}

static void lru_gives_up_what_was_used_longest_ago(void **state)
{
	(void)state;
	const struct cache_policy_ops *lru = cache_policy_find("lru");
	struct cache_policy_shape shape = {
		.n_layers = 1, .n_experts = 8, .n_slots = 4, .queue_max = 4};
	struct cache_prefetch want = {.expert = 6};
	struct error err;
	void *policy;
	assert_null(cache_policy_find("none"));
	assert_int_equal(lru->create(&shape, &policy, &err), 0);
	assert_int_equal(lru->victim(policy, &want, LOAD_DEMAND, may_all, NULL), SLOT_NONE);
	for (uint32_t slot = 0; slot < 4; slot++)
		lru->on_load(policy, slot, 0, slot, LOAD_DEMAND);
	assert_int_equal(lru->victim(policy, &want, LOAD_DEMAND, may_all, NULL), 0);
	lru->on_activation(policy, &(struct cache_use){.expert = 0, .slot = 0, .tokens = 1});
	assert_int_equal(lru->victim(policy, &want, LOAD_DEMAND, may_all, NULL), 1);
	uint32_t pinned = 1;
	assert_int_equal(lru->victim(policy, &want, LOAD_DEMAND, may_not, &pinned), 2);
	lru->on_evict(policy, 2);
	assert_int_equal(lru->victim(policy, &want, LOAD_DEMAND, may_not, &pinned), 3);
	lru->on_load(policy, 2, 0, 7, LOAD_DEMAND);
	/* Not resident: nothing to order. */
	lru->on_activation(
		policy, &(struct cache_use){.expert = 5, .slot = SLOT_NONE, .tokens = 1});
	lru->on_evict(policy, 1);
	lru->on_evict(policy, 3);
	lru->on_evict(policy, 0);
	assert_int_equal(lru->victim(policy, &want, LOAD_DEMAND, may_all, NULL), 2);
	lru->on_evict(policy, 2);
	assert_int_equal(lru->victim(policy, &want, LOAD_DEMAND, may_all, NULL), SLOT_NONE);
	lru->destroy(policy);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(budgets_become_slots),
		cmocka_unit_test(bad_budgets_are_refused_with_the_reason),
		cmocka_unit_test(prefetches_come_by_score_once_each_and_obsolete_ones_never),
		cmocka_unit_test(lru_gives_up_what_was_used_longest_ago),
	};
	log_init("test", 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
