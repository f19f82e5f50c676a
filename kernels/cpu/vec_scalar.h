/* Sixteen float32 lanes in plain C: the reference for the other instruction sets, whose files have
 * the same functions. */
#pragma once

#include "kernels/cpu/math.h"
#include "kernels/tensor.h"

struct v16 {
	float f[16];
};

#define V16_EACH for (uint32_t lane = 0; lane < 16; lane++)

static inline struct v16 v16_set1(float a)
{
	struct v16 r;

	V16_EACH r.f[lane] = a;
	return r;
}

static inline struct v16 v16_load(const float *p)
{
	struct v16 r;

	memcpy(&r, p, sizeof(r));
	return r;
}

/* The first n < 16 lanes; the others are 0. Nothing beyond them is read. */
static inline struct v16 v16_load_n(const float *p, uint32_t n)
{
	struct v16 r = v16_set1(0);

	memcpy(&r, p, n * sizeof(float));
	return r;
}

static inline struct v16 v16_load_f16(const uint16_t *p)
{
	struct v16 r;

	V16_EACH r.f[lane] = float_of_half(p[lane]);
	return r;
}

static inline struct v16 v16_load_f16_n(const uint16_t *p, uint32_t n)
{
	struct v16 r = v16_set1(0);

	for (uint32_t lane = 0; lane < n; lane++)
		r.f[lane] = float_of_half(p[lane]);
	return r;
}

static inline struct v16 v16_load_bf16(const uint16_t *p)
{
	struct v16 r;

	V16_EACH r.f[lane] = float_of_bfloat(p[lane]);
	return r;
}

static inline struct v16 v16_load_bf16_n(const uint16_t *p, uint32_t n)
{
	struct v16 r = v16_set1(0);

	for (uint32_t lane = 0; lane < n; lane++)
		r.f[lane] = float_of_bfloat(p[lane]);
	return r;
}

static inline void v16_store(float *p, struct v16 a)
{
	memcpy(p, &a, sizeof(a));
}

static inline void v16_store_n(float *p, struct v16 a, uint32_t n)
{
	memcpy(p, &a, n * sizeof(float));
}

static inline void v16_store_f16(uint16_t *p, struct v16 a)
{
	V16_EACH p[lane] = half_of_float(a.f[lane]);
}

static inline void v16_store_f16_n(uint16_t *p, struct v16 a, uint32_t n)
{
	for (uint32_t lane = 0; lane < n; lane++)
		p[lane] = half_of_float(a.f[lane]);
}

static inline struct v16 v16_add(struct v16 a, struct v16 b)
{
	V16_EACH a.f[lane] += b.f[lane];
	return a;
}

static inline struct v16 v16_sub(struct v16 a, struct v16 b)
{
	V16_EACH a.f[lane] -= b.f[lane];
	return a;
}

static inline struct v16 v16_mul(struct v16 a, struct v16 b)
{
	V16_EACH a.f[lane] *= b.f[lane];
	return a;
}

static inline struct v16 v16_div(struct v16 a, struct v16 b)
{
	V16_EACH a.f[lane] /= b.f[lane];
	return a;
}

static inline struct v16 v16_max(struct v16 a, struct v16 b)
{
	V16_EACH a.f[lane] = a.f[lane] > b.f[lane] ? a.f[lane] : b.f[lane];
	return a;
}

/* Returns b when either is NaN, like v16_max. */
static inline struct v16 v16_min(struct v16 a, struct v16 b)
{
	V16_EACH a.f[lane] = a.f[lane] < b.f[lane] ? a.f[lane] : b.f[lane];
	return a;
}

static inline struct v16 v16_fma(struct v16 a, struct v16 b, struct v16 c)
{
	V16_EACH c.f[lane] = fma32(a.f[lane], b.f[lane], c.f[lane]);
	return c;
}

/* fma on the first n lanes; the others stay c. */
static inline struct v16 v16_fma_n(struct v16 a, struct v16 b, struct v16 c, uint32_t n)
{
	for (uint32_t lane = 0; lane < n; lane++)
		c.f[lane] = fma32(a.f[lane], b.f[lane], c.f[lane]);
	return c;
}

/* The first n lanes of a, the others of b. */
static inline struct v16 v16_blend_n(struct v16 a, struct v16 b, uint32_t n)
{
	memcpy(&b, &a, n * sizeof(float));
	return b;
}

/* The fold of LANES: 16 -> 8 -> 4 -> 2 -> 1. */
static inline float v16_sum(struct v16 a)
{
	for (uint32_t half = 8; half; half /= 2)
		for (uint32_t lane = 0; lane < half; lane++)
			a.f[lane] += a.f[lane + half];
	return a.f[0];
}

/* Sums that a kernel keeps in registers at once. */
#define V16_TILE 4

/* Lane j of a[i] becomes lane i of a[j]. Bits are moved, whatever they mean. */
static inline void v16_transpose(struct v16 *a)
{
	for (uint32_t i = 0; i < 16; i++)
		for (uint32_t j = 0; j < i; j++) {
			float f = a[i].f[j];

			a[i].f[j] = a[j].f[i];
			a[j].f[i] = f;
		}
}

/* Splits the lanes of a and then of b: those whose number has the bit `half` (8, 4, 2 or 1) go to
 * *with, the others are returned. */
static inline struct v16 v16_halves(
	struct v16 a, struct v16 b, const uint32_t half, struct v16 *with)
{
	struct v16 without = a;

	for (uint32_t lane = 0, i = 0; lane < 32; lane++) {
		float f = lane < 16 ? a.f[lane] : b.f[lane - 16];

		if (lane & half)
			with->f[i++] = f;
		else
			without.f[lane - i] = f;
	}
	return without;
}

/* Lane i becomes lane lanes[i] of a, or lane i of b where lanes[i] is 16. */
static inline struct v16 v16_pick(struct v16 a, const uint32_t *lanes, struct v16 b)
{
	for (uint32_t lane = 0; lane < 16; lane++)
		if (lanes[lane] < 16)
			b.f[lane] = a.f[lanes[lane]];
	return b;
}

/* Each lane holds two float16: the first, which lies lower in memory, and the second. */
static inline struct v16 v16_first_half(struct v16 a)
{
	V16_EACH a.f[lane] = float_of_half((uint16_t)bits_of_float(a.f[lane]));
	return a;
}

static inline struct v16 v16_second_half(struct v16 a)
{
	V16_EACH a.f[lane] = float_of_half((uint16_t)(bits_of_float(a.f[lane]) >> 16));
	return a;
}

/* Sixteen 32-bit integers, and sixteen groups of four 8-bit integers. */
struct i16 {
	int32_t i[16];
};

struct i8x64 {
	int8_t i[64];
};

static inline struct i8x64 i8x64_load(const uint8_t *p)
{
	struct i8x64 r;

	memcpy(&r, p, sizeof(r));
	return r;
}

/* The value that the sum of products with a block of q begins with, so that it is exact at its end.
 */
static inline struct i16 i16_dot_begin(const struct q8_block *q)
{
	(void)q;
	return (struct i16){{0}};
}

/* Lane i: a + the products of the lane's group of four and q[0..3]. */
static inline struct i16 i16_dot(struct i16 a, struct i8x64 k, const int8_t *q)
{
	V16_EACH for (uint32_t j = 0; j < 4; j++) a.i[lane] += k.i[4 * lane + j] * q[j];
	return a;
}

static inline struct v16 v16_of_i16(struct i16 a)
{
	struct v16 r;

	V16_EACH r.f[lane] = (float)a.i[lane];
	return r;
}

static inline struct i16 i16_zero(void)
{
	return (struct i16){{0}};
}

/* Sixteen pairs of 16-bit integers. */
struct i16x32 {
	int16_t i[32];
};

static inline struct i16x32 i16x32_load(const uint8_t *p)
{
	struct i16x32 r;

	memcpy(&r, p, sizeof(r));
	return r;
}

/* Widens 32 8-bit integers. */
static inline struct i16x32 i16x32_load_i8(const uint8_t *p)
{
	struct i16x32 r;

	for (uint32_t i = 0; i < 32; i++)
		r.i[i] = (int8_t)p[i];
	return r;
}

/* Lane i: a + the products of the lane's pair and q[0..1], modulo 2^32, because an unattended cell
 * may hold anything. */
static inline struct i16 i16_dot_pairs(struct i16 a, struct i16x32 k, const int16_t *q)
{
	V16_EACH for (uint32_t j = 0; j < 2; j++) a.i[lane] =
		(int32_t)((uint32_t)a.i[lane] + (uint32_t)(k.i[2 * lane + j] * q[j]));
	return a;
}

/* Rounded to nearest even; |a| <= 32767. */
static inline void v16_store_i16(int16_t *p, struct v16 a)
{
	const float shift = 0x1.8p23f;

	V16_EACH p[lane] = (int16_t)((a.f[lane] + shift) - shift);
}

static inline float v16_greatest(struct v16 a)
{
	for (uint32_t half = 8; half; half /= 2)
		for (uint32_t lane = 0; lane < half; lane++)
			a.f[lane] = a.f[lane] > a.f[lane + half] ? a.f[lane] : a.f[lane + half];
	return a.f[0];
}

static inline struct v16 v16_exp(struct v16 x)
{
	V16_EACH x.f[lane] = exp32(x.f[lane]);
	return x;
}

/* Eight 64-bit lanes. */
struct w8 {
	uint64_t u[8];
};

#define W8_EACH for (uint32_t lane = 0; lane < 8; lane++)

static inline struct w8 w8_set1(uint64_t a)
{
	struct w8 r;

	W8_EACH r.u[lane] = a;
	return r;
}

/* Lane i becomes first + i, in its low half. */
static inline struct w8 w8_count(uint32_t first)
{
	struct w8 r;

	W8_EACH r.u[lane] = (uint64_t)first + lane;
	return r;
}

/* The products of the low halves. */
static inline struct w8 w8_mul(struct w8 a, struct w8 b)
{
	W8_EACH a.u[lane] = (uint64_t)(uint32_t)a.u[lane] * (uint32_t)b.u[lane];
	return a;
}

/* Moves the high half to the place of the low half. */
static inline struct w8 w8_high(struct w8 a)
{
	W8_EACH a.u[lane] >>= 32;
	return a;
}

static inline struct w8 w8_xor3(struct w8 a, struct w8 b, struct w8 c)
{
	W8_EACH a.u[lane] ^= b.u[lane] ^ c.u[lane];
	return a;
}

/* The top 24 bits of each low half. */
static inline void w8_store_top24(uint32_t *out, struct w8 a)
{
	W8_EACH out[lane] = (uint32_t)a.u[lane] >> 8;
}
