/* A policy with its ops, told of a small model by hand. */
#pragma once

#include "services/expert-cache/policies/policy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { LAYERS = 3, EXPERTS = 8, SLOTS = 10 };

static const bool all_moe[LAYERS] = {true, true, true};

static inline struct cache_policy_shape shape_of(const uint64_t *profile)
{
	return (struct cache_policy_shape){.n_layers = LAYERS,
		.n_experts = EXPERTS,
		.n_experts_used = 2,
		.n_slots = SLOTS,
		.queue_max = 16,
		.moe = all_moe,
		.profile = profile};
}

struct policy {
	const struct cache_policy_ops *ops;
	void *state;
	uint64_t iteration;
};

static inline struct policy policy_named(const char *name, const uint64_t *profile)
{
	struct policy policy = {.ops = cache_policy_find(name), .iteration = 1};
	struct cache_policy_shape shape = shape_of(profile);
	struct error err = {""};
	assert_non_null(policy.ops);
	if (policy.ops->create(&shape, &policy.state, &err) != 0)
		fail_msg("%s: %s", name, err.text);
	return policy;
}

static inline void end(struct policy *policy)
{
	policy->ops->destroy(policy->state);
}

static inline bool may_all(void *arg, uint32_t slot)
{
	(void)arg;
	(void)slot;
	return true;
}

/* The layer runs for one token. */
static inline void run(struct policy *policy, uint32_t layer, uint32_t first, uint32_t second,
	uint32_t first_slot, uint32_t second_slot)
{
	struct cache_use use = {.layer = layer,
		.expert = first,
		.tokens = 1,
		.slot = first_slot,
		.session = 1,
		.iteration = policy->iteration++};
	policy->ops->on_activation(policy->state, &use);
	use.expert = second;
	use.slot = second_slot;
	policy->ops->on_activation(policy->state, &use);
}

static inline void hint(struct policy *policy, enum hint_source source, uint32_t layer,
	uint32_t expert, float score)
{
	struct cache_hint h = {.layer = layer, .expert = expert, .source = source, .score = score};
	policy->ops->on_hint(policy->state, &h, SLOT_NONE);
}

static inline void load(struct policy *policy, uint32_t slot, uint32_t layer, uint32_t expert)
{
	policy->ops->on_load(policy->state, slot, layer, expert, LOAD_DEMAND);
}

/* layer * 10 + expert of the next prefetch, or -1. */
static inline int next(struct policy *policy)
{
	struct cache_prefetch prefetch;
	if (!policy->ops->next(policy->state, 1, &prefetch))
		return -1;
	return (int)(prefetch.layer * 10 + prefetch.expert);
}

static inline uint32_t victim(
	struct policy *policy, uint32_t layer, uint32_t expert, enum load_reason why)
{
	struct cache_prefetch want = {.layer = layer, .expert = expert};
	return policy->ops->victim(policy->state, &want, why, may_all, NULL);
}
