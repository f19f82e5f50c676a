/*
 * One look at a whole service: each process, the verifier's sessions, the policy's view of them, the cache's counters. For the
 * programs of this project; it is no part of the library's interface.
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

/* Asks each process, timeout_ms at most for each question. zmq: a context (bus_context). -errno, which outrider_error() explains;
 * *look is freed with look_free in any case. */
int look_at(const char *runtime_dir, void *zmq, int timeout_ms, struct look *look);
void look_free(struct look *look);

/* What each said; NULL without an answer. */
const Outrider__Sessions *look_sessions(const struct look *look);
const Outrider__PolicyState *look_policy(const struct look *look);
const Outrider__CacheStats *look_cache(const struct look *look);
/* The policy's view of a session; NULL: it knows none. */
const Outrider__PolicySession *look_session(const struct look *look, uint64_t uid);

/* Drafted tokens per iteration, a mean that fades: below it what was drafted is long ago. */
#define LOOK_DRAFTED_LEAST 0.01
/* Whether its last iterations drafted: what drafts bring is known. */
bool look_drafts(const Outrider__PolicySession *session);
/* Tokens per iteration over the time of an iteration as a multiple of one at K = 0 (Cascade, section 4), all three of the same
 * row: the session's last iterations against those at K = 0 that were measured last. 0: not known, or nothing was drafted in
 * them. */
double look_utility(const Outrider__PolicySession *session);
