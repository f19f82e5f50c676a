/*
 * The step `pick` (backend.h): from rows of logits to tokens, for a whole batch at once. Each row
 * has parameters of its own, and its result is that of sampler_choose, to the bit, whatever the
 * other rows, their order and the back end are.
 *
 * A row of a tree does not depend on the picks of earlier rows: its history is the committed tokens
 * and the drafted tokens on its own path. So all nodes are picked in one step, and acceptance walks
 * over the results.
 */
#pragma once

#include "kernels/sampler.h"

enum {
	PICK_PATH_MAX = 64, /* drafted tokens on the path of a row */
	PICK_BEST_MAX = 32, /* tokens listed for a row */
};
static_assert((int)LIMIT_DRAFT_DEPTH <= (int)PICK_PATH_MAX, "a path holds the deepest draft");

/* All pointers are borrowed until the step has ended. */
struct pick_row {
	/* NULL: no token is wanted, only whether the row is finite, and its hash. */
	const struct sampler_params *params;
	/* [n_history] the committed tokens. NULL is fine with n_history 0. */
	const int32_t *history;
	uint32_t n_history;
	uint32_t n_prompt; /* how many of them are prompt; see struct sampler_input */
	uint32_t dry_reach; /* of history and path; see there; 0 without DRY */
	/* The row before this one on its path, by its index in the batch of rows, which is smaller,
	 * or -1: the row follows the history. The path of a row is the path of that one and then
	 * `token`. Both share one history. */
	int32_t parent;
	int32_t token; /* the drafted token that leads here; not looked at if parent is -1 */
	uint32_t source; /* index of the logits, whose meaning the back end's caller defines */
	uint64_t position; /* of the token that is picked: its index in prompt and output */
	const uint64_t *allowed; /* [SAMPLER_ALLOWED_WORDS(n_vocab)] bits, or NULL: see sampler.h */
	struct token_prob *best; /* [n_best] receives the most likely tokens; NULL if n_best is 0 */
	uint32_t n_best; /* 0..PICK_BEST_MAX */
	/* Log probabilities, from the unadjusted logits: of the n_top likeliest tokens, and of the
	 * picked token, or of `next` where none is picked or score_next is set. */
	bool want_logprobs;
	int32_t next; /* a token of the vocabulary; not used if params is set, unless score_next is */
	bool score_next; /* the log probability of `next` in any case */
	struct token_logprob *top; /* [n_top]; NULL if n_top is 0 */
	uint32_t n_top; /* 0..LIMIT_TOP_LOGPROBS, at most the vocabulary */
	bool want_p; /* pick_result.p is wanted */
	bool want_hash; /* pick_result.hash is wanted */
};

struct pick_result {
	int32_t token; /* 0 without params */
	float p; /* of struct sampler_choice; 0 if it was not wanted */
	uint32_t n_best; /* tokens in row.best */
	float logprob; /* 0 if it was not wanted */
	double log_sum; /* for sampler_logprob of other tokens of the row; 0 if it was not wanted */
	/* All logits of the row, before any adjustment, are finite. If they are not, the token has
	 * no meaning. */
	bool finite;
	/* No token could be chosen: all adjusted logits are -inf, for instance because no token is
	 * allowed. The token is 0. */
	bool none;
	uint64_t hash; /* logits_hash of the row; 0 if it was not wanted */
};

/* Checks that rows first..first+n-1 of a batch may be picked. -EINVAL: a parent is not a smaller
 * index, a path is longer than PICK_PATH_MAX, n_best is larger than PICK_BEST_MAX, or n_top than
 * LIMIT_TOP_LOGPROBS. */
int pick_check(const struct pick_row *rows, uint32_t first, uint32_t n);
