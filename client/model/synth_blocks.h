/*
 * Random weights, drawn directly as blocks of a type (nothing is quantised), at the speed of
 * memory. The integers are random bits, and the scales are such that the weights have zero mean and
 * the wanted standard deviation. client/model/synth.c explains their purpose.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* xoshiro256++ (Blackman, Vigna 2019), seeded with a tensor's name, so that its bytes depend only
 * on (seed, name, type). */
struct synth_random {
	uint64_t s[4];
};
void synth_random_seed(struct synth_random *r, uint64_t seed, const char *name, uint32_t type);
uint64_t synth_random_next(struct synth_random *r);
/* Approximately normal, with standard deviation 1: a sum of four uniform numbers, within 3.5. */
float synth_random_normal(struct synth_random *r);

struct synth_type {
	const char *name;
	uint32_t type; /* GGUF type id */
	uint32_t block, bytes; /* weights, bytes */
};
/* NULL: the type cannot be drawn. */
const struct synth_type *synth_type_find(uint32_t type);
/* True when synth_blocks_anchor works for the type; false if its grid has no equal weights. */
bool synth_type_has_anchor(const struct synth_type *type);

struct synth_blocks {
	const struct synth_type *type;
	/* float16 scales (E4M3 for NVFP4), of which a random byte chooses one */
	uint16_t scale[256];
	uint16_t minimum[256]; /* the minimum that belongs to scale[i], in types that have one */
	float std;
	uint8_t exponent, exponent_share; /* for MXFP4 */
	/* Mean of the weights that synth_blocks_anchor writes. */
	float anchor;
};

void synth_blocks_init(struct synth_blocks *b, const struct synth_type *type, float std);
/* Draws n blocks into out. */
void synth_blocks_draw(
	const struct synth_blocks *b, struct synth_random *r, unsigned char *out, size_t n);
/* Gives the first 32 weights of a block that was drawn one and the same positive value, of at least
 * about 1.5 deviations (in a type without blocks: the first 32 weights). */
void synth_blocks_anchor(const struct synth_blocks *b, unsigned char *block);
