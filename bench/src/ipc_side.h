/*
 * Two processes and a region between them, of which one asks and the other answers, in the way that is measured: what
 * outrider-bench ipc is about. The asking side owns both.
 */
#pragma once

#include "bench/src/histogram.h"
#include "shared/ipc/region.h"
#include "shared/ipc/ring.h"

#include <sys/types.h>

/* Each measurement is a mode the answering process is in. */
enum mode { MODE_SPIN, MODE_SLEEP, MODE_EXPERT, MODE_ZMQ, MODES, MODE_STOP };

struct ipc_side {
	struct region region;
	struct ipc_shared *shared;
	struct ring requests, replies, demands;
	void *zmq, *socket;
	uint64_t spin_ns;
	bool sleeping; /* one core: nobody can answer while we spin */
	pid_t other; /* the answering process; 0 in it */
};

/* Forks the answering side, on cpus[1], and goes to cpus[0] itself; side->spin_ns and sleeping are set. endpoint: ZeroMQ's. */
int ipc_side_start(
	struct ipc_side *side, const char *endpoint, const int cpus[2], struct error *err);
/* Also of a side that was not started, or only in part. */
void ipc_side_stop(struct ipc_side *side);
/* Asks for some milliseconds in one mode; *number counts what was asked. False: the answering process gave no answer. */
bool ipc_side_measure(struct ipc_side *side, enum mode mode, uint64_t *number, struct histogram *h);
