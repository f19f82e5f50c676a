/*
 * The grids of GGUF's IQ types: an index in a block stands for eight or four weights at once, as the codes that the entry
 * holds. The idea is a codebook of vectors, here of few magnitudes (Tseng et al., QuIP#, arXiv 2402.04396); which vectors
 * are in it is a fact of the file format (ggml's tables iq2xxs_grid to iq3s_grid; gguf-py has the same). Each is sorted, by the
 * codes of the last weight first.
 */
#pragma once

#include <stdint.h>

/* Byte j: codes of weight j, low nibble, and of weight 4 + j, high nibble; 0..2. */
extern const uint32_t kernels_grid_iq2_xxs[256];
extern const uint32_t kernels_grid_iq2_xs[512];
extern const uint32_t kernels_grid_iq2_s[1024];
extern const uint32_t kernels_grid_iq1_s[2048]; /* and IQ1_M's */
/* Byte j: the code of weight j, 0..7. */
extern const uint32_t kernels_grid_iq3_xxs[256];
extern const uint32_t kernels_grid_iq3_s[512];
