/*
 * The draft thread: waits for requests on the request ring's doorbell, drafts, answers on the reply
 * ring.
 *
 * Regions come from the loop thread through a mailbox under `mutex`; the thread takes them between
 * rounds and unmaps the old ones itself, so nothing is unmapped that it might be reading.
 */
#pragma once

#include "services/drafter/model.h"

#include <pthread.h>

/* What may lie in the mailbox. */
enum worker_region {
	WORKER_SESSIONS,
	WORKER_DRAFT,
	WORKER_SUPPORTS,
	WORKER_EXPERTS,
	WORKER_HINTS,
	WORKER_POLICY,
	WORKER_REGIONS
};

struct worker_counts {
	_Atomic uint64_t requests, replies, stale, drafted, drafted_ahead, foreseen, rounds,
		busy_ns;
};

struct worker {
	const struct drafter_config *config; /* &own, for the draft thread */
	pthread_t thread;
	pthread_mutex_t mutex;
	pthread_cond_t changed; /* there is no request ring: the thread waits here */
	bool started, stop;
	/* Mailbox: regions to take over, and those that are there for the loop thread to
	 * compare. Under mutex. */
	struct region mail[WORKER_REGIONS];
	bool has_mail[WORKER_REGIONS];
	struct doorbell *bell; /* of the request ring in use; NULL = none. Under mutex */
	char refusal
		[400]; /* why the draft model is not used; "" = it is, or there is none. Under mutex */
	void (*on_change)(void *arg); /* refusal changed; any thread */
	void *arg;
	_Atomic bool mail_waiting;
	_Atomic uint64_t beat_ns;
	struct worker_counts counts;
	struct drafter_config next; /* settings to take over. Under mutex */
	_Atomic bool tuned; /* there are some */
	/* The draft thread's own. */
	struct drafter_config own;
	struct session_view view;
	struct region draft, supports_region, policy;
	struct draft_rings rings;
	struct draft_supports supports; /* in supports_region */
	struct policy_page *page;
	struct draft_model *model;
	struct draft_context context;
	struct hints hints;
	/* [LIMIT_SESSIONS], owned. What is unused takes no memory. */
	struct draft_session *sessions;
	struct draft_item items[LIMIT_RUNNING];
	struct draft_request asked[LIMIT_RUNNING];
	struct draft_reply replies[LIMIT_RUNNING];
	uint32_t n_items;
	struct draft_reply foreseen; /* scratch */
};

/* Loads the draft model, if one is configured. config is copied. */
int worker_init(struct worker *worker, const struct drafter_config *config,
	void (*on_change)(void *arg), void *arg, struct error *err);
int worker_start(struct worker *worker, struct error *err);
/* Stops the thread, if it runs, and frees everything. */
void worker_exit(struct worker *worker);
/* From the loop thread: hands a mapped region over (and forgets it in *region). */
void worker_give(struct worker *worker, enum worker_region which, struct region *region);
/* From the loop thread: other settings, resolved, from the next round on. */
void worker_tune(struct worker *worker, const struct drafter_config *config);
/* Copies why the draft model is not used ("" = nothing to say). Any thread. */
void worker_refusal(struct worker *worker, char *out, size_t bytes);
/* For the watchdog: the thread went round within the last 10 s. */
bool worker_alive(void *worker);
