/* A batch as attention reads it (struct batch_cells, struct kv_cells): which cells a token attends
 * to, and where the parts of their vectors lie. */
#pragma once

#include "kernels/gpu/kernels/rows.cuh"

/* Positions in a split, and in a chunk (numerics.md). */
static const unsigned GPU_SPLIT = 256, GPU_CHUNK = 64;

struct gpu_cells {
	struct dev_rows tokens; /* step_token */
	const uint32_t *const *maps; /* by sequence, from position to cell */
	uint32_t window; /* 0: none */
	const uint32_t *of; /* from cell to the layer's own cell, or NULL */
	unsigned char *k, *v; /* of the first head */
	size_t k_head_bytes, v_head_bytes, k_bytes, v_bytes;
	bool turned, paired;
};

/* Positions of a split that a token attends to, counted from the split's first. */
struct gpu_span {
	unsigned first, last;
};

DEV const step_token *token_of(const gpu_cells *c, unsigned t)
{
	return (const step_token *)(c->tokens.at + t * c->tokens.stride);
}

DEV gpu_span span_of(const gpu_cells *c, unsigned t, unsigned split)
{
	unsigned end = token_of(c, t)->position + 1, base = split * GPU_SPLIT;
	unsigned first = c->window && end > c->window ? end - c->window : 0;

	first = first > base ? first - base : 0;
	end = end > base ? end - base : 0;
	end = end < GPU_SPLIT ? end : GPU_SPLIT;
	return {first < end ? first : end, end};
}

DEV bool attends(const gpu_cells *c, unsigned t, unsigned split)
{
	gpu_span s = span_of(c, t, split);

	return s.first < s.last;
}

/* True when the token finds all its cells of the split in its sequence's map. */
DEV bool listed(const gpu_cells *c, unsigned t, unsigned split)
{
	const step_token *token = token_of(c, t);
	unsigned last = (split + 1) * GPU_SPLIT;

	last = token->position + 1 < last ? token->position + 1 : last;
	return last <= token->shared;
}

/* True when neighbouring tokens can be taken together in this split. */
DEV bool together(const gpu_cells *c, unsigned one, unsigned two, unsigned split)
{
	return token_of(c, one)->map == token_of(c, two)->map && attends(c, one, split) &&
	       attends(c, two, split) && listed(c, one, split) && listed(c, two, split);
}

/* The layer's own cell of a position below the token's `shared`. */
DEV uint32_t listed_cell(const gpu_cells *c, const step_token *token, unsigned position)
{
	uint32_t cell = c->maps[token->map][position];

	return c->of ? c->of[cell] : cell;
}

/* Sets cells[0..GPU_SPLIT-1] to the layer's own cells of a split, for positions low..high-1 of it,
 * by all threads of a CTA, of which there are at least 32. The others are set to cells that may be
 * read, in the turns of the nearest, so that pairs remain. */
DEV void split_cells(const gpu_cells *c, unsigned t, unsigned split, unsigned low, unsigned high,
	uint32_t *cells)
{
	const step_token *token = token_of(c, t);
	unsigned base = split * GPU_SPLIT, shared = token->shared > base ? token->shared - base : 0;

	/* Tokens that are taken together find all their cells in the map. */
	if (listed(c, t, split))
		shared = high;
	for (unsigned i = threadIdx.x; i < GPU_SPLIT; i += blockDim.x) {
		unsigned at = i < low ? low : i < high ? i : high - 1;

		if (at < shared) {
			uint32_t cell = listed_cell(c, token, base + at);

			cells[i] = at == i ? cell : (cell & ~1u) | (i & 1u);
		}
	}
	if (shared >= high)
		return;
	/* The token's own ancestors, from the last position to the first. */
	if (threadIdx.x == 0) {
		unsigned from = shared > low ? shared : low;

		for (int32_t i = (int32_t)t; i >= 0; i = token_of(c, (unsigned)i)->parent) {
			const step_token *step = token_of(c, (unsigned)i);

			if (step->position < base + from)
				break;
			if (step->position < base + high)
				cells[step->position - base] =
					c->of ? c->of[step->cell] : step->cell;
		}
		for (unsigned i = high; i < GPU_SPLIT; i++)
			cells[i] = (cells[high - 1] & ~1u) | (i & 1u);
		for (unsigned i = 0; i < low && low >= shared; i++)
			cells[i] = (cells[low] & ~1u) | (i & 1u);
	}
}

/* One cell's vectors in memory. */
struct gpu_vector {
	const unsigned char *at; /* of the vector, or of its turn */
	unsigned lane; /* in its turn */
};

/* together: in turns, turned or paired. */
DEV gpu_vector vector_at(const unsigned char *first, size_t bytes, bool together, uint32_t cell)
{
	if (together)
		return {first + (size_t)(cell / KV_TURN) * KV_TURN * bytes, cell % KV_TURN};
	return {first + cell * bytes, 0};
}

/* Scale of block b of a vector, as it is stored. */
DEV uint16_t stored_scale(gpu_vector v, unsigned value_bytes, bool together, unsigned b)
{
	const unsigned char *p = together ? v.at + (b * KV_TURN + v.lane) * 2
					  : v.at + (size_t)b * (2 + Q8_BLOCK * value_bytes);

	return *(const uint16_t *)p;
}

/* Values in block b of a vector of n. */
DEV unsigned block_values_in(unsigned n, unsigned b)
{
	unsigned left = n - b * Q8_BLOCK;

	return left < Q8_BLOCK ? left : Q8_BLOCK;
}

/* The integers of block b, of `together` vectors those of the turn. n: values of a vector. */
DEV const unsigned char *block_integers_at(
	gpu_vector v, unsigned value_bytes, bool together, unsigned n, unsigned b)
{
	unsigned blocks = (n + Q8_BLOCK - 1) / Q8_BLOCK;

	return together ? v.at + (size_t)blocks * KV_TURN * 2 +
				  (size_t)b * KV_TURN * Q8_BLOCK * value_bytes
			: v.at + (size_t)b * (2 + Q8_BLOCK * value_bytes) + 2;
}

/* Offset of a byte of a cell's block among the turned ones; `bytes` of the block. */
DEV unsigned turned_byte(unsigned byte, unsigned bytes, unsigned lane)
{
	unsigned unit = byte / 4 * 4, left = bytes - unit < 4 ? bytes - unit : 4;

	return unit * KV_TURN + left * lane + byte % 4;
}
