/* What the files of the sampler share; sampler->logits is z, and sampler->most what belongs to it. */
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/sampler.h"

/* Of SAMPLE_CHUNK tokens each, the last perhaps shorter. */
static inline uint32_t sampler_chunks(uint32_t n_vocab)
{
	return (n_vocab + SAMPLE_CHUNK - 1) / SAMPLE_CHUNK;
}

/* The sum of exp(z[i] - z_max) over all. */
double sampler_exp_sum(const struct sampler *sampler, float z_max);

/* What the filters keep of z, the largest at top: dist[].p = exp(z - max), unnormalised, in order, n_dist of them; returns
 * their sum. The sum that top-p takes its share of is over the k kept in their order, or over all in ascending id. */
double sampler_keep(struct sampler *sampler, const struct sampler_params *params, uint32_t top);
