/*
 * Whether, and how closely, the drafter is kept informed of a session's tokens. It is one state,
 * which is set anew for each pass in which the session takes part. No side effects. Engine thread.
 *
 *   state           the drafter is told                  set by
 *   OFF             nothing                              follow_pass: of no use, or not allowed
 *   LOOSE           of every FOLLOW_TOKENS tokens        follow_pass: K is 0 and may rise again
 *   LEARNING        as LOOSE, and to report foresight    follow_pass: the policy learns from it
 *   CLOSE           of every token                       follow_pass: it hints for the next pass
 *   CLOSE_LEARNING  as CLOSE, and to report foresight    follow_pass: both
 *   ASKED           of every pass, and to draft          follow_ask: K is not 0
 *
 * Any state may follow any other. n_tokens is kept across the states: a drafter that was told of a
 * session catches up from there.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* With K = 0 the drafter is told of a session's progress at most once per this many tokens. That
 * keeps it up to date for when K rises, and the wake-ups cost next to nothing. */
#define FOLLOW_TOKENS 16u

enum follow_state {
	FOLLOW_OFF,
	FOLLOW_LOOSE,
	FOLLOW_LEARNING,
	FOLLOW_CLOSE,
	FOLLOW_CLOSE_LEARNING,
	FOLLOW_ASKED,
};

struct follow {
	enum follow_state state;
	uint32_t n_tokens; /* the count that the drafter was last told; 0 = it was told of none */
};

/* What follow_pass decides from, for a session that takes part in a pass without a draft. */
struct follow_view {
	bool allowed; /* the settings allow it */
	bool drafts; /* the request lets the session have drafts */
	bool unfollowed; /* the policy has no use for drafts of this session */
	bool foresight; /* the policy learns from drafts that are compared but not sent */
	bool hints; /* the drafter makes hints, and the pass computes this session's newest token */
};

/* Call when the session has n_tokens and no draft is asked for. True: tell the drafter of them now.
 */
bool follow_pass(struct follow *follow, const struct follow_view *view, uint32_t n_tokens);
/* Call when a draft behind n_tokens is asked for; the request tells the drafter of them. */
void follow_ask(struct follow *follow, uint32_t n_tokens);

/* Whether the drafter is told of the session's tokens at all. */
static inline bool follow_on(const struct follow *follow)
{
	return follow->state != FOLLOW_OFF;
}
/* Whether the drafter is asked to report what it would have drafted. */
static inline bool follow_learns(const struct follow *follow)
{
	return follow->state == FOLLOW_LEARNING || follow->state == FOLLOW_CLOSE_LEARNING;
}
