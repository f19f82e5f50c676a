#include "services/verifier/pass/sched_share.h"

#include <string.h>

/* The prior: a depth of which nothing is known is expected to do as the depth before it, and the
 * first depth to be accepted every second time. The prior counts as much as WEIGHT passes. */
#define FIRST 0.5f
#define WEIGHT 2.0f
/* After this many passes all counts are halved, so older passes count less. */
#define MEMORY 64.0f

static void forget(struct share_record *record, uint32_t depth)
{
	if (record->tried[depth] < MEMORY)
		return;
	record->tried[depth] /= 2;
	record->expected[depth] /= 2;
	record->accepted[depth] /= 2;
}

void share_learn(struct share_record *record, const struct draft_reply *draft,
	const int16_t *accepted, uint32_t n_accepted)
{
	float any[LIMIT_DRAFT_NODES + 1]; /* confidences of each node's children; [0]: the root's */
	uint32_t at = 0;

	memset(any, 0, (draft->n + 1) * sizeof(*any));
	for (uint32_t i = 0; i < draft->n; i++)
		any[draft->node[i].parent + 1] += draft_confidence_of(&draft->node[i]);
	for (uint32_t depth = 0; depth < LIMIT_DRAFT_DEPTH && any[at] > 0; depth++) {
		forget(record, depth);
		record->tried[depth]++;
		record->expected[depth] += any[at] < 1 ? any[at] : 1;
		if (depth == n_accepted)
			break;
		record->accepted[depth]++;
		at = (uint32_t)(accepted[depth] + 1);
	}
}

/* The rate of acceptance: `accepted` out of `of`, with the prior `before`. */
static float rate(float accepted, float of, float before)
{
	return (accepted + WEIGHT * before) / (of + WEIGHT);
}

void share_expect(const struct share_record *record, uint32_t n, float *chance)
{
	float each = FIRST, all = 1;

	for (uint32_t i = 0; i < n; i++) {
		each = rate(record->accepted[i], record->tried[i], each);
		all *= each < 1 ? each : 1;
		chance[i] = all;
	}
}

/* The level of a worth between 0 and 1: the exponent of the float and the first four bits of its
 * mantissa. */
static uint16_t level_of(float worth)
{
	const uint32_t one = 127 * SHARE_STEPS;
	uint32_t bits;

	memcpy(&bits, &worth, sizeof(bits));
	uint32_t top = bits >> 19;
	if (top >= one)
		return SHARE_LEVELS - 1;
	return (uint16_t)(top + SHARE_LEVELS - 1 > one ? top + SHARE_LEVELS - 1 - one : 0);
}

void share_begin(struct share *share)
{
	share->n = 0;
	share->first[0] = 0;
}

/* Adds a draft; returns where the levels of its tokens go. */
static uint16_t *add(struct share *share, uint32_t nodes)
{
	uint32_t first = share->first[share->n];

	assert(share->n < LIMIT_RUNNING && nodes <= LIMIT_DRAFT_NODES);
	share->first[++share->n] = first + nodes;
	return share->level + first;
}

void share_add_budget(
	struct share *share, const struct share_record *record, uint32_t nodes, uint32_t depth)
{
	uint16_t *level = add(share, nodes);
	float chance = FIRST, worth = 1;

	for (uint32_t i = 0; i < nodes; i++) {
		if (i < depth && i < LIMIT_DRAFT_DEPTH) {
			chance = rate(record->accepted[i], record->tried[i], chance);
			worth *= chance;
		}
		level[i] = level_of(worth);
	}
}

void share_add_draft(
	struct share *share, const struct share_record *record, const struct draft_reply *draft)
{
	uint16_t *level = add(share, draft->n);
	float right[LIMIT_DRAFT_DEPTH], worth[LIMIT_DRAFT_NODES], before = FIRST;
	uint8_t depth[LIMIT_DRAFT_NODES];

	for (uint32_t i = 0; i < LIMIT_DRAFT_DEPTH; i++)
		before = right[i] = rate(record->accepted[i], record->expected[i], before);
	for (uint32_t i = 0; i < draft->n; i++) {
		int parent = draft->node[i].parent;

		depth[i] = (uint8_t)(parent < 0 ? 0 : depth[parent] + 1);
		float chance = draft_confidence_of(&draft->node[i]) * right[depth[i]];
		worth[i] = (parent < 0 ? 1 : worth[parent]) * (chance < 1 ? chance : 1);
		level[i] = level_of(worth[i]);
	}
}

/* Goes down from the highest of n counts while *room holds them whole. Returns the first that does
 * not fit as a whole, and in *room what is left for it. */
static uint32_t descend(const uint32_t *count, uint32_t n, uint32_t *room)
{
	while (n > 1 && count[n - 1] <= *room)
		*room -= count[--n];
	return n - 1;
}

void share_out(struct share *share, uint32_t room)
{
	uint32_t n = share->first[share->n], index = 0;

	memset(share->at_level, 0, sizeof(share->at_level));
	for (uint32_t i = 0; i < n; i++)
		share->at_level[share->level[i]]++;
	uint32_t last = descend(share->at_level, SHARE_LEVELS, &room);

	/* In that last level the tokens that come earlier in their drafts are kept before any that
	 * come later. */
	memset(share->at_index, 0, sizeof(share->at_index));
	for (uint32_t d = 0; d < share->n; d++)
		for (uint32_t i = share->first[d]; i < share->first[d + 1]; i++)
			share->at_index[i - share->first[d]] += share->level[i] == last;
	while (index < LIMIT_DRAFT_NODES && share->at_index[index] <= room)
		room -= share->at_index[index++];
	for (uint32_t d = 0; d < share->n; d++) {
		for (uint32_t i = share->first[d]; i < share->first[d + 1]; i++) {
			uint32_t at = i - share->first[d];
			bool stays = share->level[i] > last;

			if (share->level[i] == last && at <= index)
				stays = at < index || room > 0;
			room -= share->level[i] == last && at == index && stays;
			share->level[i] = stays;
		}
	}
}

const uint16_t *share_kept(const struct share *share, uint32_t i, uint32_t *n)
{
	const uint16_t *kept = share->level + share->first[i];
	uint32_t nodes = share->first[i + 1] - share->first[i];

	*n = 0;
	for (uint32_t at = 0; at < nodes; at++)
		*n += kept[at];
	return kept;
}
