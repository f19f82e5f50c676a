/* The expert-cache process: what main.c puts together, and its messages (handlers.c). All in the loop thread; the
 * transfer worker is transfer.h's. */
#pragma once

#include "proto/admin.pb-c.h"
#include "services/expert-cache/budget.h"
#include "services/expert-cache/config.h"
#include "services/expert-cache/model_file.h"
#include "services/expert-cache/reader/reader.h"
#include "services/expert-cache/store/store.h"
#include "services/expert-cache/transfer.h"
#include "shared/base/options.h"
#include "shared/ipc/broker.h"
#include "shared/ipc/daemon.h"

/* A budget and what it came out of. */
struct settled {
	struct memory_limit limit;
	struct room room;
	struct budget budget;
};

struct service {
	struct cache_config config;
	struct cache_config
		configured; /* what it was started with; config may be a predecessor's */
	struct daemon *daemon;
	struct broker *broker;
	struct model *model;
	struct slots_geometry geometry;
	uint64_t *profile; /* of config.profile, or NULL */
	struct room_needs needs; /* of the others, as far as the budget counts them */
	struct settled settled; /* with the limit and needs that the budget was found with last */
	uint64_t looked_ns; /* at the limit */
	bool alone; /* the budget was found while no verifier was there */
	bool verifier_left; /* and has not come back: the memory that it had counts as nobody's */
	uint32_t budget; /* slots; 0: a dense model, nothing below is there */
	struct store store;
	struct reader *reader;
	struct transfer transfer;
	struct hint_quality quality;
	struct model_file file;
};

/* What is known of the hints, per layer and summed (hint_stats.c); false: no memory. All from malloc. */
bool hint_stats_layer(
	const struct hint_quality *quality, uint32_t layer, Outrider__CacheLayer *out);
bool hint_stats_all(const struct hint_quality *quality, Outrider__CacheStats *out);

/* The admin endpoint, its knobs, status details, liveness and timers. options: what it was started with. */
int handlers_open(struct service *service, const struct options *options, struct error *err);
