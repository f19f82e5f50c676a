/* The step "build": makes the rows of one batch from the plan and its drafts. Finds their cells,
 * and decides whose KV pages are taken when there are not enough. */
#include "services/verifier/pass/engine.h"

#include "shared/base/clock.h"
#include "shared/base/counter.h"
#include "shared/base/log.h"
#include "shared/model/kv/kv_prefix.h"
#include "shared/model/text/breakers.h"

#include <string.h>

/* A session without pages starts when there is room for its tokens and this many more cells. One
 * that would lose its pages again at once would compute its prompt for nothing. */
#define START_CELLS 64u

/* Takes a session's pages away. When there is room it is computed again, to the same tokens. */
static void put_out(struct engine *engine, struct sched_session *victim)
{
	struct engine_session *s = &engine->sessions[victim->index];

	log_session(LOG_LEVEL_INFO, s->uid, engine->iteration,
		"gives up its KV pages to a session before it");
	engine_lose_kv(engine, s);
	if (s->part != NULL)
		s->part->put_out = true;
}

/* Notes, when a session starts, how many of its tokens have pages of other or ended sessions. Only
 * the first start counts: at a later one the session had computed these tokens itself. */
static void note_shared(struct engine *engine, const struct engine_session *s)
{
	uint32_t shared = s->waits ? s->seq.n : 0;

	if (shared > 0)
		log_session(LOG_LEVEL_INFO, s->uid, engine->iteration,
			"finds its first %u tokens in the KV cache", shared);
	if (s->slot->usage.started_ns != 0 || s->n_tokens != s->page->n_prompt)
		return;
	counter_add(&engine->cached_total, shared);
	atomic_store_explicit(&s->page->cached, shared, memory_order_relaxed);
}

/* Allocates n cells for a session, with pages of others if necessary. first: the batch is still
 * empty. */
static int take_cells(struct engine *engine, struct engine_session *s,
	struct sched_victims *victims, bool first, uint32_t n, uint32_t *cells)
{
	struct sched_session *victim;

	if (s->seq.owner == 0 || s->waits) {
		bool found = s->waits;
		uint32_t want = s->sched.n_tokens - s->seq.n + START_CELLS,
			 all = engine->kv.layout.n_pages * KV_PAGE_CELLS;

		if (s->seq.owner == 0 &&
			kv_seq_init(&s->seq, s->uid, (uint32_t)engine->o.config->context) != 0)
			return -ENOSPC;
		note_shared(engine, s);
		s->waits = false;
		while (kv_free_cells(&engine->kv, &s->seq) < (want < all ? want : all)) {
			victim = sched_victim(victims, &s->sched);
			if (victim == NULL)
				break;
			put_out(engine, victim);
		}
		/* The first session of a batch starts with whatever there is, because all others
		 * have lost their pages by now. */
		if (!first && kv_free_cells(&engine->kv, &s->seq) < want) {
			kv_seq_exit(&engine->kv, &s->seq);
			s->sched.n_pages = s->sched.n_kv = 0;
			return -ENOSPC;
		}
		if (found)
			kv_prefix_found(&engine->kv, &s->seq);
	}
	while (kv_take(&engine->kv, &s->seq, n, cells) != 0) {
		victim = sched_victim(victims, &s->sched);
		if (victim == NULL)
			return -ENOSPC;
		put_out(engine, victim);
	}
	return 0;
}

/* Appends the rows of one part: committed tokens seq.n.., then its draft behind the newest. */
static void add_rows(struct pass *pass, struct pass_part *part)
{
	struct engine_session *s = part->session;
	uint32_t first = pass->n_batch, n = part->n, last_position = s->seq.n + n - 1;
	struct batch_token *rows = pass->batch;
	const uint32_t *cells = pass->cells;
	bool kept = accept_wants_logits(&s->page->request.sampling);

	assert(first + n + part->n_drafts <= pass->max.n_batch);
	part->row = first;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t position = s->seq.n + i;

		rows[first + i] = (struct batch_token){
			.seq = &s->seq,
			.token = s->page->tokens[position],
			.position = position,
			.parent = i == 0 ? -1 : (int32_t)(first + i - 1),
			.cell = cells[first + i],
			.fast = position < s->n_fast,
		};
	}
	for (uint32_t i = 0; i < part->n_drafts; i++) {
		int parent = part->draft->node[i].parent;
		uint32_t before = parent < 0 ? first + n - 1 : first + n + (uint32_t)parent;

		rows[first + n + i] = (struct batch_token){
			.seq = &s->seq,
			.token = part->draft->node[i].token,
			.position = parent < 0 ? last_position + 1 : rows[before].position + 1,
			.parent = (int32_t)before,
			.cell = cells[first + n + i],
			.draft = true,
		};
		pass->n_kept += kept && !rows[before].logits;
		rows[before].logits = kept;
	}
	pass->n_batch += n + part->n_drafts;
}

/* Of struct pick_row, for row i of a part: behind a draft it is one more than before that, or 0. root: the part's first such pick. */
static uint32_t reach_of(const struct engine *engine, const struct pass *pass,
	const struct pass_part *part, uint32_t i, uint32_t root)
{
	const struct session_page *page = part->session->page;
	const struct sampler_params *sampling = &page->request.sampling;

	if (i < part->n)
		return breakers_reach(engine->o.tokenizer, sampling, page->tokens, part->n_tokens);
	const struct draft_node *node = &part->draft->node[i - part->n];
	return breakers_reach_behind(engine->o.tokenizer, sampling,
		pass->picks[(int32_t)root + node->parent + 1].dry_reach, node->token);
}

/* The same behind the first n tokens of a page. */
static uint32_t reach_at(const struct engine *engine, const struct session_page *page, uint32_t n)
{
	return breakers_reach(engine->o.tokenizer, &page->request.sampling, page->tokens, n);
}

/* Adds what is picked from the rows of a part: a token behind the newest committed one and behind
 * each draft; only the records for committed tokens that are computed again. */
static void add_picks(const struct engine *engine, struct pass *pass, struct pass_part *part)
{
	const struct session_page *page = part->session->page;
	const struct batch_token *rows = pass->batch + part->row;
	const struct slot *slot = part->session->slot;
	bool recorded = slot_records(slot);
	bool constrained = slot->constraint != NULL && part_accepts(part);
	uint32_t n_top = page->request.logprobs > 0 ? page->request.logprobs - 1 : 0;
	uint32_t n = part->n, root = 0;

	for (uint32_t i = 0; i < n + part->n_drafts; i++) {
		bool picked = i + 1 >= n && part_accepts(part);
		/* Its history is what was there before the token that follows it. */
		bool audited = slot->picked != NULL && rows[i].position + 1 < part->n_tokens;

		if (!(i + 1 >= n && part->emits) &&
			!(recorded && rows[i].position + 1 >= page->n_prompt))
			continue;
		assert(pass->n_picks < pass->max.n_picks);
		if (i + 1 == n)
			root = pass->n_picks;
		pass->picks[pass->n_picks] = (struct pick_row){
			.params = picked || audited ? &page->request.sampling : NULL,
			.history = page->tokens,
			.n_history = audited ? (uint32_t)rows[i].position + 1 : part->n_tokens,
			.n_prompt = page->n_prompt,
			.dry_reach = audited  ? reach_at(engine, page, rows[i].position + 1)
				     : picked ? reach_of(engine, pass, part, i, root)
					      : 0,
			.parent = i < n ? -1 : (int32_t)root + part->draft->node[i - n].parent + 1,
			.token = rows[i].token,
			.source = part->row + i,
			.position = rows[i].position + 1,
			.allowed = constrained && i + 1 >= n ? pass->allowed[i + 1 - n] : NULL,
			.want_hash = slot->hashes != NULL,
			.want_logprobs = slot->logprobs != NULL,
			.score_next = audited,
			.next = rows[i].position + 1 < part->n_tokens
					? page->tokens[rows[i].position + 1]
					: 0,
			.n_top = n_top,
			.top = pass->likely + (size_t)pass->n_picks * LIMIT_TOP_LOGPROBS,
		};
		pass->n_picks++;
	}
	part->pick = root;
}

/* How many rows of logits the draft of a part needs: one for each token with children. */
static uint32_t rows_to_keep(const struct pass_part *part)
{
	bool counted[LIMIT_DRAFT_NODES + 1];
	uint32_t n = 0;

	memset(counted, false, sizeof(counted));
	for (uint32_t i = 0; i < part->n_drafts; i++) {
		bool *parent = &counted[part->draft->node[i].parent + 1];

		n += !*parent;
		*parent = true;
	}
	return n;
}

/* Removes from a part's draft what the grammar forbids, and finds the tokens that may follow each
 * row. */
static void constrain(struct engine *engine, struct pass *pass, const struct pass_part *part)
{
	struct engine_session *s = part->session;
	const uint16_t *kept;
	uint32_t n;

	constraint_draft(s->slot->constraint, part->draft, pass->allowed, &kept, &n);
	if (part->draft != NULL && n < part->draft->n)
		drafts_keep(&engine->drafts, s->index, kept, n);
}

/* Whether the ranking of the part's expert budget has no room for its draft. */
static bool too_many_for_oracle(const struct pass *pass, const struct pass_part *part)
{
	const struct session_request *request = &part->session->page->request;

	return request->budgeted && request->budget_ranking == BUDGET_ORACLE &&
	       part->n_drafts + 1 > pass->max.n_oracle - pass->n_oracle;
}

/* The budget is for the rows that verify a draft: the newest token, and the drafted ones. */
static void add_budget(struct pass *pass, struct pass_part *part)
{
	const struct session_request *request = &part->session->page->request;

	part->budgeted = request->budgeted && part->n_drafts > 0;
	if (!part->budgeted)
		return;
	pass->budgets[pass->n_budgets++] = (struct forward_budget){
		.first = part->row + part->n - 1,
		.n = part->n_drafts + 1,
		.experts = request->budget_experts,
		.ranking = (enum budget_ranking)request->budget_ranking,
		.coverage = (enum budget_coverage)request->budget_coverage,
	};
	if (request->budget_ranking == BUDGET_ORACLE)
		pass->n_oracle += part->n_drafts + 1;
}

/* Prepares a part's draft, cells and rows. False: it sits this pass out. */
static bool build_part(struct engine *engine, struct pass *pass, struct pass_part *part,
	struct sched_victims *victims)
{
	struct engine_session *s = part->session;

	if (part->put_out || part->sits_out)
		return false;
	part->draft = part->wish == DRAFTS_HERE ? drafts_reply(&engine->drafts, s->index) : NULL;
	if (s->slot->constraint != NULL && part_accepts(part))
		constrain(engine, pass, part);
	part->n_drafts = part->draft != NULL ? part->draft->n : 0;
	/* The draft is left out if the drafts of others have taken the rows of logits. */
	if (accept_wants_logits(&s->page->request.sampling) &&
		rows_to_keep(part) > pass->max.n_logits - pass->n_kept)
		part->n_drafts = 0;
	if (too_many_for_oracle(pass, part))
		part->n_drafts = 0;
	uint32_t *cells = pass->cells + pass->n_batch;
	bool first = pass->n_batch == 0;
	int rc = take_cells(engine, s, victims, first, part->n + part->n_drafts, cells);

	/* The cache may be too small for a draft that is larger than the session's share. */
	if (rc != 0 && part->n_drafts > LIMIT_DRAFT_SHARE) {
		part->draft = NULL;
		part->n_drafts = 0;
		rc = take_cells(engine, s, victims, first, part->n, cells);
	}
	if (rc != 0)
		return false;
	if (!part->decodes)
		pass->n_prefill += part->n;
	journal_enter(s->page, s->slot->shared, part->emits ? SESSION_RUNNING : SESSION_PREFILL);
	if (s->slot->usage.started_ns == 0)
		s->slot->usage.started_ns = clock_ns();
	add_rows(pass, part);
	add_budget(pass, part);
	add_picks(engine, pass, part);
	return true;
}

uint32_t pass_build(struct engine *engine, struct pass *pass)
{
	struct sched_victims victims = {
		engine->live, engine->n_live, engine->order, engine->n_order};
	uint32_t kept = 0;

	pass->n_batch = pass->n_prefill = pass->n_picks = pass->n_kept = 0;
	pass->n_budgets = pass->n_oracle = 0;
	for (uint32_t i = 0; i < pass->n_parts; i++) {
		struct pass_part *part = &pass->parts[i];

		part->session->part = NULL;
		if (!build_part(engine, pass, part, &victims))
			continue;
		if (kept != i)
			pass->parts[kept] = *part;
		part->session->part = &pass->parts[kept++];
	}
	pass->n_parts = kept;
	/* Last, so that no session gives up its pages for masks. */
	for (uint32_t i = 0; i < kept; i++)
		masks_add_rows(engine, pass, &pass->parts[i]);
	return kept;
}
