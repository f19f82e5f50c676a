/*
 * How experts are chosen by their scores: the serial form, which also says what happens with NaN.
 * It is shared with the GPU's kernels, which take it where a NaN is among the scores.
 */
#pragma once

#include "shared/base/exact.h"

#include <stdbool.h>
#include <stdint.h>

/* Finds the k greatest of score[0..n-1], in descending order; among equals the smaller index comes
 * first. Always k distinct ones, k <= n. best: [k] their scores. */
EXACT void route_choose(const float *score, uint32_t n, uint32_t k, uint16_t *chosen, float *best)
{
	uint32_t filled = 0;
	for (uint32_t e = 0; e < n; e++) {
		if (filled == k && (k == 0 || !(score[e] > best[k - 1])))
			continue;
		uint32_t at = filled < k ? filled++ : k - 1;
		for (; at > 0 && score[e] > best[at - 1]; at--) {
			best[at] = best[at - 1];
			chosen[at] = chosen[at - 1];
		}
		best[at] = score[e];
		chosen[at] = (uint16_t)e;
	}
}

/* By descending weight; among equals the smaller index comes first. */
EXACT void route_sort(uint16_t *chosen, float *weights, uint32_t k)
{
	for (uint32_t i = 1; i < k; i++) {
		uint16_t expert = chosen[i];
		float weight = weights[i];
		uint32_t at = i;
		for (; at > 0 && (weight > weights[at - 1] ||
					 (weight == weights[at - 1] && expert < chosen[at - 1]));
			at--) {
			chosen[at] = chosen[at - 1];
			weights[at] = weights[at - 1];
		}
		chosen[at] = expert;
		weights[at] = weight;
	}
}

/* A chosen expert with this bit is not used. */
#define ROUTE_DROPPED 0x8000u

/* How much a group of experts counts by its scores, of which `two` best count together. masked:
 * scores may be -inf, and a group that has only one other counts as much as that. */
EXACT float route_group_score(const float *score, uint32_t size, bool two, bool masked)
{
	float pair[2] = {0, 0};
	uint16_t experts[2];
	route_choose(score, size, 2, experts, pair);
	if (masked && two && pair[1] == -__builtin_inff() && pair[0] > pair[1])
		pair[1] = 0;
	return two ? pair[0] + pair[1] : pair[0];
}

/* The place of the greatest of logits[0..n-1] without `left_out`, which may be beyond them; among
 * equals the first. */
EXACT uint32_t route_best_left(const float *logits, uint32_t n, uint32_t left_out)
{
	uint32_t best = left_out == 0;
	for (uint32_t e = best + 1; e < n; e++)
		if (e != left_out && logits[e] > logits[best])
			best = e;
	return best;
}

/* Sparsemixer: whether a logit is too far below the best to share in its softmax. share: twice the
 * released model's router_jitter_noise, 0.01; no key of the file has it. */
#define ROUTE_SPARSEMIXER_SHARE 0.02f
EXACT bool route_far(float logit, float best)
{
	float size = logit < 0 ? -logit : logit;
	float most = size > best ? size : best;
	return (best - logit) / most > ROUTE_SPARSEMIXER_SHARE;
}

/* Lists the k experts with the greatest scores, the best first; among equals the smaller index comes
 * first. in: one bit per expert, zeros; becomes those that are listed. */
EXACT void route_list(const double *score, uint32_t n, uint32_t k, uint64_t *in, uint16_t *list)
{
	for (uint32_t i = 0; i < k; i++) {
		uint32_t best = n;
		for (uint32_t e = 0; e < n; e++)
			if (!(in[e / 64] >> e % 64 & 1) && (best == n || score[e] > score[best]))
				best = e;
		in[best / 64] |= UINT64_C(1) << best % 64;
		list[i] = (uint16_t)best;
	}
}
