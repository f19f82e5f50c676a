/*
 * What slots_source.c (the source of experts), slots_wait.c (its waits) and device_source.c (its
 * experts in a device's memory) share. No other file includes it. All of it belongs to the verifier's
 * one thread.
 */
#pragma once

#include "shared/spec/balance.h"
#include "shared/spec/device_rescue.h"
#include "shared/spec/device_spare.h"
#include "shared/spec/utility.h"

/* The device's slots, as the verifier uses them. */
struct device_tier {
	struct region region; /* fd -1: none */
	struct device_slots slots;
	struct buffer memory, flags; /* the slots; the region, as the back end sees it */
	uint32_t epoch;
	struct device_rescue *rescue;
	/* Every expert is pinned for good, in these slots ([n_layers][n_experts]). number: of this
	 * arrangement. */
	bool resident;
	uint64_t number;
	uint32_t *all;
	uint32_t n_begun; /* layers; every now and then they are all tried */
};

/* Experts that the CPU computes in the slots in memory, beside the device (device_hybrid.c). */
struct device_hybrid {
	enum balance_rule rule;
	struct utility utility; /* of all experts */
	double window_ns; /* from one pass to the next, while drafts are waited for; smoothed */
	uint32_t n; /* of the present layer: pinned in memory, and not given out yet */
	uint32_t n_late; /* of these, the last ones are on their way to the device */
	uint16_t of[LIMIT_EXPERTS];
	/* An expert that was demanded for the device though nobody waits for it: so what the CPU
	 * computes gets there as well. One at a time. */
	bool filling;
	uint32_t fill_layer, fill_expert;
	uint64_t fill_iteration;
};

/* What a view keeps. */
enum held_kind {
	HELD_FILE, /* pages of the file */
	HELD_SLOT, /* a pin of a slot in memory */
	HELD_DEVICE, /* a pin of a slot of the device */
	HELD_RESIDENT, /* a slot of the device that stays pinned */
	HELD_SPARE, /* a spare slot of the device */
};

struct experts_cached {
	struct expert_source source;
	struct experts_cached_options options;
	struct slots_geometry geometry;
	struct region region; /* fd -1: no region is attached */
	struct region hints; /* the region "hints" */
	struct slots slots;
	/* arena: of the slots; file: of the experts in the file. A device does not read them. */
	struct buffer arena, file;
	struct device_tier device;
	uint64_t n_settled; /* how often all experts came to lie on the device */
	struct device_spare spare;
	struct device_hybrid hybrid;
	uint32_t epoch;
	uint64_t n_attached; /* number of regions ever attached */
	bool damaged; /* a slot that was in use no longer had our pin when it was given back */
	uint64_t iteration; /* counts begun layers, across restarts: starts at the generation */
	uint64_t session;
	bool (*meanwhile)(void *arg); /* NULL: no other work */
	void *meanwhile_arg;
	/* Last sign of life of the transfer worker when it was given up. As long as it gives no
	 * other, nothing is demanded of it. */
	uint64_t hung_beat_ns;

	/* The present layer: */
	uint32_t layer, n;
	uint16_t experts[LIMIT_EXPERTS];
	/* Indices into experts, in groups. Each of 0..n-1 that was not returned yet is in one of
	 * the first three. */
	uint32_t n_pinned, n_missing, n_unserved;
	uint16_t pinned[LIMIT_EXPERTS]; /* resident; slot[] tells where */
	uint32_t n_coming; /* and in this one */
	uint16_t coming[LIMIT_EXPERTS]; /* pinned on the device while they are copied there */
	uint32_t load[LIMIT_EXPERTS]; /* number of that load */
	uint16_t missing[LIMIT_EXPERTS]; /* demanded */
	uint16_t unserved[LIMIT_EXPERTS]; /* to be read from the file */
	uint32_t slot[LIMIT_EXPERTS];
	/* Views that were given out, oldest first. What they pin, or have read from the file, stays
	 * until their tickets are reached. */
	uint32_t n_held;
	struct held_view {
		uint32_t slot, layer, expert;
		enum held_kind kind;
		ticket until; /* 0: `used` was not called for it */
	} held[2 * LIMIT_EXPERTS];
	struct queue *q; /* that issued the tickets */
	uint64_t progress_ns; /* time of the last arrival */
	uint64_t slept; /* the iteration of the last layer that slept until something arrived */
};

/* True when a region is attached and its cache process lives. */
bool slots_cache_alive(const struct experts_cached *cached);
/* True when the transfer worker has done something since it was last given up. */
bool slots_worker_alive(const struct experts_cached *cached);
/* Call when nothing has arrived: sleeps until something may have arrived, or moves missing experts
 * to the unserved. seen: the value of slots_arrivals read before the look that found nothing. */
void slots_wait_or_give_up(struct experts_cached *cached, uint32_t seen);
/* Rung when a missing expert may have arrived. */
struct doorbell *slots_arrivals(const struct experts_cached *cached);
/* How long a wait may last. */
uint64_t slots_patience(const struct experts_cached *cached);

/* ---- slots_source.c, for device_source.c. ---- */

void slots_push_activations(struct experts_cached *cached, const uint16_t *tokens);
bool slots_push_demand(struct experts_cached *cached, uint32_t expert, uint16_t tokens);
/* Records what is released when its view is no longer used. */
void slots_hold(struct experts_cached *cached, enum held_kind kind, uint32_t slot, uint32_t expert);
/* Releases views whose tickets are reached. release_all waits for all. */
void slots_release_held(struct experts_cached *cached);
void slots_release_all(struct experts_cached *cached);
bool slots_is_lost(struct experts_cached *cached);
/* True when the owner waits for an unpin, in memory or on the device. */
bool slots_owner_starves(const struct experts_cached *cached);
/* Gives out an expert where it lies in memory, pinned. */
void slots_view_in_memory(struct experts_cached *cached, uint32_t i, struct expert_view *view);
/* Gives out what nobody brings. */
uint32_t slots_view_unserved(struct experts_cached *cached, struct expert_view *views);
int slots_map_again(const struct region *region, const char *name, uint32_t layout,
	struct region *out, struct error *err);

/* ---- device_hybrid.c. ---- */

int device_hybrid_init(struct experts_cached *cached, struct error *err);
void device_hybrid_exit(struct experts_cached *cached);
/* Moves what the CPU is to compute from the missing and the unserved to hybrid.of, pinned in memory.
 * Behind the choice of the device's places. */
void device_hybrid_choose(struct experts_cached *cached, const uint16_t *tokens);
/* Gives these out. */
uint32_t device_hybrid_view(struct experts_cached *cached, struct expert_view *views);
/* Demands one of them for the device. */
void device_hybrid_fill(struct experts_cached *cached, const uint16_t *tokens);

/* ---- device_source.c. ---- */

static inline bool device_tier_used(const struct experts_cached *cached)
{
	return cached->device.region.fd >= 0 && cached->region.fd >= 0;
}
/* As in expert_source_ops; of experts_cached's layer. */
uint64_t device_tier_settled(struct experts_cached *cached);
void device_tier_place(const struct experts_cached *cached, uint32_t layer, uint32_t expert,
	struct expert_view *view);
void device_tier_chose(struct experts_cached *cached, const uint16_t *tokens);
void device_tier_begin(struct experts_cached *cached, const uint16_t *tokens);
int device_tier_ready(struct experts_cached *cached, struct expert_view *views);
/* The layer ends: what was pinned and not given out is released. */
void device_tier_end(struct experts_cached *cached);
/* Releases a view. */
void device_tier_release(struct experts_cached *cached, const struct held_view *view);
/* No queued step uses the slots any more. */
void device_tier_detach(struct experts_cached *cached);
