/* The expert-cache process: what main.c sets up, and its messages (handlers.c). All in the loop
 * thread; the transfer worker is in transfer.h. */
#pragma once

#include "proto/admin.pb-c.h"
#include "services/expert-cache/budget.h"
#include "services/expert-cache/config.h"
#include "services/expert-cache/device/share.h"
#include "services/expert-cache/model_file.h"
#include "services/expert-cache/reader/reader.h"
#include "services/expert-cache/store/store.h"
#include "services/expert-cache/transfer.h"
#include "shared/base/options.h"
#include "shared/ipc/broker.h"
#include "shared/ipc/daemon.h"

/* A budget, and what it was computed from. */
struct settled {
	struct memory_limit limit;
	struct room room;
	struct budget budget;
};

/* The drafter's part of the device's memory (live_drafter.h). */
struct drafter_part {
	uint64_t asked, there; /* bytes that it needs, and that it has taken; as it says */
	uint64_t left_ns; /* when it left; 0: it is here, or nothing is kept for it */
	bool granted; /* `asked` counts as taken */
	bool answered; /* it has been told what is in force */
	uint64_t tried; /* slots that had to give way did not: not asked again for so many bytes */
};

struct service {
	struct cache_config config;
	/* what it was started with; config may be the predecessor's */
	struct cache_config configured;
	struct daemon *daemon;
	struct broker *broker;
	struct model *model;
	struct slots_geometry geometry;
	uint64_t *profile; /* read from config.profile, or NULL */
	struct room_needs needs; /* of the others, as counted in the budget */
	/* with the limit and needs for which the budget was last computed */
	struct settled settled;
	uint64_t looked_ns; /* when the limit was last checked */
	bool alone; /* the budget was computed while no verifier was running */
	/* the verifier has left and not come back: the memory that it had counts as free */
	bool verifier_left;
	uint64_t verifier_generation; /* of the one that joined last; 0: none has */
	char **argv;
	uint32_t budget; /* slots; 0: a dense model, and nothing below is used */
	struct store store;
	struct backend *backend; /* of the device; NULL: none, and so with the next */
	int device_claim; /* device_claim.h; -1: none */
	char device_refused
		[256]; /* why experts are in memory alone, although a device is set; "" */
	struct device *device;
	struct device_share device_share; /* as counted in the device's budget */
	struct drafter_part drafter;
	uint64_t drafter_told; /* bytes of it that the verifier knows of */
	int device_fd, device_memory_fd; /* a predecessor's, until they are taken over; -1 */
	struct reader *reader;
	struct transfer transfer;
	struct hint_quality quality;
	struct model_file file;
};

/* hint_stats.c: what is known of the hints, for one layer and for all. False: no memory. Everything
 * is malloc'd. */
bool hint_stats_layer(
	const struct hint_quality *quality, uint32_t layer, Outrider__CacheLayer *out);
bool hint_stats_all(const struct hint_quality *quality, Outrider__CacheStats *out);

/* Sets up the admin endpoint, its knobs, status details, liveness and timers. options: those of the
 * start. */
int handlers_open(struct service *service, const struct options *options, struct error *err);
