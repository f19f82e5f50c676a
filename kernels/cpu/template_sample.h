/*
 * What sampling does with a whole vocabulary. The file that defines a table of functions includes
 * this after template_elementwise.h.
 */
#pragma once

#include "kernels/cpu/simd.h"
#include "shared/base/rand.h"

#include <float.h>

static inline struct v16 sane_16(struct v16 x)
{
	/* v16_max returns its second operand when the first is NaN. */
	return at_most(v16_max(x, v16_set1(-__builtin_inff())), FLT_MAX);
}

static inline struct v16 scale_16(struct v16 x, struct v16 divisor)
{
	return sane_16(v16_div(sane_16(x), divisor));
}

/* Values that are compared before the greatest of them is looked for among the lanes. */
#define GREATEST_BLOCK 1024

/* Adds to `bad`, which stays 0 while x is finite: an infinity or a NaN times 0 is a NaN. */
static inline struct v16 add_bad(struct v16 x, struct v16 bad)
{
	return v16_fma(x, v16_set1(0), bad);
}

static inline bool none_bad(struct v16 bad)
{
	return v16_sum(bad) == 0;
}

static uint32_t first_equal(const float *x, uint32_t from, uint32_t end, float value)
{
	while (from < end && x[from] != value)
		from++;
	return from;
}

static uint32_t op_greatest(const float *x, uint32_t n)
{
	const struct v16 none = v16_set1(-__builtin_inff());
	struct v16 bad = v16_set1(0);
	float best = -__builtin_inff();
	uint32_t best_block = 0, end;

	for (uint32_t at = 0; at < n; at = end) {
		struct v16 greatest = none;
		uint32_t i = at;

		end = n - at < GREATEST_BLOCK ? n : at + GREATEST_BLOCK;
		for (; i + 16 <= end; i += 16) {
			struct v16 some = v16_load(x + i);

			bad = add_bad(some, bad);
			greatest = v16_max(greatest, some);
		}
		if (i < end) {
			struct v16 some = v16_load_n(x + i, end - i);

			bad = add_bad(some, bad);
			greatest = v16_max(greatest, v16_blend_n(some, none, end - i));
		}
		float most = v16_greatest(greatest);
		best_block = most > best ? at : best_block;
		best = most > best ? most : best;
	}
	return none_bad(bad) ? first_equal(x, best_block, n, best) : UINT32_MAX;
}

static bool op_scale_logits(const float *x, uint32_t n, float divisor, float *z, float *most)
{
	const struct v16 d = v16_set1(divisor), none = v16_set1(-__builtin_inff());
	struct v16 bad = v16_set1(0);

	for (uint32_t at = 0; at < n; at += SAMPLE_CHUNK) {
		uint32_t end = n - at < SAMPLE_CHUNK ? n : at + SAMPLE_CHUNK, i = at;
		struct v16 greatest = none;

		for (; i + 16 <= end; i += 16) {
			struct v16 some = v16_load(x + i), scaled = scale_16(some, d);

			bad = add_bad(some, bad);
			v16_store(z + i, scaled);
			greatest = v16_max(greatest, scaled);
		}
		if (i < end) {
			struct v16 some = v16_load_n(x + i, end - i), scaled = scale_16(some, d);

			bad = add_bad(some, bad);
			v16_store_n(z + i, scaled, end - i);
			greatest = v16_max(greatest, v16_blend_n(scaled, none, end - i));
		}
		most[at / SAMPLE_CHUNK] = v16_greatest(greatest);
	}
	return none_bad(bad);
}

static void op_exp_sums(const float *z, uint32_t n, float less, float *sums)
{
	const struct v16 one = v16_set1(1.0f), m = v16_set1(less);

	for (uint32_t at = 0; at < n; at += SAMPLE_CHUNK) {
		uint32_t end = n - at < SAMPLE_CHUNK ? n : at + SAMPLE_CHUNK, i = at;
		struct v16 sum = v16_set1(0);

		for (; i + 16 <= end; i += 16)
			sum = v16_fma(v16_exp(v16_sub(v16_load(z + i), m)), one, sum);
		if (i < end)
			sum = v16_fma_n(
				v16_exp(v16_sub(v16_load_n(z + i, end - i), m)), one, sum, end - i);
		sums[at / SAMPLE_CHUNK] = v16_sum(sum);
	}
}

/* rand_philox, eight counters at once. Each word is in the low half of a 64-bit lane; the content
 * of the high half does not matter. */
static void op_draws(uint64_t seed, uint32_t stream, uint64_t position, uint32_t first,
	uint32_t out[SAMPLE_CHUNK])
{
	const struct w8 m0 = w8_set1(PHILOX_M0), m1 = w8_set1(PHILOX_M1);

	for (uint32_t i = 0; i < SAMPLE_CHUNK; i += 8) {
		struct w8 c0 = w8_count(first + i), c1 = w8_set1(stream);
		struct w8 c2 = w8_set1(position), c3 = w8_set1(position >> 32);
		uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

#pragma GCC unroll 10
		for (uint32_t round = 0; round < 10; round++) {
			struct w8 p0 = w8_mul(m0, c0), p1 = w8_mul(m1, c2);

			c0 = w8_xor3(w8_high(p1), c1, w8_set1(k0));
			c2 = w8_xor3(w8_high(p0), c3, w8_set1(k1));
			c1 = p1;
			c3 = p0;
			k0 += PHILOX_W0;
			k1 += PHILOX_W1;
		}
		w8_store_top24(out + i, c0);
	}
}
