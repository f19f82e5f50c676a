/*
 * Feed-forwards of experts, for the rows that chose them; the one that every row takes is such an
 * expert too. `experts_in` ends with a whole block of the hidden layer: a CUDA block has 32 rows of
 * gate and of up, so the activation, and its quantisation, need no launch of their own. `experts_one`
 * is one product. experts_in is for the usual case, gate and up of one quantised type in whole
 * tiles; otherwise gate and up are products, and `experts_activate` follows.
 */
#pragma once

#include "kernels/gpu/kernels/choice.cuh"
#include "kernels/gpu/kernels/expert_args.cuh"
#include "kernels/gpu/kernels/products.cuh"

/* A pair's row of inputs, and its row of y. */
DEV unsigned input_row(const experts_args *a, unsigned p)
{
	return a->pairs ? a->pairs[p] / a->n_used : p;
}

DEV unsigned output_row(const experts_args *a, unsigned p)
{
	return a->pairs ? a->pairs[p] : p;
}

/* gpt-oss's SwiGLU. */
DEV float f_at_most(float x, float most)
{
	return -f_max(-most, -x);
}

DEV float swiglu_oai(float g, float u)
{
	g = f_at_most(g, 7.0f);
	u = f_max(-7.0f, f_at_most(u, 7.0f));
	return f_mul(f_mul(g, sigmoid(f_mul(1.702f, g))), f_add(u, 1.0f));
}

/* gate and up become the hidden value. */
DEV float expert_activation(const experts_args *a, float g, float u)
{
	return a->oai ? swiglu_oai(g, u) : f_mul(silu(g), u);
}

/* Where the products of a matrix with 8 * NT pairs are read and written. X: q8_block, or float for
 * plain weights. x: NULL behind the last. */
template <class X, int NT> struct expert_rows {
	const X *x[8 * NT];
	float *y[8 * NT];
	unsigned n;
};

DEV const struct q8_block *hidden_row(const experts_args *a, size_t at, const struct q8_block *)
{
	return a->hidden_q8 + at * (a->width / Q8_BLOCK);
}

DEV const float *hidden_row(const experts_args *a, size_t at, const float *)
{
	return a->hidden[0] + at * a->width;
}

DEV struct dev_rows input_rows(const experts_args *a, const struct q8_block *)
{
	return a->x_q8;
}

DEV struct dev_rows input_rows(const experts_args *a, const float *)
{
	return a->x;
}

template <class X, int NT>
DEV void find_rows(
	expert_rows<X, NT> *r, const experts_args *a, const expert_one *e, unsigned matrix)
{
	unsigned j = threadIdx.x, from = blockIdx.z * 8 * NT;
	const X *none = nullptr;

	if (j < 8 * NT) {
		bool has = from + j < e->n;
		unsigned p = e->first + from + j;
		size_t at = e->at + from + j;

		r->x[j] = none;
		if (has) {
			r->x[j] = matrix == EXPERT_DOWN
					  ? hidden_row(a, at, none)
					  : row_of<X>(input_rows(a, none), input_row(a, p));
			r->y[j] = matrix == EXPERT_DOWN ? float_row(a->y, output_row(a, p))
							: a->hidden[matrix] + at * a->width;
		}
	}
	if (j == 0)
		r->n = e->n - from < 8 * NT ? e->n - from : 8 * NT;
	__syncthreads();
}

/* The inputs of a block, for few_columns_of. */
template <int NT> struct expert_columns {
	const expert_rows<struct q8_block, NT> *rows;

	__device__ __forceinline__ const struct q8_block *q8(uint32_t pair) const
	{
		return rows->x[pair];
	}
};

/* Sixteen rows of a matrix. tiles: they are a tile; otherwise the first `rows` of them are there, one
 * after the other. */
struct sixteen_rows {
	const unsigned char *at;
	size_t row_bytes;
	unsigned rows;
	bool tiles;
};

DEV struct row_source rows_of_lane(const sixteen_rows &m)
{
	unsigned g = threadIdx.x % 32 / 4, last = m.rows - 1;

	return {{m.at + (g < last ? g : last) * m.row_bytes,
		m.at + (g + 8 < last ? g + 8 : last) * m.row_bytes}};
}

/* Products of sixteen rows with 8 * NT rows of inputs, segment by segment. `parts` warps, `beside`
 * apart, take segments in turn; the one with part 0 adds them, and has the sums in `total` as
 * few_product leaves them. All threads of the block call it. */
template <int TYPE, int NT>
DEV void sixteen_sums(float (*shared)[NT][32][4], const sixteen_rows &m, unsigned cols,
	const expert_rows<struct q8_block, NT> *rows, unsigned part, unsigned parts,
	unsigned beside, float (&total)[NT][4])
{
	unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	unsigned runs = cols / 32, segments = (cols + PRODUCT_SEGMENT - 1) / PRODUCT_SEGMENT;
	struct few_columns x[NT];

	few_columns_of<NT>(expert_columns<NT>{rows}, 0, x);
	for (unsigned first = 0; first < segments; first += parts) {
		float acc[NT][4] = {};
		unsigned s = first + part, from = s * SEGMENT_RUNS, end = from + SEGMENT_RUNS;

		end = end < runs ? end : runs;
		if (s < segments && m.tiles)
			few_segment<TYPE, NT>((struct tile_source){m.at, cols}, x, from, end, acc);
		else if (s < segments)
			few_segment<TYPE, NT>(rows_of_lane(m), x, from, end, acc);
		for (unsigned j = 0; part > 0 && j < NT; j++)
			for (unsigned i = 0; i < 4; i++)
				shared[warp][j][lane][i] = acc[j][i];
		__syncthreads();
		for (unsigned p = 0; part == 0 && p < parts && first + p < segments; p++)
			for (unsigned j = 0; j < NT; j++)
				for (unsigned i = 0; i < 4; i++) {
					float v = p ? shared[warp + p * beside][j][lane][i]
						    : acc[j][i];

					total[j][i] = first + p ? f_add(total[j][i], v) : v;
				}
		__syncthreads();
	}
}

/* A pair's hidden value of row `row` is ready: one block of a row, one value in each lane. */
DEV void store_hidden(const experts_args *a, size_t at, unsigned row, float h)
{
	if (a->hidden_q8)
		warp_quantise(h, a->hidden_q8 + at * (a->width / Q8_BLOCK) + row / Q8_BLOCK);
	else
		a->hidden[0][at * a->width + row + threadIdx.x % 32] = h;
}

template <int NT> struct experts_in_shared {
	expert_rows<struct q8_block, NT> rows;
	float part[EXPERTS_WARPS][NT][32][4];
	float product[2][8 * NT][EXPERTS_ROWS]; /* of gate and of up */
};

/* Grid: (hidden width / 32, experts, most pairs / (8 * NT)). Warps 0..3 have the first and the second
 * tile of gate and of up; warps 4..7 take every other segment of the same. */
template <int TYPE, int NT> KERNEL experts_in(experts_args a)
{
	experts_in_shared<NT> *s = &shared_memory<experts_in_shared<NT>>();
	const expert_one *e = &a.of[blockIdx.y];
	const experts_shape *shape = &a.shape[EXPERT_GATE];
	unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, matrix = warp / 2 % 2;
	unsigned row = blockIdx.x * EXPERTS_ROWS + warp % 2 * 16, from = blockIdx.z * 8 * NT;
	float total[NT][4];

	if (from >= e->n)
		return;
	find_rows<struct q8_block, NT>(&s->rows, &a, e, EXPERT_GATE);
	const sixteen_rows m = {e->w[matrix] + row * shape->row_bytes, shape->row_bytes, 16,
		e->tiles && shape->tiles};
	sixteen_sums<TYPE, NT>(s->part, m, shape->cols, &s->rows, warp / 4, 2, 4, total);
	for (unsigned j = 0; warp < 4 && j < NT; j++)
		for (unsigned i = 0; i < 4; i++) {
			unsigned r = warp % 2 * 16 + lane / 4 + i / 2 * 8;
			float v = total[j][i];

			if (a.shape[matrix].scaled)
				v = v * e->scale[matrix];
			if (e->bias[matrix])
				v = v + e->bias[matrix][blockIdx.x * EXPERTS_ROWS + r];
			s->product[matrix][8 * j + lane % 4 * 2 + i % 2][r] = v;
		}
	__syncthreads();
	for (unsigned j = warp; j < s->rows.n; j += EXPERTS_WARPS)
		store_hidden(&a, e->at + from + j, blockIdx.x * EXPERTS_ROWS,
			expert_activation(&a, s->product[0][j][lane], s->product[1][j][lane]));
}

template <int NT> struct experts_one_shared {
	expert_rows<struct q8_block, NT> rows;
	float part[EXPERTS_WARPS][NT][32][4];
};

/* The sixteen rows of this block. Rows behind the last full tile do not lie in tiles. */
DEV sixteen_rows sixteen_of(const expert_one *e, const experts_shape *shape, unsigned matrix)
{
	unsigned row = blockIdx.x * 16, left = shape->rows - row;

	return {e->w[matrix] + row * shape->row_bytes, shape->row_bytes, left < 16 ? left : 16,
		e->tiles && shape->tiles && left >= 16};
}

/* One of the three products. Grid: (rows / 16, experts, most pairs / (8 * NT)). Warps take the
 * segments of one tile in turn. */
template <int TYPE, int NT> KERNEL experts_one(experts_args a, unsigned matrix)
{
	experts_one_shared<NT> *s = &shared_memory<experts_one_shared<NT>>();
	const expert_one *e = &a.of[blockIdx.y];
	const experts_shape *shape = &a.shape[matrix];
	unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, from = blockIdx.z * 8 * NT;
	float total[NT][4];

	if (from >= e->n)
		return;
	find_rows<struct q8_block, NT>(&s->rows, &a, e, matrix);
	const sixteen_rows m = sixteen_of(e, shape, matrix);
	sixteen_sums<TYPE, NT>(s->part, m, shape->cols, &s->rows, warp, blockDim.x / 32, 1, total);
	for (unsigned j = 0; warp == 0 && j < NT; j++)
		for (unsigned i = 0; i < 4; i++) {
			unsigned pair = 8 * j + lane % 4 * 2 + i % 2;
			unsigned row = blockIdx.x * 16 + lane / 4 + i / 2 * 8;
			float v = total[j][i];

			if (pair < s->rows.n && row < shape->rows)
				s->rows.y[pair][row] = shape->scaled ? v * e->scale[matrix] : v;
		}
}

/* From the choices of a batch to the experts that compute them. One block. */
KERNEL experts_find(find_args a)
{
	uint32_t n = *a.n_uses;

	for (uint32_t i = threadIdx.x; i < a.n; i += blockDim.x) {
		expert_one one = {};

		if (i < n) {
			one = a.known[a.uses[i].expert];
			one.first = one.at = a.uses[i].first;
			one.n = a.uses[i].n;
		}
		a.of[i] = one;
	}
	if (threadIdx.x == 0)
		*a.n_chosen += n;
}

/* From products of gate and up to hidden values. Grid: (hidden width / 32, experts, most pairs / 8);
 * a warp has a pair. */
KERNEL experts_activate(experts_args a)
{
	const expert_one *e = &a.of[blockIdx.y];
	unsigned lane = threadIdx.x % 32, row = blockIdx.x * 32 + lane;
	unsigned pair = blockIdx.z * EXPERTS_WARPS + threadIdx.x / 32;
	bool has = row < a.shape[EXPERT_GATE].rows;
	float v[2] = {0, 0};

	if (pair >= e->n)
		return;
	size_t at = e->at + pair;
	for (unsigned m = 0; has && m < 2; m++) {
		v[m] = a.hidden[m][at * a.width + row];
		if (e->bias[m])
			v[m] = v[m] + e->bias[m][row];
	}
	float h = expert_activation(&a, v[0], v[1]);
	if (a.hidden_q8)
		warp_quantise(h, a.hidden_q8 + at * (a.width / Q8_BLOCK) + blockIdx.x);
	if (has && (a.hidden_too || !a.hidden_q8))
		a.hidden[0][at * a.width + row] = h;
}

/* One of the three products with plain weights: half a warp has a row of the matrix, and a thread a
 * lane of LANES. Grid: (rows / 16, experts, most pairs / 8). */
template <int TYPE> KERNEL experts_plain(experts_args a, unsigned matrix)
{
	typedef expert_rows<float, 1> shared_rows;
	shared_rows *s = &shared_memory<shared_rows>();
	const expert_one *e = &a.of[blockIdx.y];
	const experts_shape *shape = &a.shape[matrix];
	unsigned lane = threadIdx.x % 16, row = blockIdx.x * 16 + threadIdx.x / 16;
	unsigned at = row < shape->rows ? row : shape->rows - 1;
	const unsigned char *w = e->w[matrix] + at * shape->row_bytes;
	float sum[8] = {};

	if (blockIdx.z * 8 >= e->n)
		return;
	find_rows<float, 1>(s, &a, e, matrix);
	for (unsigned k = lane; k < shape->cols; k += 16) {
		float weight = plain_value<TYPE>(w, k);

		for (unsigned j = 0; j < 8; j++)
			if (s->x[j])
				sum[j] = f_fma(weight, s->x[j][k], sum[j]);
	}
	for (unsigned j = 0; j < 8; j++)
		sum[j] = lanes_fold(sum[j]);
	for (unsigned j = 0; lane == 0 && row < shape->rows && j < s->n; j++)
		s->y[j][row] = shape->scaled ? f_mul(sum[j], e->scale[matrix]) : sum[j];
}
