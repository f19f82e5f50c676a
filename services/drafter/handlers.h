/*
 * What happens on the drafter's loop thread: it maps the regions that peers offer, notes peers that
 * die, and answers admin requests. It hands each region to the draft thread and keeps all of them
 * open, so that a restarted peer gets its own back.
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
	uint64_t uid[WORKER_REGIONS]; /* of the region that the worker was given last; 0 = none */
	struct gguf_news news; /* of the draft model's file, as last logged */
	uint64_t file_state; /* the same file's state, a gguf_state */
	unsigned alone_ticks; /* how long there has been no expert-cache to ask */
	bool up[HANDLER_LINKS];
	bool failed[WORKER_REGIONS]; /* the last region offered could not be mapped */
};

/* Opens the links and registers the knobs. config holds the settings in force, options those of the
 * start. daemon, broker, worker and config are borrowed. */
int handlers_open(struct handlers *handlers, struct daemon *daemon, struct broker *broker,
	struct worker *worker, struct drafter_config *config, const struct options *options,
	struct error *err);
void handlers_close(struct handlers *handlers);
/* Sets the state line of the daemon from the states of links and worker. Loop thread. */
void handlers_update_state(struct handlers *handlers);
