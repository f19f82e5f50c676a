/*
 * For outrider-bench ipc: two processes and a region between them. One asks and the other answers,
 * in the way that is measured. The asking process owns both sides.
 */
#pragma once

#include "bench/src/histogram.h"
#include "shared/ipc/region.h"
#include "shared/ipc/ring.h"

#include <sys/types.h>

/* The ways to measure; the answering process is in one of them. */
enum mode { MODE_SPIN, MODE_SLEEP, MODE_EXPERT, MODE_ZMQ, MODES, MODE_STOP };

struct ipc_side {
	struct region region;
	struct ipc_shared *shared;
	struct ring requests, replies, demands;
	void *zmq, *socket;
	uint64_t spin_ns;
	/* there is only one core, so the other process cannot answer while this one spins */
	bool sleeping;
	pid_t other; /* the answering process; 0 in that process */
};

/* Forks the answering process, which runs on cpus[1]; the caller goes to cpus[0]. side->spin_ns and
 * sleeping must be set. endpoint: for ZeroMQ. */
int ipc_side_start(
	struct ipc_side *side, const char *endpoint, const int cpus[2], struct error *err);
/* May be called for a side that was not started, or only in part. */
void ipc_side_stop(struct ipc_side *side);
/* Asks for some milliseconds in one mode; *number counts the questions. False: the answering
 * process did not answer. */
bool ipc_side_measure(struct ipc_side *side, enum mode mode, uint64_t *number, struct histogram *h);
