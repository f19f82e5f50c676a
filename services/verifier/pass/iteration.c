#include "services/verifier/pass/iteration.h"

#include "services/verifier/pass/batch.h"
#include "services/verifier/pass/emit.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/base/timeline.h"
#include "shared/model/gguf/gguf_watch.h"

#include <string.h>

/* With K = 0 the drafter is told of a session's progress at most once per this many tokens: enough for it to be up to
 * date when K rises, and a wake-up of it costs next to nothing. */
#define FOLLOW_TOKENS 16u

struct timing {
	uint64_t start_ns, drafted_ns, forward_ns, forwarded_ns;
	struct expert_source_stats before;
};

/* Ends what is cancelled or late, and lets go of what gives way. */
static void sweep(struct engine *engine, uint64_t now_ns)
{
	for (uint32_t i = 0; i < engine->n_live; i++) {
		struct engine_session *s = engine_live(engine, i);
		uint64_t deadline_ns = s->page->request.deadline_ns;

		/* How a finished answer ended stays: only its hashes were being made again. */
		if (atomic_load_explicit(&s->slot->cancel, memory_order_relaxed))
			engine_finish(engine, s,
				s->end_before != SESSION_END_NONE ? s->end_before
								  : SESSION_END_CANCELLED);
		else if (deadline_ns != 0 && now_ns >= deadline_ns &&
			 s->end_before == SESSION_END_NONE)
			engine_finish(engine, s, SESSION_END_DEADLINE);
		else if (atomic_load_explicit(&s->slot->yield, memory_order_relaxed) &&
			 s->end_before == SESSION_END_NONE)
			engine_yield(engine, s);
	}
	engine_tidy(engine);
}

static void plan_inputs(struct engine *engine)
{
	uint32_t ahead = engine->tuning.ahead_max;

	for (uint32_t i = 0; i < engine->n_live; i++) {
		struct engine_session *s = engine_live(engine, i);
		uint32_t n_tokens = journal_n_tokens(s->page);
		uint64_t credit = atomic_load_explicit(&s->slot->credit, memory_order_relaxed);

		engine->sched[i] = (struct sched_session){
			.n_tokens = n_tokens,
			.n_kv = s->seq.n,
			.n_pages = s->seq.n_pages,
			.n_prompt = s->page->n_prompt,
			.paused = emit_n_out(s, n_tokens) >= credit + ahead &&
				  s->end_before == SESSION_END_NONE,
			.aside = atomic_load_explicit(&s->slot->aside, memory_order_relaxed),
			.hashed = s->slot->hashes != NULL,
			.client = atomic_load_explicit(&s->slot->client, memory_order_relaxed),
		};
		engine->in_batch[i] = false;
		s->k = s->k_asked = 0;
		s->asked = s->hold_back = false;
		s->n_drafts = s->emitted = s->accepted = 0;
		s->end = SESSION_END_NONE;
	}
	sched_rank(engine->sched, engine->n_live);
}

static uint32_t choose_k(struct engine *engine, struct engine_session *s, uint32_t n_tokens)
{
	const struct session_request *request = &s->page->request;
	struct policy_session knobs;
	uint32_t k = engine->tuning.default_k;

	s->decision = 0;
	s->foresight = false;
	if (request->draft_method == DRAFT_NONE)
		return 0;
	if (request->k != SESSION_K_POLICY) {
		k = (uint32_t)request->k;
	} else if (engine->policy != NULL) {
		policy_lookup(engine->policy, s->index, s->uid, &knobs);
		k = policy_next_k(&knobs, &s->trial);
		s->decision = (uint32_t)knobs.decision;
		s->unfollowed = knobs.unfollowed != 0;
		s->foresight = knobs.foresight != 0;
	}
	s->k_asked = k;
	return sched_k(k, n_tokens, s->page->n_prompt, request->max_tokens,
		(uint32_t)engine->o.config->context);
}

/* While a session's prompt is computed nothing is chosen for it. Whether the drafter reads that prompt is the policy's to say
 * all the same: where drafts do not pay, a draft model as large as half of the target took 4 ms for it, beside the first
 * fifth of an answer of 18 ms. A drafter that hints is told of every token behind the prompt: what it reads before that is not
 * read beside the answer. */
static void look_up_following(const struct engine *engine, struct engine_session *s)
{
	struct policy_session knobs;

	if (engine->policy == NULL || s->page->request.k != SESSION_K_POLICY)
		return;
	policy_lookup(engine->policy, s->index, s->uid, &knobs);
	s->unfollowed = knobs.unfollowed != 0;
}

/* Keeps the drafter within FOLLOW_TOKENS of a session whose K may rise again, and up to date where it hints. */
static void follow(struct engine *engine, struct engine_session *s, uint32_t n_tokens, bool decodes)
{
	const struct session_request *request = &s->page->request;
	/* Hints are about the very next token, whoever drafts later on. */
	bool hints = decodes && engine->feed.on;

	s->told = engine->tuning.follow_at_zero &&
		  (hints || !(request->draft_method == DRAFT_NONE || request->k == 0 ||
				    s->unfollowed));
	if (!s->told)
		return;
	if (s->followed != 0 && n_tokens - s->followed < (hints ? 1 : FOLLOW_TOKENS))
		return;
	s->followed = n_tokens;
	drafts_follow(&engine->drafts, s->index, s->uid, n_tokens, s->foresight);
}

/* Before the requests of a pass: what its hints may be about. */
static void begin_hints(struct engine *engine)
{
	gate_hints_begin(&engine->gates);
	engine->feed.on = gate_hints_wanted(&engine->gates, HINT_HISTORY) &&
			  atomic_load_explicit(&engine->drafts.peer, memory_order_relaxed) != 0;
	engine->drafts.iteration =
		engine->cached != NULL ? experts_cached_iteration(engine->cached) + 1 : 0;
}

/* After a pass that went well. */
static void end_hints(struct engine *engine, uint32_t n_plan, const struct timing *t)
{
	uint64_t wait_ns =
		engine->experts != NULL ? engine->experts->stats.wait_ns - t->before.wait_ns : 0;

	gate_hints_end(
		&engine->gates, t->forwarded_ns - t->forward_ns, wait_ns, engine->n_prefill == 0);
	if (!engine->feed.on)
		return;
	uint64_t start_ns = clock_ns();
	for (uint32_t e = 0; e < n_plan; e++) {
		const struct sched_entry *entry = &engine->plan[e];
		const struct engine_session *s = engine_live(engine, entry->session);
		uint32_t n = s->seq.n;

		if (engine->in_batch[entry->session])
			routing_feed_publish(&engine->feed, engine->batch, s->row,
				entry->n + s->n_drafts, s->uid, s->index,
				n > 0 ? s->page->tokens[n - 1] : -1);
	}
	atomic_fetch_add_explicit(
		&engine->feed.spent_ns, clock_ns() - start_ns, memory_order_relaxed);
}

/* Chooses every K, asks for drafts and waits for them. */
static void draft(struct engine *engine, uint32_t n_plan, uint64_t now_ns)
{
	struct engine_session *last = NULL;
	bool may_ask = drafts_begin(&engine->drafts, now_ns);

	for (uint32_t e = 0; e < n_plan; e++) {
		struct engine_session *s = engine_live(engine, engine->plan[e].session);
		uint32_t n_tokens = engine->sched[engine->plan[e].session].n_tokens;

		if (engine->plan[e].decodes && may_ask && s->end_before == SESSION_END_NONE)
			s->k = choose_k(engine, s, n_tokens);
		else if (!engine->plan[e].decodes && !engine->feed.on)
			look_up_following(engine, s);
		s->asked = s->k > 0;
		if (s->asked)
			last = s;
		else
			follow(engine, s, n_tokens, engine->plan[e].decodes);
	}
	if (last == NULL)
		return;
	for (uint32_t e = 0; e < n_plan; e++) {
		struct engine_session *s = engine_live(engine, engine->plan[e].session);
		uint32_t n_tokens = engine->sched[engine->plan[e].session].n_tokens;

		if (!s->asked)
			continue;
		s->followed = n_tokens;
		s->told = true;
		drafts_ask(&engine->drafts, s->index, s->uid, n_tokens, s->k, s == last);
	}
	drafts_wait(&engine->drafts);
}

static void account(struct engine_session *s, const struct iteration_record *record)
{
	struct slot_usage *usage = &s->slot->usage;

	usage->iterations++;
	usage->draft_ns += record->draft_ns;
	usage->verify_ns += record->verify_ns;
	usage->sample_ns += record->sample_ns;
	usage->unique_experts += record->unique_experts;
	usage->expert_hits += record->expert_hits;
	usage->expert_misses += record->expert_misses;
	atomic_fetch_add_explicit(&s->page->iterations, 1, memory_order_relaxed);
	atomic_store_explicit(&s->page->k, s->k_asked, memory_order_relaxed);
	journal_count(s->page, s->slot->shared);
	atomic_store_explicit(&s->slot->iterations, usage->iterations, memory_order_relaxed);
	atomic_store_explicit(&s->slot->expert_hits, usage->expert_hits, memory_order_relaxed);
	atomic_store_explicit(&s->slot->expert_misses, usage->expert_misses, memory_order_relaxed);
}

/* What is the same for every session of the pass. */
static struct iteration_record common_record(
	struct engine *engine, const struct timing *t, uint32_t n_sessions)
{
	const struct expert_source_stats *before = &t->before;
	struct iteration_record record = {
		.iteration = engine->iteration,
		.batch_sessions = (uint16_t)n_sessions,
		.batch_tokens = engine->n_batch,
		.prefill_tokens = engine->n_prefill,
		.unique_experts = (uint32_t)forward_stats(engine->forward)->unique_experts,
		.draft_ns = t->drafted_ns - t->start_ns,
		.verify_ns = t->forwarded_ns - t->forward_ns,
	};

	if (engine->experts != NULL) {
		const struct expert_source_stats *now = &engine->experts->stats;

		record.expert_hits = (uint32_t)(now->hits - before->hits);
		record.expert_misses = (uint32_t)(now->misses - before->misses);
		record.expert_bytes = now->bytes_loaded - before->bytes_loaded;
	}
	return record;
}

/* The phases of one pass, for `outriderctl trace`. */
static void draw(const struct timing *t, const struct iteration_record *record, uint32_t n_drafts,
	uint32_t n_emitted)
{
	const struct timeline_span spans[] = {
		{t->start_ns, record->finished_ns, 0, TIMELINE_ITERATION, 0,
			{record->batch_sessions, record->batch_tokens}},
		{t->start_ns, t->drafted_ns, 0, TIMELINE_DRAFT_WAIT, 0, {n_drafts, 0}},
		{t->forward_ns, t->forwarded_ns, 0, TIMELINE_FORWARD, 0,
			{record->batch_tokens, record->unique_experts}},
		{t->forwarded_ns, record->finished_ns, 0, TIMELINE_SAMPLE, 0, {n_emitted, 0}},
	};
	for (size_t i = 0; i < sizeof(spans) / sizeof(spans[0]); i++)
		timeline_add(&spans[i]);
}

/* draft NULL: the session had none. A checked reply: confidences are 0 to 1. */
static void describe_draft(struct iteration_record *record, const struct draft_reply *draft)
{
	record->method = (uint8_t)(draft != NULL ? draft->method : DRAFT_NONE);
	policy_record_confidence(record, draft != NULL ? draft->confidence : NULL,
		draft != NULL ? record->drafted : 0);
}

/* At K = 0: what the drafter says it would have drafted. What it says where a draft was asked for is of the time before. */
static void describe_foresight(
	struct iteration_record *record, struct drafts *drafts, const struct engine_session *s)
{
	struct drafts_foresight f;

	record->foreseen = record->foreseen_drafted = record->foreseen_right = 0;
	record->foreseen_method = DRAFT_NONE;
	if (!drafts_foresight(drafts, s->index, s->uid, &f) || s->k > 0)
		return;
	record->foreseen = (uint8_t)f.foreseen;
	record->foreseen_drafted = (uint8_t)f.drafted;
	record->foreseen_right = (uint8_t)f.right;
	record->foreseen_method = (uint8_t)f.method;
	policy_record_confidence(record, f.confidence, f.drafted);
}

static void finish_pass(
	struct engine *engine, uint32_t n_plan, uint32_t n_sessions, const struct timing *t)
{
	struct iteration_record record = common_record(engine, t, n_sessions);

	for (uint32_t e = 0; e < n_plan; e++) {
		const struct sched_entry *entry = &engine->plan[e];
		struct engine_session *s = engine_live(engine, entry->session);

		if (!engine->in_batch[entry->session])
			continue;
		if (s->slot->hashes != NULL)
			emit_hash_again(engine, s, entry);
		if (entry->emits && s->end_before == SESSION_END_NONE) {
			emit_tokens(engine, entry);
			continue;
		}
		kv_commit(&engine->kv, &s->seq, engine->cells + s->row, entry->n, NULL, 0);
		if (entry->emits)
			s->end = s->end_before;
	}
	record.finished_ns = clock_ns();
	record.sample_ns = record.finished_ns - t->forwarded_ns;
	record.iteration_ns = record.finished_ns - t->start_ns;
	uint32_t n_drafts = 0, n_emitted = 0;
	for (uint32_t e = 0; e < n_plan; e++) {
		struct engine_session *s = engine_live(engine, engine->plan[e].session);

		if (!engine->in_batch[engine->plan[e].session])
			continue;
		record.session = s->uid;
		record.page = s->index;
		record.n_context = engine->sched[engine->plan[e].session].n_tokens + s->emitted;
		record.k = (uint8_t)s->k;
		record.decision = s->decision;
		record.drafted = (uint8_t)s->n_drafts;
		record.accepted = (uint8_t)s->accepted;
		record.emitted = (uint8_t)s->emitted;
		record.unfollowed = !s->told;
		describe_draft(
			&record, s->n_drafts > 0 ? drafts_reply(&engine->drafts, s->index) : NULL);
		describe_foresight(&record, &engine->drafts, s);
		record.k_fixed = (uint8_t)(s->page->request.k - SESSION_K_POLICY);
		account(s, &record);
		n_drafts += s->n_drafts;
		n_emitted += s->emitted;
		if (engine->policy != NULL && !ring_put(&engine->records, &record, sizeof(record)))
			ring_drop(&engine->records);
		/* Last, because the account of a page that is DONE is the front's. Who dies before this point
		 * leaves it to the successor, which finds the end in the tokens. */
		if (s->end != SESSION_END_NONE)
			engine_finish(engine, s, s->end);
	}
	if (timeline_on())
		draw(t, &record, n_drafts, n_emitted);
}

/* Without the model nobody's answer can go on. */
static void fail_all(struct engine *engine, const struct error *err)
{
	for (uint32_t i = 0; i < engine->n_live; i++) {
		struct engine_session *s = engine_live(engine, i);

		snprintf(s->slot->usage.message, sizeof(s->slot->usage.message), "%s", err->text);
		log_session(
			LOG_LEVEL_ERROR, s->uid, engine->iteration, "%s", s->slot->usage.message);
		/* How a finished answer ended stays. */
		engine_finish(engine, s,
			s->end_before != SESSION_END_NONE ? s->end_before : SESSION_END_ERROR);
	}
	engine_tidy(engine);
}

/* Whether what a pass computed, which ended with rc, may be used. The weights that were read are the model's only if its files
 * still hold what was opened: looking costs a system call for each of them. After something has touched them it waits until
 * they have been compared (proof.h). */
static int judge_pass(const struct engine *engine, int rc, struct error *err)
{
	int lost = gguf_watch(engine->o.model->gguf, err);
	bool damaged = engine->cached != NULL && experts_cached_damaged(engine->cached);

	if (lost == 0 && damaged)
		return error_set(err, EUCLEAN,
			"somebody wrote to the table of expert slots while it was in use: what was "
			"being computed is thrown away");
	if (lost == 0)
		lost = proof_wait(engine->o.proof, engine->o.model->gguf, err);
	if (lost != 0 || rc == 0)
		return lost;
	return error_set(err, -rc, "the model cannot be computed: %s", strerror(-rc));
}

/* Whose activations the cache's policy sees. */
static void tell_session(struct engine *engine, uint32_t n_plan, uint32_t n_sessions)
{
	uint64_t session = 0;

	if (engine->cached == NULL)
		return;
	for (uint32_t e = 0; n_sessions == 1 && e < n_plan; e++)
		if (engine->in_batch[engine->plan[e].session])
			session = engine_live(engine, engine->plan[e].session)->uid;
	experts_cached_session(engine->cached, session);
}

uint32_t iteration_run(struct engine *engine)
{
	struct timing t = {.start_ns = clock_ns()};
	struct error err;

	sweep(engine, t.start_ns);
	if (gguf_lost(engine->o.model->gguf, &err) != 0)
		fail_all(engine, &err);
	if (engine->n_live == 0)
		return 0;
	plan_inputs(engine);
	uint32_t n_plan = sched_plan(engine->sched, engine->n_live, &engine->limits, engine->plan);
	if (n_plan == 0)
		return 0;
	begin_hints(engine);
	draft(engine, n_plan, t.start_ns);
	t.drafted_ns = clock_ns();
	uint32_t n_sessions = batch_build(engine, n_plan);
	if (n_sessions == 0)
		return 0;
	tell_session(engine, n_plan, n_sessions);
	engine->iteration++;
	if (engine->experts != NULL)
		t.before = engine->experts->stats;
	t.forward_ns = clock_ns();
	int rc = forward_run(engine->forward, engine->batch, engine->n_batch);
	t.forwarded_ns = clock_ns();
	rc = judge_pass(engine, rc, &err);
	if (rc == 0)
		end_hints(engine, n_plan, &t);
	if (rc != 0)
		fail_all(engine, &err);
	else
		finish_pass(engine, n_plan, n_sessions, &t);
	engine_tidy(engine);
	atomic_store_explicit(&engine->iterations_total, engine->iteration, memory_order_relaxed);
	return n_sessions;
}
