/* A pass of the draft model, as the ways of drafting with it share it: chains (model_draft.c) and
 * trees (model_tree.c). */
#pragma once

#include "services/drafter/model.h"

/* Opens the tokenizer and the sampler of a model that drafts with the target's tokens. -ESTALE: the
 * file is not the one that the verifier has. */
int draft_open_target_tokenizer(
	struct draft_model *m, const struct sessions_header *header, struct error *err);
/* Puts the tokens that the session lacks before `end` into the batch, as many as there is room for.
 * logits: those of the last token of the chain are wanted. Returns how many. */
uint32_t model_pass_add(struct draft_model *m, struct draft_session *s, uint32_t end, bool logits);
/* Takes n cells for tokens in flight, from the sessions that were used longest ago if necessary.
 * False: no session of another round has any left. */
bool model_pass_take(struct draft_model *m, struct draft_session *s, uint32_t n, uint32_t *cells);
/* Lets the next pass make hints, if they are wanted and the model can make them. */
void model_hints_prepare(struct draft_model *m);
/* Copies the chosen n rows, at most DRAFT_MODEL_LOGITS, from the device that computes the model, one
 * after the other to m->seen_host. False: it has failed. */
bool model_hints_fetch(
	struct draft_model *m, const struct rows *hidden, const uint16_t *chosen, uint32_t n);
/* Runs the forward pass over the first n rows of the batch. 0 or -errno. */
int model_forward(struct draft_model *m, uint32_t n);
/* The logits of a row, over the target's tokens. Valid until the next call. */
const float *model_row_logits(struct draft_model *m, uint32_t row);
/* Whether the model makes hints itself while it drafts: a draft model whose layers are like the
 * target's. */
static inline bool model_hints(const struct draft_model *m)
{
	return m->method == DRAFT_MODEL && hints_wanted(m->hints, HINT_DRAFT);
}
/* Runs the batch of model_pass_add, commits its tokens, and calls `got` for each session whose
 * logits were wanted. 0 or -errno; the batch is empty afterwards. */
typedef void model_pass_got(struct draft_model *m, struct draft_session *s, const float *logits);
int model_pass_run(struct draft_model *m, model_pass_got *got);

/* Whether a draft within this budget is a tree. Layers that keep a recurrent state have one for a
 * sequence, not one for each of its branches: such models draft chains. */
bool model_tree_wanted(const struct draft_model *m, struct draft_budget budget);
/* Drafts a tree for each of n items, in passes for all of them, and appends it to the item's reply.
 * A reply stays empty where there is no memory, or the session lacks more tokens than a pass
 * reads. */
void model_tree_draft(struct draft_model *m, struct draft_item *const *items, uint32_t n);
/* Call when the session has more tokens: the cells of the tree's nodes that they took become theirs,
 * and the others are given back. */
void model_tree_settle(struct draft_model *m, struct draft_session *s);
