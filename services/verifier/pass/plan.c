/* The step "plan": which sessions take part in a pass, and with how many of their committed tokens. */
#include "services/verifier/pass/engine.h"

/* Ends what is cancelled or late, and lets go of what gives way. */
static void end_or_yield(struct engine *engine, struct engine_session *s, uint64_t now_ns)
{
	uint64_t deadline_ns = s->page->request.deadline_ns;

	/* How a finished answer ended stays: only its hashes were being made again. */
	if (atomic_load_explicit(&s->slot->cancel, memory_order_relaxed))
		engine_finish(engine, s,
			s->end_before != SESSION_END_NONE ? s->end_before : SESSION_END_CANCELLED);
	else if (deadline_ns != 0 && now_ns >= deadline_ns && s->end_before == SESSION_END_NONE)
		engine_finish(engine, s, SESSION_END_DEADLINE);
	else if (atomic_load_explicit(&s->slot->yield, memory_order_relaxed) &&
		 s->end_before == SESSION_END_NONE)
		engine_yield(engine, s);
}

/* What the scheduler decides from, as it is now. */
static void look(struct engine *engine, struct engine_session *s)
{
	uint32_t n_tokens = journal_n_tokens(s->page);
	uint64_t credit = atomic_load_explicit(&s->slot->credit, memory_order_relaxed);

	s->sched = (struct sched_session){
		.index = s->index,
		.n_tokens = n_tokens,
		.n_kv = s->seq.n,
		.n_pages = s->seq.n_pages,
		.n_prompt = s->page->n_prompt,
		.paused = session_n_out(s, n_tokens) >= credit + engine->tuning.ahead_max &&
			  s->end_before == SESSION_END_NONE,
		.aside = atomic_load_explicit(&s->slot->aside, memory_order_relaxed),
		.hashed = s->slot->hashes != NULL,
		.client = atomic_load_explicit(&s->slot->client, memory_order_relaxed),
	};
}

void pass_sweep(struct engine *engine, const struct pass *pass)
{
	for (uint32_t i = 0; i < engine->n_live; i++)
		end_or_yield(engine, engine_live(engine, i), pass->start_ns);
	engine_tidy(engine);
}

uint32_t pass_plan(struct engine *engine, struct pass *pass)
{
	struct sched_entry plan[LIMIT_SESSIONS];

	for (uint32_t i = 0; i < engine->n_live; i++)
		look(engine, engine_live(engine, i));
	engine->n_order = sched_order(engine->live, engine->n_live, engine->order);
	pass->n_parts = sched_plan(engine->order, engine->n_order, &engine->limits, plan);
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
