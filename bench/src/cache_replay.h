/*
 * What a cache policy would have done with a trace: its calls, in the order the transfer worker of the expert-cache makes
 * them, against a model of the link. Virtual time: computing and drafting take what the trace says, loads what the link
 * says. No thread, no memory beyond the call's own.
 *
 * The link carries one expert after the other, each bytes / bandwidth long, and an expert is there one latency after its
 * last byte was sent: reads in flight overlap, bandwidth does not. Demands go first, in order; a prefetch is begun when no
 * demand waits, and is not interrupted. What is being prefetched when it is demanded counts as late, not as a miss: nothing
 * is read twice. Resident experts of a layer are computed first, the others as they arrive (SP-MoE's order).
 */
#pragma once

#include "bench/src/cache_trace.h"
#include "services/expert-cache/policies/policy.h"

struct replay_link {
	double bytes_per_s;
	uint64_t latency_ns;
};

enum { REPLAY_AHEAD_MAX = 1000000 };

struct replay_options {
	const struct cache_policy_ops *policy; /* or replay_belady */
	uint32_t ahead; /* replay_belady: so many runs of each layer are known, REPLAY_AHEAD_MAX at
			 * most; 0 = all of them */
	bool shares; /* replay_belady, in place of that: how many of an answer's runs use each expert is known */
	bool demand_only; /* whatever is wanted before it is needed is not loaded */
	uint32_t n_slots;
	struct replay_link link;
	const uint64_t *profile; /* as in cache_policy_shape */
};

/* Sums over the passes of one kind. */
struct replay_totals {
	uint64_t passes, tokens; /* tokens: emitted */
	uint64_t uses, hits, late, misses; /* of experts by layers */
	uint64_t loads, prefetches; /* experts read; of them before they were demanded */
	uint64_t
		prefetches_used; /* of those prefetched that have left or been used: used before they left */
	uint64_t prefetches_judged;
	uint64_t stall_ns, time_ns; /* waiting for experts; all of it */
};

struct replay_result {
	struct replay_totals decode, prefill;
};

/* Belady's: evicts what is needed again latest, prefetches nothing. Only here: it reads the trace. */
extern const struct cache_policy_ops replay_belady;
/* Makes its state for a trace, which it borrows. */
int replay_belady_create(const struct cache_trace *trace, const struct replay_options *options,
	void **out, struct error *err);

/* -EINVAL: fewer slots than one layer of the trace needs at once. */
int cache_replay(const struct cache_trace *trace, const struct replay_options *options,
	struct replay_result *out, struct error *err);
/* The least slots a replay takes. */
uint32_t cache_replay_slots_min(const struct cache_trace *trace);
/* Experts of all layers. */
uint32_t cache_trace_experts(const struct cache_trace *trace);
