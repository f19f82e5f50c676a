/*
 * The records thread: takes iteration records from the ring and lets the controller act on them. It
 * owns the consumer's end of the ring; the controller is shared with the loop thread under `mutex`.
 *
 * While records come, the ring is looked at every `poll`, or sooner when a record is due that
 * something may be decided from, as far as the thread's share of a core goes: the verifier's push
 * then finds nobody asleep and makes no system call. When none came for a while, the thread sleeps
 * on the ring's doorbell.
 */
#pragma once

#include "services/policy-controller/controller.h"
#include "services/policy-controller/journal.h"
#include "shared/ipc/ring.h"

#include <pthread.h>

struct records {
	struct ring ring;
	struct controller *controller; /* under mutex */
	struct journal *journal;
	pthread_mutex_t mutex;
	pthread_t thread;
	uint64_t lost; /* of the ring's, as far as the log knows */
	_Atomic bool stop;
	_Atomic uint64_t beat_ns; /* when the thread last went round */
};

/* Borrows controller and journal. ring: attached as the consumer. */
int records_start(struct records *records, const struct ring *ring, struct controller *controller,
	struct journal *journal, struct error *err);
void records_stop(struct records *records);
/* Everything that waits in the ring, now; what the thread does when it wakes. Returns how many. */
uint32_t records_drain(struct records *records);
/* Whether the thread went round within the last 5 s: for the watchdog. */
bool records_alive(void *records);
