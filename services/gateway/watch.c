#include "services/gateway/watch.h"

#include "client/summary/look.h"
#include "services/gateway/report.h"
#include "shared/ipc/bus.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

#define NOT_ASKED "not asked yet"
enum { SETTLE_S = 2 };

enum { TIMEOUT_MS = 500, PERIOD_MS = 1000, PERIOD_MS_LOADING = 100 };

/* Returns the look's number. */
static uint64_t begin(struct watch *watch)
{
	pthread_mutex_lock(&watch->mutex);
	uint64_t number = ++watch->begun;
	watch->wanted = false;
	pthread_mutex_unlock(&watch->mutex);
	return number;
}

static void look(struct watch *watch)
{
	struct look look;
	struct watch_news news;
	struct timespec wall;
	uint64_t number = begin(watch);

	if (look_at(watch->runtime_dir, watch->zmq, TIMEOUT_MS, &look) < 0) {
		look_free(&look);
		return;
	}
	clock_gettime(CLOCK_REALTIME, &wall);
	watch_read(watch, &news);
	news_take(&news, &look);
	char *report = report_print(&look, &news);
	pthread_mutex_lock(&watch->mutex);
	watch->news = news;
	watch->ended = number;
	history_add(&watch->history, &news, look.at_ns,
		(double)wall.tv_sec + (double)wall.tv_nsec / 1e9);
	if (report) {
		free(watch->report);
		watch->report = report;
	}
	pthread_cond_broadcast(&watch->wake);
	pthread_mutex_unlock(&watch->mutex);
	look_free(&look);
}

/* Waits until it is time to look again. False: it is time to stop. */
static bool rest(struct watch *watch)
{
	struct timespec until;
	bool stop;

	clock_gettime(CLOCK_MONOTONIC, &until);
	pthread_mutex_lock(&watch->mutex);
	long ms = watch->news.ready ? PERIOD_MS : PERIOD_MS_LOADING;
	until.tv_sec += (until.tv_nsec / 1000000 + ms) / 1000;
	until.tv_nsec = (until.tv_nsec / 1000000 + ms) % 1000 * 1000000;
	while (!watch->stop && !watch->wanted &&
		pthread_cond_timedwait(&watch->wake, &watch->mutex, &until) != ETIMEDOUT)
		;
	stop = watch->stop;
	pthread_mutex_unlock(&watch->mutex);
	return !stop;
}

static void *run(void *arg)
{
	struct watch *watch = arg;

	do
		look(watch);
	while (rest(watch));
	return NULL;
}

int watch_start(struct watch *watch, const char *runtime_dir, struct error *err)
{
	pthread_condattr_t clock;
	int code = bus_context(&watch->zmq, err);

	if (code < 0)
		return code;
	snprintf(watch->runtime_dir, sizeof watch->runtime_dir, "%s", runtime_dir);
	snprintf(watch->news.state, sizeof watch->news.state, NOT_ASKED);
	pthread_mutex_init(&watch->mutex, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&watch->wake, &clock);
	pthread_condattr_destroy(&clock);
	code = pthread_create(&watch->thread, NULL, run, watch);
	if (code)
		return error_set(err, code, "no thread to watch the service: %s", strerror(code));
	watch->started = true;
	return 0;
}

void watch_stop(struct watch *watch)
{
	if (!watch->started)
		return;
	pthread_mutex_lock(&watch->mutex);
	watch->stop = true;
	pthread_cond_broadcast(&watch->wake);
	pthread_mutex_unlock(&watch->mutex);
	pthread_join(watch->thread, NULL);
	zmq_ctx_term(watch->zmq);
	free(watch->report);
	watch->started = false;
}

void watch_settle(struct watch *watch)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += SETTLE_S;
	pthread_mutex_lock(&watch->mutex);
	while ((strcmp(watch->news.state, NOT_ASKED) == 0 ||
		       strcmp(watch->news.state, "no answer yet") == 0) &&
		pthread_cond_timedwait(&watch->wake, &watch->mutex, &until) != ETIMEDOUT)
		;
	pthread_mutex_unlock(&watch->mutex);
}

void watch_read(struct watch *watch, struct watch_news *news)
{
	pthread_mutex_lock(&watch->mutex);
	*news = watch->news;
	pthread_mutex_unlock(&watch->mutex);
}

void watch_read_anew(struct watch *watch, struct watch_news *news)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += SETTLE_S;
	pthread_mutex_lock(&watch->mutex);
	uint64_t next = watch->begun + 1;
	watch->wanted = watch->wanted || !watch->news.ready;
	if (!watch->news.ready)
		pthread_cond_broadcast(&watch->wake);
	while (!watch->news.ready && watch->ended < next && !watch->stop &&
		pthread_cond_timedwait(&watch->wake, &watch->mutex, &until) != ETIMEDOUT)
		;
	*news = watch->news;
	pthread_mutex_unlock(&watch->mutex);
}

void watch_report(struct watch *watch, uint64_t after, struct text *out)
{
	pthread_mutex_lock(&watch->mutex);
	/* The samples become the last member of the object. */
	if (watch->report)
		text_add(out, watch->report, strlen(watch->report) - 1);
	else
		text_add_string(out, "{\"ready\":false,\"state\":\"not asked yet\"");
	text_add_string(out, ",\"timeline\":");
	history_print(&watch->history, after, out);
	text_add_string(out, "}\n");
	pthread_mutex_unlock(&watch->mutex);
}
