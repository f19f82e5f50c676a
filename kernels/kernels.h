/*
 * The choice among the CPU's tables of functions (cpu/simd.h), the version of the arithmetic, and
 * the mathematical functions that are computed without libm. kernels/numerics.md defines every
 * result to the bit. All functions are pure; any thread.
 */
#pragma once

#include "shared/base/error.h"

/* Version of the results that numerics.md defines. It is raised whenever a bit of any of them
 * changes, because an answer that began with one arithmetic must not be continued with another. */
#define KERNELS_ARITHMETIC 3

struct kernels;

/* The tables of functions, best first, ended by NULL. The last, "reference", is selected only by
 * name. It is scalar, and multiplies quantised weights as LANES sums of their float32 values with
 * x->f32, so its bits differ from the bits of the others. */
extern const struct kernels *const kernels_all[];
/* The names that a setting or an option may pass to kernels_select, ended by NULL: "auto" and the
 * tables that give the same bits. "reference" gives other bits and is not among them;
 * outrider-model offers it as --activations f32. */
extern const char *const kernels_names[];

/* Selects a table. name "auto" or NULL: the best that this CPU supports. NULL with the reason in
 * *err when the name is unknown or the CPU does not support it. */
const struct kernels *kernels_select(const char *name, struct error *err);
/* A sentence for the log that says why vector instructions are not used. NULL when they are, and
 * for "reference", which nobody chooses for speed. name: as passed to kernels_select. */
const char *kernels_notice(const struct kernels *kernels, const char *name);

/* exp and log for float32, the same bits with every table (kernels/cpu/math.h lists the operations
 * of exp and names its vector forms). exp is within 1 ulp; below -87.3f it is 0 and above 88.72283f
 * inf, so no result is subnormal. log is within 0.51 ulp; of 0 it is -inf, of a negative number
 * NaN. */
float kernels_exp(float x);
float kernels_log(float x);
/* sin and cos of an angle in radians, in double, for rope tables. Within 4e-16 relative for |angle|
 * <= 2^20, less exact beyond, NaN from 2^30. */
void kernels_sincos(double angle, double *sine, double *cosine);
/* base^exponent, for a base > 0 that is a normal number. Within 4e-16 relative. */
double kernels_pow(double base, double exponent);
