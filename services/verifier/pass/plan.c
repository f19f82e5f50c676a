/* The step "plan": which sessions take part in a pass, and with how many of their committed tokens. */
#include "services/verifier/pass/engine.h"

#include "shared/model/kv/kv_prefix.h"

/* The interval at which all sessions are looked at: for their deadlines, and for changes that the
 * front does not signal. */
#define LOOK_NS 50000000u

static void end_late(struct engine *engine, struct engine_session *s)
{
	snprintf(s->slot->usage.message, sizeof(s->slot->usage.message),
		"the time that the request allows was over after %u tokens",
		session_n_out(s, s->n_tokens));
	engine_finish(engine, s, SESSION_END_DEADLINE);
}

/* Ends a session that is cancelled or out of time, and lets go of one whose page the front wants
 * back. */
static void end_or_yield(struct engine *engine, struct engine_session *s, uint64_t now_ns)
{
	uint64_t deadline_ns = s->page->request.deadline_ns;

	/* A finished answer keeps its end: only its records were being made again. */
	if (atomic_load_explicit(&s->slot->cancel, memory_order_relaxed))
		engine_finish(engine, s,
			s->end_before != SESSION_END_NONE ? s->end_before : SESSION_END_CANCELLED);
	else if (deadline_ns != 0 && now_ns >= deadline_ns && s->end_before == SESSION_END_NONE)
		end_late(engine, s);
	else if (engine_lost_budget(s))
		engine_end_lost(engine, s);
	else if (atomic_load_explicit(&s->slot->yield, memory_order_relaxed) &&
		 s->end_before == SESSION_END_NONE)
		engine_yield(engine, s);
}

/* Its target is a time per token, and a pass may give it several. */
static uint64_t pass_ns_max(const struct engine_session *s)
{
	float pace = s->pace > 1 ? s->pace : 1;

	return (uint64_t)((float)s->page->request.of_class.tpot_ns * pace);
}

/* A prompt that ends less than this behind a snapshot gets none of its own: a pass more costs about
 * what a token does. */
enum { STOP_TOKENS = 64 };

/* The next turn of a chat, or another prompt that begins alike, may have to go on from a snapshot: there
 * is to be one where the prompt ends, and where it parts from others. One of states can be made only
 * where a pass ends, one of a window a little later too. */
static void choose_stops(const struct engine *engine, struct engine_session *s)
{
	struct sched_session *sched = &s->sched;
	uint32_t n = s->sched.n_prompt, last = (n - 1) / KV_PAGE_CELLS * KV_PAGE_CELLS, i = 0;
	uint32_t met = session_goes_on(s, s->n_met);

	sched->stops[0] = sched->stops[1] = sched->page = 0;
	if (engine->kv.snapshots.n == 0 || sched->n_kv >= n)
		return;
	bool states = engine->kv.states.layout.n_layers > 0;
	sched->page = states ? KV_PAGE_CELLS : 0;
	if (met >= sched->n_kv + STOP_TOKENS && met < last)
		sched->stops[i++] = met;
	if (states &&
		last >= (i > 0 ? met : sched->n_kv / KV_PAGE_CELLS * KV_PAGE_CELLS) + STOP_TOKENS)
		sched->stops[i] = last;
}

/* Updates what the scheduler decides from. */
static void look(struct engine *engine, struct engine_session *s, uint64_t now_ns)
{
	struct sched_session before = s->sched;

	if (s->live)
		end_or_yield(engine, s, now_ns);
	if (!s->live)
		return;
	s->asleep = atomic_load_explicit(&s->slot->asleep, memory_order_relaxed) != SLEEP_NOT;
	uint64_t credit = atomic_load_explicit(&s->slot->credit, memory_order_relaxed);

	s->sched = (struct sched_session){
		.index = s->index,
		.n_tokens = s->n_tokens,
		.n_kv = s->seq.n,
		.n_pages = s->seq.n_pages,
		.n_prompt = s->page->n_prompt,
		.n_fast = s->n_fast,
		.paused = s->asleep || s->recall.on ||
			  (session_n_out(s, s->n_tokens) >= credit + engine->tuning->ahead_max &&
				  s->end_before == SESSION_END_NONE),
		.aside = atomic_load_explicit(&s->slot->aside, memory_order_relaxed),
		.recorded = slot_records(s->slot),
		.client = atomic_load_explicit(&s->slot->client, memory_order_relaxed),
		.priority = s->page->request.of_class.priority,
		.begun_ns = atomic_load_explicit(&s->page->begun_ns, memory_order_relaxed),
		.pass_ns_max = pass_ns_max(s),
		.rank = before.rank,
	};
	choose_stops(engine, s);
	if (s->sched.paused != before.paused || s->sched.aside != before.aside ||
		s->sched.client != before.client)
		engine->order_stale = true;
}

/* Looks at the sessions that the front has changed. */
static void look_at_changed(struct engine *engine, uint64_t now_ns)
{
	for (uint32_t w = 0; w < ENGINE_CHANGED_WORDS; w++) {
		if (atomic_load_explicit(&engine->changed[w], memory_order_relaxed) == 0)
			continue;
		/* Pairs with the release in engine_changed: the change is there. */
		uint64_t bits =
			atomic_exchange_explicit(&engine->changed[w], 0, memory_order_acquire);

		for (; bits != 0; bits &= bits - 1)
			look(engine, &engine->sessions[64 * w + (uint32_t)__builtin_ctzll(bits)],
				now_ns);
	}
}

void pass_sweep(struct engine *engine, const struct pass *pass)
{
	uint64_t now_ns = pass->start_ns;

	if (now_ns - engine->looked_ns >= LOOK_NS) {
		engine->looked_ns = now_ns;
		for (uint32_t i = 0; i < engine->n_live; i++)
			look(engine, engine_live(engine, i), now_ns);
		engine->order_stale = true; /* they are older now */
	} else {
		/* Those of the last pass: each has a token more, or has ended. */
		for (uint32_t i = 0; i < pass->n_parts; i++)
			look(engine, pass->parts[i].session, now_ns);
	}
	look_at_changed(engine, now_ns);
	engine_tidy(engine);
	recall_save(engine, now_ns);
	atomic_store_explicit(&engine->kept_tokens, (uint64_t)engine->kv.n_kept * KV_PAGE_CELLS,
		memory_order_relaxed);
	atomic_store_explicit(
		&engine->kept_states, engine->kv.snapshots.n_used, memory_order_relaxed);
}

/* Drops what a session has of a fast chunk that it has not whole: a predecessor's pages, or what came
 * from disk, may end anywhere. */
static void drop_part_of_chunk(struct engine *engine, struct engine_session *s)
{
	uint32_t n = session_goes_on(s, s->seq.n);

	if (s->seq.owner == 0 || n == s->seq.n)
		return;
	/* It may forget more than it is told to. */
	for (; n > 0 && n != s->seq.n; n = session_goes_on(s, s->seq.n))
		kv_truncate(&engine->kv, &s->seq, n);
	if (n == 0) {
		kv_seq_exit(&engine->kv, &s->seq);
		s->waits = false;
	}
	s->sched.n_kv = s->seq.n;
	s->sched.n_pages = s->seq.n_pages;
}

/* How many of its first n tokens the session finds, and can go on behind; *tip: their last page. */
static uint32_t find_prefix(
	struct engine *engine, const struct engine_session *s, uint32_t n, uint32_t *tip)
{
	uint32_t found;

	do {
		found = kv_prefix_find(&engine->kv, &s->seq, &s->domains, s->page->tokens, n, tip);
		n = session_goes_on(s, found);
	} while (n != found && found > s->seq.n);
	return found;
}

/* A session that is about to start takes over pages of other sessions that contain the beginning of
 * its tokens; until it starts, also those that appear later. */
static void take_over_prefix(struct engine *engine, struct engine_session *s)
{
	uint32_t n = session_prefix_tokens(s), tip;

	/* Its record could not be had: it begins with what it has. */
	if (s->seq.owner != 0 && s->seq.own != KV_NONE)
		return;
	s->n_met = kv_prefix_pages(&engine->kv, &s->seq, &s->domains, s->page->tokens, n, &tip);
	choose_stops(engine, s);
	if (find_prefix(engine, s, n, &tip) == s->seq.n)
		return;
	if (s->seq.owner == 0 &&
		kv_seq_init(&s->seq, s->uid, (uint32_t)engine->o.config->context) != 0)
		return;
	s->waits = kv_prefix_share(&engine->kv, &s->seq, tip);
	if (!s->waits)
		kv_seq_exit(&engine->kv, &s->seq);
	s->sched.n_kv = s->seq.n;
	s->sched.n_pages = s->seq.n_pages;
	choose_stops(engine, s);
}

static void take_over_prefixes(struct engine *engine)
{
	for (uint32_t r = 0; engine->o.config->fast && r < engine->n_order; r++)
		drop_part_of_chunk(engine, &engine->sessions[engine->order[r]->index]);
	for (uint32_t r = 0; r < engine->n_order && r < engine->tuning->sessions_max; r++) {
		struct engine_session *s = &engine->sessions[engine->order[r]->index];

		if (s->seq.owner != 0 && !s->waits)
			continue;
		take_over_prefix(engine, s);
		recall_begin(engine, s, session_prefix_tokens(s));
	}
}

static void put_in_order(struct engine *engine, uint64_t now_ns)
{
	const struct sched_ageing ageing = {now_ns, engine->tuning->ageing};

	if (engine->order_stale)
		engine->n_order = sched_order(engine->live, engine->n_live, &ageing, engine->order);
	engine->order_stale = false;
}

/* Ends a session whose first token would come `late_ns` too late. */
static void refuse_late(struct engine *engine, struct engine_session *s, uint64_t ahead,
	uint64_t takes_ns, uint64_t late_ns)
{
	snprintf(s->slot->usage.message, sizeof(s->slot->usage.message),
		"refused: the first token would come %.0f ms too late; %u tokens of the prompt and "
		"%llu of requests before it have to be computed, which takes %.0f ms",
		(double)late_ns / 1e6, s->sched.n_tokens - s->sched.n_kv, (unsigned long long)ahead,
		(double)takes_ns / 1e6);
	engine_finish(engine, s, SESSION_END_DEADLINE);
}

/* Refuses the sessions whose first token would come after their deadline, going by what passes have
 * cost. Of those that do not fit in a batch now, it is not known when they can begin. */
static void refuse_hopeless(
	struct engine *engine, const struct sched_limits *limits, uint64_t now_ns)
{
	uint64_t ahead = 0;

	for (uint32_t r = 0; r < engine->n_order && r < limits->sessions_max; r++) {
		struct engine_session *s = &engine->sessions[engine->order[r]->index];
		uint64_t deadline_ns = s->page->request.deadline_ns;
		uint32_t own = s->sched.n_tokens - s->sched.n_kv;
		uint64_t takes_ns =
			sched_prefill_ns(&engine->cost, ahead + own, limits->prefill_chunk);

		if (deadline_ns != 0 && s->n_tokens == s->page->n_prompt &&
			s->end_before == SESSION_END_NONE && now_ns + takes_ns > deadline_ns)
			refuse_late(engine, s, ahead, takes_ns, now_ns + takes_ns - deadline_ns);
		else if (own > 1)
			ahead += own;
	}
	if (engine->n_ended == 0)
		return;
	engine_tidy(engine);
	put_in_order(engine, now_ns);
}

uint32_t pass_plan(struct engine *engine, struct pass *pass)
{
	struct sched_limits limits = engine_limits(engine);
	struct sched_entry plan[LIMIT_SESSIONS];

	recall_step(engine, pass->start_ns);
	put_in_order(engine, pass->start_ns);
	take_over_prefixes(engine);
	put_in_order(engine, pass->start_ns);
	limits.prefill_chunk = sched_chunk(&engine->cost,
		sched_pass_ns_max(engine->order, engine->n_order, &limits), limits.prefill_chunk);
	if (engine->o.config->fast && limits.prefill_chunk < FORWARD_FAST_CHUNK)
		limits.prefill_chunk = FORWARD_FAST_CHUNK;
	refuse_hopeless(engine, &limits, pass->start_ns);
	pass->n_parts = sched_plan(engine->order, engine->n_order, &limits, plan);
	for (uint32_t i = 0; i < pass->n_parts; i++) {
		struct engine_session *s = &engine->sessions[plan[i].session->index];

		s->part = &pass->parts[i];
		*s->part = (struct pass_part){
			.session = s,
			.n_tokens = s->sched.n_tokens,
			.n = plan[i].n,
			.emits = plan[i].emits,
			.decodes = plan[i].decodes,
		};
	}
	return pass->n_parts;
}
