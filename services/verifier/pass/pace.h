/*
 * How long drafts take and how many of their tokens are accepted, and what follows for a pass: for
 * which drafts it waits, and whether a session whose draft is late sits the pass out or takes part
 * at K = 0. Decisions over measured times, without side effects. Engine thread.
 *
 * A pass yields one token for each session in it, and for a session with a draft as many more as
 * are accepted. The measure is tokens per time. So a pass waits for a draft only where that raises
 * the rate of all its sessions together, and no session waits for a draft that takes longer than
 * drafts usually do.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The record of one session, or of all together. */
struct pace {
	/* from request to reply: smoothed mean and deviation, as for round-trip times (RFC 6298) */
	uint64_t mean_ns, dev_ns;
	float yield; /* accepted tokens of a draft, smoothed */
	uint32_t n_times, n_yields; /* number of measurements */
};

void pace_took(struct pace *pace, uint64_t ns);
void pace_yielded(struct pace *pace, uint32_t n_accepted);
/* How many tokens of the next draft are expected to be accepted. */
float pace_yield(const struct pace *pace);
/* The time after which a draft is late, so that no session waits for it any longer. */
uint64_t pace_limit_ns(const struct pace *pace);

/* Drafts that take about as long form a group, so that the choice takes time linear in the number
 * of sessions. */
enum { PACE_GROUPS = 64 };

struct pace_wait {
	uint64_t pass_ns; /* time of a pass; 0: not known */
	uint64_t most_ns; /* every wait is shorter than this */
	float ready; /* tokens of the sessions that wait for nothing */
	struct pace_group {
		uint32_t n;
		/* tokens of the group's sessions per pass: with their drafts; without, when these
		 * are late */
		float with, without;
		uint64_t mean_ns, limit_ns; /* the longest in the group, from now on */
	} group[PACE_GROUPS];
	uint32_t n_groups; /* index of the last group with a session, plus one */
};

void pace_wait_init(struct pace_wait *wait, uint64_t pass_ns, uint64_t most_ns);
/* Adds a session that waits for nothing and is expected to get `tokens` from the pass. */
void pace_wait_ready(struct pace_wait *wait, float tokens);
/* Adds a session whose draft was asked for elapsed_ns ago. Returns its group. */
uint32_t pace_wait_add(struct pace_wait *wait, const struct pace *pace, uint64_t elapsed_ns);
/* The pass should wait for the groups below the number returned, for *limit_ns at most once any
 * session can go on. Not to wait has to be clearly better, because K was chosen in the expectation
 * of drafts. Where no session is ready, it waits for some group, unless all take longer than the
 * pass may wait. */
uint32_t pace_wait_choose(const struct pace_wait *wait, uint64_t *limit_ns);

/* For a session whose draft is late while others run: true when it gets further by sitting this
 * pass out, so that its draft is there for a later one, than by one token now. */
bool pace_sits_out(const struct pace *pace, uint64_t elapsed_ns, uint64_t pass_ns);
