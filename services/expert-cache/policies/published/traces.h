/*
 * MoE-Infinity's expert activation matrices (Xue et al., arXiv 2401.14361). For each sequence: how
 * many tokens chose each expert of each layer; a bounded collection of the matrices of ended
 * sequences; and which of these the present sequence resembles most. Similarity is the mean over
 * the layers of the cosine between rows (its distance is 1 minus that). Every dot product is
 * updated as tokens are counted, so that the best match is available at once: a count costs
 * O(TRACES_KEPT). Part of a policy; nothing is allocated after traces_init.
 */
#pragma once

#include "services/expert-cache/policies/policy.h"

enum {
	TRACES_LIVE = 4, /* live sequences that are distinguished */
	TRACES_KEPT = 24, /* size of the collection */
	TRACES_TOP = 16, /* experts of a layer that a kept matrix can predict */
};

struct trace_matrix {
	uint32_t *count; /* [n_layers][n_experts] tokens */
	uint64_t *total; /* [n_layers] */
	double *square; /* [n_layers] sum of the squares of the counts */
};

struct traces {
	uint32_t n_layers, n_experts, n_top;
	uint32_t n_kept;
	struct trace_kept {
		struct trace_matrix matrix;
		uint16_t (*top)[TRACES_TOP]; /* [n_layers] by descending count */
	} kept[TRACES_KEPT];
	struct trace_live {
		bool used;
		uint64_t session;
		uint64_t last; /* last iteration */
		struct trace_matrix matrix;
		double *dot; /* [TRACES_KEPT][n_layers] */
		double similarity[TRACES_KEPT]; /* sums over the layers of cosines */
	} live[TRACES_LIVE];
};

int traces_init(struct traces *traces, const struct cache_policy_shape *shape, struct error *err);
void traces_exit(struct traces *traces);

/* The sequence of a session, begun if it is new. Other sequences that were silent for some passes
 * end; when there are too many, the sequence that was silent longest ends. */
struct trace_live *traces_of(struct traces *traces, uint64_t session, uint64_t iteration);
/* Counts `tokens` more of the sequence's tokens that chose the expert. */
void traces_count(struct traces *traces, struct trace_live *live, uint32_t layer, uint32_t expert,
	uint32_t tokens);
/* The kept matrix that it resembles most, or NULL while there is none. */
const struct trace_kept *traces_match(const struct traces *traces, const struct trace_live *live);
