/*
 * Blocks of the types with three bits a weight or fewer, and of NVFP4, in plain C. With blocks.c,
 * this is the definition that the instruction sets are compared with.
 */
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/grids.h"

static const int8_t iq1_table[16] = {IQ1_TABLE(0)};
static const int8_t iq2_table[16] = {IQ2_TABLE(0)};
static const int8_t iq3_xxs_table[16] = {IQ3_XXS_TABLE(0)};
static const int8_t iq3_s_table[16] = {IQ3_S_TABLE(0)};
static const int8_t fp4_table[16] = {MXFP4_TABLE(0)};

static uint32_t load_u32(const uint8_t *p)
{
	return (uint32_t)load_i32(p);
}

/* Looks up n weights of a grid's entry, eight or four; bit i of `signs` selects the table's upper
 * half for weight i. */
static void look_up(uint32_t entry, uint32_t n, uint32_t signs, const int8_t table[16], int8_t *q)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t code = entry >> (8 * (i % 4) + 4 * (i / 4)) & 7;

		q[i] = table[code | (signs >> i & 1) << 3];
	}
}

static float odd_scale(float d, uint32_t scale)
{
	return d * (float)(2 * scale + 1);
}

/* d, then for each run four indices and four fields of seven signs with the scale above them. */
void kernels_read_iq2_xxs(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)(r / RUNS_256) * 66;
	const uint8_t *index = block + 2 + (size_t)8 * (r % RUNS_256);
	uint32_t fields = load_u32(index + 4), signs = signs_of_sevens(fields);

	out->d = odd_scale(float_of_half(load_u16(block)) / 8, fields >> 28);
	set_factors(out, 1, 1);
	for (uint32_t i = 0; i < 4; i++)
		look_up(kernels_grid_iq2_xxs[index[i]], 8, signs >> 8 * i, iq2_table,
			out->q + (size_t)8 * i);
}

static void set_odd_factors(struct run *out, uint32_t first, uint32_t last)
{
	set_factors(out, (int)(2 * first + 1), (int)(2 * last + 1));
}

/* d, 32 words of an index of nine bits and seven signs, then a nibble for each 16 weights. */
void kernels_read_iq2_xs(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)(r / RUNS_256) * 74;
	uint32_t s = r % RUNS_256, scale = block[66 + s];

	out->d = float_of_half(load_u16(block)) / 8;
	set_odd_factors(out, scale & 15, scale >> 4);
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t word = load_u16(block + 2 + (size_t)8 * s + (size_t)2 * i);

		look_up(kernels_grid_iq2_xs[word & 511], 8, signs_of_sevens(word >> 9), iq2_table,
			out->q + (size_t)8 * i);
	}
}

/* d, the low bytes of 32 indices, 256 signs, the two high bits of the indices, a nibble for each 16
 * weights. */
void kernels_read_iq2_s(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)(r / RUNS_256) * 82;
	uint32_t s = r % RUNS_256, high = block[66 + s], scale = block[74 + s];

	out->d = float_of_half(load_u16(block)) / 8;
	set_odd_factors(out, scale & 15, scale >> 4);
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t at = 4 * s + i;

		look_up(kernels_grid_iq2_s[block[2 + at] | (high >> 2 * i & 3) << 8], 8,
			block[34 + at], iq2_table, out->q + (size_t)8 * i);
	}
}

/* d, 64 indices of four weights, then for each run four fields of seven signs with the scale above
 * them. */
void kernels_read_iq3_xxs(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)(r / RUNS_256) * 98;
	uint32_t s = r % RUNS_256, fields = load_u32(block + 66 + (size_t)4 * s);
	uint32_t signs = signs_of_sevens(fields);

	out->d = odd_scale(float_of_half(load_u16(block)) / 4, fields >> 28);
	set_factors(out, 1, 1);
	for (uint32_t i = 0; i < 8; i++)
		look_up(kernels_grid_iq3_xxs[block[2 + 8 * s + i]], 4, signs >> 4 * i,
			iq3_xxs_table, out->q + (size_t)4 * i);
}

/* d, the low bytes of 64 indices, their ninth bits, 256 signs, a nibble for each run. */
void kernels_read_iq3_s(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)(r / RUNS_256) * 110;
	uint32_t s = r % RUNS_256, high = block[66 + s];
	uint32_t signs = load_u32(block + 74 + (size_t)4 * s);

	out->d = odd_scale(float_of_half(load_u16(block)), block[106 + s / 2] >> 4 * (s % 2) & 15);
	set_factors(out, 1, 1);
	for (uint32_t i = 0; i < 8; i++)
		look_up(kernels_grid_iq3_s[block[2 + 8 * s + i] | (high >> i & 1) << 8], 4,
			signs >> 4 * i, iq3_s_table, out->q + (size_t)4 * i);
}

/* d, the low bytes of 32 indices, then a word for each run: the indices' upper three bits, the
 * scale, and the sign of the shift. */
void kernels_read_iq1_s(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)(r / RUNS_256) * 50;
	uint32_t s = r % RUNS_256, word = load_u16(block + 34 + (size_t)2 * s);

	out->d = odd_scale(float_of_half(load_u16(block)) / 8, word >> 12 & 7);
	set_factors(out, 1, 1);
	for (uint32_t i = 0; i < 4; i++)
		look_up(kernels_grid_iq1_s[block[4 * s + i + 2] | (word >> 3 * i & 7) << 8], 8,
			word >> 15 ? 255 : 0, iq1_table, out->q + (size_t)8 * i);
}

/* The low bytes of 32 indices; for each index a nibble with its upper three bits and the sign of
 * the shift; then four words, each with scales of three bits for 16 weights each and four bits of
 * d. */
void kernels_read_iq1_m(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)(r / RUNS_256) * 56;
	uint32_t s = r % RUNS_256;
	uint32_t scales = (uint32_t)load_u16(block + 48 + s / 2 * 2) >> 6 * (s % 2);

	out->d = float_of_half(iq1_m_scale(load_u32(block + 48), load_u32(block + 52))) / 8;
	set_odd_factors(out, scales & 7, scales >> 3 & 7);
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t nibble = block[32 + 2 * s + i / 2] >> 4 * (i % 2) & 15;

		look_up(kernels_grid_iq1_s[block[4 * s + i] | (nibble & 7) << 8], 8,
			nibble >> 3 ? 255 : 0, iq1_table, out->q + (size_t)8 * i);
	}
}

/* Digit `place` of a byte that is a fraction in base three: 0..2. */
static int third(uint8_t byte, uint32_t place)
{
	static const uint8_t powers[5] = {1, 3, 9, 27, 81};

	return (uint8_t)(byte * powers[place]) * 3 >> 8;
}

/* 32 bytes with five digits each, where a run has the same digit of all bytes; 16 bytes with five,
 * where half a run has; 4 bytes with four; d. */
void kernels_read_tq1_0(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)(r / RUNS_256) * 54;
	uint32_t s = r % RUNS_256;

	out->d = float_of_half(load_u16(block + 52));
	set_factors(out, 1, 1);
	for (uint32_t i = 0; i < 32; i++) {
		uint32_t half = 2 * (s % 5) + i / 16;
		int digit = s < 5      ? third(block[i], s)
			    : half < 5 ? third(block[32 + i % 16], half)
				       : third(block[48 + i % 4], i % 16 / 4);

		out->q[i] = (int8_t)(digit - 1);
	}
}

/* Pairs of bits as in Q2_K, d. */
void kernels_read_tq2_0(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)(r / RUNS_256) * 66;
	uint32_t s = r % RUNS_256;
	const uint8_t *pairs = block + (size_t)32 * (s / 4);

	out->d = float_of_half(load_u16(block + 64));
	set_factors(out, 1, 1);
	for (uint32_t i = 0; i < 32; i++)
		out->q[i] = (int8_t)((pairs[i] >> 2 * (s % 4) & 3) - 1);
}

/* Four scales, then for each 16 weights 8 bytes: low nibbles weights 0..7, high nibbles 8..15. */
void kernels_read_nvfp4(const uint8_t *row, uint32_t r, struct run *out)
{
	const uint8_t *block = row + (size_t)(r / 2) * 36, *scales = block + (size_t)2 * (r % 2);
	const uint8_t *codes = block + 4 + (size_t)16 * (r % 2);

	out->d = nvfp4_scale(scales[0]);
	out->d_last = nvfp4_scale(scales[1]);
	set_factors(out, 1, 1);
	for (uint32_t i = 0; i < 32; i++)
		out->q[i] = fp4_table[codes[i / 16 * 8 + i % 8] >> 4 * (i / 8 % 2) & 15];
}
