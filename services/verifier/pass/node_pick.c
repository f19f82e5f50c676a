#include "services/verifier/pass/node_pick.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int pick_init(struct pick *pick, uint32_t n_words, struct error *err)
{
	memset(pick, 0, sizeof(*pick));
	if (n_words == 0)
		return 0;
	uint64_t *memory = calloc((size_t)n_words * (LIMIT_DRAFT_NODES + 4), sizeof(*memory));
	if (memory == NULL)
		return error_set(err, ENOMEM, "no memory for the experts that drafts need");
	pick->n_words = n_words;
	pick->wanted = memory;
	pick->resident = memory + n_words;
	pick->coming = memory + 2 * (size_t)n_words;
	pick->run = memory + 3 * (size_t)n_words;
	pick->needs = memory + 4 * (size_t)n_words;
	return 0;
}

void pick_exit(struct pick *pick)
{
	free(pick->wanted);
	memset(pick, 0, sizeof(*pick));
}

/* The bits of a word of a set of experts that are among its bits first .. first + n - 1. */
static uint64_t mask_of(uint32_t word, uint32_t first, uint32_t n)
{
	uint32_t begin = word * 64 > first ? word * 64 : first;
	uint32_t end = word * 64 + 64 < first + n ? word * 64 + 64 : first + n;
	uint64_t ones = end - begin == 64 ? UINT64_MAX : (UINT64_C(1) << (end - begin)) - 1;

	return ones << begin % 64;
}

void pick_join(uint32_t n_layers, uint32_t n_experts, const uint64_t *said, const uint64_t *guess,
	uint64_t *to)
{
	for (uint32_t i = 0; i < n_layers; i++) {
		uint32_t first = i * n_experts, last = first + n_experts - 1;
		const uint64_t *from = guess;

		for (uint32_t w = first / 64; said != NULL && w <= last / 64; w++)
			if ((said[w] & mask_of(w, first, n_experts)) != 0)
				from = said;
		for (uint32_t w = first / 64; w <= last / 64; w++)
			to[w] |= from[w] & mask_of(w, first, n_experts);
	}
}

/* The cost of a node when the experts in `have` are there for nothing. */
static struct pick_node judge(const struct pick *pick, const struct policy_prices *prices,
	const uint64_t *have, uint32_t i, float chance)
{
	const uint64_t *needs = pick->needs + (size_t)i * pick->n_words;
	uint32_t fresh = 0, absent = 0, coming = 0;

	for (uint32_t w = 0; w < pick->n_words; w++) {
		uint64_t new = needs[w] & ~have[w];

		if (new == 0)
			continue;
		fresh += (uint32_t)__builtin_popcountll(new);
		new &= ~pick->resident[w];
		coming += (uint32_t)__builtin_popcountll(new & pick->coming[w]);
		absent += (uint32_t)__builtin_popcountll(new & ~pick->coming[w]);
	}
	return (struct pick_node){
		.chance = chance,
		.cost_ns = prices->row + (float)fresh * prices->expert +
			   ((float)absent + (float)coming / 2) * prices->load,
		.fresh = (uint16_t)fresh,
		.coming = (uint16_t)coming,
		.absent = (uint16_t)absent,
		.why = PICK_DEAR,
	};
}

static void add_needs(const struct pick *pick, uint64_t *to, uint32_t i)
{
	const uint64_t *needs = pick->needs + (size_t)i * pick->n_words;

	for (uint32_t w = 0; w < pick->n_words; w++)
		to[w] |= needs[w];
}

/* Sets what a candidate costs, and its worth: tokens per ns of the best run that begins with it. */
static void weigh(
	struct pick *pick, const struct policy_prices *prices, const float *chance, uint32_t first)
{
	float value = 0, cost = 0, best = 0;
	int at = (int)first;

	if (pick->n_words > 0)
		memcpy(pick->run, pick->wanted, pick->n_words * sizeof(*pick->run));
	for (uint32_t n = 0; n < PICK_RUN && at >= 0; n++, at = pick->next[at]) {
		const struct pick_node node =
			judge(pick, prices, pick->run, (uint32_t)at, chance[at]);

		if (n == 0)
			pick->node[first] = node;
		value += node.chance;
		cost += node.cost_ns;
		if (value > best * cost)
			best = value / cost;
		add_needs(pick, pick->run, (uint32_t)at);
	}
	pick->worth[first] = best;
}

static void find_next(struct pick *pick, const struct draft_reply *draft, const float *chance)
{
	for (uint32_t i = 0; i < draft->n; i++) {
		int parent = draft->node[i].parent;

		pick->next[i] = -1;
		if (parent >= 0 &&
			(pick->next[parent] < 0 || chance[i] > chance[pick->next[parent]]))
			pick->next[parent] = (int16_t)i;
	}
}

static void take(struct pick *pick, uint32_t i)
{
	pick->kept[i] = 1;
	pick->node[i].why = PICK_TAKEN;
	add_needs(pick, pick->wanted, i);
}

uint32_t pick_nodes(struct pick *pick, const struct policy_prices *prices,
	const struct draft_reply *draft, const float *chance)
{
	uint32_t n_taken = 0, fresh = 1;

	find_next(pick, draft, chance);
	memset(pick->kept, 0, sizeof(pick->kept));
	for (uint32_t i = 0; i < draft->n; i++) {
		pick->node[i] = (struct pick_node){.chance = chance[i], .why = PICK_BEHIND};
		pick->worth[i] = -1;
	}
	for (;;) {
		int best = -1;

		for (uint32_t i = 0; i < draft->n; i++) {
			int parent = draft->node[i].parent;

			if (pick->kept[i] || (parent >= 0 && !pick->kept[parent]))
				continue;
			/* Costs have changed only if the node taken last added experts. */
			if (fresh > 0 || pick->worth[i] < 0)
				weigh(pick, prices, chance, i);
			if (best < 0 || pick->worth[i] > pick->worth[best])
				best = (int)i;
		}
		/* Written so that a NaN takes nothing. */
		if (best < 0 || !(pick->worth[best] * prices->token >= 1))
			return n_taken;
		fresh = pick->node[best].fresh;
		take(pick, (uint32_t)best);
		n_taken++;
	}
}
