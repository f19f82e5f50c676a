#include "services/verifier/pass/batch.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"

/* A session that holds no pages starts when there is room for what it has and this much more: one that would be put
 * out again at once computes its prompt for nothing. */
#define START_CELLS 64u

/* Puts a session's pages back; it is computed again when there is room, to the same tokens. */
static void put_out(struct engine *engine, uint32_t i)
{
	struct engine_session *s = engine_live(engine, i);

	log_session(LOG_LEVEL_INFO, s->uid, engine->iteration,
		"gives up its KV pages to an older session");
	kv_seq_exit(&engine->kv, &s->seq);
	engine->sched[i].n_pages = engine->sched[i].n_kv = 0;
	s->hold_back = true;
}

/* n cells for the session live[i], taking pages from others where it must. */
static int take_cells(struct engine *engine, uint32_t i, uint32_t n, uint32_t *cells)
{
	struct engine_session *s = engine_live(engine, i);
	int victim;

	if (s->seq.owner == 0) {
		uint32_t want = engine->sched[i].n_tokens + START_CELLS,
			 all = engine->kv.layout.n_pages * KV_PAGE_CELLS;

		if (kv_seq_init(&s->seq, s->uid, (uint32_t)engine->o.config->context) != 0)
			return -ENOSPC;
		while (kv_free_cells(&engine->kv, &s->seq) < (want < all ? want : all)) {
			victim = sched_victim(engine->sched, engine->n_live, i, engine->in_batch);
			if (victim < 0)
				break;
			put_out(engine, (uint32_t)victim);
		}
		/* The first of a batch starts with whatever there is: everybody else has been put out by now. */
		if (engine->n_batch > 0 && kv_free_cells(&engine->kv, &s->seq) < want) {
			kv_seq_exit(&engine->kv, &s->seq);
			return -ENOSPC;
		}
	}
	while (kv_take(&engine->kv, &s->seq, n, cells) != 0) {
		victim = sched_victim(engine->sched, engine->n_live, i, engine->in_batch);
		if (victim < 0)
			return -ENOSPC;
		put_out(engine, (uint32_t)victim);
	}
	return 0;
}

/* Appends one session's part: committed tokens seq.n.., then its draft behind the newest. */
static void batch_session(
	struct engine *engine, const struct sched_entry *entry, const struct draft_reply *reply)
{
	struct engine_session *s = engine_live(engine, entry->session);
	uint32_t first = engine->n_batch, n = entry->n, last_position = s->seq.n + n - 1;
	bool hashed = s->slot->hashes != NULL;

	s->row = first;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t position = s->seq.n + i;
		bool last = i == n - 1;

		engine->batch[first + i] = (struct batch_token){
			.seq = &s->seq,
			.token = s->page->tokens[position],
			.position = position,
			.parent = i == 0 ? -1 : (int32_t)(first + i - 1),
			.logits = (last && entry->emits) ||
				  (hashed && position + 1 >= s->page->n_prompt),
			.cell = engine->cells[first + i],
		};
	}
	for (uint32_t i = 0; reply != NULL && i < s->n_drafts; i++) {
		int parent = reply->parent[i];
		uint32_t before = parent < 0 ? first + n - 1 : first + n + (uint32_t)parent;

		engine->batch[first + n + i] = (struct batch_token){
			.seq = &s->seq,
			.token = reply->token[i],
			.position =
				parent < 0 ? last_position + 1 : engine->batch[before].position + 1,
			.parent = (int32_t)before,
			.logits = true,
			.cell = engine->cells[first + n + i],
			.draft = true,
		};
	}
	engine->n_batch += n + s->n_drafts;
}

uint32_t batch_build(struct engine *engine, uint32_t n_plan)
{
	uint32_t taking_part = 0;

	engine->n_batch = engine->n_prefill = 0;
	for (uint32_t e = 0; e < n_plan; e++) {
		const struct sched_entry *entry = &engine->plan[e];
		struct engine_session *s = engine_live(engine, entry->session);
		const struct draft_reply *reply =
			s->asked ? drafts_reply(&engine->drafts, s->index) : NULL;

		if (s->hold_back)
			continue;
		s->n_drafts = reply != NULL ? reply->n : 0;
		if (take_cells(engine, entry->session, entry->n + s->n_drafts,
			    engine->cells + engine->n_batch) != 0) {
			s->hold_back = true;
			continue;
		}
		if (!entry->decodes)
			engine->n_prefill += entry->n;
		journal_enter(
			s->page, s->slot->shared, entry->emits ? SESSION_RUNNING : SESSION_PREFILL);
		if (s->slot->usage.started_ns == 0)
			s->slot->usage.started_ns = clock_ns();
		batch_session(engine, entry, reply);
		engine->in_batch[entry->session] = true;
		taking_part++;
	}
	return taking_part;
}
