#include "services/verifier/pass/follow.h"

static enum follow_state next(const struct follow_view *view)
{
	if (!view->allowed)
		return FOLLOW_OFF;
	/* Hints are for the very next token, so they need it whether or not drafts are made later.
	 */
	if (view->hints)
		return view->foresight ? FOLLOW_CLOSE_LEARNING : FOLLOW_CLOSE;
	if (!view->drafts || view->unfollowed)
		return FOLLOW_OFF;
	return view->foresight ? FOLLOW_LEARNING : FOLLOW_LOOSE;
}

bool follow_pass(struct follow *follow, const struct follow_view *view, uint32_t n_tokens)
{
	uint32_t interval = FOLLOW_TOKENS;

	follow->state = next(view);
	if (!follow_on(follow))
		return false;
	if (follow->state == FOLLOW_CLOSE || follow->state == FOLLOW_CLOSE_LEARNING)
		interval = 1;
	if (follow->n_tokens != 0 && n_tokens - follow->n_tokens < interval)
		return false;
	follow->n_tokens = n_tokens;
	return true;
}

void follow_ask(struct follow *follow, uint32_t n_tokens)
{
	follow->state = FOLLOW_ASKED;
	follow->n_tokens = n_tokens;
}
