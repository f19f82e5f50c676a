/*
 * Which drafted tokens stand (ARCHITECTURE, "Lossless, to the bit"). Pure functions of what the target picks, or of its logits,
 * the draft and the session's parameters. A draft is a tree of any shape in which parents come before their children.
 *
 * COUPLING_GUMBEL: walk from the root; at each node the token that the target would sample there has been picked (pick.h);
 * the first child that carries it is accepted. The output is what K = 0 would have given.
 * COUPLING_MAXIMAL: chains: Leviathan et al. (2211.17192), accept with min(1, p/q), else sample from (p - q)+
 * renormalised; trees: the children of a node one after the other, q replaced by the residual (Miao et al.,
 * 2305.09781, section 4.3). A q with no support is a certain proposal: it is accepted with p of its token, which
 * is then taken out of p. Each q must be what that child was sampled from given the siblings before it. The tests of a position
 * draw from (seed, RAND_ACCEPT, position, draft index), the token of the residual from (seed, RAND_RESIDUAL, position, 0); where
 * no child was proposed the token is the one picked. At temperature 0 both couplings are greedy equality.
 */
#pragma once

#include "kernels/pick.h"
#include "shared/spec/draft.h"

struct accept_input {
	const struct sampler_params *params;
	const struct draft_reply *draft; /* validated; n may be 0 */
	/* [draft->n + 1]: what was picked after the committed tokens, then after each draft token on its path. */
	const struct pick_result *picks;
	uint32_t n_history; /* committed tokens */
	/* The rest is read only if accept_wants_logits. */
	const int32_t *history; /* [n_history] */
	uint32_t n_prompt; /* of them */
	/* Target logits after the committed tokens (node -1) and after a draft token that has children. */
	const float *(*logits)(void *arg, int node);
	void *arg;
};

struct accept_output {
	uint32_t n_accepted; /* 0 to the depth of the draft */
	int16_t node[LIMIT_DRAFT_DEPTH]; /* the accepted draft indices, in order */
	uint32_t n_tokens; /* n_accepted + 1 */
	int32_t token[LIMIT_DRAFT_DEPTH +
		      1]; /* what is emitted: accepted tokens and the one after */
};

/* Whether a draft under these parameters is accepted by logits, not by picks alone. */
bool accept_wants_logits(const struct sampler_params *params);
/* sampler: scratch, which is used only if accept_wants_logits. */
void accept_draft(
	struct sampler *sampler, const struct accept_input *input, struct accept_output *out);

/* Draft replies from another process: every field in range for this vocabulary and budget, parents before children, each
 * support's p > 0 and summing to 1 within 1e-3. -EPROTO. */
int accept_check_draft(const struct draft_reply *reply, uint32_t n_vocab,
	struct draft_budget budget, struct error *err);
