/*
 * The state of the service. A thread of its own asks once a second, because a process that hangs
 * may keep it waiting. Any thread may read the result of the last look.
 */
#pragma once

#include "services/gateway/history.h"
#include "services/gateway/news.h"
#include "services/gateway/text.h"
#include "shared/base/error.h"

#include <pthread.h>
#include <stdbool.h>

struct watch {
	pthread_t thread;
	bool started;
	char runtime_dir[256];
	void *zmq; /* the thread's */
	pthread_mutex_t mutex; /* for the members below */
	pthread_cond_t wake;
	bool stop;
	uint64_t begun, ended; /* the number of looks that have */
	bool wanted; /* somebody waits for the next look */
	struct watch_news news;
	struct history history;
	char *report; /* owned: the text of report.h at the last look; NULL: there was none */
};

int watch_start(struct watch *watch, const char *runtime_dir, struct error *err);
void watch_stop(struct watch *watch);
/* Waits, for two seconds at most, until the verifier has said whether it is ready. */
void watch_settle(struct watch *watch);
void watch_read(struct watch *watch, struct watch_news *news);
/* The same; but if the last look found no verifier that takes requests, looks again first, which may
 * take two seconds: it may have begun to take them since. */
void watch_read_anew(struct watch *watch, struct watch_news *news);
/* The page of /status: a JSON object, with the samples of the history after number `after`. */
void watch_report(struct watch *watch, uint64_t after, struct text *out);
