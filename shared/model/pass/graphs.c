/*
 * Which sections of a pass are graphs of the back end, and their keys. A key holds everything that the
 * steps of a section depend on besides the content of buffers.
 */
#include "shared/model/pass/forward_internal.h"

/* Passes that decode and verify have one of these numbers of tokens, time and again. */
static bool often(uint32_t n)
{
	return n <= 8 || n == 16 || n == 32 || n == FORWARD_GRAPH_TOKENS;
}

static uint64_t key_of(const struct forward *f)
{
	uint64_t reach = (uint64_t)__builtin_ctz(graph_reach(f->last_position));
	uint64_t lanes = f->delta ? f->n_seqs : 0;
	uint64_t flags = (uint64_t)f->whole | (uint64_t)(f->hooks.layer != NULL) << 1 |
			 (uint64_t)(f->hooks.residual != NULL) << 2;
	_Static_assert(FORWARD_GRAPH_TOKENS < 1 << 7, "the fields of a key");
	return UINT64_C(1) << 63 | flags << 48 | reach << 42 | lanes << 35 |
	       (uint64_t)f->n_which << 28 | (uint64_t)f->n_kept << 21 | (uint64_t)f->n << 14 |
	       f->section;
}

void section_begin(struct forward *f)
{
	bool graph = often(f->n) && f->n_budgets == 0 && f->n_gated == 0 && f->n_fast == 0 &&
		     f->section < 1u << 14;
	f->queue->ops->graph_begin(f->queue, graph ? key_of(f) : 0);
	f->section++;
}
