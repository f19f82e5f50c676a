/* The state of a replay, for its parts: cache_replay.c (slots, link and policy) and
 * cache_replay_device.c (layers of a device beside which the CPU computes). */
#pragma once

#include "bench/src/cache_replay.h"
#include "shared/spec/utility.h"

enum { REPLAY_FILLS = 64 };

enum slot_use { UNUSED, FLYING, RESIDENT };

struct sim_slot {
	enum slot_use use;
	uint32_t layer, expert;
	bool prefetched; /* and not used so far */
	enum load_reason why;
	uint64_t arrives_ns;
	uint64_t until_ns; /* not evicted for a prefetch before this time */
};

struct sim {
	const struct cache_trace *trace;
	const struct replay_options *options;
	const struct cache_policy_ops *ops;
	void *state;
	struct replay_totals *totals; /* of the pass that runs */
	uint64_t now_ns, link_free_ns, load_ns;
	struct sim_slot *slots; /* [n_slots] */
	uint32_t *slot_of; /* [n_layers][n_experts] slot + 1 */
	uint32_t n_used; /* slots from here on were never used */
	/* Slots of loads in progress, in the order of arrival. */
	uint32_t *flying, first_flying, n_flying;
	/* Demanded experts of the present layer without a load so far. */
	uint32_t wanted[LIMIT_EXPERTS], first_wanted, n_wanted;
	bool blocked; /* there is no slot for the best prefetch until something happens */
	/* The layer that runs. */
	uint32_t layer;
	bool *needed; /* [n_experts] used by it */
	/* experts of the layer that have arrived since it began and are not computed yet, in the
	 * order of their arrival */
	uint32_t arrived[LIMIT_EXPERTS], first_arrived, n_arrived;
	/* its resident experts are computed and may be evicted, because the layer is larger than
	 * the cache */
	bool waves;
	uint64_t iteration;
	bool stuck; /* the policy gave no slot for a demand */
	struct cache_measures measures;
	double wall_layer_ns; /* of a verification, with waits */
	/* With a device: */
	bool *by_cpu; /* [n_experts] of the layer that runs, computed by the CPU */
	struct utility utility; /* of all experts; only for BALANCE_SPAC */
	/* Experts that the CPU computed and that are loaded when the link has nothing else to do,
	 * the last one first. */
	struct cache_prefetch fills[REPLAY_FILLS];
	uint32_t n_fills;
};

/* The slot of an expert, if it is resident. */
uint32_t replay_find(const struct sim *sim, uint32_t layer, uint32_t expert);
/* Where an expert is or will be: slot + 1; 0: nowhere. */
uint32_t *replay_slot_of(const struct sim *sim, uint32_t layer, uint32_t expert);
/* Starts the next load when the link is free. */
void replay_send_next(struct sim *sim);
/* Lets time pass, with everything that happens meanwhile. */
void replay_advance(struct sim *sim, uint64_t by_ns);
/* Waits until an expert of the layer has arrived, and returns it. Sets sim->stuck, and returns
 * UINT32_MAX, if none will. */
uint32_t replay_wait(struct sim *sim);
/* Demands the layer's experts that are not resident, except those of by_cpu, and reports all of them
 * as activations. Returns how many are resident. */
uint32_t replay_ask(
	struct sim *sim, const struct trace_pass *pass, const struct trace_layer *layer);
/* Tells the hints of the layer that runs. */
void replay_layer_hints(
	struct sim *sim, const struct trace_pass *pass, const struct trace_layer *layer);
/* Ends the layer that runs. */
void replay_end_layer(struct sim *sim, const struct trace_layer *layer);

/* cache_replay_device.c: a layer with options->device. */
void replay_device_layer(
	struct sim *sim, const struct trace_pass *pass, const struct trace_layer *layer);
