/*
 * How the service is, asked once a second on a thread of its own (outrider_status may wait for a process that hangs). Any thread
 * may read what was heard last.
 */
#pragma once

#include "shared/base/error.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { WATCH_NAME_BYTES = 256, WATCH_STATE_BYTES = 128 };

struct watch_news {
	bool ready; /* the verifier takes requests */
	char state[WATCH_STATE_BYTES]; /* the verifier's: "loading", "ready", "down", ... */
	char model[WATCH_NAME_BYTES]; /* file name without .gguf; "": it was never heard */
	uint64_t context; /* tokens of one session */
	uint64_t running, waiting, output_tokens; /* of the verifier */
	uint64_t expert_hits, expert_misses, expert_bytes; /* of the expert-cache */
	uint64_t processes; /* that answer */
};

struct watch {
	pthread_t thread;
	bool started;
	char runtime_dir[256];
	pthread_mutex_t mutex; /* of the rest */
	pthread_cond_t wake;
	bool stop;
	struct watch_news news;
};

int watch_start(struct watch *watch, const char *runtime_dir, struct error *err);
void watch_stop(struct watch *watch);
void watch_read(struct watch *watch, struct watch_news *news);
