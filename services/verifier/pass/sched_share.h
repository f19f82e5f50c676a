/*
 * Which drafted tokens a pass has room for: those most likely to be accepted, whichever session they belong to. Pure decisions
 * over plain numbers, linear in the number of tokens, without allocations. Engine thread.
 *
 * The worth of a token is the chance that the path to it is accepted: the product, along the path, of how sure the drafter was,
 * each corrected by how often tokens of that depth stood in this session so far. Among tokens of the same worth those that come
 * earlier in their drafts go first, so a child never stays where its parent goes. Worth decides how fast answers come, and
 * never which tokens they have.
 */
#pragma once

#include "shared/spec/draft.h"

/* By depth, of one session: how often a path that was accepted so far went on to this depth, the sum of the confidences there,
 * and how often one of the tokens was accepted. Older passes count less. */
struct share_record {
	float tried[LIMIT_DRAFT_DEPTH], expected[LIMIT_DRAFT_DEPTH], accepted[LIMIT_DRAFT_DEPTH];
};

/* Of a draft that took part in a pass these nodes were accepted, in order. */
void share_learn(struct share_record *record, const struct draft_reply *draft,
	const int16_t *accepted, uint32_t n_accepted);

/* Worth in steps of a sixteenth of an octave, down to 2^-64; less is level 0. */
enum { SHARE_STEPS = 16, SHARE_LEVELS = 64 * SHARE_STEPS + 1 };
static_assert(SHARE_LEVELS <= UINT16_MAX, "a level fits in 16 bits");

/* Scratch of one sharing out. */
struct share {
	uint32_t n; /* drafts */
	uint32_t first[LIMIT_RUNNING + 1]; /* token of each draft; the last: how many there are */
	uint16_t level[LIMIT_RUNNING *
		       LIMIT_DRAFT_NODES]; /* of each token; after share_out 1: it stays */
	uint32_t at_level[SHARE_LEVELS], at_index[LIMIT_DRAFT_NODES];
};

void share_begin(struct share *share);
/* The next draft. One that is not known yet, of so many nodes, up to LIMIT_DRAFT_NODES: its first `depth` are taken for its main
 * path, and the others for worth as much as the last of that. */
void share_add_budget(
	struct share *share, const struct share_record *record, uint32_t nodes, uint32_t depth);
/* One that has come, checked. */
void share_add_draft(
	struct share *share, const struct share_record *record, const struct draft_reply *draft);
/* Chooses as many tokens as there is room for. */
void share_out(struct share *share, uint32_t room);
/* Which tokens of the i-th draft stay: [nodes], each 0 or 1. Those of a budget are its first. *n: how many stay. */
const uint16_t *share_kept(const struct share *share, uint32_t i, uint32_t *n);
