/*
 * The owner's side of the slot region: creates or adopts it, and knows which slots are free, loading, held back or
 * resident. Used by the transfer worker alone once it runs; the loop thread reads only the region's atomics.
 *
 * The region has a slot for every expert; the budget is how many may be in use. A free slot has no
 * pages, but for those that are given some ahead, which together with those in use are no more than
 * the budget. While more are in use than the budget, store_shrink gives up one after the other, as
 * fast as pins go; demands are served meanwhile, in the slot of another victim. Where the kernel
 * does not take pages back, as in some sandboxes, free slots keep theirs: that is said and counted,
 * and they are used again before others.
 */
#pragma once

#include "services/expert-cache/policies/policy.h"
#include "shared/ipc/region.h"
#include "shared/spec/slots.h"

enum expert_status { EXPERT_ABSENT = 0, EXPERT_LOADING };
/* What a free slot has: none; some all the same, or about to (store_ahead); some that the kernel did not take back. */
enum free_pages { PAGES_NONE = 0, PAGES_AHEAD, PAGES_KEPT };

struct store {
	struct region region;
	struct region hints; /* what the drafter writes */
	struct slots slots;
	struct slots_geometry geometry;
	const struct cache_policy_ops *policy;
	void *policy_state;
	const uint64_t *profile;
	bool adopted;
	struct slots_adopted found; /* what adoption found */
	uint32_t budget; /* slots that may be in use */
	uint32_t n_free;
	uint32_t *free_slots; /* [n_slots] a stack */
	uint8_t *pages; /* [n_slots] enum free_pages */
	uint32_t n_ahead;
	_Atomic uint64_t n_kept; /* any thread may look */
	bool refused; /* the kernel does not take pages back; said */
	uint8_t *status; /* [n_layers][n_experts] enum expert_status */
	/* Slots a dead predecessor was loading, where its reads may still land until held_until_ns. */
	uint32_t n_held;
	uint32_t *held;
	uint64_t held_until_ns;
	struct slot_note {
		uint16_t layer, expert; /* what was loaded there; the region's word may lie */
		uint64_t demand; /* the verifier's iteration that asked for it */
		uint64_t hint_until_ns; /* a hint's expert: not given up for another hint before */
		bool unused_prefetch; /* nobody has used it since */
		bool tiles; /* packed, or being packed; the packer's */
		bool packing; /* LOADING for that */
		bool due; /* and this, noted to be packed */
		bool sum_due; /* noted to be summed */
		uint32_t row_uses; /* as it lies in the file */
	} * notes; /* [n_slots] */
	/* Those that are to be summed, and the one that is (sums.h). */
	struct slot_sums {
		uint32_t *due, n_due; /* [n_slots] */
		uint32_t slot; /* SLOT_NONE: none */
		int part;
		uint64_t at, sum;
	} sums;
	uint64_t stamp; /* grows with each use */
	uint64_t demand; /* the iteration under way */
};

struct store_options {
	uint32_t budget; /* slots */
	uint64_t model_fingerprint;
	uint64_t model_files, model_stamps; /* gguf_files, gguf_stamps */
	const struct cache_policy_ops *policy;
	uint32_t queue_max; /* prefetches that may wait in the policy */
	const uint64_t
		*profile; /* as in cache_policy_shape; borrowed as long as the store is open */
	/* A predecessor's regions, or -1; closed where they do not fit. */
	int recovered_fd, recovered_hints_fd;
};

/* After the predecessor is known to be dead (broker_open succeeded). A recovered region of
 * another model or in a bad state is replaced by a new one, with a log line that says why; one
 * that holds more than the budget shrinks. */
int store_open(struct store *store, const struct slots_geometry *geometry,
	const struct store_options *options, struct error *err);
void store_close(struct store *store);
/* Bytes of slots that are free and whose pages the kernel did not take back. Any thread. */
uint64_t store_kept_bytes(const struct store *store);
/* Bytes of memory that the region has now: all of it; what lies before the slots (header,
 * tables, rings); the slots, which are what the budget is about. Any thread. */
uint64_t store_bytes(const struct store *store);
uint64_t store_table_bytes(const struct store *store);
uint64_t store_arena_bytes(const struct store *store);

/* The state of a policy for this store, which it does not use yet. Any thread. */
int store_policy_create(const struct store *store, const struct cache_policy_ops *policy,
	uint32_t queue_max, void **state, struct error *err);
struct store_resident {
	uint64_t used;
	uint32_t slot;
};
/* From now on this policy decides: it is told what is resident in order of its last use, and the
 * caller destroys the state of the old one, which *policy and *state become. scratch: [n_slots]. */
void store_switch_policy(struct store *store, const struct cache_policy_ops **policy, void **state,
	struct store_resident *scratch);

void store_set_budget(struct store *store, uint32_t n_slots);
uint32_t store_in_use(const struct store *store);
/* [shrink] While more slots are in use than the budget: evicts one, the policy's victim, which the caller gives to
 * store_give_back. SLOT_NONE: none has to go, or all are pinned or wanted now. */
uint32_t store_shrink(struct store *store, uint64_t now_ns);
/* [give_back] The pages of an EMPTY slot go back to the kernel, if it takes them; it is free. No
 * read of this process goes there. */
void store_give_back(struct store *store, uint32_t slot);

/* Up to max free slots that will be taken before others and have no pages: the caller finds them
 * some. Never more than the budget has room for. Returns how many. */
uint32_t store_ahead(struct store *store, uint32_t *slots, uint32_t max);
/* Whether more free slots have pages than the budget has room for; they give them back with
 * store_drop_ahead. Nobody finds pages for slots meanwhile. */
bool store_too_far_ahead(const struct store *store);
void store_drop_ahead(struct store *store);

/* The slot of a resident expert or SLOT_NONE. */
uint32_t store_find(const struct store *store, uint32_t layer, uint32_t expert);
bool store_loading(const struct store *store, uint32_t layer, uint32_t expert);

/* A slot, LOADING, for want's (layer, expert), which is neither resident nor loading: a free
 * one, or after an eviction. SLOT_NONE when everything is pinned or wanted now. Preloading
 * evicts nothing. */
uint32_t store_take(struct store *store, const struct cache_prefetch *want, enum load_reason why,
	uint64_t now_ns);
void store_loaded(struct store *store, uint32_t slot, enum load_reason why, uint64_t hint_until_ns,
	enum matrix_layout layout);
/* The slot is EMPTY: the caller gives it to store_set_aside. */
void store_failed(struct store *store, uint32_t slot, bool refuse);
/* It is free, and keeps the pages that it has as found ahead, since some may be on their way to
 * it still. No read of this process goes there. */
void store_set_aside(struct store *store, uint32_t slot);

/* [pack_begin] The resident expert of this slot is the caller's to pack; false while it is
 * pinned, or when the slot is not what the owner thinks. store_pack_end makes it usable again.
 * To the policy it is resident all the time, as to store_packing, which gives the slot of an
 * expert that is being packed, or SLOT_NONE. */
bool store_pack_begin(struct store *store, uint32_t slot);
void store_pack_end(struct store *store, uint32_t slot);
uint32_t store_packing(const struct store *store, uint32_t layer, uint32_t expert);

/* The verifier began another layer: what was demanded before may go. */
void store_begin_demand(struct store *store, uint64_t iteration);
/* It demanded what is loading or has arrived meanwhile: keep it until it is used. */
void store_protect(struct store *store, uint32_t slot);
/* It used an expert for so many tokens; slot: where it is, or SLOT_NONE. Kept in the region for a successor. */
void store_use(struct store *store, const struct cache_use *use);
/* What the policy may want to know. */
void store_measure(struct store *store);

/* Frees what a dead predecessor's reads can no longer reach; true when some were freed. */
bool store_release_held(struct store *store, uint64_t now_ns);
