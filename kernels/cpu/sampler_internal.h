/* Shared by the files of the sampler. sampler->logits is z, and sampler->most belongs to it. */
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/sampler.h"

#include <string.h>

/* The number of chunks of SAMPLE_CHUNK tokens; the last may be shorter. */
static inline uint32_t sampler_chunks(uint32_t n_vocab)
{
	return (n_vocab + SAMPLE_CHUNK - 1) / SAMPLE_CHUNK;
}

/* True when the adjusted logits equal the logits. */
bool sampler_adjusts_nothing(
	const struct sampler_params *params, const struct sampler_input *input);
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

/* NaN becomes -inf, +inf the largest float. */
float sampler_sane(float x);
/* Removes the marks of all tokens. */
void sampler_forget_marks(struct sampler *sampler);
/* Marks a token. True if it is in the vocabulary and was not marked. */
bool sampler_mark(struct sampler *sampler, uint32_t token);
/* Removes the mark of a token. True if it had one. Call sampler_forget_marks first. */
bool sampler_unmark(struct sampler *sampler, uint32_t token);
/* DRY: lowers the logits of tokens that would continue a repetition. */
void sampler_dry(struct sampler *sampler, const struct sampler_params *params,
	const struct sampler_input *input);

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

/* log of x > 0, normal, in double without libm. */
double sampler_log(double x);

/* No draw of rand_uniform gives a larger G: u is at most 1 - 2^-25, and -log(2^-25) = 17.3287. */
#define SAMPLER_GUMBEL_MAX 17.34

static inline double sampler_gumbel_of(double u)
{
	return -sampler_log(-sampler_log(u));
}

/* The least draw (of kernels->draws) with which a token may reach a score. z - score = x, plus a
 * margin for rounding, for the largest z in question: z + G >= score is u >= exp(-w), w = exp(x).
 * Bounds are enough, and two calls of kernels_exp for each chunk were half of the time: 2^(n + f)
 * <= 2^n (1 + f), which is n + f written into the bits of a double, and exp(-w) >= 1 - w + w^2/2 -
 * w^3/6. Rounding is far below the 1e-7. */
static inline uint32_t sampler_least_draw(double x)
{
	double power = x * 1.4426950408889634;
	if (power > 0)
		return 0;
	uint64_t bits = (uint64_t)((power + 1023) * 0x1p52);
	double w;
	memcpy(&w, &bits, sizeof(w));
	double u = 1 - w * (1 - w * (0.5 - w / 6)) - 1e-7;
	return (uint32_t)(u * 0x1p24);
}

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
