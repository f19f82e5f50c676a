#include "services/drafter/draft.h"

#include "services/drafter/model.h"
#include "shared/base/rand.h"

const struct draft_ops *const draft_methods_all[] = {
	&draft_none, &draft_ngram, &draft_by_model, &draft_replay, NULL};

void draft_append(struct draft_reply *reply, int32_t token, float confidence)
{
	reply->node[reply->n] = (struct draft_node){
		.token = token,
		.parent = (int16_t)((int)reply->n - 1),
		.confidence = draft_confidence(confidence),
	};
	reply->n++;
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
		items[i].reply->method = DRAFT_NONE;
}

const struct draft_ops draft_none = {.name = "none", .method = DRAFT_NONE, .draft = none};

static void by_ngram(struct draft_context *context, struct draft_item *items, uint32_t n)
{
	int32_t token[LIMIT_DRAFT_DEPTH];
	(void)context;
	for (uint32_t i = 0; i < n; i++) {
		const struct draft_session *s = items[i].session;
		struct draft_reply *reply = items[i].reply;
		uint32_t length, from = ngram_find(&s->ngram, s->tokens, s->n, &length);
		uint32_t k = from == NGRAM_NONE ? 0 : draft_length(items[i].budget);
		uint32_t match = k > 0 ? ngram_match(s->tokens, s->n, from) : 0;
		ngram_propose(s->tokens, s->n, from, k, token);
		reply->method = DRAFT_NGRAM;
		for (uint32_t j = 0; j < k; j++)
			draft_append(reply, token[j], ngram_confidence(match, j));
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
		struct draft_reply *reply = items[i].reply;
		uint32_t have = s->request.n_replay, k = draft_length(items[i].budget);
		uint64_t seed = s->request.sampling.seed;
		reply->method = DRAFT_REPLAY;
		while (reply->n < k && s->n >= s->n_prompt) {
			uint32_t position = s->n + reply->n, at = position - s->n_prompt;
			if (at >= have)
				break;
			int32_t token = recorded[at];
			if (rand_uniform(seed, RAND_REPLAY, position, 0) <
				(double)s->request.replay_error)
				token = wrong_token(seed, position, token);
			draft_append(reply, token, 1);
		}
	}
}

const struct draft_ops draft_replay = {
	.name = "replay", .method = DRAFT_REPLAY, .draft = by_replay};
