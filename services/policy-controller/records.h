/*
 * The records thread: takes iteration records from the ring and passes them to the controller. It
 * owns the consumer's end of the ring. It shares the controller with the loop thread, under
 * `mutex`.
 *
 * While records come, it looks at the ring every `poll`, or sooner when a record is due from which
 * something may be decided, as far as its share of a core allows. The verifier's push then finds
 * nobody asleep on the doorbell and makes no system call. When no record came for a while, the
 * thread sleeps on the doorbell.
 */
#pragma once

#include "services/policy-controller/controller.h"
#include "services/policy-controller/journal.h"
#include "shared/ipc/ring.h"

#include <pthread.h>

struct records {
	struct ring ring;
	struct controller *controller; /* protected by mutex */
	struct journal *journal;
	pthread_mutex_t mutex;
	pthread_t thread;
	uint64_t lost; /* records that the ring lost, as far as the log says */
	_Atomic bool stop;
	_Atomic uint64_t beat_ns; /* time of the thread's last round */
};

/* Starts the thread. Borrows controller and journal. ring: attached as the consumer. */
int records_start(struct records *records, const struct ring *ring, struct controller *controller,
	struct journal *journal, struct error *err);
void records_stop(struct records *records);
/* Takes all records that wait in the ring, as the thread does when it wakes. Returns their number.
 */
uint32_t records_drain(struct records *records);
/* True when the thread finished a round within the last 5 s; for the watchdog. */
bool records_alive(void *records);
