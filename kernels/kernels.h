/*
 * The choice among the tables of functions of this CPU (cpu/simd.h), the number of the arithmetic, and the functions that are
 * computed without libm. Every result is defined to the bit in kernels/numerics.md.
 */
#pragma once

#include "shared/base/error.h"

/* Of the results that numerics.md lays down: raised when any of their bits becomes another, so that an answer which began with
 * another one's is not gone on with. */
#define KERNELS_ARITHMETIC 3

struct kernels;

/* The backends, best first, ended by NULL. The last, "reference", is only taken by name: scalar, but matmul of
 * quantised weights is LANES of their float32 values and x->f32, so its bits are not the others'. */
extern const struct kernels *const kernels_all[];
/* What a setting or an option may say to kernels_select, ended by NULL: the best, or one of those that give the same bits.
 * "reference", which gives others, is none of them: outrider-model has it for --activations f32. */
extern const char *const kernels_names[];

/* name "auto" or NULL: the best this CPU supports. NULL and *err when the name is unknown or unsupported. */
const struct kernels *kernels_select(const char *name, struct error *err);
/* A sentence for the log when the vector instructions are not used, and why; NULL when they are, and of "reference", which
 * nobody takes for its speed. name as above. */
const char *kernels_notice(const struct kernels *kernels, const char *name);

/* Our exp and log for float32, the same bits in every backend (kernels/cpu/math.h states the operations of exp and
 * says where its vector forms are). exp is within 1 ulp; of less than -87.3f it is 0, of more than 88.72283f inf, so
 * no result is subnormal. log is within 0.51 ulp, of 0 it is -inf, of less NaN. */
float kernels_exp(float x);
float kernels_log(float x);
/* sin and cos of angle = position * frequency, in double, ours, for rope tables: within 4e-16 relative for
 * |angle| <= 2^20, less exact beyond, NaN from 2^30. */
void kernels_sincos(double angle, double *sine, double *cosine);
/* base > 0 and normal; within 4e-16 relative. */
double kernels_pow(double base, double exponent);
