/*
 * Pages for slots before experts are read into them. A free slot has none; the first read would wait until the kernel has
 * found and cleared them, which takes longer than the read itself (1.7 ms for 2.7 MB, against 0.9 ms from a disk of 3 GB/s;
 * measured). A thread of the least priority does it meanwhile, with the CPU time that nobody else wants.
 *
 * The transfer worker says which slots (store_ahead); what the thread does to a slot changes no byte of it, so the slot may
 * be taken at any time. Only its pages may not be given back meanwhile.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/ipc/doorbell.h"
#include "shared/spec/slots.h"

#include <pthread.h>

enum { PAGES_AHEAD_MAX = 32 };

struct pages_ahead {
	const struct slots *slots;
	uint32_t slot[PAGES_AHEAD_MAX]; /* the worker's until n is not 0, then the thread's */
	_Atomic uint32_t n;
	struct doorbell given;
	atomic_bool cancelled, refused, stop;
	pthread_t thread;
	bool running;
};

/* Borrows slots. */
int pages_ahead_start(struct pages_ahead *ahead, const struct slots *slots, struct error *err);
void pages_ahead_stop(struct pages_ahead *ahead);

/* The rest is the transfer worker's. */

/* Whether the thread has nothing to do: slot[] may be written, and pages given back. */
bool pages_ahead_idle(const struct pages_ahead *ahead);
/* Whether it can do anything: it runs, and the kernel knows how (Linux 5.14) and has given what was asked for. */
bool pages_ahead_works(const struct pages_ahead *ahead);
/* While idle: slot[0..n-1] are to have pages. When they have, slots->hinted->work is rung. */
void pages_ahead_give(struct pages_ahead *ahead, uint32_t n);
/* What is left of it is not wanted: it is idle soon. */
void pages_ahead_cancel(struct pages_ahead *ahead);
