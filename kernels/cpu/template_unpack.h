/*
 * Unpacks a file's blocks to runs, TILE_ROWS rows at once, one per lane, for matrices in the file's
 * layout. Written once for all lanes_*.h, and included after them. blocks.c reads the same layouts
 * one weight at a time, and says where each bit lies.
 */
#pragma once

#include "kernels/cpu/template_scales.h"

/* Unpacks runs 0..n-1 from p on; types in blocks of 256 have n = 8. Sets the fields that their kind
 * of product reads. */
typedef void unpack_function(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out);

/* The same for a group in TILES, for TILE_ROWS lanes from `lane` on. */
typedef void unpack_tiles_function(const uint8_t *p, uint32_t lane, uint32_t n, struct group *out);

struct unpacker {
	unpack_function *unpack;
	unpack_tiles_function *tiles; /* NULL: template_tiles.h multiplies tiles of the type */
	uint32_t group_bytes; /* of eight runs */
	int16_t offset; /* of KIND_OFFSET */
};

/* 16 bytes a row: low nibbles weights 0..15, high nibbles 16..31. */
ALWAYS_INLINE void load_nibbles(const uint8_t *p, size_t row_bytes, ilanes w[8])
{
	ilanes t[4];

	load_16(p, row_bytes, t);
#pragma GCC unroll 4
	for (uint32_t k = 0; k < 4; k++) {
		w[k] = low_nibbles(t[k]);
		w[4 + k] = high_nibbles(t[k]);
	}
}

static void unpack_q8_0(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	for (uint32_t r = 0; r < n; r++, p += 34) {
		out->run[r].d = f_of_half(load_dwords(p, row_bytes));
		load_32(p + 2, row_bytes, out->run[r].w);
#pragma GCC unroll 8
		for (uint32_t k = 0; k < 8; k++)
			out->run[r].w[k] = i_xor(out->run[r].w[k], i_set1_8(IQ4_BIAS));
	}
}

static void unpack_q4_0(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	for (uint32_t r = 0; r < n; r++, p += 18) {
		out->run[r].d = f_of_half(load_dwords(p, row_bytes));
		load_nibbles(p + 2, row_bytes, out->run[r].w);
		raise_all(8, out->run[r].w);
	}
}

static void unpack_q4_1(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	for (uint32_t r = 0; r < n; r++, p += 20) {
		ilanes scales = load_dwords(p, row_bytes);

		out->run[r].d = f_of_half(scales);
		out->run[r].m = f_of_half(i_right(scales, 16));
		load_nibbles(p + 4, row_bytes, out->run[r].w);
	}
}

static void unpack_q5_0(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	for (uint32_t r = 0; r < n; r++, p += 22) {
		out->run[r].d = f_of_half(load_dwords(p, row_bytes));
		load_nibbles(p + 6, row_bytes, out->run[r].w);
		add_one_bits(load_dwords(p + 2, row_bytes), 16, out->run[r].w);
		raise_all(16, out->run[r].w);
	}
}

static void unpack_q5_1(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	for (uint32_t r = 0; r < n; r++, p += 24) {
		ilanes scales = load_dwords(p, row_bytes);

		out->run[r].d = f_of_half(scales);
		out->run[r].m = f_of_half(i_right(scales, 16));
		load_nibbles(p + 8, row_bytes, out->run[r].w);
		add_one_bits(load_dwords(p + 4, row_bytes), 16, out->run[r].w);
	}
}

static void unpack_mxfp4(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	for (uint32_t r = 0; r < n; r++, p += 17) {
		out->run[r].d = mxfp4_scales(byte_of(load_dwords(p, row_bytes), 0));
		load_nibbles(p + 1, row_bytes, out->run[r].w);
		look_up_all(mxfp4_raised, out->run[r].w);
	}
}

static void unpack_iq4_nl(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	for (uint32_t r = 0; r < n; r++, p += 18) {
		out->run[r].d = f_of_half(load_dwords(p, row_bytes));
		load_nibbles(p + 2, row_bytes, out->run[r].w);
		look_up_all(iq4_biased, out->run[r].w);
	}
}

static void unpack_iq4_xs(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	ilanes head = load_dwords(p, row_bytes);

	scales_iq4_xs(f_of_half(head), i_right(head, 16), load_dwords(p + 4, row_bytes), out);
	for (uint32_t r = 0; r < n; r++) {
		load_nibbles(p + 8 + (size_t)16 * r, row_bytes, out->run[r].w);
		look_up_all(iq4_biased, out->run[r].w);
	}
}

ALWAYS_INLINE void unpack_scales_k(const uint8_t *p, size_t row_bytes, struct group *out)
{
	ilanes head[4];

	load_16(p, row_bytes, head);
	scales_k(head, out);
}

static void unpack_q4_k(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	(void)n;
	unpack_scales_k(p, row_bytes, out);
	for (uint32_t r = 0; r < GROUP_RUNS; r += 2) {
		ilanes t[8];

		load_32(p + 16 + (size_t)16 * r, row_bytes, t);
#pragma GCC unroll 8
		for (uint32_t k = 0; k < 8; k++) {
			out->run[r].w[k] = low_nibbles(t[k]);
			out->run[r + 1].w[k] = high_nibbles(t[k]);
		}
	}
}

static void unpack_q5_k(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	ilanes high[8];

	(void)n;
	unpack_scales_k(p, row_bytes, out);
	load_32(p + 16, row_bytes, high);
#pragma GCC unroll 4
	for (uint32_t r = 0; r < GROUP_RUNS; r += 2) {
		ilanes t[8];

		load_32(p + 48 + (size_t)16 * r, row_bytes, t);
#pragma GCC unroll 8
		for (uint32_t k = 0; k < 8; k++) {
			out->run[r].w[k] = i_or(low_nibbles(t[k]), move_bits(high[k], 1, r, 4));
			out->run[r + 1].w[k] =
				i_or(high_nibbles(t[k]), move_bits(high[k], 1, r + 1, 4));
		}
	}
}

ALWAYS_INLINE void unpack_scales_q6_k(const uint8_t *p, size_t row_bytes, struct group *out)
{
	ilanes scales[4];
	flanes d;

	load_16(p + 192, row_bytes, scales);
	d = f_of_half(i_right(load_dwords(p + 206, row_bytes), 16));
#pragma GCC unroll 8
	for (uint32_t r = 0; r < GROUP_RUNS; r++) {
		out->run[r].d = d;
		factors_q6_k(scales, r, &out->run[r]);
	}
}

static void unpack_q6_k(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	(void)n;
	unpack_scales_q6_k(p, row_bytes, out);
	for (uint32_t half = 0; half < 2; half++) {
		ilanes a[8], b[8], high[8];
		struct lanes_run *run = out->run + (size_t)4 * half;

		load_32(p + (size_t)64 * half, row_bytes, a);
		load_32(p + (size_t)64 * half + 32, row_bytes, b);
		load_32(p + 128 + (size_t)32 * half, row_bytes, high);
#pragma GCC unroll 8
		for (uint32_t k = 0; k < 8; k++) {
			run[0].w[k] = i_or(low_nibbles(a[k]), move_bits(high[k], 3, 0, 4));
			run[1].w[k] = i_or(low_nibbles(b[k]), move_bits(high[k], 3, 2, 4));
			run[2].w[k] = i_or(high_nibbles(a[k]), move_bits(high[k], 3, 4, 4));
			run[3].w[k] = i_or(high_nibbles(b[k]), move_bits(high[k], 3, 6, 4));
		}
	}
}

static void unpack_q2_k(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	ilanes ds = load_dwords(p + 80, row_bytes), scales[4];
	flanes d = f_of_half(ds), m = f_negate(f_of_half(i_right(ds, 16)));

	(void)n;
	load_16(p, row_bytes, scales);
#pragma GCC unroll 8
	for (uint32_t r = 0; r < GROUP_RUNS; r++) {
		out->run[r].d = d;
		out->run[r].m = m;
		factors_q2_k(scales, r, &out->run[r]);
	}
	for (uint32_t half = 0; half < 2; half++) {
		ilanes t[8];

		load_32(p + 16 + (size_t)32 * half, row_bytes, t);
#pragma GCC unroll 4
		for (uint32_t part = 0; part < 4; part++)
#pragma GCC unroll 8
			for (uint32_t k = 0; k < 8; k++)
				out->run[4 * half + part].w[k] = move_bits(t[k], 3, 2 * part, 0);
	}
}

ALWAYS_INLINE void unpack_scales_q3_k(const uint8_t *p, size_t row_bytes, struct group *out)
{
	ilanes t[4], packed[3], scales[4];
	flanes d;

	/* The block ends 14 bytes after the scales begin, so the load begins 2 bytes before them.
	 */
	load_16(p + 94, row_bytes, t);
#pragma GCC unroll 3
	for (uint32_t i = 0; i < 3; i++)
		packed[i] = i_or(i_right(t[i], 16), i_left(t[i + 1], 16));
	scales_q3_k(packed, scales);
	d = f_of_half(i_right(t[3], 16));
#pragma GCC unroll 8
	for (uint32_t r = 0; r < GROUP_RUNS; r++) {
		out->run[r].d = d;
		factors_q3_k(scales, r, &out->run[r]);
	}
}

static void unpack_q3_k(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	ilanes high[8];

	(void)n;
	unpack_scales_q3_k(p, row_bytes, out);
	load_32(p, row_bytes, high);
#pragma GCC unroll 2
	for (uint32_t half = 0; half < 2; half++) {
		ilanes t[8];

		load_32(p + 32 + (size_t)32 * half, row_bytes, t);
#pragma GCC unroll 4
		for (uint32_t part = 0; part < 4; part++)
#pragma GCC unroll 8
			for (uint32_t k = 0; k < 8; k++)
				out->run[4 * half + part].w[k] =
					i_or(move_bits(t[k], 3, 2 * part, 0),
						move_bits(high[k], 1, 4 * half + part, 2));
	}
}
