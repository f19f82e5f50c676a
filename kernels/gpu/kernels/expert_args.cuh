/* What the kernels of experts.cuh get. */
#pragma once

#include "kernels/gpu/kernels/rows.cuh"

static const unsigned EXPERTS_WARPS = 8, EXPERTS_THREADS = 32 * EXPERTS_WARPS, EXPERTS_ROWS = 32;

/* Where an expert's matrices lie, and its pairs. */
struct expert_one {
	const unsigned char *w[3]; /* enum expert_matrix */
	float scale[3];
	const float *bias[2]; /* of gate and of up, or NULL */
	uint32_t first, n; /* pairs[first..] */
	uint32_t at; /* where its rows of hidden values begin */
	bool tiles; /* as far as a matrix allows them */
};

/* For experts_find. */
struct find_args {
	const expert_one *known; /* of the layer */
	const struct expert_use *uses;
	const uint32_t *n_uses;
	expert_one *of; /* out: [n]; behind the chosen ones, experts without pairs */
	uint32_t n;
	uint32_t *n_chosen;
};

enum expert_matrix { EXPERT_GATE, EXPERT_UP, EXPERT_DOWN };

struct experts_shape {
	uint32_t rows, cols;
	size_t row_bytes;
	bool tiles; /* allows them: struct step_expert */
	bool scaled;
};

struct experts_args {
	const expert_one *of;
	/* Flags, without gaps between them: the emulation looks at all bytes of arguments. */
	uint32_t oai; /* swiglu_oai; otherwise silu */
	uint32_t hidden_too; /* hidden[0] gets the activation even if hidden_q8 is there */
	const uint32_t *pairs; /* NULL: pair p is row p */
	uint32_t n_used;
	struct dev_rows x, x_q8; /* inputs */
	float *hidden
		[2]; /* [pairs][width] products of gate and of up; the activation in the first */
	struct q8_block *hidden_q8; /* [pairs][width / 32], or NULL: down takes float32 */
	size_t width;
	struct dev_rows y;
	/* Last: what lies in gaps behind an array of structs is not cleared by GCC 12's
	 * __builtin_clear_padding, and the emulation would take it for a change of arguments. */
	experts_shape shape[3];
};
