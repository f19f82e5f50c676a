/* What sampling computes of a single number, to the bit; shared with the GPU's kernels. */
#pragma once

#include "shared/base/exact.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define SAMPLER_FLT_MAX 0x1.fffffep127f

/* NaN becomes -inf, +inf the largest float. */
EXACT float sampler_sane(float x)
{
	if (x != x)
		return -__builtin_inff();
	return x > SAMPLER_FLT_MAX ? SAMPLER_FLT_MAX : x;
}

/* log of x > 0, normal, in double without libm: x = m * 2^e with m in [sqrt(1/2), sqrt(2)), and log
 * m = 2 artanh s, s = (m - 1) / (m + 1), |s| < 0.1716, as its series up to s^23 (the rest is below
 * 2^-60). */
EXACT double sampler_log(double x)
{
	uint64_t bits;
	memcpy(&bits, &x, sizeof(bits));
	int exponent = (int)(bits >> 52) - 1023;
	bits = (bits & 0xFFFFFFFFFFFFFu) | 0x3FF0000000000000u;
	double m;
	memcpy(&m, &bits, sizeof(m));
	if (m > 1.4142135623730951) {
		m *= 0.5;
		exponent++;
	}
	double s = (m - 1) / (m + 1), s2 = s * s, series = 1.0 / 23;
	for (int k = 21; k >= 1; k -= 2)
		series = series * s2 + 1.0 / k;
	return (double)exponent * 0.6931471805599453 + 2 * s * series;
}

/* No draw of rand_uniform gives a larger G: u is at most 1 - 2^-25, and -log(2^-25) = 17.3287. */
#define SAMPLER_GUMBEL_MAX 17.34

EXACT double sampler_gumbel_of(double u)
{
	return -sampler_log(-sampler_log(u));
}

/* Far larger than the rounding error of a score z + G, z_max being the largest z. */
EXACT double sampler_margin(double z_max)
{
	return 1e-9 * (1 + (z_max < 0 ? -z_max : z_max));
}

/* The least draw (of kernels->draws) with which a token may reach a score. z - score = x, plus a
 * margin for rounding, for the largest z in question: z + G >= score is u >= exp(-w), w = exp(x).
 * Bounds are enough, and two calls of kernels_exp for each chunk were half of the time: 2^(n + f)
 * <= 2^n (1 + f), which is n + f written into the bits of a double, and exp(-w) >= 1 - w + w^2/2 -
 * w^3/6. Rounding is far below the 1e-7. */
EXACT uint32_t sampler_least_draw(double x)
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

/* The log probability of a token with this logit. What float32 cannot represent becomes its most
 * negative number. */
EXACT float sampler_logprob_of(float logit, double log_sum)
{
	double p = (double)logit - log_sum;
	return p > (double)-SAMPLER_FLT_MAX ? (float)p : -SAMPLER_FLT_MAX;
}
