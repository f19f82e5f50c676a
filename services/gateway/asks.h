/*
 * Questions to the service that wait for an answer (texts, tokens, the model): a few threads with a client each ask them, so that the
 * loop never waits. Every function here is called on the loop's thread; run() alone is called on one of the pool's.
 */
#pragma once

#include "client/include/outrider.h"
#include "shared/base/error.h"

#include <pthread.h>
#include <stdbool.h>

struct exchange;
struct gateway;

enum {
	ASKS_THREADS = 2,
	ASKS_WAITING = 256, /* questions that wait for a thread; more are refused */
	ASKS_TIMEOUT_MS = 5000,
};

/* One question. Plain memory: who asks fills in what run() reads, and owns nothing of it any more. */
struct ask {
	struct ask *next;
	struct exchange *exchange; /* NULL: it has gone, and nobody wants the answer */
	/* Asks; leaves what it gets here. 0 or -errno, whose sentence is outrider_error(). */
	int (*run)(struct ask *ask, struct outrider *client);
	/* The answer is there: what was asked for becomes the response, or the exchange goes on. False: its fault says why not. */
	bool (*done)(struct exchange *exchange, struct ask *ask);
	int code;
	char sentence[512];

	char *text; /* a text, asked about or got; owned, by outrider_free or free */
	size_t bytes;
	int32_t *tokens;
	size_t n_tokens;
	uint32_t *ends; /* [n_tokens] */
	unsigned flags;
	struct outrider_request *request;
	struct outrider_model_info *info;
};

struct asks {
	struct gateway *gateway;
	pthread_t threads[ASKS_THREADS];
	unsigned n_threads, n_waiting;
	int fd; /* readable when there are answers; -1: not open */
	char runtime_dir[256];
	pthread_mutex_t mutex; /* of the rest */
	pthread_cond_t wake;
	bool stop;
	struct ask *first, **last; /* to be asked */
	struct ask *answered;
};

int asks_start(
	struct asks *asks, struct gateway *gateway, const char *runtime_dir, struct error *err);
void asks_stop(struct asks *asks);

/* An empty question; NULL without memory. */
struct ask *ask_new(void);
void ask_free(struct ask *ask);
/* Takes *ask, also when it fails. The exchange rests until done() was called. False: its fault says why not. */
bool ask_put(struct exchange *exchange, struct ask *ask);
/* The exchange ends: its question, if it has one, is nobody's. */
void ask_forget(struct exchange *exchange);
