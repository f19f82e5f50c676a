/*
 * The grids of GGUF's IQ types. An index in a block selects an entry, which holds the codes of
 * eight or four weights at once. The idea is a codebook of vectors, here of few magnitudes (Tseng
 * et al., QuIP#, arXiv 2402.04396). The file format fixes the vectors (ggml's tables iq2xxs_grid to
 * iq3s_grid; gguf-py has the same). Each grid is sorted by the codes, those of the last weight
 * first.
 */
#pragma once

#include <stdint.h>

/* Begins the definition of a grid. A GPU's kernels define it for their own memory. */
#ifndef GRID
#define GRID(name, n) const uint32_t name[n]
#endif

/* Byte j holds the code of weight j in its low nibble and that of weight 4 + j in its high nibble;
 * codes 0..2. */
extern const uint32_t kernels_grid_iq2_xxs[256];
extern const uint32_t kernels_grid_iq2_xs[512];
extern const uint32_t kernels_grid_iq2_s[1024];
extern const uint32_t kernels_grid_iq1_s[2048]; /* also for IQ1_M */
/* Byte j is the code of weight j, 0..7. */
extern const uint32_t kernels_grid_iq3_xxs[256];
extern const uint32_t kernels_grid_iq3_s[512];
