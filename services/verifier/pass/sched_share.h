/*
 * Which drafted tokens a pass computes when it has no room for all: those most likely to be
 * accepted, whichever session they belong to. Decisions over plain numbers, without side effects,
 * in time linear in the number of tokens, without allocations. Engine thread.
 *
 * The worth of a token is the probability that the path to it is accepted: the product, along the
 * path, of the drafter's confidences, each corrected by how often tokens of that depth were
 * accepted in this session so far. Among tokens of equal worth the tokens that come earlier in
 * their drafts are kept first, so a child is never kept without its parent. Worth decides how fast
 * answers come, never which tokens they have.
 */
#pragma once

#include "shared/spec/draft.h"

/* The record of one session by depth: how often an accepted path had children at this depth
 * (tried), the sum of the confidences of these children (expected), and how often one of them was
 * accepted. Older passes count less. */
struct share_record {
	float tried[LIMIT_DRAFT_DEPTH], expected[LIMIT_DRAFT_DEPTH], accepted[LIMIT_DRAFT_DEPTH];
};

/* Learns from a draft that was verified: `accepted` are its accepted nodes, in order. */
void share_learn(struct share_record *record, const struct draft_reply *draft,
	const int16_t *accepted, uint32_t n_accepted);

/* Worth is measured in sixteenths of an octave, down to 2^-64; below that it is level 0. */
enum { SHARE_STEPS = 16, SHARE_LEVELS = 64 * SHARE_STEPS + 1 };
static_assert(SHARE_LEVELS <= UINT16_MAX, "a level fits in 16 bits");

/* Scratch memory of one distribution of the room. */
struct share {
	uint32_t n; /* drafts */
	/* index of each draft's first token; the last entry: the number of tokens */
	uint32_t first[LIMIT_RUNNING + 1];
	uint16_t level[LIMIT_RUNNING *
		       /* of each token; after share_out 1 = the token is kept, 0 = it is not */
		       LIMIT_DRAFT_NODES];
	uint32_t at_level[SHARE_LEVELS], at_index[LIMIT_DRAFT_NODES];
};

/* The chance that each of the first n tokens of a chain is accepted, with those before it: chance
 * [n], falling. n <= LIMIT_DRAFT_DEPTH. */
void share_expect(const struct share_record *record, uint32_t n, float *chance);

void share_begin(struct share *share);
/* Adds the next draft while only its budget is known: `nodes` nodes, up to LIMIT_DRAFT_NODES. The
 * first `depth` are taken for its main path; the others are worth as much as the last of these. */
void share_add_budget(
	struct share *share, const struct share_record *record, uint32_t nodes, uint32_t depth);
/* Adds the next draft, which has come and is checked. */
void share_add_draft(
	struct share *share, const struct share_record *record, const struct draft_reply *draft);
/* Chooses as many tokens as there is room for. */
void share_out(struct share *share, uint32_t room);
/* Which tokens of the i-th draft are kept: [nodes], each 0 or 1. The kept tokens of a budget are
 * its first ones. *n: how many. */
const uint16_t *share_kept(const struct share *share, uint32_t i, uint32_t *n);
