#include "services/drafter/draft.h"

#include "services/drafter/model.h"
#include "shared/base/rand.h"

const struct draft_ops *const draft_methods_all[] = {&draft_none, &draft_ngram, &draft_by_model,
	&draft_by_eagle3, &draft_by_mtp, &draft_replay, NULL};

void draft_add(struct draft_reply *reply, int parent, int32_t token, float confidence)
{
	reply->node[reply->n++] = (struct draft_node){
		.token = token,
		.parent = (int16_t)parent,
		.confidence = draft_confidence(confidence),
	};
}

void draft_append(struct draft_reply *reply, int32_t token, float confidence)
{
	draft_add(reply, (int)reply->n - 1, token, confidence);
}

const struct draft_ops *draft_method_for(const struct draft_context *context,
	const struct draft_session *s, enum draft_method fallback)
{
	enum draft_method method = (enum draft_method)s->request.draft_method;
	if (method == DRAFT_AUTO)
		method = fallback;
	bool model = context->model && draft_model_fits(context->model, s);
	bool head = context->head && draft_model_fits(context->head, s);
	if (method == DRAFT_AUTO)
		method = head ? context->head->method : model ? DRAFT_MODEL : DRAFT_NGRAM;
	if ((method == DRAFT_MODEL && !model) ||
		((method == DRAFT_EAGLE3 || method == DRAFT_MTP) &&
			(!head || context->head->method != method)))
		method = DRAFT_NGRAM;
	for (size_t i = 0; draft_methods_all[i]; i++)
		if (draft_methods_all[i]->method == method)
			return draft_methods_all[i];
	return &draft_none;
}

bool draft_by_passes(uint32_t method)
{
	return method == DRAFT_MODEL || method == DRAFT_EAGLE3 || method == DRAFT_MTP;
}

static void none(struct draft_context *context, struct draft_item *items, uint32_t n)
{
	(void)context;
	for (uint32_t i = 0; i < n; i++)
		items[i].reply->method = DRAFT_NONE;
}

const struct draft_ops draft_none = {.name = "none", .method = DRAFT_NONE, .draft = none};

static void by_ngram(struct draft_context *context, struct draft_item *items, uint32_t n)
{
	int32_t token[LIMIT_DRAFT_DEPTH];
	for (uint32_t i = 0; i < n; i++) {
		const struct draft_session *s = items[i].session;
		struct draft_reply *reply = items[i].reply;
		if (items[i].budget.width > 1) {
			reply->method = DRAFT_NGRAM;
			ngram_tree(context, &items[i]);
			continue;
		}
		uint32_t length, from = ngram_find(&s->ngram, s->tokens, s->n, &length);
		uint32_t k = from == NGRAM_NONE ? 0 : draft_length(items[i].budget);
		uint32_t match = k > 0 ? ngram_match(s->tokens, s->n, from) : 0;
		ngram_propose(s->tokens, s->n, from, k, token);
		/* Matches of shorter suffixes, where nothing is left of this one, brought nothing in measurements. */
		if (s->constraint && k > 0)
			k = constraint_allows(s->constraint, token, k);
		reply->method = DRAFT_NGRAM;
		for (uint32_t j = 0; j < k; j++)
			draft_append(reply, token[j], ngram_confidence(match, j));
	}
}

const struct draft_ops draft_ngram = {.name = "ngram", .method = DRAFT_NGRAM, .draft = by_ngram};

/* A random token that differs from `token` and is certainly in the vocabulary, as it is smaller (or
 * 1). */
static int32_t wrong_token(uint64_t seed, uint64_t position, uint32_t which, int32_t token)
{
	if (token <= 0)
		return 1;
	return (int32_t)(rand_uniform(seed, RAND_REPLAY, position, which) * token);
}

/* The token that the recording proposes for a position, with the errors that the request asks for.
 */
static int32_t recorded_token(
	const struct draft_session *s, const int32_t *recorded, uint64_t position)
{
	uint64_t seed = s->request.sampling.seed;
	int32_t token = recorded[position - s->n_prompt];
	if (rand_uniform(seed, RAND_REPLAY, position, 0) < (double)s->request.replay_error)
		return wrong_token(seed, position, 1, token);
	return token;
}

/* The tokens below `token`, which differ from it, or the token 1 where there are none. */
static uint32_t n_wrong(int32_t token)
{
	return token > 0 ? (uint32_t)token : 1;
}

/* Adds one level of a tree behind `parent`: the proposal at a random place among wrong siblings,
 * and behind the last level's first wrong sibling (*astray) the proposal once more, which must not
 * be accepted there. Returns the proposal's node. */
static int replay_level(struct draft_reply *reply, const struct draft_session *s, int32_t proposal,
	int parent, int *astray, struct draft_budget budget)
{
	uint64_t seed = s->request.sampling.seed, position = s->n;
	uint32_t left = budget.nodes - reply->n, n = left < budget.width ? left : budget.width;
	int first = (int)reply->n;
	if (n > 1 + n_wrong(proposal))
		n = 1 + n_wrong(proposal);
	for (int at = parent; at >= 0; at = reply->node[at].parent)
		position++;
	uint32_t wrong = (uint32_t)wrong_token(seed, position, 3, proposal);
	uint32_t right = (uint32_t)(rand_uniform(seed, RAND_REPLAY, position, 2) * n);
	for (uint32_t i = 0; i < n; i++) {
		draft_add(reply, parent, i == right ? proposal : (int32_t)wrong, 1);
		if (i != right && proposal > 0)
			wrong = (wrong + 1) % (uint32_t)proposal;
	}
	if (*astray >= 0 && reply->n < budget.nodes)
		draft_add(reply, *astray, proposal, 1);
	*astray = n < 2 ? -1 : right > 0 ? first : first + 1;
	return first + (int)right;
}

/* The recording is indexed by the output's position, so it is right again after a deliberate error
 * was rejected. */
static void replay(const struct draft_session *s, const int32_t *recorded,
	struct draft_budget budget, struct draft_reply *reply)
{
	int main = -1, astray = -1;
	for (uint64_t position = s->n; position - s->n < budget.depth && reply->n < budget.nodes;
		position++) {
		if (s->n < s->n_prompt || position - s->n_prompt >= s->request.n_replay)
			return;
		int32_t proposal = recorded_token(s, recorded, position);
		main = replay_level(reply, s, proposal, main, &astray, budget);
	}
}

static void by_replay(struct draft_context *context, struct draft_item *items, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		const struct draft_session *s = items[i].session;
		items[i].reply->method = DRAFT_REPLAY;
		replay(s,
			session_replay(
				&context->view->header, session_view_page(context->view, s->page)),
			items[i].budget, items[i].reply);
	}
}

const struct draft_ops draft_replay = {
	.name = "replay", .method = DRAFT_REPLAY, .draft = by_replay};
