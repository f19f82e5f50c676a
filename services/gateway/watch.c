#include "services/gateway/watch.h"

#include "client/summary/process.h"
#include "shared/ipc/peers.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { TIMEOUT_MS = 500, PERIOD_MS = 1000, PERIOD_MS_LOADING = 100 };

static void hear_verifier(struct watch_news *news, const struct outrider_process *p)
{
	const char *model = process_file(p, "model");

	snprintf(news->state, sizeof news->state, "%s", p->state);
	news->ready = p->answers &&
		      (strncmp(p->state, "ready", 5) == 0 || strncmp(p->state, "degraded", 8) == 0);
	if (!p->answers)
		return;
	if (model) {
		snprintf(news->model, sizeof news->model, "%s", model);
		char *end = strstr(news->model, ".gguf");
		if (end && end[5] == '\0')
			*end = '\0';
	}
	news->context = process_number(p, "context");
	news->running = process_number(p, "running");
	news->waiting = process_number(p, "waiting");
	news->output_tokens = process_number(p, "output_tokens");
}

static void look(struct watch *watch)
{
	struct outrider_status *status;
	struct watch_news news;

	if (outrider_status(watch->runtime_dir, TIMEOUT_MS, &status) < 0)
		return;
	watch_read(watch, &news);
	news.processes = 0;
	for (size_t i = 0; i < outrider_status_count(status); i++) {
		const struct outrider_process *p = outrider_status_process(status, i);

		news.processes += p->answers != 0;
		if (strcmp(p->name, PEER_VERIFIER) == 0)
			hear_verifier(&news, p);
	}
	const struct outrider_process *cache = process_find(status, PEER_CACHE);
	if (cache) {
		news.expert_hits = process_number(cache, "hits");
		news.expert_misses = process_number(cache, "misses");
		news.expert_bytes = process_number(cache, "budget_bytes");
	}
	outrider_status_free(&status);
	pthread_mutex_lock(&watch->mutex);
	watch->news = news;
	pthread_mutex_unlock(&watch->mutex);
}

/* Until it is time to look again, or to stop. */
static bool rest(struct watch *watch)
{
	struct timespec until;
	bool stop;

	clock_gettime(CLOCK_MONOTONIC, &until);
	pthread_mutex_lock(&watch->mutex);
	long ms = watch->news.ready ? PERIOD_MS : PERIOD_MS_LOADING;
	until.tv_sec += (until.tv_nsec / 1000000 + ms) / 1000;
	until.tv_nsec = (until.tv_nsec / 1000000 + ms) % 1000 * 1000000;
	while (!watch->stop &&
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
	int code;

	snprintf(watch->runtime_dir, sizeof watch->runtime_dir, "%s", runtime_dir);
	snprintf(watch->news.state, sizeof watch->news.state, "not asked yet");
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
	pthread_cond_signal(&watch->wake);
	pthread_mutex_unlock(&watch->mutex);
	pthread_join(watch->thread, NULL);
	watch->started = false;
}

void watch_read(struct watch *watch, struct watch_news *news)
{
	pthread_mutex_lock(&watch->mutex);
	*news = watch->news;
	pthread_mutex_unlock(&watch->mutex);
}
