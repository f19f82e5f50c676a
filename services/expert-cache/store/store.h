/*
 * The owner's side of the slot region: creates or adopts it, and knows which slots are free,
 * loading, held back or resident. Used by the transfer worker alone once that runs; the loop thread
 * only reads the region's atomics.
 *
 * The region has a slot for every expert; the budget is how many may be in use. A free slot has no
 * pages, except for slots that get pages ahead of use; these and the slots in use together are no
 * more than the budget. While more slots are in use than the budget, store_shrink evicts one after
 * the other, as fast as pins are released. Demands are served meanwhile, each in the slot of
 * another victim. If the kernel does not take pages back, as in some sandboxes, free slots keep
 * theirs. This is logged and counted, and such slots are used before others.
 */
#pragma once

#include "services/expert-cache/policies/policy.h"
#include "shared/ipc/region.h"
#include "shared/spec/slots.h"

enum expert_status { EXPERT_ABSENT = 0, EXPERT_LOADING };
/* Pages of a free slot: none; some, or soon some, ahead of use (store_ahead); some that the kernel
 * did not take back. */
enum free_pages { PAGES_NONE = 0, PAGES_AHEAD, PAGES_KEPT };

struct store {
	struct region region;
	struct region hints; /* the region that the drafter writes to */
	struct slots slots;
	struct slots_geometry geometry;
	const struct cache_policy_ops *policy;
	void *policy_state;
	const uint64_t *profile;
	bool adopted;
	struct slots_adopted found; /* result of the adoption */
	uint32_t budget; /* slots that may be in use */
	uint32_t n_free;
	uint32_t *free_slots; /* [n_slots] a stack */
	uint8_t *pages; /* [n_slots] enum free_pages */
	uint32_t n_ahead;
	_Atomic uint64_t n_kept; /* any thread may read it */
	bool refused; /* the kernel does not take pages back; logged */
	uint8_t *status; /* [n_layers][n_experts] enum expert_status */
	/* Slots that a dead predecessor was loading. Its reads may still arrive in them until
	 * held_until_ns. */
	uint32_t n_held;
	uint32_t *held;
	uint64_t held_until_ns;
	struct slot_note {
		/* what was loaded there; the word in the region may be wrong */
		uint16_t layer, expert;
		uint64_t demand; /* iteration of the verifier that demanded it */
		/* loaded for a hint: until then, not evicted for another hint */
		uint64_t hint_until_ns;
		bool unused_prefetch; /* prefetched and not used since */
		bool tiles; /* packed, or being packed; for the packer */
		bool packing; /* LOADING because it is being packed */
		bool due; /* listed to be packed */
		bool sum_due; /* listed to get a checksum */
		uint32_t row_uses; /* uses in the file's layout */
	} * notes; /* [n_slots] */
	/* Slots that are to get a checksum, and the one in progress (sums.h). */
	struct slot_sums {
		uint32_t *due, n_due; /* [n_slots] */
		uint32_t slot; /* SLOT_NONE: none */
		int part;
		uint64_t at, sum;
	} sums;
	uint64_t stamp; /* incremented by each use */
	uint64_t demand; /* the present iteration */
};

struct store_options {
	uint32_t budget; /* slots */
	uint64_t model_fingerprint;
	uint64_t model_files, model_stamps; /* gguf_files, gguf_stamps */
	const struct cache_policy_ops *policy;
	uint32_t queue_max; /* prefetches that may wait in the policy */
	const uint64_t *profile; /* as in cache_policy_shape; borrowed while the store is open */
	/* A predecessor's regions, or -1; closed if they do not fit. */
	int recovered_fd, recovered_hints_fd;
};

/* Call when the predecessor is known to be dead (broker_open succeeded). A recovered region of
 * another model, or in a bad state, is replaced by a new one, and the log says why. One that holds
 * more than the budget shrinks. */
int store_open(struct store *store, const struct slots_geometry *geometry,
	const struct store_options *options, struct error *err);
void store_close(struct store *store);
/* Bytes of free slots whose pages the kernel did not take back. Any thread. */
uint64_t store_kept_bytes(const struct store *store);
/* Bytes of memory that the region has now: in total; before the slots (header, tables, rings); and
 * in the slots, which is what the budget limits. Any thread. */
uint64_t store_bytes(const struct store *store);
uint64_t store_table_bytes(const struct store *store);
uint64_t store_arena_bytes(const struct store *store);

/* Creates the state of a policy for this store, without using it yet. Any thread. */
int store_policy_create(const struct store *store, const struct cache_policy_ops *policy,
	uint32_t queue_max, void **state, struct error *err);
struct store_resident {
	uint64_t used;
	uint32_t slot;
};
/* Switches to this policy. It is told which experts are resident, in order of their last use.
 * *policy and *state become the old policy and its state, which the caller destroys. scratch:
 * [n_slots]. */
void store_switch_policy(struct store *store, const struct cache_policy_ops **policy, void **state,
	struct store_resident *scratch);

void store_set_budget(struct store *store, uint32_t n_slots);
uint32_t store_in_use(const struct store *store);
/* [shrink] If more slots are in use than the budget: evicts one, the policy's victim, which the
 * caller passes to store_give_back. SLOT_NONE: none need go, or all are pinned or wanted now. */
uint32_t store_shrink(struct store *store, uint64_t now_ns);
/* [give_back] Returns the pages of an EMPTY slot to the kernel, if it takes them; the slot is then
 * free. No read of this process may be going there. */
void store_give_back(struct store *store, uint32_t slot);

/* Up to max free slots that will be taken next and have no pages: the caller allocates pages for
 * them. Never more than the budget has room for. Returns their number. */
uint32_t store_ahead(struct store *store, uint32_t *slots, uint32_t max);
/* True when more free slots have pages than the budget has room for; store_drop_ahead returns those
 * pages. Nobody may be allocating pages for slots meanwhile. */
bool store_too_far_ahead(const struct store *store);
void store_drop_ahead(struct store *store);

/* The slot of a resident expert, or SLOT_NONE. */
uint32_t store_find(const struct store *store, uint32_t layer, uint32_t expert);
bool store_loading(const struct store *store, uint32_t layer, uint32_t expert);

/* Takes a slot for want's (layer, expert), which must be neither resident nor loading: a free slot,
 * or one after an eviction. The slot is LOADING. SLOT_NONE when everything is pinned or wanted now.
 * Preloading evicts nothing. */
uint32_t store_take(struct store *store, const struct cache_prefetch *want, enum load_reason why,
	uint64_t now_ns);
void store_loaded(struct store *store, uint32_t slot, enum load_reason why, uint64_t hint_until_ns,
	enum matrix_layout layout);
/* Makes the slot EMPTY; the caller passes it to store_set_aside. */
void store_failed(struct store *store, uint32_t slot, bool refuse);
/* Frees the slot, which keeps its pages as if allocated ahead, since some may still be on their way
 * to it. No read of this process may be going there. */
void store_set_aside(struct store *store, uint32_t slot);

/* [pack_begin] Gives the resident expert of this slot to the caller for packing; false while it is
 * pinned, or when the slot is not what the owner expects. store_pack_end makes it usable again.
 * Meanwhile the policy sees it as resident, and so does store_packing, which returns the slot of an
 * expert that is being packed, or SLOT_NONE. */
bool store_pack_begin(struct store *store, uint32_t slot);
void store_pack_end(struct store *store, uint32_t slot);
uint32_t store_packing(const struct store *store, uint32_t layer, uint32_t expert);

/* Call when the verifier began another layer: experts demanded before may be evicted. */
void store_begin_demand(struct store *store, uint64_t iteration);
/* Call when the verifier demanded an expert that is loading or has arrived meanwhile: it is kept
 * until it is used. */
void store_protect(struct store *store, uint32_t slot);
/* Call when the verifier used an expert. use->slot: where it is, or SLOT_NONE. The count is kept in
 * the region for a successor. */
void store_use(struct store *store, const struct cache_use *use);
/* Passes measurements to the policy. */
void store_measure(struct store *store);

/* Frees slots that a dead predecessor's reads can no longer reach; true when there were some. */
bool store_release_held(struct store *store, uint64_t now_ns);
