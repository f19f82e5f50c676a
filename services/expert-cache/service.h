/* The expert-cache process: what main.c puts together, and its messages (handlers.c). All in the loop thread; the
 * transfer worker is transfer.h's. */
#pragma once

#include "services/expert-cache/config.h"
#include "services/expert-cache/reader.h"
#include "services/expert-cache/store.h"
#include "services/expert-cache/transfer.h"
#include "shared/base/options.h"
#include "shared/ipc/broker.h"
#include "shared/ipc/daemon.h"

struct service {
	struct cache_config config;
	struct daemon *daemon;
	struct broker *broker;
	struct model *model;
	struct slots_geometry geometry;
	uint32_t budget; /* slots; 0: a dense model, nothing below is there */
	struct store store;
	struct reader *reader;
	struct transfer transfer;
	bool file_changed; /* said so in the log */
};

/* The admin endpoint, its knobs, status details, liveness and timers. options: what it was started with. */
int handlers_open(struct service *service, const struct options *options, struct error *err);
