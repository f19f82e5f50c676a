/*
 * Which expert leaves when a slot is needed. Policies are one table of ops each (policies.c lists them), so that they can be
 * compared in one run. They are told what happens and asked for a victim, by the transfer worker alone.
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum load_reason { LOAD_DEMAND, LOAD_HINT, LOAD_PRELOAD };

struct cache_policy_shape {
	uint32_t n_layers, n_experts, n_slots;
};

/* Slots are SLOT_NONE for experts that are not resident. */
struct cache_policy_ops {
	const char *name;
	int (*create)(const struct cache_policy_shape *shape, void **out, struct error *err);
	void (*destroy)(void *policy);
	/* A slot now holds an expert; one adopted from a predecessor comes in order of rising recency. */
	void (*on_load)(
		void *policy, uint32_t slot, uint32_t layer, uint32_t expert, enum load_reason why);
	void (*on_evict)(void *policy, uint32_t slot);
	/* The verifier lacked it. */
	void (*on_demand)(void *policy, uint32_t layer, uint32_t expert, uint32_t slot,
		uint32_t tokens, uint64_t iteration);
	/* The verifier used it, resident or not. */
	void (*on_activation)(void *policy, uint32_t layer, uint32_t expert, uint32_t slot,
		uint32_t tokens, uint64_t iteration);
	void (*on_hint)(void *policy, uint32_t layer, uint32_t expert, uint32_t slot, float score,
		uint64_t needed_by_ns);
	/* The resident slot to give up, among those may() allows; SLOT_NONE when it allows none. */
	uint32_t (*victim)(void *policy, bool (*may)(void *arg, uint32_t slot), void *arg);
};

extern const struct cache_policy_ops policy_lru;

const struct cache_policy_ops *cache_policy_find(const char *name); /* or NULL */
/* The names, for messages. */
const char *cache_policy_list(void);
