/*
 * How fast drafts come and what they bring, and what follows from it for a pass: for whose drafts it waits, and whether a session whose
 * draft is late sits the pass out or runs at K = 0. Pure decisions over measured times. Engine thread.
 *
 * A pass yields tokens: one for each session in it, and for a session with a draft as many more as are accepted. What counts is tokens
 * per time. So a pass waits for a draft only where that makes it better for all its sessions together, and a draft that takes
 * longer than it usually does is waited for by nobody.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Of one session, or of all. */
struct pace {
	uint64_t mean_ns,
		dev_ns; /* from request to reply, smoothed as round-trip times are (RFC 6298) */
	float yield; /* tokens accepted of a draft, smoothed */
	uint32_t n_times, n_yields; /* measured */
};

void pace_took(struct pace *pace, uint64_t ns);
void pace_yielded(struct pace *pace, uint32_t n_accepted);
/* Tokens that a draft is expected to bring. */
float pace_yield(const struct pace *pace);
/* When a draft is late: after so long nobody waits for it. */
uint64_t pace_limit_ns(const struct pace *pace);

/* Drafts that take about as long are one group, so that the choice is linear in the number of sessions. */
enum { PACE_GROUPS = 64 };

struct pace_wait {
	uint64_t pass_ns; /* what a pass takes; 0: not known */
	uint64_t most_ns; /* nobody waits that long */
	float ready; /* tokens of the sessions that wait for nothing */
	struct pace_group {
		uint32_t n;
		float with,
			without; /* tokens of the pass with their drafts; a pass, if they are late */
		uint64_t mean_ns, limit_ns; /* the longest in it, from now on */
	} group[PACE_GROUPS];
	uint32_t n_groups; /* the last with a session in it, and one more */
};

void pace_wait_init(struct pace_wait *wait, uint64_t pass_ns, uint64_t most_ns);
/* A session that waits for nothing, and how many tokens it will have of the pass. */
void pace_wait_ready(struct pace_wait *wait, float tokens);
/* A session whose draft was asked for elapsed_ns ago. Returns its group. */
uint32_t pace_wait_add(struct pace_wait *wait, const struct pace *pace, uint64_t elapsed_ns);
/* The pass waits for the groups below the number returned, *limit_ns at most, once any session can go on. Not waiting has to be
 * clearly better: K was chosen by somebody who expects drafts. Where no session is ready, it waits for some, unless all take
 * longer than it may wait. */
uint32_t pace_wait_choose(const struct pace_wait *wait, uint64_t *limit_ns);

/* A session's draft is late, and others run: whether the session gets further by sitting this pass out, so that its draft is
 * there for the next, than by a token now. */
bool pace_sits_out(const struct pace *pace, uint64_t elapsed_ns, uint64_t pass_ns);
