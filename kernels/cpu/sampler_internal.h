/* What the files of the sampler share; sampler->logits is z, and sampler->most what belongs to it. */
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/sampler.h"

/* Of SAMPLE_CHUNK tokens each, the last perhaps shorter. */
static inline uint32_t sampler_chunks(uint32_t n_vocab)
{
	return (n_vocab + SAMPLE_CHUNK - 1) / SAMPLE_CHUNK;
}

/* Whether the adjusted logits are the logits. */
bool sampler_adjusts_nothing(
	const struct sampler_params *params, const struct sampler_input *input);
/* Fills sampler->logits with the adjusted logits divided by `divisor`, and most; returns the largest, ties to the smaller id, 0
 * when all are -inf. Dividing by 1 changes nothing. *finite: whether all were, before. */
uint32_t sampler_adjust(struct sampler *sampler, const struct sampler_params *params,
	const struct sampler_input *input, float divisor, bool *finite);
/* The largest of sampler->logits, likewise, by what is in most. */
uint32_t sampler_greatest(const struct sampler *sampler);

/* The sum of exp(z[i] - z_max) over all. */
double sampler_exp_sum(const struct sampler *sampler, float z_max);

/* What the filters keep of z, the largest at top: dist[].p = exp(z - max), unnormalised, in order, n_dist of them; returns
 * their sum. The sum that top-p takes its share of is over the k kept in their order, or over all in ascending id. */
double sampler_keep(struct sampler *sampler, const struct sampler_params *params, uint32_t top);

/* Top-n-sigma: takes out what is further below the largest z, at top, than so many standard deviations. */
void sampler_cut_sigma(struct sampler *sampler, float n_sigma, uint32_t top);
/* Whether XTC acts at this position. */
bool sampler_xtc_acts(const struct sampler_params *params, uint64_t position);
/* XTC among all tokens, the largest z at top; returns where the largest is then. */
uint32_t sampler_xtc_all(
	struct sampler *sampler, const struct sampler_params *params, uint32_t top);
/* XTC among what sampler_keep has kept, with this sum; returns the sum of what is left. */
double sampler_xtc_kept(struct sampler *sampler, const struct sampler_params *params, double sum);

/* log of x > 0, normal, in double without libm. */
double sampler_log(double x);
