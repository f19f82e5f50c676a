#include "services/drafter/draft.h"

#include "services/drafter/model.h"
#include "shared/base/rand.h"

const struct draft_ops *const draft_methods_all[] = {
	&draft_none, &draft_ngram, &draft_by_model, &draft_replay, NULL};

void draft_chain(struct draft_reply *reply, enum draft_method method, uint32_t n)
{
	reply->n = n;
	reply->method = method;
	for (uint32_t i = 0; i < n; i++) {
		reply->parent[i] = (int8_t)((int)i - 1);
		reply->confidence[i] = 1;
	}
}

const struct draft_ops *draft_method_for(const struct draft_context *context,
	const struct draft_session *s, enum draft_method fallback)
{
	enum draft_method method = (enum draft_method)s->request.draft_method;
	if (method == DRAFT_AUTO)
		method = fallback;
	bool model = context->model && draft_model_fits(context->model, s);
	if (method == DRAFT_AUTO)
		method = model ? DRAFT_MODEL : DRAFT_NGRAM;
	if (method == DRAFT_MODEL && !model)
		method = DRAFT_NGRAM;
	for (size_t i = 0; draft_methods_all[i]; i++)
		if (draft_methods_all[i]->method == method)
			return draft_methods_all[i];
	return &draft_none;
}

static void none(struct draft_context *context, struct draft_item *items, uint32_t n)
{
	(void)context;
	for (uint32_t i = 0; i < n; i++)
		draft_chain(items[i].reply, DRAFT_NONE, 0);
}

const struct draft_ops draft_none = {.name = "none", .method = DRAFT_NONE, .draft = none};

static void by_ngram(struct draft_context *context, struct draft_item *items, uint32_t n)
{
	(void)context;
	for (uint32_t i = 0; i < n; i++) {
		const struct draft_session *s = items[i].session;
		uint32_t length, from = ngram_find(&s->ngram, s->tokens, s->n, &length);
		uint32_t k = from == NGRAM_NONE ? 0 : items[i].k;
		ngram_propose(s->tokens, s->n, from, k, items[i].reply->token);
		draft_chain(items[i].reply, DRAFT_NGRAM, k);
		uint32_t match = k > 0 ? ngram_match(s->tokens, s->n, from) : 0;
		for (uint32_t j = 0; j < k; j++)
			items[i].reply->confidence[j] = ngram_confidence(match, j);
	}
}

const struct draft_ops draft_ngram = {.name = "ngram", .method = DRAFT_NGRAM, .draft = by_ngram};

/* Another token than `token`, at random, and one that the vocabulary surely has. */
static int32_t wrong_token(uint64_t seed, uint64_t position, int32_t token)
{
	if (token <= 0)
		return 1;
	return (int32_t)(rand_uniform(seed, RAND_REPLAY, position, 1) * token);
}

/* The recording belongs to the output's index, so it is right again after an error of ours was
 * rejected. */
static void by_replay(struct draft_context *context, struct draft_item *items, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		const struct draft_session *s = items[i].session;
		const int32_t *recorded = session_replay(
			&context->view->header, session_view_page(context->view, s->page));
		uint32_t have = s->request.n_replay, k = 0;
		uint64_t seed = s->request.sampling.seed;
		for (; k < items[i].k && s->n >= s->n_prompt; k++) {
			uint32_t at = s->n - s->n_prompt + k;
			if (at >= have)
				break;
			int32_t token = recorded[at];
			if (rand_uniform(seed, RAND_REPLAY, s->n + k, 0) <
				(double)s->request.replay_error)
				token = wrong_token(seed, s->n + k, token);
			items[i].reply->token[k] = token;
		}
		draft_chain(items[i].reply, DRAFT_REPLAY, k);
	}
}

const struct draft_ops draft_replay = {
	.name = "replay", .method = DRAFT_REPLAY, .draft = by_replay};
