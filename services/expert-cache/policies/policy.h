/*
 * Which experts the slots hold: what is evicted when a slot is needed, and what is loaded before it
 * is demanded. Each policy is one table of functions (policies.c lists them), so that policies can
 * be compared in one run: the transfer worker of the process and the replay of traces
 * (outrider-bench cache) drive the same code. A policy is told what happens, and is asked for a
 * victim and for the next prefetch, always by one thread. It reads no clock and no memory but its
 * own; equal calls give equal answers.
 *
 * Layers and experts that it is told of are in the model's range, and the layer has experts.
 */
#pragma once

#include "shared/spec/slots.h"

enum load_reason { LOAD_DEMAND, LOAD_PREFETCH, LOAD_PRELOAD };

struct cache_policy_shape {
	uint32_t n_layers, n_experts, n_experts_used;
	uint32_t n_slots; /* the most there can be; cache_measures has their present number */
	uint32_t queue_max; /* most prefetches that may wait */
	const bool *moe; /* [n_layers] */
	/* [n_layers][n_experts] how often each expert was used in some earlier run; NULL: unknown.
	 * Not kept. */
	const uint64_t *profile;
};

/* Measured at run time; 0: not measured yet. */
struct cache_measures {
	uint32_t n_slots; /* the present budget */
	uint32_t draft_tokens; /* in the last draft, at most LIMIT_DRAFT_NODES */
	double load_ns; /* time to load one expert over the link, one after the other */
	/* time of one token's step of the draft model, divided by the target's layers */
	double draft_layer_ns;
	/* time of one layer of a verification, without waiting for experts */
	double verify_layer_ns;
};

struct cache_hint {
	uint32_t layer, expert;
	enum hint_source source;
	float score; /* in the source's own scale, finite */
	bool coming; /* not resident, but being loaded */
	uint64_t session;
	uint64_t needed_by_ns; /* CLOCK_MONOTONIC; 0: unknown */
	uint64_t made_ns; /* CLOCK_MONOTONIC; equal for all hints of one prediction; 0: unknown */
	uint64_t iteration; /* iteration of the predicted use, never a past one; 0: unknown */
};

/* One layer of one verification used an expert. */
struct cache_use {
	uint32_t layer, expert;
	uint32_t tokens; /* number of the batch's tokens that chose it: f of MoE-SpAc section 3 */
	uint32_t slot; /* SLOT_NONE: it was not resident */
	uint64_t session; /* the only session in the batch; 0: several */
	uint64_t iteration; /* grows with each layer of each pass */
};

struct cache_prefetch {
	uint32_t layer, expert;
	float score;
	uint64_t needed_by_ns;
};

#define CACHE_HINTS_NONE (1u << HINT_SOURCES)

struct cache_policy_ops {
	const char *name;
	const char *help; /* a few words and the paper */
	/* Bit 1 << enum hint_source is set for hints that it can use; 0: all; CACHE_HINTS_NONE:
	 * none. */
	unsigned hint_sources;
	/* The hints among these that it wants now, so that hints that do not pay are not made.
	 * NULL: all that it can use. */
	unsigned (*wants)(const void *policy);
	int (*create)(const struct cache_policy_shape *shape, void **out, struct error *err);
	void (*destroy)(void *policy);
	/* A slot now holds an expert. Experts adopted from a predecessor come in order of
	 * increasing recency. */
	void (*on_load)(
		void *policy, uint32_t slot, uint32_t layer, uint32_t expert, enum load_reason why);
	void (*on_evict)(void *policy, uint32_t slot);
	/* The verifier lacked this expert; a waiting prefetch of it is obsolete. May come before
	 * the activations of layers that ran earlier: only activations come in the order of layers.
	 */
	void (*on_demand)(void *policy, const struct cache_use *use);
	/* The verifier used this expert, resident or not. */
	void (*on_activation)(void *policy, const struct cache_use *use);
	/* slot: where the expert is; SLOT_NONE: not resident. */
	void (*on_hint)(void *policy, const struct cache_hint *hint, uint32_t slot);
	/* Called from time to time. May be NULL. */
	void (*on_measure)(void *policy, const struct cache_measures *measures);
	/* Takes the most valuable prefetch; false when there is none. The caller skips experts that
	 * are resident or being loaded by now, and puts back a prefetch that found no slot. */
	bool (*next)(void *policy, uint64_t now_ns, struct cache_prefetch *out);
	void (*put_back)(void *policy, const struct cache_prefetch *prefetch);
	/* A prefetch from `next` has got its slot and is being read. on_load follows when it has
	 * arrived, or on_dropped if it never will. May be NULL. */
	void (*on_begin)(void *policy, const struct cache_prefetch *prefetch);
	/* A load, for whatever reason, was cancelled or failed. May be NULL. */
	void (*on_dropped)(void *policy, uint32_t layer, uint32_t expert);
	/* True when a prefetch from `next` whose reading has not begun is no longer wanted,
	 * although its layer has not run since. NULL: it is wanted. */
	bool (*obsolete)(void *policy, const struct cache_prefetch *prefetch, uint64_t now_ns);
	uint32_t (*queued)(const void *policy); /* number of waiting prefetches */
	/* The resident slot to evict for `want`, among the slots that may() allows. SLOT_NONE when
	 * it allows none, or when nothing resident is worth less than a prefetch (why ==
	 * LOAD_PREFETCH); a demand always gets a slot if there is one. */
	uint32_t (*victim)(void *policy, const struct cache_prefetch *want, enum load_reason why,
		bool (*may)(void *arg, uint32_t slot), void *arg);
};

/* The hints that a policy wants now, as bits 1 << enum hint_source. */
uint32_t cache_policy_wants(const struct cache_policy_ops *ops, const void *policy);

/* on_hint for policies that take no hints. */
void cache_policy_ignore_hint(void *policy, const struct cache_hint *hint, uint32_t slot);

extern const struct cache_policy_ops policy_static_set, policy_lru, policy_lfu_trace,
	policy_gate_next, policy_sp_moe, policy_spac, policy_outrider;

/* All policies, ended by NULL. */
extern const struct cache_policy_ops *const cache_policies[];
const struct cache_policy_ops *cache_policy_find(const char *name); /* NULL: not found */
const char *cache_policy_list(void);
