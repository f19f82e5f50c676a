/* The step "report": what a pass cost and yielded, for the policy-controller, for clients that ask
 * about a session, and for the trace. Ends the sessions whose answers are complete. */
#include "services/verifier/pass/engine.h"

#include "shared/base/clock.h"
#include "shared/base/counter.h"
#include "shared/base/timeline.h"

static void account(const struct pass_part *part, const struct iteration_record *record)
{
	const struct engine_session *s = part->session;
	struct slot_usage *usage = &s->slot->usage;

	usage->iterations++;
	usage->draft_ns += record->draft_ns;
	usage->verify_ns += record->verify_ns;
	usage->sample_ns += record->sample_ns;
	usage->unique_experts += record->unique_experts;
	usage->expert_hits += record->expert_hits;
	usage->expert_misses += record->expert_misses;
	counter_add(&s->page->iterations, 1);
	atomic_store_explicit(&s->page->k, part->want.k_asked, memory_order_relaxed);
	journal_count(s->page, s->slot->shared);
	atomic_store_explicit(&s->slot->iterations, usage->iterations, memory_order_relaxed);
	atomic_store_explicit(&s->slot->expert_hits, usage->expert_hits, memory_order_relaxed);
	atomic_store_explicit(&s->slot->expert_misses, usage->expert_misses, memory_order_relaxed);
}

/* The fields that are the same for every session of the pass. */
static struct iteration_record common_record(struct engine *engine, const struct pass *pass)
{
	const struct expert_source_stats *before = &pass->experts_before;
	struct iteration_record record = {
		.iteration = engine->iteration,
		.batch_sessions = (uint16_t)pass->n_parts,
		.batch_tokens = pass->n_batch,
		.prefill_tokens = pass->n_prefill,
		.unique_experts = (uint32_t)forward_stats(engine->forward)->unique_experts,
		.draft_ns = pass->drafted_ns - pass->start_ns,
		.verify_ns = pass->forwarded_ns - pass->forward_ns,
		.finished_ns = clock_ns(),
	};

	record.sample_ns = record.finished_ns - pass->forwarded_ns;
	record.iteration_ns = record.finished_ns - pass->start_ns;
	if (engine->experts != NULL) {
		const struct expert_source_stats *now = &engine->experts->stats;

		record.expert_hits = (uint32_t)(now->hits - before->hits);
		record.expert_misses = (uint32_t)(now->misses - before->misses);
		record.expert_bytes = now->bytes_loaded - before->bytes_loaded;
	}
	return record;
}

/* Records the phases of one pass, for `outriderctl trace`. */
static void draw(const struct pass *pass, const struct iteration_record *record, uint32_t n_drafts,
	uint32_t n_emitted)
{
	const struct timeline_span spans[] = {
		{pass->start_ns, record->finished_ns, 0, TIMELINE_ITERATION, 0,
			{record->batch_sessions, record->batch_tokens}},
		{pass->start_ns, pass->drafted_ns, 0, TIMELINE_DRAFT_WAIT, 0, {n_drafts, 0}},
		{pass->forward_ns, pass->forwarded_ns, 0, TIMELINE_FORWARD, 0,
			{record->batch_tokens, record->unique_experts}},
		{pass->forwarded_ns, record->finished_ns, 0, TIMELINE_SAMPLE, 0, {n_emitted, 0}},
	};
	for (size_t i = 0; i < sizeof(spans) / sizeof(spans[0]); i++)
		timeline_add(&spans[i]);
}

static void describe_draft(struct iteration_record *record, const struct pass_part *part)
{
	static const struct draft_reply none = {.method = DRAFT_NONE};
	const struct draft_reply *draft = part->n_drafts > 0 ? part->draft : &none;

	record->method = (uint8_t)draft->method;
	policy_record_draft(record, draft, part->out.node, part->out.n_accepted);
}

/* At K = 0: adds what the drafter reported of foresight. Where a draft was asked for, such a report
 * is out of date. */
static void describe_foresight(
	struct iteration_record *record, struct drafts *drafts, const struct pass_part *part)
{
	struct drafts_foresight f;

	record->foreseen = record->foreseen_drafted = record->foreseen_right = 0;
	record->foreseen_method = DRAFT_NONE;
	if (!drafts_foresight(drafts, part->session->index, part->session->uid, &f) ||
		part->want.k > 0)
		return;
	record->foreseen = (uint8_t)f.foreseen;
	record->foreseen_drafted = (uint8_t)f.drafted;
	record->foreseen_right = (uint8_t)f.right;
	record->foreseen_method = (uint8_t)f.method;
	policy_record_confidence(record, f.confidence, f.drafted);
}

/* Adds the fields of one session to the record. */
static void describe_part(
	struct iteration_record *record, struct engine *engine, const struct pass_part *part)
{
	const struct engine_session *s = part->session;

	const struct request_class *of_class = &s->page->request.of_class;

	record->session = s->uid;
	record->tpot_us = (uint32_t)(of_class->tpot_ns / 1000);
	record->ttft_us = (uint32_t)(of_class->ttft_ns / 1000);
	record->page = s->index;
	record->n_context = part->n_tokens + part->n_emitted;
	record->k = (uint8_t)part->want.k;
	record->decision = part->want.decision;
	record->accepted = (uint8_t)part->out.n_accepted;
	record->emitted = (uint8_t)part->n_emitted;
	record->width = (uint8_t)part->want.width;
	record->masks = (uint16_t)part->n_masks;
	record->unfollowed = !follow_on(&s->follow);
	describe_draft(record, part);
	/* At K = 0, too: the policy has to know that no drafter is awaited. */
	if (masks_used(engine, s))
		record->method = DRAFT_MTP_LORA;
	describe_foresight(record, &engine->drafts, part);
	record->k_fixed = (uint8_t)(s->page->request.k - SESSION_K_POLICY);
}

/* Measures what a pass without prompt tokens takes, without the wait for drafts. */
static void measure(struct engine *engine, const struct pass *pass, uint64_t finished_ns)
{
	uint64_t ns = finished_ns - pass->drafted_ns;

	sched_learn(&engine->cost, pass->n_prefill, finished_ns - pass->start_ns);
	targets_pass(&engine->targets, &engine->cost);

	if (pass->n_prefill == 0)
		engine->pass_ns = engine->pass_ns == 0 ? ns : (7 * engine->pass_ns + ns) / 8;
}

/* Whether its draft was made by its grammar: how that went says nothing about drafters, or about a
 * K that a policy chose. */
static bool was_certain(const struct pass_part *part)
{
	return part->draft != NULL && part->draft->n > 0 && part->draft->method == DRAFT_NONE;
}

static void keep_pace(struct engine_session *s, uint32_t n_emitted)
{
	float n = (float)n_emitted;

	s->pace = s->pace == 0 ? n : 0.9f * s->pace + 0.1f * n;
}

/* Learns for later drafts from what became of this one. */
static void learn(struct engine *engine, const struct pass_part *part)
{
	struct engine_session *s = part->session;

	drafts_yielded(&engine->drafts, s->index, part->out.n_accepted);
	share_learn(&s->share, part->draft, part->out.node, part->out.n_accepted);
}

void pass_report(struct engine *engine, struct pass *pass)
{
	struct iteration_record record = common_record(engine, pass);
	uint32_t n_drafts = 0, n_emitted = 0;

	measure(engine, pass, record.finished_ns);

	for (uint32_t i = 0; i < pass->n_parts; i++) {
		const struct pass_part *part = &pass->parts[i];

		describe_part(&record, engine, part);
		account(part, &record);
		if (part->n_drafts > 0 && !was_certain(part))
			learn(engine, part);
		if (part->decodes && part->n_emitted > 0)
			keep_pace(part->session, part->n_emitted);
		n_drafts += part->n_drafts;
		n_emitted += part->n_emitted;
		if (engine->policy != NULL && !was_certain(part) &&
			!ring_put(&engine->records, &record, sizeof(record)))
			ring_drop(&engine->records);
		/* Last, because the page and slot of a session that is DONE belong to the front. If
		 * the process dies before this point, its successor finds the end in the tokens. */
		if (part->end != SESSION_END_NONE)
			engine_finish(engine, part->session, part->end);
	}
	if (timeline_on())
		draw(pass, &record, n_drafts, n_emitted);
}
