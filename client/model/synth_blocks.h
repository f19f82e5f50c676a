/*
 * Random weights drawn directly as the blocks of a type (nothing is quantised), at memory speed: the integers are random
 * bits, and the scales are such that the weights have zero mean and the standard deviation asked for. client/model/synth.c
 * says what for.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* xoshiro256++ (Blackman, Vigna 2019), seeded from a tensor's name, so that its bytes depend on (seed, name, type) only. */
struct synth_random {
	uint64_t s[4];
};
void synth_random_seed(struct synth_random *r, uint64_t seed, const char *name, uint32_t type);
uint64_t synth_random_next(struct synth_random *r);
/* About normal, of deviation 1: a sum of four uniform numbers, within 3.5. */
float synth_random_normal(struct synth_random *r);

struct synth_type {
	const char *name;
	uint32_t type; /* GGUF type id */
	uint32_t block, bytes; /* weights, bytes */
};
/* NULL: not a type that can be drawn. */
const struct synth_type *synth_type_find(uint32_t type);
/* Whether synth_blocks_anchor can be called for it: not where equal weights are none that its grid has. */
bool synth_type_has_anchor(const struct synth_type *type);

struct synth_blocks {
	const struct synth_type *type;
	uint16_t scale[256]; /* float16 scales, of NVFP4 E4M3 ones, drawn by a random byte */
	uint16_t minimum[256]; /* what goes with scale[i], in types that have one */
	float std;
	uint8_t exponent, exponent_share; /* MXFP4 */
	/* Mean of what synth_blocks_anchor writes. */
	float anchor;
};

void synth_blocks_init(struct synth_blocks *b, const struct synth_type *type, float std);
/* n blocks to out. */
void synth_blocks_draw(
	const struct synth_blocks *b, struct synth_random *r, unsigned char *out, size_t n);
/* Makes the first 32 weights of a block that was drawn one and the same positive value, about 1.5 deviations or more
 * (of the first 32 blocks of a type without blocks). */
void synth_blocks_anchor(const struct synth_blocks *b, unsigned char *block);
