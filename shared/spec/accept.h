/*
 * Which drafted tokens are accepted (ARCHITECTURE, "Lossless, to the bit"). Pure functions of what
 * the target picks (or of its logits), the draft and the session's parameters. A draft is a tree of
 * any shape in which parents come before their children.
 *
 * COUPLING_GUMBEL: a walk from the root. At each node the token that the target samples there has
 * been picked (pick.h); the first child with this token is accepted. The output is that of K = 0.
 *
 * COUPLING_MAXIMAL: for chains Leviathan et al. (2211.17192): accept with min(1, p/q), else sample
 * from (p - q)+ renormalised. For trees the children of a node are tried one after the other, and p
 * is replaced by the residual after each refusal (Miao et al., 2305.09781, section 4.3). A q
 * without support is a certain proposal: it is accepted with p of its token, which is then removed
 * from p. Each q must be the distribution from which that child was sampled, given the siblings
 * before it. The tests of a position draw from (seed, RAND_ACCEPT, position, draft index), the
 * token of the residual from (seed, RAND_RESIDUAL, position, 0); where no child was proposed, the
 * picked token is used. At temperature 0 both couplings test for the greedy token.
 */
#pragma once

#include "kernels/pick.h"
#include "shared/spec/draft.h"

struct accept_input {
	const struct sampler_params *params;
	const struct draft_reply *draft; /* validated; n may be 0 */
	/* [draft->n + 1]: the picks after the committed tokens, then after each draft token on its
	 * path. */
	const struct pick_result *picks;
	uint32_t n_history; /* committed tokens */
	/* From here on read only if accept_wants_logits. */
	const int32_t *history; /* [n_history] */
	uint32_t n_prompt; /* how many of them are prompt */
	const struct pick_row *rows; /* [draft->n + 1] that were picked from */
	/* Target logits after the committed tokens (node -1) and after a draft token that has
	 * children. */
	const float *(*logits)(void *arg, int node);
	void *arg;
};

struct accept_output {
	uint32_t n_accepted; /* 0 to the depth of the draft */
	int16_t node[LIMIT_DRAFT_DEPTH]; /* the accepted draft indices, in order */
	uint32_t n_tokens; /* n_accepted + 1 */
	/* the tokens that are emitted: the accepted ones and the one after them */
	int32_t token[LIMIT_DRAFT_DEPTH + 1];
};

/* Whether acceptance under these parameters needs logits, not only picks. */
bool accept_wants_logits(const struct sampler_params *params);
/* sampler: scratch memory, used only if accept_wants_logits. */
void accept_draft(
	struct sampler *sampler, const struct accept_input *input, struct accept_output *out);

/* Checks a draft reply from another process: every field in range for this vocabulary and budget,
 * parents before children, siblings with different tokens, and the p of each support > 0 with a sum of 1 within 1e-3. -EPROTO. */
int accept_check_draft(const struct draft_reply *reply, uint32_t n_vocab,
	struct draft_budget budget, struct error *err);
