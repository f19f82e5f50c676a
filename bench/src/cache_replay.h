/*
 * What a cache policy would have done with a trace: its functions are called in the order in which
 * the expert cache's transfer worker calls them, with a model of the link. Time is virtual:
 * computing and drafting take as long as the trace says, loads as long as the link needs. No
 * thread; no memory is kept after the call.
 *
 * The link carries one expert at a time, which takes bytes / bandwidth; an expert is resident one
 * latency after its last byte was sent. So the latencies of reads in progress overlap, their
 * bandwidth does not. Demands come first, in order; a prefetch begins when no demand waits, and is
 * not interrupted. If an expert is demanded while it is being prefetched, it counts as late, not as
 * a miss: nothing is read twice. A layer's resident experts are computed first, the others as they
 * arrive (SP-MoE's order).
 */
#pragma once

#include "bench/src/cache_trace.h"
#include "services/expert-cache/policies/policy.h"
#include "shared/spec/balance.h"

struct replay_link {
	double bytes_per_s;
	uint64_t latency_ns;
};

enum { REPLAY_AHEAD_MAX = 1000000 };

/* A device, and a CPU that may compute experts beside it. The experts' times are these costs, not the
 * trace's. All experts are in the host's memory.
 *
 * A layer's resident experts are computed first, the others as they arrive; what `rule` leaves to
 * the CPU is computed meanwhile, and is loaded behind everything else, so that the cache learns of
 * it (greedy; MoE-SpAc leaves what is cold where it is). The layer ends when both have ended. */
struct replay_device {
	enum balance_rule rule;
	struct balance_costs costs;
	uint64_t hand_over_ns; /* to the CPU and back, for a layer of which it computes something */
	/* A layer's missing experts are all loaded before any of its experts is computed, and
	 * nothing is loaded before it is demanded, as other programs do it. */
	bool blocking;
};

struct replay_options {
	const struct cache_policy_ops *policy; /* or replay_belady */
	/* for replay_belady: how many runs of each layer it knows in advance, at most
	 * REPLAY_AHEAD_MAX; 0 = all */
	uint32_t ahead;
	/* for replay_belady, instead of `ahead`: it knows how many of an answer's runs use each
	 * expert */
	bool shares;
	bool demand_only; /* nothing is loaded before it is demanded */
	uint32_t n_slots;
	struct replay_link link;
	const uint64_t *profile; /* as in cache_policy_shape */
	const struct replay_device *device; /* NULL: the trace's times, and no CPU beside it */
	bool preload; /* the slots are filled before the time begins */
	uint32_t warm_passes; /* the first passes, which are counted apart */
};

/* Sums over all passes of one kind. */
struct replay_totals {
	uint64_t passes, tokens; /* tokens: those emitted */
	uint64_t uses, hits, late, misses; /* one for each expert of a layer */
	/* experts that were read; how many of them before they were demanded */
	uint64_t loads, prefetches;
	/* Prefetched experts that have been used or evicted; how many of them were used first. */
	uint64_t prefetches_used;
	uint64_t prefetches_judged;
	uint64_t stall_ns, time_ns; /* waiting for experts; everything */
	uint64_t link_ns; /* the link at work */
	/* With a device: at work; waiting for the CPU; experts that the CPU computed. */
	uint64_t device_ns, cpu_ns, cpu_wait_ns, cpu_uses;
	uint64_t layers, tau; /* BALANCE_SPAC: the sum of tau over layers */
};

struct replay_result {
	struct replay_totals decode, prefill, warm;
};

/* Belady's policy: evicts what is needed again last, and prefetches nothing. It exists only here,
 * because it reads the trace. */
extern const struct cache_policy_ops replay_belady;
/* Makes the policy's state for a trace, which is borrowed. */
int replay_belady_create(const struct cache_trace *trace, const struct replay_options *options,
	void **out, struct error *err);

/* -EINVAL: fewer slots than one layer of the trace needs at once. */
int cache_replay(const struct cache_trace *trace, const struct replay_options *options,
	struct replay_result *out, struct error *err);
/* The fewest slots that a replay accepts. */
uint32_t cache_replay_slots_min(const struct cache_trace *trace);
/* The number of experts in all layers. */
uint32_t cache_trace_experts(const struct cache_trace *trace);
