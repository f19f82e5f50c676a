#include "kernels/cpu/blocks.h"

#include <assert.h>

static const int8_t iq4_table[16] = {IQ4_TABLE(0)};
static const int8_t mxfp4_table[16] = {MXFP4_TABLE(0)};

/* 16 bytes: low nibbles weights 0..15, high nibbles 16..31. */
static void read_nibbles(const uint8_t *p, int less, int8_t *q)
{
	for (uint32_t i = 0; i < 16; i++) {
		q[i] = (int8_t)((p[i] & 15) - less);
		q[16 + i] = (int8_t)((p[i] >> 4) - less);
	}
}

/* Bit i of the four bytes is bit 4 of weight i. */
static void read_fifth_bits(const uint8_t *p, int8_t *q)
{
	for (uint32_t i = 0; i < 32; i++)
		q[i] = (int8_t)(q[i] + ((p[i / 8] >> i % 8 & 1) << 4));
}

static void look_up(const int8_t *table, int8_t *q)
{
	for (uint32_t i = 0; i < 32; i++)
		q[i] = table[q[i]];
}

static void read_q8_0(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)r * 34;

	out->d = float_of_half(load_u16(block));
	set_factors(out, 1, 1);
	memcpy(out->q, block + 2, 32);
}

static void read_q4_0(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)r * 18;

	out->d = float_of_half(load_u16(block));
	set_factors(out, 1, 1);
	read_nibbles(block + 2, 8, out->q);
}

static void read_q4_1(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)r * 20;

	out->d = float_of_half(load_u16(block));
	out->m = float_of_half(load_u16(block + 2));
	set_factors(out, 1, 1);
	read_nibbles(block + 4, 0, out->q);
}

static void read_q5_0(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)r * 22;

	out->d = float_of_half(load_u16(block));
	set_factors(out, 1, 1);
	read_nibbles(block + 6, 16, out->q);
	read_fifth_bits(block + 2, out->q);
}

static void read_q5_1(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)r * 24;

	out->d = float_of_half(load_u16(block));
	out->m = float_of_half(load_u16(block + 2));
	set_factors(out, 1, 1);
	read_nibbles(block + 8, 0, out->q);
	read_fifth_bits(block + 4, out->q);
}

static void read_iq4_nl(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)r * 18;

	out->d = float_of_half(load_u16(block));
	set_factors(out, 1, 1);
	read_nibbles(block + 2, 0, out->q);
	look_up(iq4_table, out->q);
}

static void read_mxfp4(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)r * 17;

	out->d = mxfp4_scale(block[0]);
	set_factors(out, 1, 1);
	read_nibbles(block + 1, 0, out->q);
	look_up(mxfp4_table, out->q);
}

/* d, high bits of the scales (u16, two bits a run), their low nibbles (4 bytes), 8 x 16 bytes of
 * codes. */
static void read_iq4_xs(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)(r / RUNS_256) * 136;
	uint32_t s = r % RUNS_256;
	int low = block[4 + s / 2] >> 4 * (s % 2) & 15, high = load_u16(block + 2) >> 2 * s & 3;

	out->d = float_of_half(load_u16(block)) * (float)((low | high << 4) - 32);
	set_factors(out, 1, 1);
	read_nibbles(block + 8 + (size_t)16 * s, 0, out->q);
	look_up(iq4_table, out->q);
}

/* The 6-bit scale and minimum of run s, from the 12 bytes of Q4_K and Q5_K. */
static void read_scale_min(const uint8_t *p, uint32_t s, uint32_t *scale, uint32_t *min)
{
	if (s < 4) {
		*scale = p[s] & 63u;
		*min = p[s + 4] & 63u;
	} else {
		*scale = (uint32_t)((p[s + 4] & 15) | p[s - 4] >> 6 << 4);
		*min = (uint32_t)(p[s + 4] >> 4 | p[s] >> 6 << 4);
	}
}

static void read_scaled(const uint8_t *block, uint32_t s, struct run *out)
{
	uint32_t scale, min;

	read_scale_min(block + 4, s, &scale, &min);
	out->d = float_of_half(load_u16(block)) * (float)scale;
	out->m = -(float_of_half(load_u16(block + 2)) * (float)min);
	set_factors(out, 1, 1);
}

/* d, dmin, 12 bytes of scales, then 32 bytes for each two runs: low nibbles the first, high ones
 * the second. */
static void read_q4_k(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)(r / RUNS_256) * 144;
	uint32_t s = r % RUNS_256;
	const uint8_t *nibbles = block + 16 + (size_t)32 * (s / 2);

	read_scaled(block, s, out);
	for (uint32_t i = 0; i < 32; i++)
		out->q[i] = nibbles[i] >> 4 * (s % 2) & 15;
}

/* As Q4_K, with 32 bytes before the nibbles: bit s of byte i is bit 4 of weight i of run s. */
static void read_q5_k(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)(r / RUNS_256) * 176;
	uint32_t s = r % RUNS_256;
	const uint8_t *nibbles = block + 48 + (size_t)32 * (s / 2);

	read_scaled(block, s, out);
	for (uint32_t i = 0; i < 32; i++)
		out->q[i] =
			(int8_t)((nibbles[i] >> 4 * (s % 2) & 15) | (block[16 + i] >> s & 1) << 4);
}

/* 128 bytes of low nibbles, 64 of high pairs, 16 scales of 16 weights, d. Each half of the block
 * has 64 bytes of nibbles (runs 0 and 1 low, 2 and 3 high) and 32 of pairs (bits 2s of byte i for
 * weight i of run s). */
static void read_q6_k(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)(r / RUNS_256) * 210;
	uint32_t s = r % RUNS_256, part = s % 4;
	const uint8_t *low = block + (size_t)64 * (s / 4) + (size_t)32 * (part % 2);
	const uint8_t *high = block + 128 + (size_t)32 * (s / 4);
	const uint8_t *scales = block + 192 + (size_t)2 * s;

	out->d = float_of_half(load_u16(block + 208));
	set_factors(out, (int8_t)scales[0], (int8_t)scales[1]);
	for (uint32_t i = 0; i < 32; i++) {
		int nibble = low[i] >> 4 * (part / 2) & 15, pair = high[i] >> 2 * part & 3;

		out->q[i] = (int8_t)((nibble | pair << 4) - 32);
	}
}

/* 16 bytes of scales (low nibble) and minima (high), 64 of pairs, d, dmin. Each half of the block
 * has 32 bytes of pairs: bits 2s of byte i for weight i of run s. */
static void read_q2_k(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)(r / RUNS_256) * 84;
	uint32_t s = r % RUNS_256;
	const uint8_t *scales = block + (size_t)2 * s, *pairs = block + 16 + (size_t)32 * (s / 4);

	out->d = float_of_half(load_u16(block + 80));
	out->m = -float_of_half(load_u16(block + 82));
	set_factors(out, scales[0] & 15, scales[1] & 15);
	out->e[0] = scales[0] >> 4;
	out->e[1] = scales[1] >> 4;
	for (uint32_t i = 0; i < 32; i++)
		out->q[i] = pairs[i] >> 2 * (s % 4) & 3;
}

/* The 6-bit scale of 16 weights, from the 12 bytes of Q3_K: low nibbles in the first 8, high pairs
 * in the last 4. */
static int q3_k_scale(const uint8_t *p, uint32_t i)
{
	int low = p[i % 8] >> 4 * (i / 8) & 15, high = p[8 + i % 4] >> 2 * (i / 4) & 3;

	return (low | high << 4) - 32;
}

/* 32 bytes of high bits (bit s of byte i for weight i of run s), 64 of pairs as in Q2_K, 12 of
 * scales, d. */
static void read_q3_k(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)(r / RUNS_256) * 110;
	uint32_t s = r % RUNS_256;
	const uint8_t *pairs = block + 32 + (size_t)32 * (s / 4), *scales = block + 96;

	out->d = float_of_half(load_u16(block + 108));
	set_factors(out, q3_k_scale(scales, 2 * s), q3_k_scale(scales, 2 * s + 1));
	for (uint32_t i = 0; i < 32; i++) {
		int pair = pairs[i] >> 2 * (s % 4) & 3, high = block[i] >> s & 1;

		out->q[i] = (int8_t)((pair | high << 2) - 4);
	}
}

struct block_reader kernels_block_reader(enum tensor_type type)
{
	static const struct {
		enum tensor_type type;
		struct block_reader reader;
	} readers[] = {
		{TENSOR_Q8_0, {read_q8_0, false, false}},
		{TENSOR_Q4_0, {read_q4_0, false, false}},
		{TENSOR_Q4_1, {read_q4_1, true, false}},
		{TENSOR_Q5_0, {read_q5_0, false, false}},
		{TENSOR_Q5_1, {read_q5_1, true, false}},
		{TENSOR_Q2_K, {read_q2_k, true, false}},
		{TENSOR_Q3_K, {read_q3_k, false, false}},
		{TENSOR_Q4_K, {read_q4_k, true, false}},
		{TENSOR_Q5_K, {read_q5_k, true, false}},
		{TENSOR_Q6_K, {read_q6_k, false, false}},
		{TENSOR_IQ4_NL, {read_iq4_nl, false, false}},
		{TENSOR_IQ4_XS, {read_iq4_xs, false, false}},
		{TENSOR_MXFP4, {read_mxfp4, false, false}},
		{TENSOR_NVFP4, {kernels_read_nvfp4, false, true}},
		{TENSOR_IQ1_S, {kernels_read_iq1_s, false, false}},
		{TENSOR_IQ1_M, {kernels_read_iq1_m, false, false}},
		{TENSOR_IQ2_XXS, {kernels_read_iq2_xxs, false, false}},
		{TENSOR_IQ2_XS, {kernels_read_iq2_xs, false, false}},
		{TENSOR_IQ2_S, {kernels_read_iq2_s, false, false}},
		{TENSOR_IQ3_XXS, {kernels_read_iq3_xxs, false, false}},
		{TENSOR_IQ3_S, {kernels_read_iq3_s, false, false}},
		{TENSOR_TQ1_0, {kernels_read_tq1_0, false, false}},
		{TENSOR_TQ2_0, {kernels_read_tq2_0, false, false}},
	};
	size_t i = 0;

	/* A plain type has no blocks. */
	while (readers[i].type != type) {
		i++;
		assert(i < sizeof(readers) / sizeof(readers[0]));
	}
	return readers[i].reader;
}
