/*
 * Passes that decode and verify get rows behind their own, so that their number is one for which graphs
 * are recorded: a few graphs then serve all of them. Such a row is the pass's first once more: it has
 * the same token, position and cells, so it computes the same values, writes those of its key and value
 * to the same place, and chooses the same experts. Nobody reads what comes of it.
 */
#include "shared/model/pass/forward_internal.h"

/* The number of rows that a pass of n has as a graph. */
static uint32_t padded(uint32_t n)
{
	uint32_t to = 16;

	if (n <= 8 || n > FORWARD_GRAPH_TOKENS)
		return n;
	while (to < n)
		to *= 2;
	return to;
}

/* True when the pass can have more rows. A pass that computes a prompt picks from few of its rows, and does
 * not come again. Draft heads and recurrent layers know their rows by other lists. */
static bool can(const struct forward *f)
{
	return f->backend->device && !f->model->head && !f->delta && !f->hooks.outputs &&
	       f->n_budgets == 0 && f->n_gated == 0 && f->n_fast == 0 && f->n_kept == 0 &&
	       f->n_which == f->n;
}

void padding_begin(struct forward *f)
{
	uint32_t n = can(f) ? padded(f->n) : f->n;
	uint32_t picks = f->limits.n_picks < FORWARD_PICKS ? f->limits.n_picks : FORWARD_PICKS;

	f->n_padding = 0;
	if (n == f->n || n > f->limits.n_batch || n > picks)
		return;
	for (uint32_t t = f->n; t < n; t++) {
		f->step_tokens[t] = f->step_tokens[0];
		f->which[t] = f->which[0];
	}
	f->n_padding = n - f->n;
	f->n_which = f->n = n;
}

uint32_t padding_uses(const struct forward *f, uint16_t expert)
{
	uint32_t n = 0;

	for (uint32_t i = 0; f->n_padding > 0 && i < f->model->config.n_experts_used; i++)
		n += f->chosen[i] == expert ? f->n_padding : 0;
	return n;
}
