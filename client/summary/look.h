/*
 * One look at a whole service: each process, the verifier's sessions, the policy's view of them,
 * the cache's counters. For the programs of this project; not part of the SDK's interface. Any
 * thread.
 */
#pragma once

#include "client/include/outrider.h"
#include "proto/envelope.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

/* A process that does not answer leaves its part NULL. */
struct look {
	struct outrider_status *status;
	Outrider__Envelope *sessions, *policy, *cache;
	uint64_t at_ns;
};

/* Asks each process, and waits at most timeout_ms for each answer. zmq: a context (bus_context).
 * Returns -errno with the reason in outrider_error(). In any case the caller frees *look with
 * look_free. */
int look_at(const char *runtime_dir, void *zmq, int timeout_ms, struct look *look);
void look_free(struct look *look);

/* The answer of each process; NULL if it gave none. */
const Outrider__Sessions *look_sessions(const struct look *look);
const Outrider__PolicyState *look_policy(const struct look *look);
const Outrider__CacheStats *look_cache(const struct look *look);
/* The policy's view of a session; NULL: it knows none. */
const Outrider__PolicySession *look_session(const struct look *look, uint64_t uid);

/* Drafted tokens per iteration, a mean that fades. Below this value the last draft was long ago. */
#define LOOK_DRAFTED_LEAST 0.01
/* True when its last iterations drafted, so that it is known what drafts bring. */
bool look_drafts(const Outrider__PolicySession *session);
/* Cascade's utility (section 4): tokens per iteration, divided by the time of an iteration as a
 * multiple of an iteration's time at K = 0. Compares the session's last iterations with the last
 * ones that were measured at K = 0. 0: unknown, or none of the last iterations drafted. */
double look_utility(const Outrider__PolicySession *session);
