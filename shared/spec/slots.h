/*
 * The expert region: region "experts", owned by the expert-cache; the verifier looks up and pins, the drafter hints.
 *
 * Layout of the payload: struct slots_header; the demand, activation and hint rings; per (layer, expert) one table word; per
 * slot one state word; then, page-aligned, n_slots slots of slot_bytes each (gate, up, down matrices as in the file, each
 * 64-byte aligned).
 *
 * States: EMPTY -> LOADING -> READY -> EVICTING -> EMPTY; pins only in READY. tests/spin/slots.pml is the protocol; the
 * functions below name its transitions. Pins carry the generation of the verifier that holds them, so that those of a dead one
 * are void. An eviction that races a pin loses.
 */
#pragma once

#include "shared/base/limits.h"
#include "shared/ipc/region.h"
#include "shared/ipc/ring.h"
#include "shared/model/experts.h"

#define EXPERTS_REGION "experts"
#define EXPERTS_LAYOUT 1

enum {
	SLOTS_DEMAND_RING = 4096,
	SLOTS_ACTIVATION_RING = 4096,
	SLOTS_HINT_RING = 4096,
};

struct slots_header {
	uint32_t n_layers, n_experts; /* of the model */
	uint32_t n_slots, n_experts_used;
	uint64_t slot_bytes;	/* the largest expert of any layer, rounded up */
	uint64_t budget_bytes;	/* n_slots_used * slot_bytes is at most this */
	uint64_t model_fingerprint;
	_Atomic uint64_t cache_generation; /* of the cache process now serving; 0 = none */
	_Atomic uint64_t verifier_generation;
	struct doorbell arrivals; /* rung when a slot becomes READY */
	uint64_t demand_offset, activation_offset, hint_offset, table_offset, state_offset, arena_offset;
	_Atomic uint64_t demand_hits, demand_misses, loads, evictions, bytes_loaded, hints, hint_loads, self_served;
};

struct slot_demand { /* verifier -> cache: must have now */
	uint16_t layer, expert;
	uint16_t tokens;   /* of the batch that need it */
	uint16_t promote;  /* it was hinted before */
	uint64_t iteration;
};
struct slot_activation { /* verifier -> cache: one layer of one pass */
	uint64_t iteration;
	uint16_t layer, n;
	uint16_t expert_tokens[2 * 26 + 2]; /* (expert, tokens) pairs; more pairs take more entries */
};
struct slot_hint { /* drafter -> cache */
	uint16_t layer, expert;
	float score;
	uint64_t session;
	uint64_t needed_by_ns; /* CLOCK_MONOTONIC, 0 = soon */
};

/* The verifier's expert source over the region. While the cache process is gone, slow or full of pins, a missing
 * expert is read from the model file here. */
struct experts_cached;
struct experts_cached_options {
	uint64_t spin_ns;	 /* before sleeping on arrivals */
	uint64_t patience_ns;	 /* how long a demand may take before it is served from the file */
	uint64_t generation;	 /* the verifier's: carried by its pins */
	bool (*cache_alive)(void *arg);
	void *arg;
};
int experts_cached_create(const struct model *model, const struct experts_cached_options *options,
	struct experts_cached **out, struct error *err);
void experts_cached_destroy(struct experts_cached **cached);
struct expert_source *experts_cached_source(struct experts_cached *cached);
/* Uses a region from now on (dups the fd; NULL: serve everything from the file). Checks the layout and the model's
 * fingerprint. Call between passes. */
int experts_cached_attach(struct experts_cached *cached, const struct region *region, struct error *err);

/* The drafter's side: false when the ring is full (dropped and counted). */
struct slots_hinter {
	struct slots_header *header;
	struct ring hints;
};
int slots_hinter_attach(struct slots_hinter *hinter, const struct region *region, struct error *err);
bool slots_hint(struct slots_hinter *hinter, const struct slot_hint *hint);
/* Whether (layer, expert) is resident now: hints for it are not needed. */
bool slots_resident(const struct slots_hinter *hinter, uint32_t layer, uint32_t expert);
