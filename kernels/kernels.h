/*
 * The definition of every result to the bit, and the choice among the tables of functions that give it (cpu/simd.h).
 *
 * Batch invariance: the value of an output element is computed in the order written here whatever the batch
 * size, the place in the batch, the thread count or the instruction set. Scalar, AVX2 and AVX-512 agree to the
 * bit because each does exactly these float32 operations; integer sums are exact in any order.
 * fma(a, b, c) is one rounding everywhere; a*b + c written apart is two. Nothing here calls libm.
 *
 * LANES: a float32 sum over k = 0..n-1 keeps 16 partial sums, lane[k % 16], each filled in ascending k by
 * lane = fma(a_k, b_k, lane), starting from +0; then lanes fold: 16 -> 8 (lane[i] + lane[i + 8]), -> 4 (i, i + 4),
 * -> 2 (i, i + 2), -> 1. n needs not be a multiple of 16 (missing terms are not added at all).
 *
 * NORM SUM: a float32 sum over k = 0..n-1 keeps 256 partial sums, partial[k % 256], each filled in ascending k by
 * partial = fma(a_k, b_k, partial), starting from +0. Seen as 16 groups of 16, neighbouring groups are added, element by
 * element: 16 -> 8 (group 2j + group 2j + 1), -> 4, -> 2, -> 1 in the same way; the last 16 fold like LANES.
 *
 * EXP SUM: the float64 sum of exp(z_i - z_max) over a vocabulary. Each SAMPLE_CHUNK of 64 neighbours gives its float32 LANES
 * sum; chunk c is added to partial[c % 64], a float64 that starts from +0, in ascending c; then partials fold:
 * 64 -> 32 (partial[i] + partial[i + 32]), -> 16, ..., -> 1.
 *
 * BLOCKS: a product of a quantised weight row with an 8-bit activation row is summed in segments of 1024 columns, the last
 * one shorter where need be. A segment is one chain over runs of 32 weights in ascending order, starting from +0; the first
 * segment's sum, then + the second's, + the third's and so on is the product. A run has integers q, float32 scales d and (some types) m, and integer factors
 * c, e of its first and last 16 weights (c_0, c_1; 1 where the table has none). For each run
 *   acc = fma(d * d_x, (float)isum, acc)             isum = c_0 * sum q q_x (first 16) + c_1 * sum q q_x (last 16)
 *   acc = fma(m, d_x * (float)esum, acc)             types with m: esum = e_0 * sum_x (first 16) + e_1 * sum_x (last 16)
 * where isum and esum are exact and below 2^24, and every other operation rounds once:
 *   type             q                 d                    m               c, e
 *   Q8_0             int8              d
 *   Q4_0, Q5_0       q - 8, q - 16     d
 *   Q4_1, Q5_1       0..15, 0..31      d                    m
 *   IQ4_NL           table             d
 *   MXFP4            2 * FP4 value     2^(exponent - 128)
 *   IQ4_XS           table             d * (scale - 32)
 *   Q4_K, Q5_K       0..15, 0..31      d * scale            -(dmin * min)
 *   Q2_K             0..3              d                    -dmin           c = scale, e = min
 *   Q3_K             -4..3             d                                    c = scale - 32
 *   Q6_K             -32..31           d                                    c = scale
 *   IQ1_S            8 g + s           d / 8 * (2 scale + 1)
 *   IQ1_M            8 g + s           d / 8                                c = 2 scale + 1
 *   IQ2_XXS          s g               d / 8 * (2 scale + 1)
 *   IQ2_XS, IQ2_S    s g               d / 8                                c = 2 scale + 1
 *   IQ3_XXS          s g               d / 4 * (2 scale + 1)
 *   IQ3_S            s g               d * (2 scale + 1)
 *   TQ1_0, TQ2_0     -1..1, -1..2      d
 *   NVFP4            2 * FP4 value     scale / 2, of 16 weights
 * g is the number that the weight's index finds in a grid (kernels/cpu/grids.h): -1, 0 or 1 in IQ1; 8, 25 or 43 in IQ2; 4 to
 * 62 in IQ3_XXS; odd, 1 to 15, in IQ3_S. s is the weight's sign, 1 or -1; in IQ1 it is the sign of the shift, an eighth, that
 * the file gives a run or eight weights. IQ2 has the largest isum of these types: 31 * 43 * 127 * 32 = 5,417,312. NVFP4 has a
 * scale for each 16 weights, an unsigned E4M3 number; its top bit is not read, and 0x7f, a NaN, counts as 0, as in ggml. So a
 * run of NVFP4 adds two links to the chain, one for each half:
 *   acc = fma(d_0 * d_x, (float)sum q q_x (first 16), acc), then acc = fma(d_1 * d_x, (float)sum q q_x (last 16), acc)
 * A weight's float32 value is (d * c) * q + m * e: the products are exact, the sum rounds once.
 * A row in a lane or a row at a time: same value. So layouts (GGUF rows, rows interleaved) may change freely.
 *
 * Activations are quantised per row in blocks of 32: amax = max |x|, d = amax / 127, q = round-to-nearest-even of
 * x * (127 / amax) (both divisions and the product in float32). amax < 2^-110 gives d = 0, q = 0 (127 / amax must
 * stay finite). A block that holds an infinity or a NaN has q = 0 and d = inf, or NaN if there is a NaN, so that its
 * products are NaN. A row's result depends on that row only.
 *
 * float16 and bfloat16 are widened exactly and rounded to nearest even, subnormals included. Where a result is NaN it
 * is NaN in every backend, but its sign and payload are open. All of this needs the default rounding mode and
 * subnormals switched on (neither FTZ nor DAZ).
 *
 * Instructions that are left out: AVX-512 BF16's vdpbf16ps adds two products to a sum at once, takes subnormals for
 * zero and rounds in its own way, whatever the mode; no fma gives its bits, so that other backends, which have
 * nothing like it, could not agree with it. VBMI permutes bytes across a whole register: weights lie so that a row's
 * stay in its lane, and tables of weights have 16 entries, for which AVX-512 BW's vpshufb is enough. Grids have up to 2048,
 * in memory.
 */
#pragma once

#include "shared/base/error.h"

/* Of the results that are laid down here: raised when any of their bits becomes another, so that an answer which began with
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
