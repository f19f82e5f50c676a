#include "services/drafter/draft.h"

#include "services/drafter/model.h"

const struct draft_ops *const draft_methods_all[] = {&draft_none, &draft_ngram, &draft_by_model,
	&draft_by_eagle3, &draft_by_mtp, &draft_by_skip, &draft_replay, NULL};

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
	bool skip = context->skip && draft_model_fits(context->skip, s);
	if ((method == DRAFT_MODEL && !model) || (method == DRAFT_LAYER_SKIP && !skip) ||
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
	return method == DRAFT_MODEL || method == DRAFT_EAGLE3 || method == DRAFT_MTP ||
	       method == DRAFT_LAYER_SKIP;
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
