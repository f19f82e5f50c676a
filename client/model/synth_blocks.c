#include "client/model/synth_blocks.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/grids.h"

#include <math.h>
#include <stdbool.h>

enum {
	F32 = 0,
	F16 = 1,
	Q4_0 = 2,
	Q4_1 = 3,
	Q5_0 = 6,
	Q5_1 = 7,
	Q8_0 = 8,
	Q2_K = 10,
	Q3_K = 11,
	Q4_K = 12,
	Q5_K = 13,
	Q6_K = 14,
	IQ2_XXS = 16,
	IQ2_XS = 17,
	IQ3_XXS = 18,
	IQ1_S = 19,
	IQ4_NL = 20,
	IQ3_S = 21,
	IQ2_S = 22,
	IQ4_XS = 23,
	IQ1_M = 29,
	BF16 = 30,
	TQ1_0 = 34,
	TQ2_0 = 35,
	MXFP4 = 39,
	NVFP4 = 40,
};

static const struct synth_type types[] = {
	{"f32", F32, 1, 4},
	{"f16", F16, 1, 2},
	{"bf16", BF16, 1, 2},
	{"q8_0", Q8_0, 32, 34},
	{"q4_0", Q4_0, 32, 18},
	{"q4_1", Q4_1, 32, 20},
	{"q5_0", Q5_0, 32, 22},
	{"q5_1", Q5_1, 32, 24},
	{"q2_k", Q2_K, 256, 84},
	{"q3_k", Q3_K, 256, 110},
	{"q4_k", Q4_K, 256, 144},
	{"q5_k", Q5_K, 256, 176},
	{"q6_k", Q6_K, 256, 210},
	{"iq4_nl", IQ4_NL, 32, 18},
	{"iq4_xs", IQ4_XS, 256, 136},
	{"mxfp4", MXFP4, 32, 17},
	{"iq1_s", IQ1_S, 256, 50},
	{"iq1_m", IQ1_M, 256, 56},
	{"iq2_xxs", IQ2_XXS, 256, 66},
	{"iq2_xs", IQ2_XS, 256, 74},
	{"iq2_s", IQ2_S, 256, 82},
	{"iq3_xxs", IQ3_XXS, 256, 98},
	{"iq3_s", IQ3_S, 256, 110},
	{"tq1_0", TQ1_0, 256, 54},
	{"tq2_0", TQ2_0, 256, 66},
	{"nvfp4", NVFP4, 64, 36},
};

static const int8_t iq4_levels[16] = {
	-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t mxfp4_levels[8] = {0, 1, 2, 3, 4, 6, 8, 12};
/* The grids of the IQ types, by code; for IQ1 in eighths. */
static const int8_t iq1_levels[8] = {-8, 0, 8}, iq2_levels[8] = {8, 25, 43};
static const int8_t iq3_xxs_levels[8] = {4, 12, 20, 28, 36, 44, 52, 62};
static const int8_t iq3_s_levels[8] = {1, 3, 5, 7, 9, 11, 13, 15};

const struct synth_type *synth_type_find(uint32_t type)
{
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (types[i].type == type)
			return &types[i];
	return NULL;
}

/* SplitMix64's finisher: four words of state from one. */
static uint64_t mix(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

void synth_random_seed(struct synth_random *r, uint64_t seed, const char *name, uint32_t type)
{
	uint64_t state = 0xcbf29ce484222325u ^ seed;
	for (; *name; name++)
		state = (state ^ (unsigned char)*name) * 0x100000001b3u;
	state += type;
	for (int i = 0; i < 4; i++)
		r->s[i] = mix(&state);
}

static uint64_t rotate(uint64_t x, int k)
{
	return x << k | x >> (64 - k);
}

uint64_t synth_random_next(struct synth_random *r)
{
	uint64_t *s = r->s, out = rotate(s[0] + s[3], 23) + s[0], t = s[1] << 17;
	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = rotate(s[3], 45);
	return out;
}

float synth_random_normal(struct synth_random *r)
{
	uint64_t bits = synth_random_next(r);
	uint32_t sum = (uint32_t)(bits & 0xffff) + (uint32_t)(bits >> 16 & 0xffff) +
		       (uint32_t)(bits >> 32 & 0xffff) + (uint32_t)(bits >> 48);
	/* Four times U(0, 65536): mean 131070, variance 4 * 65536^2 / 12. */
	return ((float)sum - 131070.0f) * (1.7320508f / 65536.0f);
}

/* Root mean square, or with `centred` the standard deviation, of the integers first..last. */
static double spread(int first, int last, bool centred)
{
	double n = last - first + 1, sum = 0, squares = 0;
	for (int q = first; q <= last; q++) {
		sum += q;
		squares += (double)q * q;
	}
	return sqrt(squares / n - (centred ? sum / n * (sum / n) : 0));
}

static double spread_of(const int8_t *levels, int n)
{
	double squares = 0;
	for (int i = 0; i < n; i++)
		squares += levels[i] * levels[i];
	return sqrt(squares / n);
}

/* Root mean square of the numbers in n entries of a grid, of eight or four weights each, times that
 * of 2 * scale + 1 over the scales below `scales`. */
static double spread_of_grid(
	const uint32_t *grid, size_t n, uint32_t weights, const int8_t levels[8], int scales)
{
	double squares = 0, of_scales = 0;
	for (size_t i = 0; i < n; i++)
		for (uint32_t w = 0; w < weights; w++) {
			int8_t level = levels[grid[i] >> (8 * (w % 4) + 4 * (w / 4)) & 7];
			squares += (double)level * level;
		}
	for (int s = 0; s < scales; s++)
		of_scales += (2 * s + 1) * (2 * s + 1);
	return sqrt(squares / (double)n / weights * of_scales / scales);
}

/* Types without an anchor. */
static double deviation_of_coded(uint32_t type)
{
	switch (type) {
	case IQ1_S:
	case IQ1_M: /* with the shift, an eighth */
		return sqrt(pow(spread_of_grid(kernels_grid_iq1_s, 2048, 8, iq1_levels, 8), 2) +
			       pow(spread(0, 7, false) * 2, 2)) /
		       8;
	case IQ2_XXS:
		return spread_of_grid(kernels_grid_iq2_xxs, 256, 8, iq2_levels, 16) / 8;
	case IQ2_XS:
		return spread_of_grid(kernels_grid_iq2_xs, 512, 8, iq2_levels, 16) / 8;
	case IQ2_S:
		return spread_of_grid(kernels_grid_iq2_s, 1024, 8, iq2_levels, 16) / 8;
	case IQ3_XXS:
		return spread_of_grid(kernels_grid_iq3_xxs, 256, 4, iq3_xxs_levels, 16) / 4;
	case IQ3_S:
		return spread_of_grid(kernels_grid_iq3_s, 512, 4, iq3_s_levels, 16);
	case TQ1_0:
		return spread(-1, 1, false);
	case TQ2_0: /* the fourth code is not drawn, and there are twice as many zeros */
		return sqrt(0.5);
	default:
		return 1;
	}
}

/* The properties of a block with scale 1: the weights' deviation, the anchor's value, the minimum
 * per scale, and whether scales may be negative. */
struct form {
	double deviation, anchor, minimum;
	bool positive;
};

static struct form form_of(uint32_t type)
{
	switch (type) {
	case Q4_0:
		return (struct form){spread(-8, 7, false), 7, 0, false};
	case Q4_1:
		return (struct form){spread(0, 15, true), 7.5, -7.5, false};
	case Q5_0:
		return (struct form){spread(-16, 15, false), 15, 0, false};
	case Q5_1:
		return (struct form){spread(0, 31, true), 15.5, -15.5, false};
	case Q8_0:
		return (struct form){spread(-128, 127, false), 110, 0, false};
	case Q2_K: /* sub-scales 8..15, equal to the sub-minimums */
		return (struct form){
			spread(8, 15, false) * spread(0, 3, true), 15 * 1.5, 1.5, false};
	case Q3_K: /* sub-scales -32..31 */
		return (struct form){
			spread(-32, 31, false) * spread(-4, 3, false), 31 * 3, 0, true};
	case Q4_K: /* sub-scales 32..63, equal to the sub-minimums */
		return (struct form){
			spread(32, 63, false) * spread(0, 15, true), 63 * 7.5, 7.5, false};
	case Q5_K:
		return (struct form){
			spread(32, 63, false) * spread(0, 31, true), 63 * 15.5, 15.5, false};
	case Q6_K: /* sub-scales -128..127 */
		return (struct form){
			spread(-128, 127, false) * spread(-32, 31, false), 96 * 31, 0, true};
	case IQ4_NL:
		return (struct form){spread_of(iq4_levels, 16), 113, 0, false};
	case IQ4_XS: /* sub-scales -32..31 */
		return (struct form){
			spread(-32, 31, false) * spread_of(iq4_levels, 16), 31 * 113, 0, true};
	case MXFP4:
		return (struct form){spread_of(mxfp4_levels, 8), 6, 0, true};
	case NVFP4:
		return (struct form){spread_of(mxfp4_levels, 8), 0, 0, true};
	case F32:
	case F16:
	case BF16:
		return (struct form){1, 1.5, 0, true};
	default:
		return (struct form){deviation_of_coded(type), 0, 0, false};
	}
}

bool synth_type_has_anchor(const struct synth_type *type)
{
	return form_of(type->type).anchor > 0;
}

/* The nearest scale of NVFP4 above 0. */
static uint8_t nearest_e4m3(double scale)
{
	uint8_t best = 1;
	for (uint8_t e = 2; e < 127; e++)
		if (fabs((double)nvfp4_scale(e) - scale) < fabs((double)nvfp4_scale(best) - scale))
			best = e;
	return best;
}

void synth_blocks_init(struct synth_blocks *b, const struct synth_type *type, float std)
{
	struct form form = form_of(type->type);
	*b = (struct synth_blocks){.type = type, .std = std};
	/* Scales are spread over 0.75 to 1.25 of their root mean square. */
	double mean = (double)std / form.deviation / sqrt(1 + 0.25 / 12);
	for (int i = 0; i < 256; i++) {
		double scale = mean * (0.75 + 0.5 * (i % 128) / 127.0);
		if (!form.positive && i >= 128)
			scale = -scale;
		b->scale[i] =
			type->type == NVFP4 ? nearest_e4m3(scale) : half_of_float((float)scale);
		b->minimum[i] = half_of_float((float)(scale * form.minimum));
	}
	b->anchor = (float)(mean * form.anchor);
	if (type->type == MXFP4) {
		/* One of the two powers of two around the scale, at random, with the shares that
		 * give the mean square. */
		double target = log2((double)std / form.deviation) + 128, below = floor(target);
		double share = (pow(4, target - below) - 1) / 3;
		b->exponent = (uint8_t)below;
		b->exponent_share = (uint8_t)(share * 255);
		b->anchor = (float)(form.anchor * exp2(below - 128));
	} else if (type->block == 1) {
		b->anchor = std * 1.5f;
	}
}

static void fill(struct synth_random *r, unsigned char *out, size_t bytes)
{
	uint64_t word;
	for (; bytes >= 8; bytes -= 8, out += 8) {
		word = synth_random_next(r);
		memcpy(out, &word, 8);
	}
	word = synth_random_next(r);
	memcpy(out, &word, bytes);
}

static void put(unsigned char *p, uint16_t half)
{
	memcpy(p, &half, sizeof(half));
}

/* Sets the scale, and the minimum in types that have one, by the random byte in its place. */
static void put_scales(
	const struct synth_blocks *b, unsigned char *block, size_t scale, size_t minimum)
{
	unsigned char i = block[scale];
	put(block + scale, b->scale[i]);
	if (minimum)
		put(block + minimum, b->minimum[i]);
}

/* Q4_K, Q5_K: every 6-bit sub-scale gets its highest bit, and the minimums are the same. In bytes
 * 0-3 the low 6 bits are sub-scales 0-3 and the high 2 bits those of sub-scales 4-7; 4-7 the same
 * for minimums; in 8-11 the low nibbles. */
static void put_k_scales(unsigned char *s)
{
	for (int i = 0; i < 4; i++) {
		s[i] |= 0xa0;
		s[i + 4] = s[i];
		s[i + 8] = (unsigned char)((s[i + 8] & 15) * 17);
	}
}

static void finish(const struct synth_blocks *b, unsigned char *block)
{
	switch (b->type->type) {
	case Q4_0:
	case Q5_0:
	case IQ4_NL:
	case IQ4_XS:
	case IQ1_S:
	case IQ2_XXS:
	case IQ2_XS:
	case IQ2_S:
	case IQ3_XXS:
	case IQ3_S:
		put_scales(b, block, 0, 0);
		break;
	case IQ1_M: /* in the upper bits of four words */
		for (int i = 3, half = b->scale[block[55]]; i >= 0; i--)
			block[49 + 2 * i] = (unsigned char)((block[49 + 2 * i] & 15) |
							    (half >> 4 * i & 15) << 4);
		break;
	case TQ1_0:
		put_scales(b, block, 52, 0);
		break;
	case TQ2_0:
		put_scales(b, block, 64, 0);
		for (int i = 0; i < 64; i++)
			block[i] ^= (unsigned char)((block[i] & block[i] >> 1 & 0x55) << 1);
		break;
	case NVFP4:
		for (int i = 0; i < 4; i++)
			block[i] = (unsigned char)b->scale[block[i]];
		break;
	case Q4_1:
	case Q5_1:
		put_scales(b, block, 0, 2);
		break;
	case Q8_0:
		put_scales(b, block, 0, 0);
		for (int i = 2; i < 34; i++)
			block[i] = block[i] == 0x80 ? 0x81 : block[i]; /* files never hold -128 */
		break;
	case Q2_K:
		put_scales(b, block, 80, 82);
		for (int i = 0; i < 16; i++)
			block[i] = (unsigned char)((8 | (block[i] & 7)) * 17);
		break;
	case Q3_K:
		put_scales(b, block, 108, 0);
		break;
	case Q4_K:
	case Q5_K:
		put_scales(b, block, 0, 2);
		put_k_scales(block + 4);
		break;
	case Q6_K:
		put_scales(b, block, 208, 0);
		break;
	case MXFP4:
		block[0] = (unsigned char)(b->exponent + (block[0] < b->exponent_share));
		break;
	}
}

static void draw_plain(
	const struct synth_blocks *b, struct synth_random *r, unsigned char *out, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		float x = synth_random_normal(r) * b->std;
		uint32_t bits = bits_of_float(x);
		if (b->type->type == F32)
			memcpy(out + 4 * i, &x, 4);
		else
			put(out + 2 * i,
				b->type->type == F16 ? half_of_float(x) : (uint16_t)(bits >> 16));
	}
}

void synth_blocks_draw(
	const struct synth_blocks *b, struct synth_random *r, unsigned char *out, size_t n)
{
	if (b->type->block == 1) {
		draw_plain(b, r, out, n);
		return;
	}
	fill(r, out, n * b->type->bytes);
	for (size_t i = 0; i < n; i++)
		finish(b, out + i * b->type->bytes);
}

static void set_bits(unsigned char *p, size_t n, unsigned char bits)
{
	for (size_t i = 0; i < n; i++)
		p[i] |= bits;
}

static void anchor_plain(const struct synth_blocks *b, unsigned char *out)
{
	for (int i = 0; i < 32; i++) {
		if (b->type->type == F32)
			memcpy(out + 4 * i, &b->anchor, 4);
		else
			put(out + 2 * i, b->type->type == F16
						 ? half_of_float(b->anchor)
						 : (uint16_t)(bits_of_float(b->anchor) >> 16));
	}
}

void synth_blocks_anchor(const struct synth_blocks *b, unsigned char *p)
{
	switch (b->type->type) {
	case Q4_0:
	case Q5_0:
	case IQ4_NL:
		p[1] &= 0x7f; /* a positive scale, the highest level */
		set_bits(p + 2, b->type->bytes - 2, 0xff);
		break;
	case Q4_1:
	case Q5_1:
		p[1] &= 0x7f;
		p[3] |= 0x80; /* the minimum is negative */
		set_bits(p + 4, b->type->bytes - 4, 0xff);
		break;
	case Q8_0:
		p[1] &= 0x7f;
		memset(p + 2, 110, 32);
		break;
	case Q2_K: /* weights 0-31: bits 0-1 of qs[0..31], sub-scales 0 and 1 */
		p[81] &= 0x7f;
		p[83] &= 0x7f;
		p[0] = p[1] = 0xff;
		set_bits(p + 16, 32, 3);
		break;
	/* bits 0-1 of qs[0..31], bit 0 of hmask; sub-scales 0 and 1: low nibbles, then bits 4-5 */
	case Q3_K:
		set_bits(p, 32, 1);
		set_bits(p + 32, 32, 3);
		set_bits(p + 96, 2, 15);
		set_bits(p + 104, 2, 3);
		break;
	case Q4_K:
	case Q5_K: /* sub-block 0: low nibbles of the first 32 of qs, bit 0 of qh */
		p[1] &= 0x7f;
		p[3] &= 0x7f;
		p[4] |= 0x3f;
		p[8] |= 0x3f;
		if (b->type->type == Q5_K)
			set_bits(p + 16, 32, 1);
		set_bits(p + (b->type->type == Q5_K ? 48 : 16), 32, 15);
		break;
	case Q6_K: /* low nibbles of ql[0..31], bits 0-1 of qh[0..31], sub-scales 0 and 1 */
		set_bits(p, 32, 15);
		set_bits(p + 128, 32, 3);
		p[192] = p[193] = 96;
		break;
	case IQ4_XS: /* sub-block 0 */
		set_bits(p + 2, 1, 3);
		set_bits(p + 4, 1, 15);
		set_bits(p + 8, 16, 0xff);
		break;
	case MXFP4:
		p[0] = b->exponent;
		memset(p + 1, 0x55, 16);
		break;
	default:
		anchor_plain(b, p);
		break;
	}
}
