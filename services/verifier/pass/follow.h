/*
 * Whether the drafter follows a session: one state, which each pass that the session takes part in sets anew. Pure. Engine thread.
 *
 *	state       the drafter is told of the session's tokens     set by
 *	OFF         not at all                                      follow_pass: nobody needs it, or settings forbid it
 *	LOOSE       every FOLLOW_TOKENS                             follow_pass: K is 0 and may rise again
 *	LEARNING    as LOOSE, and asked what it would have drafted  follow_pass: the policy learns from that
 *	CLOSE       every token                                     follow_pass: it hints for the pass that comes
 *	CLOSE_LEARNING  as CLOSE, and asked as in LEARNING          follow_pass: both
 *	ASKED       every pass, and asked for a draft               follow_ask: K is not 0
 *
 * Every state may follow every other one. n_tokens outlives the states: a drafter that was told of a session catches up from there.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* With K = 0 the drafter is told of a session's progress at most once per this many tokens: enough for it to be up to
 * date when K rises, and a wake-up of it costs next to nothing. */
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
	uint32_t n_tokens; /* the drafter was told of so many last; 0 = of none */
};

/* What is known when a session takes part in a pass without a draft. */
struct follow_view {
	bool allowed; /* by the settings */
	bool drafts; /* the request lets the session have drafts */
	bool unfollowed; /* the policy has no use for drafts of it */
	bool foresight; /* the policy learns from drafts of it that are kept back */
	bool hints; /* the drafter hints, and this session's next token is known to be next */
};

/* The session has n_tokens, and no draft is asked for. True: the drafter is to be told of them now. */
bool follow_pass(struct follow *follow, const struct follow_view *view, uint32_t n_tokens);
/* A draft behind n_tokens is asked for, which tells the drafter of them. */
void follow_ask(struct follow *follow, uint32_t n_tokens);

/* Whether the drafter is kept up to date. */
static inline bool follow_on(const struct follow *follow)
{
	return follow->state != FOLLOW_OFF;
}
/* Whether the drafter is asked what it would have drafted. */
static inline bool follow_learns(const struct follow *follow)
{
	return follow->state == FOLLOW_LEARNING || follow->state == FOLLOW_CLOSE_LEARNING;
}
