#include "services/verifier/pass/masks.h"

#include "services/verifier/pass/engine.h"
#include "services/verifier/pass/mask_choice.h"
#include "shared/base/counter.h"
#include "shared/base/log.h"

#include <string.h>

bool masks_used(const struct engine *engine, const struct engine_session *s)
{
	return engine->o.adapter != NULL && s->page->request.draft_method == DRAFT_MTP_LORA &&
	       s->end_before == SESSION_END_NONE;
}

void masks_take_draft(struct engine *engine, struct pass_part *part)
{
	struct engine_session *s = part->session;
	struct draft_want *want = &part->want;
	uint16_t kept[LIMIT_DRAFT_DEPTH];
	uint32_t most = engine->o.adapter->draft_length;

	want->k = want->k < most ? want->k : most;
	want->width = 1;
	want->nodes = 0;
	memset(want->shape, 0, sizeof(want->shape));
	part->masked = want->k > 0;
	part->wish = drafts_state(&engine->drafts, s->index, s->uid, part->n_tokens);
	if (part->wish != DRAFTS_HERE || !part->masked || !part->decodes) {
		part->wish = DRAFTS_NONE;
		return;
	}
	uint32_t n = drafts_reply(&engine->drafts, s->index)->n;
	want->nodes = n < want->k ? n : want->k;
	for (uint32_t i = 0; i < n; i++)
		kept[i] = i < want->nodes;
	if (want->nodes < n)
		drafts_keep(&engine->drafts, s->index, kept, want->nodes);
}

/* ---- Which masks. ---- */

/* The chance that each anchor of a part is accepted; returns the number of anchors. */
static uint32_t reach(struct engine *engine, const struct pass_part *part, float *reached)
{
	const struct engine_session *s = part->session;
	const struct draft_reply *draft = part->wish == DRAFTS_HERE && !part->sits_out
						  ? drafts_reply(&engine->drafts, s->index)
						  : NULL;
	uint32_t n = draft != NULL && draft->n < MASK_ANCHORS ? draft->n : 0;

	reached[0] = 1;
	if (n > 0)
		select_chances(engine, s, draft, reached + 1);
	return n + 1;
}

/* What a row costs: its time, and the experts that it adds. A row of the last pass needed `each`
 * experts that no other did, at most: fewer, where rows share them. */
static float row_price(const struct engine *engine, const struct policy_prices *prices)
{
	const struct pass *pass = &engine->pass;
	float each = pass->n_batch > 0 ? (float)forward_stats(engine->forward)->unique_experts /
						 (float)pass->n_batch
				       : 0;

	return prices->row + each * prices->expert;
}

static void choose(struct engine *engine, struct pass_part *part, uint32_t room)
{
	const struct engine_session *s = part->session;
	const struct session_request *request = &s->page->request;
	float reached[MASK_ANCHORS], next[LIMIT_MTP_DRAFT];
	uint8_t most[MASK_ANCHORS];
	struct mask_choice choice = {
		.n_anchors = reach(engine, part, reached),
		.room = room,
		.token = part->want.prices.token,
		.row = row_price(engine, &part->want.prices),
		.reached = reached,
		.most = most,
		.next = next,
	};

	share_expect(&s->share, LIMIT_MTP_DRAFT, next);
	/* Tokens that could only be drafted beyond the answer's end, or the context's, have no
	 * masks. */
	for (uint32_t i = 0; i < choice.n_anchors; i++)
		most[i] = (uint8_t)sched_k(part->want.k, part->n_tokens + i + 1, s->page->n_prompt,
			request->max_tokens, (uint32_t)engine->o.config->context);
	part->n_masks = mask_choose(&choice, part->masks);
}

void pass_masks(struct engine *engine, struct pass *pass)
{
	uint32_t room = 0, parts = 0;

	for (uint32_t i = 0; i < pass->n_parts; i++)
		parts += pass->parts[i].masked && !pass->parts[i].sits_out;
	if (parts == 0)
		return;
	room = pass_room_left(engine, pass);
	for (uint32_t i = 0; parts > 0 && i < pass->n_parts; i++) {
		struct pass_part *part = &pass->parts[i];

		if (!part->masked || part->sits_out)
			continue;
		choose(engine, part, room / parts--);
		room -= part->n_masks;
	}
}

/* ---- Rows. ---- */

/* The draft may have been shortened since: masks behind what is gone are left out. */
static void drop_masks_behind(struct pass_part *part)
{
	part->n_masks = 0;
	for (uint32_t i = 0; i < MASK_ANCHORS; i++) {
		if (i > part->n_drafts)
			part->masks[i] = 0;
		part->n_masks += part->masks[i];
	}
}

void masks_add_rows(struct engine *engine, struct pass *pass, struct pass_part *part)
{
	struct engine_session *s = part->session;

	if (part->n_masks == 0)
		return;
	drop_masks_behind(part);
	if (part->n_masks > pass->max.n_batch - pass->n_batch ||
		kv_take(&engine->kv, &s->seq, part->n_masks, pass->cells + pass->n_batch) != 0) {
		part->n_masks = 0;
		return;
	}
	part->mask_row = pass->n_batch;
	for (uint32_t i = 0; i <= part->n_drafts; i++) {
		uint32_t before = part->row + part->n - 1 + i;

		for (uint32_t j = 0; j < part->masks[i]; j++) {
			uint32_t at = pass->n_batch++;

			pass->batch[at] = (struct batch_token){
				.seq = &s->seq,
				.token = BATCH_MASK(j),
				.position = pass->batch[before].position + 1,
				.parent = (int32_t)before,
				.cell = pass->cells[at],
			};
			before = at;
		}
	}
	counter_add(&engine->masks.rows, part->n_masks);
}

/* ---- Drafts. ---- */

static void count(struct engine *engine, const struct pass_part *part)
{
	struct masks_counts *counts = &engine->masks;

	for (uint32_t i = 0; i < part->n_drafts && i < LIMIT_MTP_DRAFT; i++) {
		counter_add(&counts->drafted[i], 1);
		counter_add(&counts->accepted[i], i < part->out.n_accepted);
	}
}

/* The tokens are picked as the target's own will be, with the same noise. With maximal coupling a
 * draft must not depend on what its acceptance is drawn from: there it is the likeliest. */
static const struct sampler_params *params_of(
	const struct session_request *request, struct sampler_params *greedy)
{
	if (request->sampling.coupling != COUPLING_MAXIMAL)
		return &request->sampling;
	*greedy = request->sampling;
	greedy->temperature = 0;
	return greedy;
}

/* Fills in the masks behind the last token that the part emitted. False: it has none. */
static bool group_of(
	const struct pass_part *part, struct sampler_params *greedy, struct forward_masks *group)
{
	const struct engine_session *s = part->session;
	uint32_t row = part->mask_row, anchor;

	if (part->n_masks == 0 || part->n_emitted == 0 || part->end != SESSION_END_NONE)
		return false;
	anchor = part->n_emitted - 1;
	for (uint32_t i = 0; i < anchor; i++)
		row += part->masks[i];
	*group = (struct forward_masks){
		.row = row,
		.n = part->masks[anchor],
		.token = s->page->tokens[s->n_tokens - 1],
		.like = {.params = params_of(&s->page->request, greedy),
			.history = s->page->tokens,
			.n_history = s->n_tokens,
			.n_prompt = s->page->n_prompt,
			.position = s->n_tokens},
	};
	return group->n > 0;
}

/* Reads the drafts of n groups and gives them to their sessions. */
static void read(struct engine *engine, struct forward_masks *groups,
	struct engine_session *const *sessions, uint32_t n)
{
	int rc = forward_draft(engine->forward, groups, n);
	if (rc != 0) {
		log_limited(LOG_LEVEL_ERROR, "no drafts are read from masks: %s", strerror(-rc));
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		drafts_put(&engine->drafts, sessions[i]->index, sessions[i]->uid,
			sessions[i]->n_tokens,
			&(struct drafts_own){
				DRAFT_MTP_LORA, groups[i].n, groups[i].drafted, groups[i].chance});
}

void pass_masks_draft(struct engine *engine, struct pass *pass)
{
	struct forward_masks groups[FORWARD_PICKS];
	struct engine_session *sessions[FORWARD_PICKS];
	struct sampler_params greedy[FORWARD_PICKS];
	int32_t tokens[FORWARD_PICKS][LIMIT_MTP_DRAFT];
	float chances[FORWARD_PICKS][LIMIT_MTP_DRAFT];
	uint32_t n = 0;

	if (engine->o.adapter == NULL)
		return;
	for (uint32_t i = 0; i < pass->n_parts; i++) {
		struct pass_part *part = &pass->parts[i];

		if (part->draft != NULL && part->draft->method == DRAFT_MTP_LORA)
			count(engine, part);
		if (!group_of(part, &greedy[n], &groups[n]))
			continue;
		groups[n].drafted = tokens[n];
		groups[n].chance = chances[n];
		sessions[n++] = part->session;
		if (n == FORWARD_PICKS) {
			read(engine, groups, sessions, n);
			n = 0;
		}
	}
	if (n > 0)
		read(engine, groups, sessions, n);
}
