/* The step "draft": chooses every part's K, asks for drafts and waits for them. Keeps the drafter up to date about the sessions it is
 * not asked about. */
#include "services/verifier/pass/engine.h"

/* What the policy says about a session. False: nothing, because its request fixed K or no policy has ever been seen. */
static bool ask_policy(
	const struct engine *engine, const struct engine_session *s, struct policy_session *knobs)
{
	if (engine->policy == NULL || s->page->request.k != SESSION_K_POLICY)
		return false;
	policy_lookup(engine->policy, s->index, s->uid, knobs);
	return true;
}

static void choose_k(struct engine *engine, struct pass_part *part, bool has_policy,
	const struct policy_session *knobs)
{
	struct engine_session *s = part->session;
	const struct session_request *request = &s->page->request;

	if (request->k != SESSION_K_POLICY)
		part->k_asked = (uint32_t)request->k;
	else if (has_policy)
		part->k_asked = policy_next_k(knobs, &s->trial);
	else
		part->k_asked = engine->tuning.default_k;
	if (has_policy)
		part->decision = (uint32_t)knobs->decision;
	part->k = sched_k(part->k_asked, part->n_tokens, s->page->n_prompt, request->max_tokens,
		(uint32_t)engine->o.config->context);
}

/* While a session's prompt is computed no K is chosen for it. All the same the policy says whether the drafter is to read that prompt:
 * where drafts do not pay, a draft model half as large as the target took 4 ms for it, during the first fifth of an answer of
 * 18 ms. A drafter that hints is told of every token behind the prompt: what it has not read by then it reads during the
 * answer. */
static void follow_without_draft(struct engine *engine, const struct pass_part *part,
	bool has_policy, const struct policy_session *knobs)
{
	struct engine_session *s = part->session;
	const struct session_request *request = &s->page->request;
	bool hinting = engine->feed.on;
	const struct follow_view view = {
		.allowed = engine->tuning.follow_at_zero,
		.drafts = request->draft_method != DRAFT_NONE && request->k != 0,
		.unfollowed = has_policy && knobs->unfollowed != 0 && (part->decodes || !hinting),
		.foresight = has_policy && knobs->foresight != 0 && part->decodes,
		.hints = part->decodes && hinting,
	};

	if (follow_pass(&s->follow, &view, part->n_tokens))
		drafts_follow(&engine->drafts, s->index, s->uid, part->n_tokens,
			follow_learns(&s->follow));
}

/* Chooses K. Where it is 0, the drafter is at most told of the session. */
static void choose(struct engine *engine, struct pass_part *part, bool may_ask)
{
	const struct engine_session *s = part->session;
	struct policy_session knobs;
	bool has_policy = ask_policy(engine, s, &knobs);

	if (may_ask && part->decodes && s->end_before == SESSION_END_NONE &&
		s->page->request.draft_method != DRAFT_NONE)
		choose_k(engine, part, has_policy, &knobs);
	if (part->k == 0)
		follow_without_draft(engine, part, has_policy, &knobs);
}

void pass_draft(struct engine *engine, struct pass *pass)
{
	struct pass_part *last = NULL;
	bool may_ask = drafts_begin(&engine->drafts, pass->start_ns);

	for (uint32_t i = 0; i < pass->n_parts; i++) {
		struct pass_part *part = &pass->parts[i];

		choose(engine, part, may_ask);
		if (part->k > 0)
			last = part;
	}
	if (last == NULL)
		return;
	for (uint32_t i = 0; i < pass->n_parts; i++) {
		struct pass_part *part = &pass->parts[i];
		struct engine_session *s = part->session;

		if (part->k == 0)
			continue;
		follow_ask(&s->follow, part->n_tokens);
		drafts_ask(
			&engine->drafts, s->index, s->uid, part->n_tokens, part->k, part == last);
	}
	drafts_wait(&engine->drafts);
}
