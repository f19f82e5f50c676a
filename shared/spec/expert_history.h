/*
 * Which experts tokens were routed to before. From this come the hints of drafters that compute no
 * layers of the target's shape, and those of sessions at K = 0. It is learnt from what the verifier
 * reports of its passes (struct draft_routing), and estimates which experts the next ones need.
 * Nothing here has to be kept: it is learnt again. The drafter has one for its hints, the verifier
 * one to tell which experts the nodes of a draft need; each is used by one thread.
 *
 * There are four levels, each the prior of the next (Dirichlet smoothing; MoE-Infinity, arXiv
 * 2401.14361, section 4, keeps the first two as activation matrices): how often each expert of a
 * layer was used by all sessions, by this session, after this token, and after this token and the
 * one before it. All counts decay. Tokens and pairs of tokens are kept in two tables of a fixed
 * size, in which a new entry replaces the one of its set that was seen longest ago.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/limits.h"
#include "shared/spec/draft.h"

#include <stdbool.h>

struct expert_history_table {
	uint32_t n_sets; /* a power of two; 0 = no table */
	uint32_t n_candidates; /* experts that an entry keeps per layer */
	size_t entry_bytes;
	unsigned char *entries; /* [n_sets][WAYS] entries of entry_bytes */
};

struct expert_history {
	uint32_t n_layers, n_experts, n_used; /* the target's; 0 = no target */
	uint32_t n_moe; /* layers with experts, as far as is known */
	/* [n_moe] their numbers; the matrices below are indexed by position in it */
	uint16_t layer[LIMIT_LAYERS];
	uint32_t clock; /* tokens learnt; dates the entries of the tables */
	struct expert_history_table tokens, pairs;
	float *everybody; /* [n_layers][n_experts] share of all tokens that used the expert */
	uint32_t n_everybody; /* tokens in it, up to a limit */
	struct expert_history_session {
		uint64_t uid; /* 0 = none */
		uint32_t n; /* tokens in its share, up to a limit */
	} session[LIMIT_SESSIONS]; /* by page */
	float *sessions; /* [LIMIT_SESSIONS][n_layers][n_experts] the same share for each session */
	/* [n_layers][n_experts] probability that no token of the pass uses the expert */
	float *unneeded;
	float *estimate; /* [n_experts] scratch */
	void *memory; /* one allocation for all of the above */
	size_t memory_bytes;
	uint64_t learnt, refused; /* entries of the ring */
};

void expert_history_init(struct expert_history *history);
void expert_history_exit(struct expert_history *history);
/* Drops what it knows and begins anew for a target of this shape, with tables of at most
 * table_bytes in all. -EBADMSG for an impossible shape, -ENOMEM; it then knows nothing. */
int expert_history_shape(struct expert_history *history, uint32_t n_layers, uint32_t n_experts,
	uint32_t n_used, size_t table_bytes, struct error *err);

/* Learns from an entry of the ring. Entries that make no sense are counted and refused. */
void expert_history_learn(struct expert_history *history, const struct draft_routing *entry);

/* An estimate for a pass: call expert_history_begin, expert_history_token for each of its tokens (before: the
 * token in front of it, -1 = none), then expert_history_choose for each layer (ordinal < n_moe). That
 * yields the likeliest experts, as many as are expected to be used, each with its probability, in
 * experts and score: [n_experts]. Returns how many; 0 while nothing is known. */
void expert_history_begin(struct expert_history *history);
void expert_history_token(
	struct expert_history *history, uint32_t page, uint64_t uid, int32_t before, int32_t token);
/* The same without the layers for which left_out is true: [n_moe]. */
void expert_history_token_but(struct expert_history *history, uint32_t page, uint64_t uid,
	int32_t before, int32_t token, const bool *left_out);
uint32_t expert_history_choose(
	struct expert_history *history, uint32_t ordinal, uint16_t *experts, float *score);

/* How many words expert_history_needs fills. */
uint32_t expert_history_words(const struct expert_history *history);
/* Adds the experts that a token most likely goes to, as many per layer as a token uses. before: the
 * token in front of it, -1 = none. bits: [expert_history_words], bit ordinal * n_experts + expert. Adds
 * nothing while nothing is known. */
void expert_history_needs(struct expert_history *history, uint32_t page, uint64_t uid,
	int32_t before, int32_t token, uint64_t *bits);
