#include "services/drafter/foresight.h"

#include "shared/spec/accept.h"

#include <string.h>

static_assert((int)FORESIGHT_TOKENS <= (int)LIMIT_DRAFT_DEPTH &&
		      (int)FORESIGHT_TOKENS <= (int)DRAFT_PART_NODES,
	"one part of a reply holds what was foreseen");

/* Counts the right tokens of the n-grams' proposal. True: the count is final. */
static bool compare(struct draft_session *s)
{
	struct foresight *f = &s->foresight;
	uint32_t right = 0, n = f->proposal.n, come = s->n > f->at ? s->n - f->at : 0;
	while (right < n && right < come && s->tokens[f->at + right] == f->token[right])
		right++;
	f->proposal.right = right;
	return right == n || right < come;
}

static void propose(
	struct draft_session *s, struct draft_context *context, struct draft_reply *scratch)
{
	struct draft_item item = {
		.session = s, .budget = draft_chain_budget(FORESIGHT_TOKENS), .reply = scratch};
	struct foresight *f = &s->foresight;
	scratch->n = 0;
	draft_ngram.draft(context, &item, 1);
	f->open = true;
	f->at = s->n;
	f->proposal.n = scratch->n;
	for (uint32_t i = 0; i < scratch->n; i++) {
		f->token[i] = scratch->node[i].token;
		f->proposal.confidence[i] = draft_confidence_of(&scratch->node[i]);
	}
}

/* asked: how many tokens the draft was to have. */
static void tell(const struct foresight_draft *draft, uint32_t asked, enum draft_method method,
	struct draft_reply *reply)
{
	draft_reply_clear(reply);
	reply->foreseen = asked;
	reply->right = draft->right;
	reply->method = method;
	for (uint32_t i = 0; i < draft->n; i++)
		draft_append(reply, 0, draft->confidence[i]);
}

bool foresight_follow(struct draft_session *s, struct draft_context *context,
	enum draft_method fallback, struct draft_reply *reply)
{
	const struct draft_ops *ops = draft_method_for(context, s, fallback);
	struct foresight *f = &s->foresight;
	if ((ops == &draft_by_model || ops == &draft_by_skip) && f->told < f->n_read) {
		/* A wrong token ends the comparison, not a draft: so as many tokens as were
		 * compared count as asked for. */
		const struct foresight_draft *draft = &f->read[f->told++];
		tell(draft, draft->n, ops->method, reply);
		return true;
	}
	if (ops != &draft_ngram) {
		f->open = false;
		return false;
	}
	if (f->open && !compare(s))
		return false;
	bool known = f->open;
	struct foresight_draft draft = f->proposal;
	propose(s, context, reply);
	if (known)
		tell(&draft, FORESIGHT_TOKENS, DRAFT_NGRAM, reply);
	return known;
}

void foresight_forget(struct draft_session *s)
{
	s->foresight.open = false;
	foresight_begin(s);
}

bool foresight_wanted(const struct draft_session *s)
{
	return s->foresight.on && !accept_wants_logits(&s->request.sampling);
}

void foresight_begin(struct draft_session *s)
{
	s->foresight.n_read = s->foresight.told = 0;
}

void foresight_add(struct draft_session *s, int32_t drafted, float confidence, int32_t came)
{
	struct foresight *f = &s->foresight;
	struct foresight_draft *last = f->n_read > 0 ? &f->read[f->n_read - 1] : NULL;
	if (!last || last->right < last->n) {
		if (f->n_read == FORESIGHT_TOKENS)
			return;
		last = &f->read[f->n_read++];
		last->n = last->right = 0;
	}
	last->confidence[last->n++] = confidence;
	last->right += drafted == came;
}
