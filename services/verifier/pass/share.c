/* The step "share": the number of rows of a pass is limited. Every session keeps the one row of its
 * certain token; the other rows go to the drafted tokens with the highest worth. Before drafts are
 * asked for, their budgets are cut in the same way. */
#include "services/verifier/pass/engine.h"

/* The rows that are left for drafts. A session that wants the logits of its output again counts
 * with its whole share. */
static uint32_t room_for_drafts(const struct engine *engine, const struct pass *pass)
{
	const struct sched_limits limits = engine_limits(engine);
	uint32_t room = limits.sessions_max * limits.rows;

	for (uint32_t i = 0; i < pass->n_parts; i++) {
		const struct pass_part *part = &pass->parts[i];
		bool recorded = slot_records(part->session->slot) && !part->decodes;

		if (!part->sits_out)
			room -= recorded ? limits.rows : 1;
	}
	return room;
}

/* Adds the draft of a part, or its budget if the draft has not come. */
static void add_draft(struct engine *engine, const struct pass_part *part)
{
	const struct engine_session *s = part->session;

	if (part->wish == DRAFTS_HERE)
		share_add_draft(&engine->share, &s->share, drafts_reply(&engine->drafts, s->index));
	else
		share_add_budget(&engine->share, &s->share, part->want.nodes, part->want.k);
}

/* No more is asked for than there are rows. To ask for more and keep the best would make drafts
 * late: with 16 sessions with K = 31 (n-grams and the demo's small draft model, two shared cores)
 * and twice as much asked for, 2540 tokens were accepted in 228 passes, not 3208 in 171. */
void pass_share_budgets(struct engine *engine, struct pass *pass)
{
	uint32_t room = room_for_drafts(engine, pass), wanted = 0, at = 0;

	for (uint32_t i = 0; i < pass->n_parts; i++)
		wanted += pass->parts[i].want.nodes;
	if (wanted <= room)
		return;
	share_begin(&engine->share);
	for (uint32_t i = 0; i < pass->n_parts; i++)
		if (pass->parts[i].want.nodes > 0)
			add_draft(engine, &pass->parts[i]);
	share_out(&engine->share, room);
	for (uint32_t i = 0; i < pass->n_parts; i++) {
		struct draft_want *want = &pass->parts[i].want;
		uint32_t n;

		if (want->nodes == 0)
			continue;
		share_kept(&engine->share, at++, &n);
		if (pass->parts[i].wish != DRAFTS_NONE)
			continue;
		want->nodes = n;
		want->k = want->k < n ? want->k : n;
	}
}

static bool takes_part(const struct pass_part *part)
{
	return part->wish == DRAFTS_HERE && !part->sits_out;
}

/* Rows of the drafts that have come. */
static uint32_t count_drafted(const struct engine *engine, const struct pass *pass)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < pass->n_parts; i++)
		if (takes_part(&pass->parts[i]))
			n += drafts_reply(&engine->drafts, pass->parts[i].session->index)->n;
	return n;
}

uint32_t pass_room_left(const struct engine *engine, const struct pass *pass)
{
	uint32_t room = room_for_drafts(engine, pass), drafted = count_drafted(engine, pass);

	return drafted < room ? room - drafted : 0;
}

void pass_share(struct engine *engine, struct pass *pass)
{
	struct drafts *drafts = &engine->drafts;
	uint32_t room = room_for_drafts(engine, pass), drafted = count_drafted(engine, pass),
		 at = 0;

	if (drafted <= room)
		return;
	share_begin(&engine->share);
	for (uint32_t i = 0; i < pass->n_parts; i++)
		if (takes_part(&pass->parts[i]))
			add_draft(engine, &pass->parts[i]);
	share_out(&engine->share, room);
	for (uint32_t i = 0; i < pass->n_parts; i++) {
		uint32_t n;

		if (!takes_part(&pass->parts[i]))
			continue;
		const uint16_t *kept = share_kept(&engine->share, at++, &n);
		drafts_keep(drafts, pass->parts[i].session->index, kept, n);
	}
}
