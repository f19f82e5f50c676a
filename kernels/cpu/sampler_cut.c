/* Filters that look at a whole distribution: top-n-sigma and XTC. */
#include "kernels/cpu/sampler_internal.h"

#include "shared/base/rand.h"

#include <math.h>

/* Tokens whose ids differ by a multiple of this share a partial sum (kernels/numerics.md,
 * Sampling). */
#define PARTIALS 16

static double add_partials(double sum[PARTIALS])
{
	for (uint32_t half = PARTIALS / 2; half > 0; half /= 2)
		for (uint32_t i = 0; i < half; i++)
			sum[i] += sum[i + half];
	return sum[0];
}

/* The variance of those z that are not -inf, times the square of their number *n. It is computed
 * from distances to the largest z, whose squares are small. */
static double spread(const struct sampler *sampler, double z_max, double *n)
{
	double sum[PARTIALS] = {0}, squares[PARTIALS] = {0}, count[PARTIALS] = {0};
	for (uint32_t at = 0; at < sampler->n_vocab; at += PARTIALS) {
		uint32_t left = sampler->n_vocab - at;
		for (uint32_t i = 0; i < PARTIALS && i < left; i++) {
			float z = sampler->logits[at + i];
			bool counts = z != -INFINITY;
			double below = counts ? (double)z - z_max : 0;
			sum[i] += below;
			squares[i] += below * below;
			count[i] += counts ? 1 : 0;
		}
	}
	double first = add_partials(sum), second = add_partials(squares);
	*n = add_partials(count);
	double result = *n * second - first * first;
	return result > 0 ? result : 0;
}

/* Computes the largest of a chunk again, from which tokens were removed. */
static void look_again(struct sampler *sampler, uint32_t chunk)
{
	uint32_t first = chunk * SAMPLE_CHUNK, left = sampler->n_vocab - first;
	float most = -INFINITY;
	for (uint32_t i = 0; i < SAMPLE_CHUNK && i < left; i++)
		most = sampler->logits[first + i] > most ? sampler->logits[first + i] : most;
	sampler->most[chunk] = most;
}

/* Compares the squares of distances, so that no root is needed. */
void sampler_cut_sigma(struct sampler *sampler, float n_sigma, uint32_t top)
{
	double z_max = (double)sampler->logits[top], n;
	double variance = spread(sampler, z_max, &n);
	double far = (double)n_sigma * (double)n_sigma * variance;
	for (uint32_t i = 0; i < sampler->n_vocab; i++) {
		double below = ((double)sampler->logits[i] - z_max) * n;
		if (!(below * below <= far))
			sampler->logits[i] = -INFINITY;
	}
	for (uint32_t c = 0; c < sampler_chunks(sampler->n_vocab); c++)
		look_again(sampler, c);
}

bool sampler_xtc_acts(const struct sampler_params *params, uint64_t position)
{
	return params->xtc_probability > 0 &&
	       rand_uniform(params->seed, RAND_XTC, position, 0) < (double)params->xtc_probability;
}

/* The least weight of a token whose p reaches the threshold. */
static float heavy(const struct sampler_params *params, double sum)
{
	return (float)((double)params->xtc_threshold * sum);
}

uint32_t sampler_xtc_all(struct sampler *sampler, const struct sampler_params *params, uint32_t top)
{
	const struct sampler_params reach = {
		.top_p = 1, .min_p = heavy(params, sampler_exp_sum(sampler, sampler->logits[top]))};
	/* When there is one heavy token, or none, sampler_keep keeps one token, and nothing is
	 * removed. */
	sampler_keep(sampler, &reach, top);
	for (uint32_t i = 0; i + 1 < sampler->n_dist; i++) {
		uint32_t token = (uint32_t)sampler->dist[i].token;
		sampler->logits[token] = -INFINITY;
		look_again(sampler, token / SAMPLE_CHUNK);
	}
	return sampler_greatest(sampler);
}

double sampler_xtc_kept(struct sampler *sampler, const struct sampler_params *params, double sum)
{
	const float least = heavy(params, sum);
	uint32_t n = 0;
	while (n < sampler->n_dist && sampler->dist[n].p >= least)
		n++;
	if (n < 2)
		return sum;
	double left = 0;
	sampler->n_dist -= n - 1;
	for (uint32_t i = 0; i < sampler->n_dist; i++) {
		sampler->dist[i] = sampler->dist[i + n - 1];
		left += (double)sampler->dist[i].p;
	}
	return left;
}
