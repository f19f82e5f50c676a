/*
 * Products of rows in the file's layout with one or two tokens, for the types that models mostly
 * use. Rows are multiplied in place, 64 weights or more of one row at a time. Not the weights but
 * their sums, which are fewer, are then rearranged to a lane per row; isum of BLOCKS (numerics.md)
 * is exact in any order. With more tokens there are as many sums as weights, and template_runs.h is
 * faster. Include after template_runs.h.
 */
#pragma once

#include "kernels/cpu/template_runs.h"

#define FEW_TOKENS 2

/* Four rows; three more follow each at multiples of the stride that an address can express. Without
 * this, the compiler keeps sixteen addresses in registers, of which there are too few. */
struct few_rows {
	const uint8_t *p[4];
	size_t stride;
};

ALWAYS_INLINE struct few_rows few_rows(const uint8_t *p, size_t stride)
{
	__asm__("" : "+r"(stride));
	return (struct few_rows){{p, p + 4 * stride, p + 8 * stride, p + 12 * stride}, stride};
}

ALWAYS_INLINE __m512i four_quarters(const uint8_t *p, size_t apart)
{
	__m512i all = _mm512_castsi128_si512(sixteen_at(p));

	all = _mm512_inserti32x4(all, sixteen_at(p + apart), 1);
	all = _mm512_inserti32x4(all, sixteen_at(p + 2 * apart), 2);
	return _mm512_inserti32x4(all, sixteen_at(p + 3 * apart), 3);
}

/* Sums the four dwords of every quarter; dword i of each quarter of the result belongs to s[i]. */
ALWAYS_INLINE __m512i sum_quarters(const __m512i s[4])
{
	__m512i a = _mm512_add_epi32(
		_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]));
	__m512i b = _mm512_add_epi32(
		_mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3]));

	return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* s[i] holds four rows from 4 * i on in its quarters 0..3. out[k] gets quarter k of all sixteen
 * rows. */
ALWAYS_INLINE void turn_quarters(const __m512i s[4], ilanes out[4])
{
	__m512i a = _mm512_shuffle_i32x4(s[0], s[1], 0x44);
	__m512i b = _mm512_shuffle_i32x4(s[2], s[3], 0x44);
	__m512i c = _mm512_shuffle_i32x4(s[0], s[1], 0xee);
	__m512i d = _mm512_shuffle_i32x4(s[2], s[3], 0xee);

	out[0] = _mm512_shuffle_i32x4(a, b, 0x88);
	out[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
	out[2] = _mm512_shuffle_i32x4(c, d, 0x88);
	out[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
}

/* The same with halves, each the sum of its quarters. */
ALWAYS_INLINE void turn_halves(const __m512i s[4], ilanes *first, ilanes *second)
{
	__m512i a = _mm512_add_epi32(
		_mm512_shuffle_i32x4(s[0], s[1], 0x88), _mm512_shuffle_i32x4(s[0], s[1], 0xdd));
	__m512i b = _mm512_add_epi32(
		_mm512_shuffle_i32x4(s[2], s[3], 0x88), _mm512_shuffle_i32x4(s[2], s[3], 0xdd));

	*first = _mm512_shuffle_i32x4(a, b, 0x88);
	*second = _mm512_shuffle_i32x4(a, b, 0xdd);
}

/* Activations in the form that a type's weights are multiplied with: for the low and the high part
 * of a load, and the value that their sums begin with. */
struct few_factors {
	__m512i low, high, begin;
};

/* For four blocks of nibbles: their first 16 values, their last 16, and offset / 128 of the surplus
 * that weights 128 too high add. */
ALWAYS_INLINE struct few_factors factors_nibbles(const struct q8_block *x, int16_t offset)
{
	const size_t apart = sizeof(*x);
	__m512i begin = _mm512_castsi128_si512(_mm_cvtsi32_si128(x[0].minus_128));

	begin = _mm512_inserti32x4(begin, _mm_cvtsi32_si128(x[1].minus_128), 1);
	begin = _mm512_inserti32x4(begin, _mm_cvtsi32_si128(x[2].minus_128), 2);
	begin = _mm512_inserti32x4(begin, _mm_cvtsi32_si128(x[3].minus_128), 3);
	if (offset == 8)
		begin = _mm512_srai_epi32(begin, 4);
	return (struct few_factors){four_quarters((const uint8_t *)x->q, apart),
		four_quarters((const uint8_t *)x->q + 16, apart), begin};
}

/* Loads sixteen bytes of nibbles of each of four blocks, which lie `apart` bytes apart from p on.
 */
ALWAYS_INLINE __m512i nibbles_of_four(const uint8_t *p, uint32_t apart)
{
	const __m512i words = _mm512_setr_epi32(0x00020001, 0x00040003, 0x00060005, 0x00080007,
		0x000b000a, 0x000d000c, 0x000f000e, 0x00110010, 0x00140013, 0x00160015, 0x00180017,
		0x001a0019, 0x001d001c, 0x001f001e, 0, 0);

	if (apart != 18)
		return four_quarters(p, apart);
	/* The last four words are in their place when a load begins four words later. */
	return _mm512_mask_loadu_epi16(
		_mm512_permutexvar_epi16(words, _mm512_loadu_si512((const void *)(p - 2))),
		0xf0000000, p + 6);
}

ALWAYS_INLINE __m512i dot_64(__m512i sum, __m512i weights, __m512i x)
{
	return _mm512_dpbusd_epi32(sum, weights, x);
}

/* isum of four blocks of nibbles, `apart` bytes apart from p on. A nibble is weight + offset, or a
 * code of a table of such values. All arguments except p, stride and x are constants where this is
 * inlined. */
ALWAYS_INLINE void dots_nibbles(const uint8_t *p, size_t stride, uint32_t apart,
	const int8_t table[16], int16_t offset, const struct activation *x, uint32_t at,
	const uint32_t T, ilanes dot[FEW_TOKENS][GROUP_RUNS])
{
	for (uint32_t four = 0; four < GROUP_RUNS; four += 4, p += (size_t)4 * apart) {
		const struct few_rows rows = few_rows(p, stride);
		struct few_factors f[FEW_TOKENS];
		__m512i sums[FEW_TOKENS][4];

		for (uint32_t t = 0; t < T; t++)
			f[t] = factors_nibbles(x[t].q8 + at + four, offset);
#pragma GCC unroll 4
		for (uint32_t q = 0; q < 4; q++) {
			__m512i s[FEW_TOKENS][4];

#pragma GCC unroll 4
			for (uint32_t i = 0; i < 4; i++) {
				__m512i both = nibbles_of_four(rows.p[q] + i * rows.stride, apart);
				__m512i low = low_nibbles(both), high = high_nibbles(both);

				if (table) {
					low = i_look_up(table, low);
					high = i_look_up(table, high);
				}
				for (uint32_t t = 0; t < T; t++)
					s[t][i] = dot_64(
						dot_64(f[t].begin, low, f[t].low), high, f[t].high);
			}
			for (uint32_t t = 0; t < T; t++)
				sums[t][q] = sum_quarters(s[t]);
		}
		for (uint32_t t = 0; t < T; t++)
			turn_quarters(sums[t], dot[t] + four);
	}
}

ALWAYS_INLINE void dots_q4_0(const uint8_t *p, size_t stride, const struct activation *x,
	uint32_t at, const uint32_t T, const struct group *group,
	ilanes dot[FEW_TOKENS][GROUP_RUNS])
{
	(void)group;
	dots_nibbles(p + 2, stride, 18, NULL, 8, x, at, T, dot);
}

ALWAYS_INLINE void dots_iq4_nl(const uint8_t *p, size_t stride, const struct activation *x,
	uint32_t at, const uint32_t T, const struct group *group,
	ilanes dot[FEW_TOKENS][GROUP_RUNS])
{
	(void)group;
	dots_nibbles(p + 2, stride, 18, iq4_biased, IQ4_BIAS, x, at, T, dot);
}

ALWAYS_INLINE void dots_mxfp4(const uint8_t *p, size_t stride, const struct activation *x,
	uint32_t at, const uint32_t T, const struct group *group,
	ilanes dot[FEW_TOKENS][GROUP_RUNS])
{
	(void)group;
	dots_nibbles(p + 1, stride, 17, mxfp4_raised, 128, x, at, T, dot);
}

ALWAYS_INLINE void dots_q8_0(const uint8_t *p, size_t stride, const struct activation *x,
	uint32_t at, const uint32_t T, const struct group *group,
	ilanes dot[FEW_TOKENS][GROUP_RUNS])
{
	(void)group;
	for (uint32_t two = 0; two < GROUP_RUNS; two += 2, p += 2 * 34) {
		const struct few_rows rows = few_rows(p, stride);
		__m512i in[FEW_TOKENS], begin[FEW_TOKENS], sums[FEW_TOKENS][4];

		for (uint32_t t = 0; t < T; t++) {
			const struct q8_block *q8 = x[t].q8 + at + two;

			in[t] = two_rows((const uint8_t *)q8[0].q, (const uint8_t *)q8[1].q);
			begin[t] = _mm512_inserti64x4(
				_mm512_zextsi128_si512(_mm_cvtsi32_si128(q8[0].minus_128)),
				_mm256_zextsi128_si256(_mm_cvtsi32_si128(q8[1].minus_128)), 1);
		}
#pragma GCC unroll 4
		for (uint32_t q = 0; q < 4; q++) {
			__m512i s[FEW_TOKENS][4];

#pragma GCC unroll 4
			for (uint32_t i = 0; i < 4; i++) {
				const uint8_t *row = rows.p[q] + i * rows.stride;
				__m512i w = i_xor(two_rows(row + 2, row + 36), i_set1_8(128));

				for (uint32_t t = 0; t < T; t++)
					s[t][i] = dot_64(begin[t], w, in[t]);
			}
			for (uint32_t t = 0; t < T; t++)
				sums[t][q] = sum_quarters(s[t]);
		}
		for (uint32_t t = 0; t < T; t++)
			turn_halves(sums[t], dot[t] + two, dot[t] + two + 1);
	}
}

ALWAYS_INLINE void dots_q4_k(const uint8_t *p, size_t stride, const struct activation *x,
	uint32_t at, const uint32_t T, const struct group *group,
	ilanes dot[FEW_TOKENS][GROUP_RUNS])
{
	(void)group;
	p += 16;
	for (uint32_t four = 0; four < GROUP_RUNS; four += 4, p += 64) {
		const struct few_rows rows = few_rows(p, stride);
		__m512i even[FEW_TOKENS], odd[FEW_TOKENS];
		__m512i sums_even[FEW_TOKENS][4], sums_odd[FEW_TOKENS][4];

		for (uint32_t t = 0; t < T; t++) {
			const struct q8_block *q8 = x[t].q8 + at + four;

			even[t] = two_rows((const uint8_t *)q8[0].q, (const uint8_t *)q8[2].q);
			odd[t] = two_rows((const uint8_t *)q8[1].q, (const uint8_t *)q8[3].q);
		}
#pragma GCC unroll 4
		for (uint32_t q = 0; q < 4; q++) {
			__m512i s_even[FEW_TOKENS][4], s_odd[FEW_TOKENS][4];

#pragma GCC unroll 4
			for (uint32_t i = 0; i < 4; i++) {
				__m512i both = lanes_32(rows.p[q] + i * rows.stride);
				__m512i low = low_nibbles(both), high = high_nibbles(both);

				for (uint32_t t = 0; t < T; t++) {
					s_even[t][i] = dot_64(_mm512_setzero_si512(), low, even[t]);
					s_odd[t][i] = dot_64(_mm512_setzero_si512(), high, odd[t]);
				}
			}
			for (uint32_t t = 0; t < T; t++) {
				sums_even[t][q] = sum_quarters(s_even[t]);
				sums_odd[t][q] = sum_quarters(s_odd[t]);
			}
		}
		for (uint32_t t = 0; t < T; t++) {
			turn_halves(sums_even[t], dot[t] + four, dot[t] + four + 2);
			turn_halves(sums_odd[t], dot[t] + four + 1, dot[t] + four + 3);
		}
	}
}

/* The sums that c_0 and c_1 of Q6_K are multiplied with, for runs r and r + 1. */
ALWAYS_INLINE void dots_factors(
	const __m512i sums[4], const struct group *group, uint32_t r, ilanes dot[GROUP_RUNS])
{
	ilanes halves[4];

	turn_quarters(sums, halves);
#pragma GCC unroll 2
	for (uint32_t i = 0; i < 2; i++) {
		const struct factors *c = &group->run[r + i].c;

		dot[r + i] =
			i_add(i_mul(halves[2 * i], c->c[0]), i_mul(halves[2 * i + 1], c->c[1]));
	}
}

/* For two runs: the values that the sums of their halves begin with, because their weights are 32
 * too high. */
ALWAYS_INLINE __m512i begin_32(const struct q8_block *x)
{
	__m512i begin = _mm512_castsi128_si512(_mm_cvtsi32_si128(-32 * x[0].sums[0]));

	begin = _mm512_inserti32x4(begin, _mm_cvtsi32_si128(-32 * x[0].sums[1]), 1);
	begin = _mm512_inserti32x4(begin, _mm_cvtsi32_si128(-32 * x[1].sums[0]), 2);
	return _mm512_inserti32x4(begin, _mm_cvtsi32_si128(-32 * x[1].sums[1]), 3);
}

/* Weights of half a block of a row: out[0] gets runs 0 and 1, out[1] runs 2 and 3. low: its 64
 * bytes of nibbles; high: the 32 bytes of the bits above them. */
ALWAYS_INLINE void weights_q6_k(const uint8_t *low, const uint8_t *high, __m512i out[2])
{
	const __m512i third = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi32(2), 1);
	__m256i once = _mm256_loadu_si256((const __m256i *)(const void *)high);
	__m512i nibbles = lanes_32(low);
	__m512i bits = _mm512_srlv_epi32(_mm512_broadcast_i64x4(once), third);

	out[0] = i_or(low_nibbles(nibbles), move_bits(bits, 3, 0, 4));
	out[1] = i_or(high_nibbles(nibbles), move_bits(bits, 3, 4, 4));
}

ALWAYS_INLINE void dots_q6_k(const uint8_t *p, size_t stride, const struct activation *x,
	uint32_t at, const uint32_t T, const struct group *group,
	ilanes dot[FEW_TOKENS][GROUP_RUNS])
{
	for (uint32_t half = 0; half < 2; half++) {
		const struct few_rows rows = few_rows(p + (size_t)64 * half, stride);
		const size_t high =
			128 - (size_t)32 * half; /* distance from the low bits to the high ones */
		const uint32_t r = 4 * half;
		__m512i in[FEW_TOKENS][2], begin[FEW_TOKENS][2], sums[FEW_TOKENS][2][4];

		for (uint32_t t = 0; t < T; t++)
#pragma GCC unroll 2
			for (uint32_t k = 0; k < 2; k++) {
				const struct q8_block *q8 = x[t].q8 + at + r + 2 * k;

				in[t][k] = two_rows(
					(const uint8_t *)q8[0].q, (const uint8_t *)q8[1].q);
				begin[t][k] = begin_32(q8);
			}
#pragma GCC unroll 4
		for (uint32_t q = 0; q < 4; q++) {
			__m512i s[FEW_TOKENS][2][4];

#pragma GCC unroll 4
			for (uint32_t i = 0; i < 4; i++) {
				const uint8_t *row = rows.p[q] + i * rows.stride;
				__m512i w[2];

				weights_q6_k(row, row + high, w);
				for (uint32_t t = 0; t < T; t++)
#pragma GCC unroll 2
					for (uint32_t k = 0; k < 2; k++)
						s[t][k][i] = dot_64(begin[t][k], w[k], in[t][k]);
			}
			for (uint32_t t = 0; t < T; t++)
#pragma GCC unroll 2
				for (uint32_t k = 0; k < 2; k++)
					sums[t][k][q] = sum_quarters(s[t][k]);
		}
		for (uint32_t t = 0; t < T; t++)
#pragma GCC unroll 2
			for (uint32_t k = 0; k < 2; k++)
				dots_factors(sums[t][k], group, r + 2 * k, dot[t]);
	}
}

/* Eight units begin at multiples of `apart` bytes from p on. The mask of the words that hold them,
 * for the load of words from 32 * k on. */
ALWAYS_INLINE __mmask32 words_from(uint32_t apart, uint32_t k)
{
	__mmask32 words = 0;

#pragma GCC unroll 8
	for (uint32_t b = 0; b < 8; b++)
		words |= b * apart / 64 == k ? 1u << b * apart / 2 % 32 : 0;
	return words;
}

/* Word i of a row goes to place i % 32. Each of the eight words has a place of its own, in the
 * blocks of every type. The mask keeps the load from reading behind the last of them. */
ALWAYS_INLINE ilanes eight_words(const uint8_t *p, uint32_t apart)
{
	ilanes words = _mm512_loadu_si512((const void *)p);

#pragma GCC unroll 4
	for (uint32_t k = 1; k <= 7 * apart / 64; k++)
		words = _mm512_mask_loadu_epi16(words, words_from(apart, k), p + (size_t)64 * k);
	return words;
}

/* Eight units of each row, of 2 bytes or 1, `apart` bytes apart. out[i] gets unit i of sixteen rows
 * in 16 bits each; for units of 1 byte the upper half is undefined. */
ALWAYS_INLINE void turn_units(
	const uint8_t *p, size_t stride, uint32_t apart, __m256i out[GROUP_RUNS])
{
	const struct few_rows rows = few_rows(p, stride);
	const __m512i columns = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
	const __m512i places = _mm512_broadcast_i32x4(_mm_setr_epi16(0, (short)(apart / 2),
		(short)apart, (short)(3 * apart / 2), (short)(2 * apart), (short)(5 * apart / 2),
		(short)(3 * apart), (short)(7 * apart / 2)));
	__m512i in[4], two[4], four[4];

#pragma GCC unroll 4
	for (uint32_t i = 0; i < 4; i++) {
		in[i] = _mm512_permutexvar_epi16(
			places, eight_words(rows.p[0] + i * rows.stride, apart));
#pragma GCC unroll 3
		for (uint32_t q = 1; q < 4; q++)
			in[i] = _mm512_mask_permutexvar_epi16(in[i], 0xffu << 8 * q, places,
				eight_words(rows.p[q] + i * rows.stride, apart));
	}
	two[0] = _mm512_unpacklo_epi16(in[0], in[1]);
	two[1] = _mm512_unpacklo_epi16(in[2], in[3]);
	two[2] = _mm512_unpackhi_epi16(in[0], in[1]);
	two[3] = _mm512_unpackhi_epi16(in[2], in[3]);
#pragma GCC unroll 2
	for (uint32_t i = 0; i < 4; i += 2) {
		four[i] = _mm512_unpacklo_epi32(two[i], two[i + 1]);
		four[i + 1] = _mm512_unpackhi_epi32(two[i], two[i + 1]);
	}
#pragma GCC unroll 4
	for (uint32_t i = 0; i < 4; i++) {
		__m512i both = _mm512_permutexvar_epi64(columns, four[i]);

		out[2 * i] = _mm512_castsi512_si256(both);
		out[2 * i + 1] = _mm512_extracti64x4_epi64(both, 1);
		/* These begin in the middle of their words. */
		if (apart % 2)
			out[2 * i + 1] = _mm256_srli_epi16(out[2 * i + 1], 8);
	}
}

ALWAYS_INLINE void heads_halves(
	const uint8_t *p, size_t stride, uint32_t block_bytes, struct group *out)
{
	__m256i d[GROUP_RUNS];

	turn_units(p, stride, block_bytes, d);
#pragma GCC unroll 8
	for (uint32_t r = 0; r < GROUP_RUNS; r++)
		out->run[r].d = _mm512_cvtph_ps(d[r]);
}

ALWAYS_INLINE void heads_18(const uint8_t *p, size_t stride, struct group *out)
{
	heads_halves(p, stride, 18, out);
}

ALWAYS_INLINE void heads_34(const uint8_t *p, size_t stride, struct group *out)
{
	heads_halves(p, stride, 34, out);
}

ALWAYS_INLINE void heads_mxfp4(const uint8_t *p, size_t stride, struct group *out)
{
	__m256i e[GROUP_RUNS];

	turn_units(p, stride, 17, e);
#pragma GCC unroll 8
	for (uint32_t r = 0; r < GROUP_RUNS; r++)
		out->run[r].d = mxfp4_scales(byte_of(_mm512_cvtepu16_epi32(e[r]), 0));
}

/* A tile times few tokens. All arguments except tile, x and y are constants where this is inlined.
 */
ALWAYS_INLINE void few_product(bool has_m, uint32_t group_bytes,
	void (*heads)(const uint8_t *, size_t, struct group *),
	void (*dots)(const uint8_t *, size_t, const struct activation *, uint32_t, uint32_t,
		const struct group *, ilanes[FEW_TOKENS][GROUP_RUNS]),
	const struct tile *tile, const struct activation *x, const uint32_t T, float *const *y)
{
	const uint8_t *p = tile->weights;
	ilanes dot[FEW_TOKENS][GROUP_RUNS];
	flanes acc[TILE_TOKENS], total[TILE_TOKENS];
	struct group group;

	for (uint32_t t = 0; t < T; t++)
		acc[t] = f_zero();
	for (uint32_t b = 0; b < tile->blocks; b += GROUP_RUNS, p += group_bytes) {
		if (b % SEGMENT_RUNS == 0 && b > 0)
			end_segment(b == SEGMENT_RUNS, T, acc, total);
		fetch_next(tile, b / GROUP_RUNS, group_bytes);
		heads(p, tile->row_bytes, &group);
		dots(p, tile->row_bytes, x, b, T, &group, dot);
		for (uint32_t r = 0; r < GROUP_RUNS; r++)
			for (uint32_t t = 0; t < T; t++)
				acc[t] = add_terms(
					&group.run[r], has_m, x[t].q8 + b + r, dot[t][r], acc[t]);
	}
	if (tile->blocks > SEGMENT_RUNS)
		end_segments(T, acc, total);
	for (uint32_t t = 0; t < T; t++)
		f_store_some(y[t] + tile->row, acc[t], tile->from, tile->to);
}

/* The types that this file multiplies, in groups of eight runs: eight blocks, or one. */
#define FEW_TYPES(X)                                     \
	X(Q8_0, false, 8 * 34, heads_34, dots_q8_0)      \
	X(Q4_0, false, 8 * 18, heads_18, dots_q4_0)      \
	X(IQ4_NL, false, 8 * 18, heads_18, dots_iq4_nl)  \
	X(MXFP4, false, 8 * 17, heads_mxfp4, dots_mxfp4) \
	X(Q4_K, true, 144, unpack_scales_k, dots_q4_k)   \
	X(Q6_K, false, 210, unpack_scales_q6_k, dots_q6_k)

#define FEW_FUNCTION(type, has_m, group_bytes, heads, dots, tokens)                   \
	static void few_##type##_##tokens(                                            \
		const struct tile *tile, const struct activation *x, float *const *y) \
	{                                                                             \
		few_product(has_m, group_bytes, heads, dots, tile, x, tokens, y);     \
	}
#define FEW_FUNCTIONS(...)           \
	FEW_FUNCTION(__VA_ARGS__, 1) \
	FEW_FUNCTION(__VA_ARGS__, 2)
FEW_TYPES(FEW_FUNCTIONS)

#define FEW_ROW(type, ...) {TENSOR_##type, {few_##type##_1, few_##type##_2}},
static const struct {
	enum tensor_type type;
	tile_function *functions[FEW_TOKENS];
} few_types[] = {FEW_TYPES(FEW_ROW)};

/* The function for a matrix of this type and number of columns times n tokens, or NULL. */
static tile_function *few_function(enum tensor_type type, uint32_t cols, uint32_t n)
{
	tile_function *found = NULL;

	if (n > FEW_TOKENS || cols % (GROUP_RUNS * Q8_BLOCK) != 0)
		return NULL;
	for (size_t i = 0; i < sizeof(few_types) / sizeof(few_types[0]); i++)
		if (few_types[i].type == type)
			found = few_types[i].functions[n - 1];
	return found;
}
