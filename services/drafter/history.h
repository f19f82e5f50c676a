/*
 * What experts tokens went to before: the hints of drafters that compute no layers of the target's shape, and of
 * sessions at K = 0. Learnt from what the verifier tells of its passes (struct draft_routing), used to estimate which
 * experts the next ones need. Everything here can be lost: it is learnt again. Used by the draft thread.
 *
 * Three levels, each the prior of the next (Dirichlet smoothing; MoE-Infinity, arXiv 2401.14361, section 4, keeps the
 * first two as activation matrices): how often each expert of a layer was used by anybody, by this session, after this
 * token, after this token and the one before it. All counts decay. Tokens and pairs lie in two tables of a fixed size, of
 * which the entries seen longest ago go.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/limits.h"
#include "shared/spec/draft.h"

#include <stdbool.h>

struct history_table {
	uint32_t n_sets; /* a power of two; 0: none */
	uint32_t n_candidates; /* experts remembered per layer */
	size_t entry_bytes;
	unsigned char *entries; /* [n_sets][ways] */
};

struct history {
	uint32_t n_layers, n_experts, n_used; /* the target's; 0 = no target */
	uint32_t n_moe; /* layers that have experts, as far as is known */
	uint16_t layer[LIMIT_LAYERS]; /* [n_moe] their numbers */
	uint32_t clock; /* tokens learnt: what was seen when */
	struct history_table tokens, pairs;
	float *everybody; /* [n_layers][n_experts] share of tokens that used it */
	uint32_t n_everybody; /* tokens in it */
	struct history_session {
		uint64_t uid; /* 0 = none */
		uint32_t n; /* tokens in it */
	} session[LIMIT_SESSIONS]; /* by page */
	float *sessions; /* [LIMIT_SESSIONS][n_layers][n_experts] */
	float *unneeded; /* [n_layers][n_experts] probability that no token of the pass wants it */
	float *estimate; /* [n_experts] scratch */
	void *memory; /* all of the above */
	size_t memory_bytes;
	uint64_t learnt, refused; /* entries */
};

void history_init(struct history *history);
void history_exit(struct history *history);
/* Begins anew for a target of this shape, with tables of at most so many bytes. -ENOMEM: it then knows nothing. */
int history_shape(struct history *history, uint32_t n_layers, uint32_t n_experts, uint32_t n_used,
	size_t table_bytes, struct error *err);

/* An entry of the ring; whatever makes no sense is refused. */
void history_learn(struct history *history, const struct draft_routing *entry);

/* Estimates for a pass: begin, each of its tokens (before: the token in front, -1 = none), then per layer (ordinal <
 * n_moe) the experts that are likely to be needed, as many as are expected to be, and with what probability.
 * experts, score: [n_experts]. Returns how many; 0 while nothing is known. */
void history_begin(struct history *history);
void history_token(
	struct history *history, uint32_t page, uint64_t uid, int32_t before, int32_t token);
uint32_t history_choose(struct history *history, uint32_t ordinal, uint16_t *experts, float *score);
