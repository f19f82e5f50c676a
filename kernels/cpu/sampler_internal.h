/* Shared by the files of the sampler. sampler->logits is z, and sampler->most belongs to it. */
#pragma once

#include "kernels/cpu/sampler_changes.h"
#include "kernels/cpu/sampler_math.h"
#include "kernels/cpu/simd.h"
#include "kernels/sampler.h"

/* The number of chunks of SAMPLE_CHUNK tokens; the last may be shorter. */
static inline uint32_t sampler_chunks(uint32_t n_vocab)
{
	return (n_vocab + SAMPLE_CHUNK - 1) / SAMPLE_CHUNK;
}

/* Fills sampler->logits with the adjusted logits divided by `divisor` (1 changes nothing), and
 * most. Returns the largest, ties to the smaller id; 0 when all are -inf. *finite: all were finite
 * before. */
uint32_t sampler_adjust(struct sampler *sampler, const struct sampler_params *params,
	const struct sampler_input *input, float divisor, bool *finite);
/* The largest of sampler->logits in the same sense, by what is in most. */
uint32_t sampler_greatest(const struct sampler *sampler);

/* The sum of exp(z[i] - z_max) over all. */
double sampler_exp_sum(const struct sampler *sampler, float z_max);

/* Puts what the filters keep of z, the largest at top, into dist: n_dist entries in order, p =
 * exp(z - max), unnormalised. Returns their sum. The sum of which top-p takes a share is over the k
 * kept tokens in their order, or over all in ascending id. */
double sampler_keep(struct sampler *sampler, const struct sampler_params *params, uint32_t top);

/* Top-n-sigma: removes the tokens that are further below the largest z, at top, than this many
 * standard deviations. */
void sampler_cut_sigma(struct sampler *sampler, float n_sigma, uint32_t top);
/* True when XTC acts at this position. */
bool sampler_xtc_acts(const struct sampler_params *params, uint64_t position);
/* XTC among all tokens, the largest z at top. Returns the new place of the largest. */
uint32_t sampler_xtc_all(
	struct sampler *sampler, const struct sampler_params *params, uint32_t top);
/* XTC among the tokens that sampler_keep has kept, with this sum. Returns the sum of the tokens
 * that are left. */
double sampler_xtc_kept(struct sampler *sampler, const struct sampler_params *params, double sum);

static inline bool sampler_any_at_least(const uint32_t draw[SAMPLE_CHUNK], uint32_t least)
{
	int32_t any = 0; /* 24 bits; without a branch, sixteen are compared at once. */
	for (uint32_t i = 0; i < SAMPLE_CHUNK; i++)
		any |= (int32_t)draw[i] >= (int32_t)least;
	return any != 0;
}

/* Whether sampler_keep may keep less than all tokens. */
static inline bool sampler_filters(
	const struct sampler *sampler, const struct sampler_params *params)
{
	bool top_k = params->top_k > 0 && params->top_k < sampler->n_vocab;
	return top_k || params->top_p != 1 || params->min_p != 0;
}
