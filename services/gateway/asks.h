/*
 * Questions to the service that wait for an answer (texts, tokens, the model). A few threads, each
 * with a client of its own, ask them, so that the loop never waits. All functions here are called
 * on the loop thread; only run() is called on one of the pool's threads.
 */
#pragma once

#include "client/include/outrider.h"
#include "services/gateway/facts.h"
#include "shared/base/error.h"

#include <pthread.h>
#include <stdbool.h>

struct exchange;
struct gateway;

enum {
	ASKS_THREADS = 2,
	ASKS_WAITING = 256, /* questions that may wait for a thread; beyond that they are refused */
	ASKS_TIMEOUT_MS = 5000,
};

/* One question. Plain memory: the asking code fills in what run() reads, and does not own it after
 * that. */
struct ask {
	struct ask *next;
	struct exchange *exchange; /* NULL: the exchange has ended, so the answer is not wanted */
	/* Asks, and puts the results into the members below. 0 or -errno, with the sentence in
	 * outrider_error(). */
	int (*run)(struct ask *ask, struct outrider *client);
	/* Called with the answer: makes it the response, or lets the exchange go on. False: the
	 * exchange's fault has the reason. */
	bool (*done)(struct exchange *exchange, struct ask *ask);
	int code;
	char sentence[512];

	/* a text of the question or of the answer; owned; freed with outrider_free or free */
	char *text;
	size_t bytes;
	int32_t *tokens;
	size_t n_tokens;
	uint32_t *ends; /* [n_tokens] */
	unsigned flags;
	struct outrider_request *request;
	struct outrider_model_info *info;
	struct gateway_facts facts;
};

struct asks {
	struct gateway *gateway;
	pthread_t threads[ASKS_THREADS];
	unsigned n_threads, n_waiting;
	int fd; /* readable when there are answers; -1: not open */
	char runtime_dir[256];
	pthread_mutex_t mutex; /* for the members below */
	pthread_cond_t wake;
	bool stop;
	struct ask *first, **last; /* to be asked */
	struct ask *answered;
};

int asks_start(
	struct asks *asks, struct gateway *gateway, const char *runtime_dir, struct error *err);
void asks_stop(struct asks *asks);

/* An empty question; NULL when memory is exhausted. */
struct ask *ask_new(void);
void ask_free(struct ask *ask);
/* Takes *ask, also when it fails. The exchange rests until done() was called. False: the exchange's
 * fault has the reason. */
bool ask_put(struct exchange *exchange, struct ask *ask);
/* Call when the exchange ends: the answer to its question, if it has one, will be dropped. */
void ask_forget(struct exchange *exchange);
