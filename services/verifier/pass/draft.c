/* The step "draft": chooses every part's K, asks for drafts and waits for them. Keeps the drafter up to date about the sessions it is
 * not asked about. */
#include "services/verifier/pass/engine.h"

/* With K = 0 the drafter is told of a session's progress at most once per this many tokens: enough for it to be up to
 * date when K rises, and a wake-up of it costs next to nothing. */
#define FOLLOW_TOKENS 16u

static void choose_k(struct engine *engine, struct pass_part *part)
{
	struct engine_session *s = part->session;
	const struct session_request *request = &s->page->request;
	struct policy_session knobs;
	uint32_t k = engine->tuning.default_k;

	s->foresight = false;
	if (request->draft_method == DRAFT_NONE)
		return;
	if (request->k != SESSION_K_POLICY) {
		k = (uint32_t)request->k;
	} else if (engine->policy != NULL) {
		policy_lookup(engine->policy, s->index, s->uid, &knobs);
		k = policy_next_k(&knobs, &s->trial);
		part->decision = (uint32_t)knobs.decision;
		s->unfollowed = knobs.unfollowed != 0;
		s->foresight = knobs.foresight != 0;
	}
	part->k_asked = k;
	part->k = sched_k(k, part->n_tokens, s->page->n_prompt, request->max_tokens,
		(uint32_t)engine->o.config->context);
}

/* While a session's prompt is computed no K is chosen for it. All the same the policy says whether the drafter is to read that prompt:
 * where drafts do not pay, a draft model half as large as the target took 4 ms for it, during the first fifth of an answer of
 * 18 ms. A drafter that hints is told of every token behind the prompt: what it has not read by then it reads during the
 * answer. */
static void look_up_following(const struct engine *engine, struct engine_session *s)
{
	struct policy_session knobs;

	if (engine->policy == NULL || s->page->request.k != SESSION_K_POLICY)
		return;
	policy_lookup(engine->policy, s->index, s->uid, &knobs);
	s->unfollowed = knobs.unfollowed != 0;
}

/* Keeps the drafter within FOLLOW_TOKENS of a session whose K may rise again, and up to date where it hints. */
static void follow(struct engine *engine, struct pass_part *part)
{
	struct engine_session *s = part->session;
	const struct session_request *request = &s->page->request;
	/* Hints are about the very next token, whoever drafts later on. */
	bool hints = part->decodes && engine->feed.on;

	part->told = engine->tuning.follow_at_zero &&
		     (hints || !(request->draft_method == DRAFT_NONE || request->k == 0 ||
				       s->unfollowed));
	if (!part->told)
		return;
	if (s->followed != 0 && part->n_tokens - s->followed < (hints ? 1 : FOLLOW_TOKENS))
		return;
	s->followed = part->n_tokens;
	drafts_follow(&engine->drafts, s->index, s->uid, part->n_tokens, s->foresight);
}

void pass_draft(struct engine *engine, struct pass *pass)
{
	struct pass_part *last = NULL;
	bool may_ask = drafts_begin(&engine->drafts, pass->start_ns);

	for (uint32_t i = 0; i < pass->n_parts; i++) {
		struct pass_part *part = &pass->parts[i];

		if (part->decodes && may_ask && part->session->end_before == SESSION_END_NONE)
			choose_k(engine, part);
		else if (!part->decodes && !engine->feed.on)
			look_up_following(engine, part->session);
		part->asked = part->k > 0;
		if (part->asked)
			last = part;
		else
			follow(engine, part);
	}
	if (last == NULL)
		return;
	for (uint32_t i = 0; i < pass->n_parts; i++) {
		struct pass_part *part = &pass->parts[i];
		struct engine_session *s = part->session;

		if (!part->asked)
			continue;
		s->followed = part->n_tokens;
		part->told = true;
		drafts_ask(
			&engine->drafts, s->index, s->uid, part->n_tokens, part->k, part == last);
	}
	drafts_wait(&engine->drafts);
}
