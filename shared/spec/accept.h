/*
 * Which drafted tokens stand (ARCHITECTURE, "Lossless, to the bit"). Pure functions of the target's logits, the draft
 * and the session's parameters.
 *
 * COUPLING_GUMBEL: walk from the root; at each node the token the target would sample there is sampler_pick at that
 * position; the child that carries it is accepted. The output is what K = 0 would have given.
 * COUPLING_MAXIMAL: chains: Leviathan et al. (2211.17192), accept with min(1, p/q), else sample from (p - q)+
 * renormalised; trees: the children of a node one after the other, q replaced by the residual (Miao et al.,
 * 2305.09781, section 4.3). A q with no support is a certain proposal: it is accepted with p of its token, which
 * is then taken out of p. Each q must be what that child was sampled from given the siblings before it. The tests of a position
 * draw from (seed, RAND_ACCEPT, position, draft index), the token of the residual from (seed, RAND_RESIDUAL, position, 0); where
 * no child was proposed the token is sampler_pick's. At temperature 0 both couplings are greedy equality.
 */
#pragma once

#include "shared/model/pass/sampler.h"
#include "shared/spec/draft.h"

struct accept_input {
	const struct sampler_params *params;
	/* Committed tokens, n_history of them, followed in the array by room for LIMIT_DRAFT more: the walk writes accepted
	 * tokens there as it goes (history_room of accept_draft). */
	const int32_t *history;
	uint32_t n_history;
	const struct draft_reply *draft; /* validated; n may be 0 */
	/* Target logits after the committed tokens (node -1) and after draft token i. */
	const float *(*logits)(void *arg, int node);
	void *arg;
};

struct accept_output {
	uint32_t n_accepted; /* 0..draft->n */
	int8_t node[LIMIT_DRAFT]; /* the accepted draft indices, in order */
	uint32_t n_tokens; /* n_accepted + 1 */
	int32_t token[LIMIT_DRAFT + 1]; /* what is emitted: accepted tokens and the one after */
};

/* *history_room: history's array, writable. */
void accept_draft(struct sampler *sampler, const struct accept_input *input, int32_t *history_room,
	struct accept_output *out);

/* Draft replies from another process: every field in range for this vocabulary and k, parents before children, each
 * support's p > 0 and summing to 1 within 1e-3. */
int accept_check_draft(
	const struct draft_reply *reply, uint32_t n_vocab, uint32_t k, struct error *err);
