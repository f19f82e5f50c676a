/*
 * What reaches the drafter's loop thread: regions that peers offer, peers that die, admin
 * questions. Regions are mapped here and handed to the draft thread; all of them are kept, so that
 * a peer's successor finds its own.
 */
#pragma once

#include "services/drafter/worker.h"
#include "shared/base/options.h"
#include "shared/ipc/broker.h"
#include "shared/ipc/link.h"
#include "shared/model/gguf/gguf_watch.h"

enum { HANDLER_LINKS = 3 };

struct handlers {
	struct daemon *daemon;
	struct broker *broker;
	struct worker *worker;
	const struct drafter_config *config;
	struct link *links[HANDLER_LINKS];
	uint64_t uid[WORKER_REGIONS]; /* of the region the worker was given last; 0 = none */
	struct gguf_news news; /* of the draft model's file, as the log knows them */
	uint64_t file_state; /* the same: gguf_state */
	bool up[HANDLER_LINKS];
	bool failed[WORKER_REGIONS]; /* the last one offered could not be mapped */
};

/* Opens the links and the knobs: config is what is in force, and options what it was started with. daemon, broker, worker
 * and config are borrowed. */
int handlers_open(struct handlers *handlers, struct daemon *daemon, struct broker *broker,
	struct worker *worker, struct drafter_config *config, const struct options *options,
	struct error *err);
void handlers_close(struct handlers *handlers);
/* Composes the state line from links and worker. Loop thread. */
void handlers_update_state(struct handlers *handlers);
