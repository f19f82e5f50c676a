/* The step "commit": makes the accepted tokens part of their sessions, and their cells part of the
 * KV cache; publishes their hidden states. Then brings recurrent states up to the accepted drafts,
 * and lets other sessions find what is complete. pass_publish, which makes the tokens known, is here
 * too. */
#include "services/verifier/pass/engine.h"

#include "shared/base/clock.h"
#include "shared/base/counter.h"
#include "shared/model/kv/kv_prefix.h"

#include <string.h>

/* Keeps the cells of the committed tokens and those of the drafts on the accepted path; gives the
 * rest back. */
static void commit_cells(struct engine *engine, const struct pass *pass, struct pass_part *part)
{
	const struct accept_output *out = &part->out;
	struct kv_seq *seq = &part->session->seq;
	const uint32_t *cells = pass->cells + part->row;
	uint32_t accepted[LIMIT_DRAFT_DEPTH], rejected[LIMIT_DRAFT_NODES + LIMIT_MASKS];
	uint32_t n_accepted = 0, n_rejected = 0;
	bool keep[LIMIT_DRAFT_NODES];

	memset(keep, 0, part->n_drafts * sizeof(*keep));
	kv_commit(&engine->kv, seq, cells, part->n, NULL, 0);
	/* The last emitted token has no cell yet: it is the root of the next batch. */
	for (uint32_t i = 0; i < out->n_accepted && i + 1 < part->n_emitted; i++) {
		uint16_t node = (uint16_t)out->node[i];

		accepted[n_accepted++] = cells[part->n + node];
		keep[node] = true;
	}
	for (uint32_t i = 0; i < part->n_drafts; i++)
		if (!keep[i])
			rejected[n_rejected++] = cells[part->n + i];
	for (uint32_t i = 0; i < part->n_masks; i++)
		rejected[n_rejected++] = pass->cells[part->mask_row + i];
	if (part->n_drafts + part->n_masks > 0)
		kv_commit(&engine->kv, seq, accepted, n_accepted, rejected, n_rejected);
}

/* Lets other sessions find complete pages. Where another session has the same ones, the session goes
 * over to them, so this comes after the replay, which knows accepted drafts by their cells. */
static void enter_prefixes(struct engine *engine, const struct pass *pass)
{
	for (uint32_t i = 0; i < pass->n_parts; i++) {
		const struct pass_part *part = &pass->parts[i];
		const struct session_page *page = part->session->page;

		/* Keys and values that an expert budget changed are for no other session. Up to the
		 * first draft there are none. */
		if (!page->request.budgeted || !part->decodes)
			kv_prefix_enter(&engine->kv, &part->session->seq, &part->session->domains,
				page->tokens);
	}
}

/* Measures how fast the answers of a class come. */
static void note_targets(struct engine *engine, const struct engine_session *s, uint64_t now_ns)
{
	const struct slot_usage *usage = &s->slot->usage;
	const char *name = s->page->request.of_class.name;
	uint64_t begun_ns = atomic_load_explicit(&s->page->begun_ns, memory_order_relaxed);

	if (usage->first_ns != 0)
		targets_tokens(&engine->targets, name, s->n_fresh, now_ns - usage->last_ns);
	else if (session_n_out(s, s->n_tokens) == s->n_fresh)
		targets_first(&engine->targets, name, now_ns - begun_ns);
}

void pass_publish(struct engine *engine)
{
	bool first = false;

	if (engine->n_fresh == 0)
		return;
	uint64_t now_ns = clock_ns();
	for (uint32_t i = 0; i < engine->n_fresh; i++) {
		struct engine_session *s = engine->fresh[i];
		struct slot_usage *usage = &s->slot->usage;

		note_targets(engine, s, now_ns);
		if (usage->first_ns == 0) {
			usage->first_ns = now_ns;
			first = true;
		}
		usage->last_ns = now_ns;
		journal_append(s->page, s->slot->shared, s->n_fresh);
		counter_add(&engine->output_total, s->n_fresh);
		s->n_fresh = 0;
		engine_mark(engine, s);
	}
	engine->n_fresh = 0;
	/* After the journal, so that the front sends nothing that a successor would not have. */
	engine_wake(engine, first);
}

/* Where a session's tokens end with a page now, later ones may go on. A decoding session does so about
 * every KV_PAGE_CELLS tokens; the copy moves as many bytes as the states of one token. */
static void take_snapshots(struct engine *engine, const struct pass *pass)
{
	for (uint32_t i = 0; i < pass->n_parts; i++) {
		struct engine_session *s = pass->parts[i].session;

		snapshots_take(
			&engine->kv, &s->seq, pass->parts[i].decodes ? &s->last_snapshot : NULL);
	}
}

void pass_commit(struct engine *engine, struct pass *pass)
{
	for (uint32_t i = 0; i < pass->n_parts; i++) {
		struct pass_part *part = &pass->parts[i];
		struct engine_session *s = part->session;

		if (part->n_emitted > 0) {
			s->n_tokens += part->n_emitted;
			s->n_fresh = part->n_emitted;
			engine->fresh[engine->n_fresh++] = s;
		}
		commit_cells(engine, pass, part);
	}
	if (hidden_feed_end(&engine->hidden))
		drafts_wake(&engine->drafts);
	forward_replay(engine->forward);
	enter_prefixes(engine, pass);
	take_snapshots(engine, pass);
}
