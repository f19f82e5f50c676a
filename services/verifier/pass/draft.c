/* The step "draft": chooses every part's K, asks for drafts, and waits for those that are worth it.
 * Keeps the drafter informed of the sessions for which it asks for none. */
#include "services/verifier/pass/engine.h"

#include "shared/base/clock.h"
#include "shared/base/counter.h"

#include <string.h>

/* Looks up what the policy says about a session. False: nothing, because its request fixed K or
 * there never was a policy. */
static bool ask_policy(
	const struct engine *engine, const struct engine_session *s, struct policy_session *knobs)
{
	if (engine->policy == NULL || s->page->request.k != SESSION_K_POLICY)
		return false;
	policy_lookup(engine->policy, s->index, s->uid, knobs);
	return true;
}

/* Asks for a tree of the policy's fixed shape, as far as the answer and a draft have room for it. */
static void fix_shape(const struct policy_session *knobs, struct draft_want *want, uint32_t most)
{
	uint32_t level = 1, depth = 0, nodes = 0;

	want->width = 1;
	for (; depth < want->k && depth < DRAFT_SHAPE && knobs->shape[depth] > 0; depth++) {
		uint32_t width = knobs->shape[depth];

		if (level * width > most - nodes)
			break;
		level *= width;
		nodes += level;
		want->shape[depth] = knobs->shape[depth];
		want->width = width > want->width ? width : want->width;
	}
	want->nodes = nodes;
	want->k = depth;
}

/* Chooses the shape of a draft of depth K: the request's, the policy's, or that of the settings. */
static void choose_shape(
	const struct engine *engine, struct pass_part *part, const struct policy_session *knobs)
{
	const struct session_request *request = &part->session->page->request;
	const struct tuning *tuning = engine->tuning;
	struct draft_want *want = &part->want;
	/* A grammar has room for as many tokens as the request asks for (constraint_create). */
	bool constrained = part->session->slot->constraint != NULL;
	uint32_t most = constrained ? LIMIT_DRAFT_DEPTH : LIMIT_DRAFT_NODES;

	want->nodes = want->k;
	want->width = 1;
	memset(want->shape, 0, sizeof(want->shape));
	if (want->k == 0)
		return;
	if (knobs->shape[0] > 0 && request->draft_nodes == 0) {
		fix_shape(knobs, want, most);
	} else if (request->draft_nodes > 0) {
		want->nodes = request->draft_nodes;
		want->width = request->draft_width;
	} else if (knobs->width > 1) {
		want->width = knobs->width;
		want->nodes = want->k * knobs->width;
		want->nodes = want->nodes < most ? want->nodes : most;
	} else if (tuning->draft_width > 1) {
		want->width = tuning->draft_width;
		want->nodes = tuning->draft_nodes > 0 ? tuning->draft_nodes
						      : want->k * tuning->draft_width;
		want->nodes = want->nodes < most ? want->nodes : most;
	}
}

static void choose_k(struct engine *engine, struct pass_part *part, bool has_policy,
	const struct policy_session *knobs)
{
	struct engine_session *s = part->session;
	const struct session_request *request = &s->page->request;

	if (request->k != SESSION_K_POLICY)
		part->want.k_asked = (uint32_t)request->k;
	else if (has_policy)
		part->want.k_asked = policy_next_k(knobs, &s->trial);
	else
		part->want.k_asked = engine->tuning->default_k;
	if (has_policy) {
		part->want.decision = (uint32_t)knobs->decision;
		part->want.prices = knobs->prices;
	}
	part->want.k = sched_k(part->want.k_asked, part->n_tokens, s->page->n_prompt,
		request->max_tokens, (uint32_t)engine->o.config->context);
	choose_shape(engine, part, knobs);
}

/* While a session's prompt is computed, no K is chosen for it. But the policy says whether the
 * drafter should read that prompt: where drafts do not pay, a draft model half as large as the
 * target took 4 ms for it, during the first fifth of an answer of 18 ms. A drafter that makes hints
 * is told of every token behind the prompt; what it has not read by then it reads during the
 * answer. */
static void follow_without_draft(struct engine *engine, const struct pass_part *part,
	bool has_policy, const struct policy_session *knobs)
{
	struct engine_session *s = part->session;
	const struct session_request *request = &s->page->request;
	bool hinting = engine->feed.on;
	const struct follow_view view = {
		.allowed = engine->tuning->follow_at_zero,
		.drafts = request->draft_method != DRAFT_NONE &&
			  request->draft_method != DRAFT_MTP_LORA && request->k != 0,
		.unfollowed = has_policy && knobs->unfollowed != 0 && (part->decodes || !hinting),
		.foresight = has_policy && knobs->foresight != 0 && part->decodes,
		.hints = part->decodes && hinting,
	};

	if (!follow_pass(&s->follow, &view, part->n_tokens))
		return;
	pass_publish(engine);
	drafts_follow(&engine->drafts, s->index, s->uid, part->n_tokens, follow_learns(&s->follow));
}

/* Drafts the tokens that the session's grammar prescribes, which need no drafter. True: they are
 * the part's draft. */
static bool force(struct engine *engine, struct pass_part *part)
{
	struct engine_session *s = part->session;
	const struct session_request *request = &s->page->request;
	int32_t tokens[CONSTRAINT_FORCED];
	uint32_t most = request->k < 0 ? CONSTRAINT_FORCED : (uint32_t)request->k;

	if (!part->decodes || s->slot->constraint == NULL || s->end_before != SESSION_END_NONE)
		return false;
	most = sched_k(most, part->n_tokens, s->page->n_prompt, request->max_tokens,
		(uint32_t)engine->o.config->context);
	uint32_t n = constraint_forced(s->slot->constraint, tokens, most);
	if (n == 0)
		return false;
	drafts_put(&engine->drafts, s->index, s->uid, part->n_tokens,
		&(struct drafts_own){DRAFT_NONE, n, tokens, NULL});
	part->wish = drafts_state(&engine->drafts, s->index, s->uid, part->n_tokens);
	if (part->wish != DRAFTS_HERE)
		return false;
	part->want = s->wanted = (struct draft_want){.k = n, .k_asked = n, .nodes = n, .width = 1};
	return true;
}

/* Chooses K if no request is out for the session. Where K is 0, the drafter is at most told of the
 * session. */
static void choose(struct engine *engine, struct pass_part *part, bool may_ask)
{
	struct engine_session *s = part->session;
	struct policy_session knobs = {0};
	bool has_policy = ask_policy(engine, s, &knobs);

	engine->select.priced |= has_policy && knobs.prices.token > 0;

	if (force(engine, part))
		return;
	if (masks_used(engine, s)) {
		if (part->emits) {
			choose_k(engine, part, has_policy, &knobs);
			masks_take_draft(engine, part);
		}
		/* For hints alone, which are for the drafted tokens, too. */
		follow_without_draft(engine, part, has_policy, &knobs);
		return;
	}
	if (may_ask && part->decodes && s->end_before == SESSION_END_NONE &&
		s->page->request.draft_method != DRAFT_NONE &&
		s->page->request.draft_method != DRAFT_MTP_LORA) {
		part->wish = drafts_state(&engine->drafts, s->index, s->uid, part->n_tokens);
		if (part->wish == DRAFTS_OUT || part->wish == DRAFTS_HERE)
			part->want = s->wanted;
		else if (part->wish == DRAFTS_BEHIND)
			part->want.k_asked = s->wanted.k_asked;
		else if (part->wish == DRAFTS_NONE)
			choose_k(engine, part, has_policy, &knobs);
	}
	if (part->want.k == 0)
		follow_without_draft(engine, part, has_policy, &knobs);
}

static struct draft_budget budget_of(const struct pass_part *part)
{
	struct draft_budget budget = {
		.nodes = (uint16_t)part->want.nodes,
		.depth = (uint8_t)part->want.k,
		.width = (uint8_t)part->want.width,
	};

	memcpy(budget.shape, part->want.shape, sizeof(budget.shape));
	return budget;
}

/* Sends a request for each part that wants a draft and has none. */
static void ask(struct engine *engine, struct pass *pass, const struct pass_part *last)
{
	engine->select.asked = false;
	for (uint32_t i = 0; last != NULL && i < pass->n_parts; i++) {
		struct pass_part *part = &pass->parts[i];
		struct engine_session *s = part->session;

		if (part->want.k == 0 || part->wish != DRAFTS_NONE || part->masked)
			continue;
		s->wanted = part->want;
		follow_ask(&s->follow, part->n_tokens);
		/* Which nodes are verified will be chosen by what they need. */
		uint32_t needs = part->want.prices.token > 0 ? engine->select.pick.n_words : 0;
		engine->select.asked |= needs > 0;
		drafts_ask(&engine->drafts, s->index, s->uid, part->n_tokens, budget_of(part),
			needs, part == last);
		part->wish = drafts_state(&engine->drafts, s->index, s->uid, part->n_tokens);
	}
}

static bool any_out(const struct pass *pass)
{
	for (uint32_t i = 0; i < pass->n_parts; i++)
		if (pass->parts[i].wish == DRAFTS_OUT)
			return true;
	return false;
}

/* Waits for the drafts for which it pays to wait. */
static void wait_for_drafts(struct engine *engine, struct pass *pass)
{
	struct drafts *drafts = &engine->drafts;
	uint64_t now_ns = clock_ns(), limit_ns;
	struct pace_wait wait;

	pace_wait_init(&wait, engine->pass_ns, drafts->tuning->draft_wait);
	for (uint32_t i = 0; i < pass->n_parts; i++) {
		struct pass_part *part = &pass->parts[i];
		const struct engine_session *s = part->session;
		const struct pace *pace = drafts_pace(drafts, s->index, s->uid);

		if (part->wish == DRAFTS_OUT)
			part->group = pace_wait_add(
				&wait, pace, drafts_elapsed_ns(drafts, s->index, now_ns));
		else
			pace_wait_ready(
				&wait, part->wish == DRAFTS_HERE ? 1 + pace_yield(pace) : 1);
	}
	uint32_t groups = pace_wait_choose(&wait, &limit_ns);
	for (uint32_t i = 0; i < pass->n_parts; i++)
		if (pass->parts[i].wish == DRAFTS_OUT && pass->parts[i].group < groups)
			drafts_await(drafts, pass->parts[i].session->index);
	drafts_wait(drafts, limit_ns, wait.ready > 0);
}

/* Whether a session whose draft is late sits this pass out. Where the request fixed K, it asked for
 * drafts and gets them: it waits as long as its drafts may take. Where the policy chose K, the
 * faster way decides. */
static bool sits_out(
	const struct engine *engine, const struct engine_session *s, uint64_t elapsed_ns)
{
	const struct pace *pace = drafts_pace(&engine->drafts, s->index, s->uid);

	if (s->page->request.k != SESSION_K_POLICY)
		return elapsed_ns < engine->tuning->draft_wait && elapsed_ns < pace_limit_ns(pace);
	return pace_sits_out(pace, elapsed_ns, engine->pass_ns);
}

/* Decides about the parts whose drafts are late. */
static void settle(struct engine *engine, struct pass *pass)
{
	struct drafts *drafts = &engine->drafts;
	uint64_t now_ns = clock_ns(), n_late = 0, n_out = 0;

	for (uint32_t i = 0; i < pass->n_parts; i++) {
		struct pass_part *part = &pass->parts[i];
		const struct engine_session *s = part->session;

		if (part->wish == DRAFTS_OUT)
			part->wish = drafts_state(drafts, s->index, s->uid, part->n_tokens);
		n_late += part->wish == DRAFTS_OUT;
	}
	if (n_late == 0)
		return;
	/* Where no other session runs, there is no pass to sit out. */
	for (uint32_t i = 0; n_late < pass->n_parts && i < pass->n_parts; i++) {
		struct pass_part *part = &pass->parts[i];
		const struct engine_session *s = part->session;

		part->sits_out = part->wish == DRAFTS_OUT &&
				 sits_out(engine, s, drafts_elapsed_ns(drafts, s->index, now_ns));
		n_out += part->sits_out;
	}
	counter_add(&engine->late_out, n_out);
	counter_add(&engine->late_without, n_late - n_out);
}

void pass_draft(struct engine *engine, struct pass *pass)
{
	struct pass_part *last = NULL;
	bool may_ask = drafts_begin(&engine->drafts, pass->start_ns), any = false;

	for (uint32_t i = 0; i < pass->n_parts; i++) {
		struct pass_part *part = &pass->parts[i];

		choose(engine, part, may_ask);
		if (part->want.k > 0 && part->wish == DRAFTS_NONE && !part->masked)
			last = part;
		any |= part->want.k > 0;
	}
	if (!any)
		return;
	pass_share_budgets(engine, pass);
	/* The drafter reads the tokens from the session's page. */
	pass_publish(engine);
	ask(engine, pass, last);
	if (!any_out(pass))
		return;
	wait_for_drafts(engine, pass);
	settle(engine, pass);
}
