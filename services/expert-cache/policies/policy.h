/*
 * Which experts the slots hold: what is given up when a slot is needed, and what is loaded before it is asked for.
 * Policies are one table of ops each (policies.c lists them), so that they can be compared in one run: the transfer worker
 * of the process and the replay of traces (outrider-bench cache) drive the same code. A policy is told what happens
 * and asked for a victim and for the next prefetch, always by one thread. It keeps no clock and reads no memory but
 * its own; equal calls give equal answers.
 *
 * Layers and experts it is told of are in the model's range, and the layer has experts.
 */
#pragma once

#include "shared/spec/slots.h"

enum load_reason { LOAD_DEMAND, LOAD_PREFETCH, LOAD_PRELOAD };

struct cache_policy_shape {
	uint32_t n_layers, n_experts, n_experts_used;
	uint32_t n_slots; /* the most there can be; how many there are now: cache_measures */
	uint32_t queue_max; /* prefetches that may wait */
	const bool *moe; /* [n_layers] */
	/* How often each expert was used in some earlier run, [n_layers][n_experts]; NULL: not known. Not kept. */
	const uint64_t *profile;
};

/* Measured while it runs; 0 = not measured yet. */
struct cache_measures {
	uint32_t n_slots; /* the budget now */
	uint32_t draft_tokens; /* of the last draft, at most LIMIT_DRAFT_NODES */
	double load_ns; /* one expert over the link, one after the other */
	double draft_layer_ns; /* one step of the draft model, a token, by the layers of the target */
	double verify_layer_ns; /* one layer of a verification, without waits for experts */
};

struct cache_hint {
	uint32_t layer, expert;
	enum hint_source source;
	float score; /* the source's own scale, finite */
	bool coming; /* not resident, but on its way */
	uint64_t session;
	uint64_t needed_by_ns; /* CLOCK_MONOTONIC; 0 = not known */
	uint64_t
		made_ns; /* CLOCK_MONOTONIC; those of one prediction have it in common. 0 = not known */
	uint64_t iteration; /* the use's that it foresees, never a past one; 0 = not known */
};

/* One layer of one verification step used an expert. */
struct cache_use {
	uint32_t layer, expert;
	uint32_t tokens; /* of the batch that chose it: f of MoE-SpAc section 3 */
	uint32_t slot; /* SLOT_NONE: it was not resident */
	uint64_t session; /* the only one in the batch; 0: several */
	uint64_t iteration; /* grows with each layer of each step */
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
	/* Bit 1 << enum hint_source: hints it can use; 0 = all, CACHE_HINTS_NONE = none. */
	unsigned hint_sources;
	/* Those of them that it wants now: what does not pay is not made. NULL: all that it can use. */
	unsigned (*wants)(const void *policy);
	int (*create)(const struct cache_policy_shape *shape, void **out, struct error *err);
	void (*destroy)(void *policy);
	/* A slot now holds an expert; one adopted from a predecessor comes in order of rising recency. */
	void (*on_load)(
		void *policy, uint32_t slot, uint32_t layer, uint32_t expert, enum load_reason why);
	void (*on_evict)(void *policy, uint32_t slot);
	/* The verifier lacked it. What waited as a prefetch of it is obsolete. May come before the activations of layers that
	 * ran earlier: only activations come in the order of the layers. */
	void (*on_demand)(void *policy, const struct cache_use *use);
	/* The verifier used it, resident or not. */
	void (*on_activation)(void *policy, const struct cache_use *use);
	/* slot: where the expert is, SLOT_NONE when it is not resident. */
	void (*on_hint)(void *policy, const struct cache_hint *hint, uint32_t slot);
	/* From time to time. May be NULL. */
	void (*on_measure)(void *policy, const struct cache_measures *measures);
	/* Takes the prefetch that is worth most, or false. The caller skips what is resident or on its way meanwhile, and
	 * puts back what found no slot. */
	bool (*next)(void *policy, uint64_t now_ns, struct cache_prefetch *out);
	void (*put_back)(void *policy, const struct cache_prefetch *prefetch);
	/* A prefetch that next gave has its slot, and is read from now on: on_load is told when it is there, on_dropped when it
	 * never will be. May be NULL. */
	void (*on_begin)(void *policy, const struct cache_prefetch *prefetch);
	/* A load, whatever it was for, was taken back or could not be read. May be NULL. */
	void (*on_dropped)(void *policy, uint32_t layer, uint32_t expert);
	/* Whether a prefetch that next gave, and whose reading has not begun, is no longer wanted although its layer has not run
	 * since. NULL: it is. */
	bool (*obsolete)(void *policy, const struct cache_prefetch *prefetch, uint64_t now_ns);
	uint32_t (*queued)(const void *policy); /* prefetches that wait */
	/* The resident slot to give up for `want`, among those may() allows; SLOT_NONE when it allows none, or when nothing
	 * resident is worth less than a prefetch (why == LOAD_PREFETCH; a demand always gets one if there is one). */
	uint32_t (*victim)(void *policy, const struct cache_prefetch *want, enum load_reason why,
		bool (*may)(void *arg, uint32_t slot), void *arg);
};

/* The hints that a policy wants now, as bits 1 << enum hint_source. */
uint32_t cache_policy_wants(const struct cache_policy_ops *ops, const void *policy);

/* on_hint of a policy that takes no hints. */
void cache_policy_ignore_hint(void *policy, const struct cache_hint *hint, uint32_t slot);

extern const struct cache_policy_ops policy_static_set, policy_lru, policy_lfu_trace,
	policy_gate_next, policy_sp_moe, policy_spac, policy_outrider;

/* All of them, ended by NULL. */
extern const struct cache_policy_ops *const cache_policies[];
const struct cache_policy_ops *cache_policy_find(const char *name); /* or NULL */
const char *cache_policy_list(void);
