/*
 * Which nodes of a draft a pass verifies: those whose expected tokens are worth the time that they
 * add to it. K = 0, chains and trees are one rule: a draft of which no node is worth its cost is
 * left out as a whole. Which nodes are verified decides how fast an answer comes, never which
 * tokens it has. Pure: plain numbers, no allocation after pick_init. Engine thread.
 *
 * A node with chance p (that the whole path to it is accepted) brings p tokens, each worth
 * prices.token, the time of a token at the best rate that the policy finds (Dinkelbach: whoever
 * maximises tokens over time takes what brings more than it costs at that rate). It costs a row,
 * and the experts that it needs and the pass does not need already: each costs prices.expert, and
 * prices.load more if it is neither resident nor on its way. (Of one that is on its way half the
 * load is counted.) MoE-Spec (paper 002, section 3) limits the experts and changes answers; here
 * the nodes are chosen by them, and no answer changes.
 *
 * Nodes are taken one by one, the one with the most value per cost first. What is taken makes its
 * experts free for others, so the costs of others fall. A token may cost more than it brings when
 * the ones behind it are worth both: a candidate is valued with the best run of up to PICK_RUN
 * nodes that begins with it, each the likeliest child of the one before. Of equals the one that
 * comes first in the draft is taken. The order does not depend on prices.token, so a higher value
 * of tokens only takes more.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/spec/draft.h"
#include "shared/spec/policy.h"

enum { PICK_RUN = 4 };

enum pick_why {
	PICK_TAKEN,
	PICK_DEAR, /* it costs more than it brings */
	PICK_BEHIND, /* a node before it was left out */
};

/* One node, as it was judged last. */
struct pick_node {
	float chance; /* of the path to it */
	float cost_ns; /* what it would add, or added, to the pass */
	/* Experts that it adds; how many of these are on their way, and how many must be loaded. */
	uint16_t fresh, coming, absent;
	uint8_t why; /* enum pick_why */
};

struct pick {
	uint32_t n_words; /* of a set of experts: bit ordinal * n_experts + expert */
	/* What the rows of the pass need that are certain or taken; what is resident; what is on
	 * its way. Set by the caller. [n_words] */
	uint64_t *wanted, *resident, *coming;
	uint64_t *needs; /* [LIMIT_DRAFT_NODES][n_words] what each node needs; set by the caller */
	uint64_t *run; /* [n_words] scratch */
	struct pick_node node[LIMIT_DRAFT_NODES];
	float worth[LIMIT_DRAFT_NODES]; /* value over cost of the best run */
	int16_t next[LIMIT_DRAFT_NODES]; /* likeliest child, -1: none */
	uint16_t kept[LIMIT_DRAFT_NODES]; /* the result: 1 = verified */
};

/* n_words 0: no experts; then rows alone cost. */
int pick_init(struct pick *pick, uint32_t n_words, struct error *err);
void pick_exit(struct pick *pick);
static inline uint64_t *pick_needs(struct pick *pick, uint32_t node)
{
	return pick->needs + (size_t)node * pick->n_words;
}
/* Adds to a set what a token needs: of each layer what was said, if that names an expert, and else what
 * is guessed. said: a set like the others, or NULL. */
void pick_join(uint32_t n_layers, uint32_t n_experts, const uint64_t *said, const uint64_t *guess,
	uint64_t *to);
/* Chooses among the nodes of a checked draft, whose needs are set: fills kept and node, and adds
 * what the kept ones need to wanted. chance: [draft->n]. Returns how many are kept. */
uint32_t pick_nodes(struct pick *pick, const struct policy_prices *prices,
	const struct draft_reply *draft, const float *chance);
