#include "services/gateway/asks.h"

#include "services/gateway/exchange.h"
#include "services/gateway/server.h"
#include "shared/ipc/daemon.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct ask *ask_new(void)
{
	return calloc(1, sizeof(struct ask));
}

void ask_free(struct ask *ask)
{
	if (!ask)
		return;
	outrider_free(ask->text);
	outrider_free(ask->tokens);
	outrider_free(ask->ends);
	outrider_request_free(&ask->request);
	outrider_model_info_free(&ask->info);
	free(ask);
}

/* Waits for the next question. NULL: the thread must stop. */
static struct ask *take(struct asks *asks)
{
	struct ask *ask;

	pthread_mutex_lock(&asks->mutex);
	while (!asks->stop && !asks->first)
		pthread_cond_wait(&asks->wake, &asks->mutex);
	ask = asks->stop ? NULL : asks->first;
	if (ask) {
		asks->first = ask->next;
		if (!asks->first)
			asks->last = &asks->first;
		asks->n_waiting--;
	}
	pthread_mutex_unlock(&asks->mutex);
	return ask;
}

static void give(struct asks *asks, struct ask *ask)
{
	uint64_t one = 1;

	pthread_mutex_lock(&asks->mutex);
	ask->next = asks->answered;
	asks->answered = ask;
	pthread_mutex_unlock(&asks->mutex);
	/* It fails only when the descriptor is readable already. */
	(void)!write(asks->fd, &one, sizeof one);
}

static int put(struct asks *asks, struct ask *ask, struct outrider **client)
{
	int code = *client ? 0 : outrider_connect(asks->runtime_dir, client);

	if (code == 0)
		code = outrider_set_wait(*client, ASKS_TIMEOUT_MS, ASKS_TIMEOUT_MS);
	if (code == 0)
		code = ask->run(ask, *client);
	if (code < 0)
		snprintf(ask->sentence, sizeof ask->sentence, "%s", outrider_error());
	return code;
}

static void *run(void *arg)
{
	struct asks *asks = arg;
	struct outrider *client = NULL;
	struct watch_news news;
	struct ask *ask;

	while ((ask = take(asks)) != NULL) {
		watch_read_anew(&asks->gateway->watch, &news);
		ask->code = news.ready ? put(asks, ask, &client) : -ECONNREFUSED;
		if (!news.ready)
			snprintf(ask->sentence, sizeof ask->sentence,
				"the service does not take requests yet: the verifier is %s",
				news.state);
		give(asks, ask);
	}
	outrider_close(&client);
	return NULL;
}

static void finish(struct ask *ask)
{
	struct exchange *exchange = ask->exchange;

	if (exchange) {
		exchange->ask = NULL;
		if (ask->code < 0)
			fault_of_service(&exchange->fault, ask->code, ask->sentence);
		else
			ask->done(exchange, ask);
		exchange_wake(exchange);
	}
	ask_free(ask);
}

static void on_answers(void *arg)
{
	struct asks *asks = arg;
	struct ask *ask;
	uint64_t n;

	(void)!read(asks->fd, &n, sizeof n);
	pthread_mutex_lock(&asks->mutex);
	ask = asks->answered;
	asks->answered = NULL;
	pthread_mutex_unlock(&asks->mutex);
	while (ask) {
		struct ask *next = ask->next;

		finish(ask);
		ask = next;
	}
	server_run(asks->gateway);
}

int asks_start(
	struct asks *asks, struct gateway *gateway, const char *runtime_dir, struct error *err)
{
	asks->gateway = gateway;
	asks->last = &asks->first;
	snprintf(asks->runtime_dir, sizeof asks->runtime_dir, "%s", runtime_dir);
	pthread_mutex_init(&asks->mutex, NULL);
	pthread_cond_init(&asks->wake, NULL);
	asks->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (asks->fd < 0)
		return error_set(err, errno, "no event descriptor: %s", strerror(errno));
	if (daemon_add_fd(gateway->daemon, asks->fd, POLLIN, on_answers, asks) < 0)
		return error_set(err, ENOSPC, "too many sources of events");
	for (unsigned i = 0; i < ASKS_THREADS; i++) {
		int code = pthread_create(&asks->threads[i], NULL, run, asks);

		if (code)
			return error_set(err, code, "no thread for questions: %s", strerror(code));
		asks->n_threads++;
	}
	return 0;
}

static void free_list(struct ask *ask)
{
	while (ask) {
		struct ask *next = ask->next;

		ask_free(ask);
		ask = next;
	}
}

void asks_stop(struct asks *asks)
{
	if (!asks->gateway)
		return;
	pthread_mutex_lock(&asks->mutex);
	asks->stop = true;
	pthread_cond_broadcast(&asks->wake);
	pthread_mutex_unlock(&asks->mutex);
	for (unsigned i = 0; i < asks->n_threads; i++)
		pthread_join(asks->threads[i], NULL);
	free_list(asks->first);
	free_list(asks->answered);
	if (asks->fd >= 0) {
		daemon_remove_fd(asks->gateway->daemon, asks->fd);
		close(asks->fd);
	}
}

bool ask_put(struct exchange *exchange, struct ask *ask)
{
	struct asks *asks = &exchange->gateway->asks;
	bool room;

	if (!ask)
		return fault_set(
			&exchange->fault, 500, NULL, "internal_error", "no memory for the request");
	ask->exchange = exchange;
	ask->next = NULL;
	pthread_mutex_lock(&asks->mutex);
	room = asks->n_waiting < ASKS_WAITING;
	if (room) {
		*asks->last = ask;
		asks->last = &ask->next;
		asks->n_waiting++;
		pthread_cond_signal(&asks->wake);
	}
	pthread_mutex_unlock(&asks->mutex);
	if (!room) {
		ask_free(ask);
		return fault_set(&exchange->fault, 429, NULL, "queue_full",
			"%d questions about texts wait already", ASKS_WAITING);
	}
	exchange->ask = ask;
	return true;
}

void ask_forget(struct exchange *exchange)
{
	if (exchange->ask)
		exchange->ask->exchange = NULL;
	exchange->ask = NULL;
}
