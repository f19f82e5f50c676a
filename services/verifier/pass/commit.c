/* The step "commit": tokens are journalled, from when on clients and the drafter may see them, and the cells of what was accepted
 * become part of the KV cache. Recurrent states are then brought up to the accepted drafts. */
#include "services/verifier/pass/engine.h"

#include "shared/base/clock.h"
#include "shared/base/counter.h"
#include "shared/model/kv/kv_prefix.h"

/* The cells of the committed tokens, then of the drafts those on the accepted path; the rest are returned. */
static void commit_cells(struct engine *engine, const struct pass *pass, struct pass_part *part)
{
	const struct accept_output *out = &part->out;
	struct kv_seq *seq = &part->session->seq;
	const uint32_t *cells = pass->cells + part->row;
	uint32_t accepted[LIMIT_DRAFT], rejected[LIMIT_DRAFT], n_accepted = 0, n_rejected = 0;
	bool keep[LIMIT_DRAFT] = {false};

	kv_commit(&engine->kv, seq, cells, part->n, NULL, 0);
	/* The last token emitted has no cell yet: it is the root of the next batch. */
	for (uint32_t i = 0; i < out->n_accepted && i + 1 < part->n_emitted; i++) {
		uint8_t node = (uint8_t)out->node[i];

		accepted[n_accepted++] = cells[part->n + node];
		keep[node] = true;
	}
	for (uint32_t i = 0; i < part->n_drafts; i++)
		if (!keep[i])
			rejected[n_rejected++] = cells[part->n + i];
	if (part->n_drafts > 0)
		kv_commit(&engine->kv, seq, accepted, n_accepted, rejected, n_rejected);
	kv_prefix_enter(&engine->kv, seq, part->session->page->tokens);
}

/* Publishes what was accepted. */
static void publish(struct engine *engine, const struct pass_part *part)
{
	struct slot *slot = part->session->slot;
	uint64_t now_ns = clock_ns();
	bool first = slot->usage.first_ns == 0;

	if (first)
		slot->usage.first_ns = now_ns;
	slot->usage.last_ns = now_ns;
	journal_append(part->session->page, slot->shared, part->n_emitted);
	counter_add(&engine->output_total, part->n_emitted);
	if (part->end == SESSION_END_NONE)
		engine_wake(engine, first);
}

void pass_commit(struct engine *engine, struct pass *pass)
{
	for (uint32_t i = 0; i < pass->n_parts; i++) {
		struct pass_part *part = &pass->parts[i];

		if (part_accepts(part))
			publish(engine, part);
		commit_cells(engine, pass, part);
	}
	forward_replay(engine->forward);
}
