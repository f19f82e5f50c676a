/*
 * The fast tier: experts in a device's memory (shared/spec/device_slots.h), above the store's slots in
 * memory. device_open.c creates or adopts the regions, in the loop's thread. The rest is for the
 * transfer worker: device.c knows which slot holds what and chooses victims, with an instance of the
 * policy of its own; link.c copies; tier.c decides what is copied next. No kernel runs in this
 * process: the CPU packs an expert into memory that the device can fetch from, and queues of the back
 * end copy it. Demands and prefetches have a queue each.
 */
#pragma once

#include "services/expert-cache/reader/loads.h"
#include "shared/spec/device_slots.h"

enum {
	DEVICE_COPIES = 16, /* most copies of one queue at once */
	DEVICE_PREFETCHES = 2, /* the same, of prefetches: a later choice is a better one */
	DEVICE_COMING = 64, /* prefetches that wait for the store */
};
/* Memory that the copies of one queue are packed into; at least two experts. */
#define DEVICE_STAGING_BYTES (64u << 20)

/* A queue of copies, in their order. */
struct device_link {
	struct queue *q;
	struct buffer staging; /* [n] experts */
	uint32_t n, first, busy; /* a ring of copies; busy: those in it */
	uint32_t lane; /* of the first, for outriderctl trace */
	struct device_copy {
		uint32_t slot;
		struct cache_prefetch want;
		enum load_reason why;
		ticket until;
		uint64_t start_ns;
	} copy[DEVICE_COPIES];
	uint64_t ended_ns; /* when the last one was seen to have ended */
};

struct device {
	struct backend *backend; /* borrowed */
	const struct slots_geometry *geometry; /* borrowed */
	struct region region;
	struct buffer memory; /* of the slots */
	struct buffer flags; /* the region, as the back end sees it */
	int memory_fd; /* the memory's descriptor */
	struct device_slots slots;
	uint32_t n_meant; /* slots that the budget means; there may be fewer for now */
	bool adopted;
	struct device_adopted found;
	const struct cache_policy_ops *policy;
	void *policy_state;
	uint32_t n_free, *free_slots; /* [n_slots] a stack */
	/* Loads of a dead predecessor that the verifier has pinned. */
	uint32_t n_held, *held;
	struct device_note {
		uint16_t layer, expert;
		bool ready; /* it holds this expert, whatever the state word says */
		uint64_t demand; /* iteration that demanded it */
		uint64_t hint_until_ns;
	} * notes; /* [n_slots] */
	struct device_resident {
		uint64_t used;
		uint32_t slot;
	} * order; /* [n_slots] scratch */
	uint64_t stamp, demand; /* demand: the present iteration */
	struct device_link demands, prefetches;
	/* Demands of the present iteration that have no slot yet, and prefetches whose expert is not
	 * in the store yet. */
	uint32_t n_wanted, n_coming;
	struct device_wanted {
		uint16_t layer, expert;
		uint64_t since_ns;
	} wanted[LIMIT_EXPERTS];
	struct cache_prefetch coming[DEVICE_COMING];
	uint32_t look; /* the next of the store's slots whose expert may fill a free slot */
	atomic_bool failed; /* nothing is copied any more: a copy has failed. Any thread reads it */
	double copy_ns; /* time of one copy, smoothed; 0: not measured */
	uint64_t busy_since_ns; /* up to when copies in flight were counted; 0: none are */
};

struct device_options {
	struct backend *backend;
	uint32_t n_slots;
	const char *configured, *budget; /* the setting at the start, and in force */
	uint64_t model_fingerprint, model_files, model_stamps;
	const struct cache_policy_ops *policy;
	uint32_t queue_max;
	const uint64_t *profile;
	int recovered_fd, recovered_memory_fd; /* a predecessor's, or -1; closed */
	/* Has the recovered ones dropped by everybody, before others are made. */
	void (*abandon)(void *arg);
	void *arg;
};

/* Makes the regions, or takes a dead predecessor's over. The memory of a new one is allocated now:
 * -ENOMEM. geometry: borrowed. */
int device_open(struct device *device, const struct slots_geometry *geometry,
	const struct device_options *options, struct error *err);
void device_close(struct device *device);
/* Creates the state of a policy for these slots. */
int device_policy_create(const struct device *device, const struct cache_policy_ops *policy,
	uint32_t queue_max, const uint64_t *profile, void **state, struct error *err);
/* Switches to this policy, as store_switch_policy. */
void device_switch_policy(
	struct device *device, const struct cache_policy_ops **policy, void **state);

/* ---- For the transfer worker. ---- */

/* Creates the queues, which belong to the calling thread. */
int device_begin(struct device *device, struct error *err);
/* Tells the verifier to demand nothing of these slots any more. */
void device_retire(struct device *device);
/* Waits for the copies in flight, and frees the queues. */
void device_end(struct device *device);

/* The verifier demands an expert. True: it has a slot on the device. */
bool device_demand(struct device *device, const struct slot_demand *demand);
/* The verifier used an expert. */
void device_use(struct device *device, const struct cache_use *use);
void device_hint(struct device *device, const struct cache_hint *hint);
/* Collects copies that have ended and starts others, from experts in the store; what a demand lacks
 * there it has loaded. */
void device_work(struct device *device, struct loads *loads, uint64_t now_ns);
/* Passes measurements to the policy. */
void device_measure(struct device *device, const struct store *store);
/* True while copies are in flight. */
bool device_busy(const struct device *device);

/* ---- Between its files. ---- */

/* For device_open: learns what the slots hold, and tells the policy. */
void device_take_stock(struct device *device);
void device_tell_policy(struct device *device);

/* Takes a slot: a free one, or one after an eviction. SLOT_NONE: all are pinned, or worth more. */
uint32_t device_take(struct device *device, const struct cache_prefetch *want, enum load_reason why,
	uint64_t now_ns);
/* A copy has ended. */
void device_loaded(struct device *device, const struct device_copy *copy);
/* Frees slots of a dead predecessor's loads that are pinned no more. */
void device_release_held(struct device *device);

int device_link_open(
	struct device_link *link, const struct device *device, uint32_t most, struct error *err);
void device_link_close(struct device_link *link);
/* Packs the expert in this slot of the store and queues its copy to `slot`, whose load begins. The
 * link must have room. */
void device_link_copy(struct device_link *link, struct device *device, const struct store *store,
	uint32_t from, const struct device_copy *copy);
/* Ends loads whose copies have ended. */
void device_link_collect(struct device_link *link, struct device *device, uint64_t now_ns);
/* Waits for all. */
void device_link_drain(struct device_link *link, struct device *device);
static inline bool device_link_room(const struct device_link *link)
{
	return link->busy < link->n;
}
