/* Functions that take blocks a run at a time: dequantising, the scalar product, and the search for
 * bad scales. */
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/fma.h"
#include "kernels/tiles.h"

#include <assert.h>

static void dequantise_run(const struct run *run, const struct block_reader *reader, float *out)
{
	const float d[2] = {run->d, reader->has_d_last ? run->d_last : run->d};

	for (uint32_t i = 0; i < RUN_WEIGHTS; i++) {
		uint32_t half = i / 16;
		float value = d[half] * (float)run->c[half] * (float)run->q[i];

		out[i] = reader->has_m ? value + run->m * (float)run->e[half] : value;
	}
}

static float plain_value(enum tensor_type type, const uint8_t *row, uint32_t i)
{
	float value;

	if (type == TENSOR_F16)
		return float_of_half(load_u16(row + 2 * (size_t)i));
	if (type == TENSOR_BF16)
		return float_of_bfloat(load_u16(row + 2 * (size_t)i));
	memcpy(&value, row + 4 * (size_t)i, sizeof(value));
	return value;
}

void kernels_dequantise(
	enum tensor_type type, const uint8_t *row, uint32_t first, uint32_t n, float *out)
{
	struct block_reader reader;
	struct run run;

	if (type == TENSOR_F32) {
		memcpy(out, row + 4 * (size_t)first, n * sizeof(*out));
		return;
	}
	if (!tensor_type_info((uint32_t)type)->quantised) {
		for (uint32_t i = 0; i < n; i++)
			out[i] = plain_value(type, row, first + i);
		return;
	}
	assert(first % RUN_WEIGHTS == 0 && n % RUN_WEIGHTS == 0);
	reader = kernels_block_reader(type);
	for (uint32_t i = 0; i < n; i += RUN_WEIGHTS) {
		reader.read(row, (first + i) / RUN_WEIGHTS, &run);
		dequantise_run(&run, &reader, out + i);
	}
}

static const uint8_t *row_of(const struct matrix *w, uint32_t row)
{
	const struct tensor_type_info *info = tensor_type_info((uint32_t)w->type);

	assert(info && row < w->rows && w->cols % info->block_weights == 0);
	assert(w->layout == LAYOUT_ROWS);
	return (const uint8_t *)w->data + (size_t)row * w->row_bytes;
}

void kernels_dequantise_group(const struct matrix *w, uint32_t row, uint32_t group, float *out)
{
	uint8_t buffer[TILES_GROUP_BYTES];
	uint32_t first = group * TILES_GROUP_WEIGHTS, left = w->cols - first;

	if (left > TILES_GROUP_WEIGHTS)
		left = TILES_GROUP_WEIGHTS;
	if (tensor_type_info((uint32_t)w->type)->quantised)
		kernels_dequantise(w->type, tiles_row_group(w, row, group, buffer), 0, left, out);
	else
		kernels_dequantise(w->type, row_of(w, row), first, left, out);
}

void kernels_dequantise_row(const struct matrix *w, uint32_t row, float *out)
{
	for (uint32_t i = 0; i < w->cols; i += TILES_GROUP_WEIGHTS)
		kernels_dequantise_group(w, row, i / TILES_GROUP_WEIGHTS, out + i);
	for (uint32_t i = 0; w->scaled && i < w->cols; i++)
		out[i] *= w->scale;
}

static int32_t dot_16(const int8_t *a, const int8_t *b)
{
	int32_t sum = 0;

	for (uint32_t i = 0; i < 16; i++)
		sum += a[i] * b[i];
	return sum;
}

static float add_run(const struct run *run, const struct block_reader *reader,
	const struct q8_block *x, float acc)
{
	int32_t first = run->c[0] * dot_16(run->q, x->q);
	int32_t last = run->c[1] * dot_16(run->q + 16, x->q + 16);
	int32_t esum = run->e[0] * x->sums[0] + run->e[1] * x->sums[1];

	if (reader->has_d_last) {
		acc = fma32(run->d * x->d, (float)first, acc);
		return fma32(run->d_last * x->d, (float)last, acc);
	}
	acc = fma32(run->d * x->d, (float)(first + last), acc);
	return reader->has_m ? fma32(run->m, x->d * (float)esum, acc) : acc;
}

/* Tokens for which a run is read once. */
#define SCALAR_TOKENS 64

/* Products of one row with n <= SCALAR_TOKENS rows of activations. */
static void scalar_row(const struct matrix *w, uint32_t row, const struct block_reader *reader,
	const struct activation *x, uint32_t n, float *const *y)
{
	const uint32_t runs = w->cols / RUN_WEIGHTS;
	uint8_t buffer[TILES_GROUP_BYTES];
	const uint8_t *group = NULL;
	float sum[SCALAR_TOKENS];
	struct run run = {.d = 0};

	for (uint32_t b = 0; b < runs; b++) {
		if (b % RUNS_256 == 0)
			group = tiles_row_group(w, row, b / RUNS_256, buffer);
		reader->read(group, b % RUNS_256, &run);
		for (uint32_t t = 0; t < n; t++)
			sum[t] = add_run(
				&run, reader, &x[t].q8[b], b % SEGMENT_RUNS == 0 ? 0 : sum[t]);
		if ((b + 1) % SEGMENT_RUNS > 0 && b + 1 < runs)
			continue;
		for (uint32_t t = 0; t < n; t++)
			y[t][row] = b < SEGMENT_RUNS ? sum[t] : y[t][row] + sum[t];
	}
}

void kernels_scalar_matmul_blocks(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y)
{
	struct block_reader reader = kernels_block_reader(w->type);

	for (uint32_t r = first; r < last; r++)
		for (uint32_t t = 0; t < n; t += SCALAR_TOKENS)
			scalar_row(w, r, &reader, x + t,
				n - t < SCALAR_TOKENS ? n - t : SCALAR_TOKENS, y + t);
}

static bool is_finite(float x)
{
	return (bits_of_float(x) & 0x7f800000u) != 0x7f800000u;
}

/* MXFP4's 255 is NaN in the OCP standard, even if others compute a number from it. The scales just
 * below it are numbers, but not every product with them is. */
static bool mxfp4_finite(const uint8_t *block)
{
	float values[RUN_WEIGHTS];

	if (block[0] < 253)
		return true;
	kernels_dequantise(TENSOR_MXFP4, block, 0, RUN_WEIGHTS, values);
	for (uint32_t i = 0; i < RUN_WEIGHTS; i++)
		if (!is_finite(values[i]))
			return false;
	return block[0] < 255;
}

/* Where the float16 scales of a block are: their number and offsets. */
static uint32_t scales_at(enum tensor_type type, uint32_t at[2])
{
	static const struct {
		enum tensor_type type;
		uint32_t n, at[2];
	} scales[] = {
		{TENSOR_Q8_0, 1, {0}},
		{TENSOR_Q4_0, 1, {0}},
		{TENSOR_Q4_1, 2, {0, 2}},
		{TENSOR_Q5_0, 1, {0}},
		{TENSOR_Q5_1, 2, {0, 2}},
		{TENSOR_Q2_K, 2, {80, 82}},
		{TENSOR_Q3_K, 1, {108}},
		{TENSOR_Q4_K, 2, {0, 2}},
		{TENSOR_Q5_K, 2, {0, 2}},
		{TENSOR_Q6_K, 1, {208}},
		{TENSOR_IQ4_NL, 1, {0}},
		{TENSOR_IQ4_XS, 1, {0}},
		{TENSOR_IQ1_S, 1, {0}},
		{TENSOR_IQ2_XXS, 1, {0}},
		{TENSOR_IQ2_XS, 1, {0}},
		{TENSOR_IQ2_S, 1, {0}},
		{TENSOR_IQ3_XXS, 1, {0}},
		{TENSOR_IQ3_S, 1, {0}},
		{TENSOR_TQ1_0, 1, {52}},
		{TENSOR_TQ2_0, 1, {64}},
	};
	size_t i = 0;

	while (scales[i].type != type) {
		i++;
		assert(i < sizeof(scales) / sizeof(scales[0]));
	}
	memcpy(at, scales[i].at, sizeof(scales[i].at));
	return scales[i].n;
}

static bool half_finite(uint16_t half)
{
	return (half & 0x7c00u) != 0x7c00u;
}

/* Of NVFP4's scales, 0x7f and 0xff are NaN in E4M3, although products treat them as numbers. */
static bool nvfp4_finite(const uint8_t *block)
{
	for (uint32_t i = 0; i < 4; i++)
		if ((block[i] & 127) == 127)
			return false;
	return true;
}

/* A finite float16 times the integers of a block is finite. An infinity or a NaN stays one, even
 * times 0. */
static bool block_finite(enum tensor_type type, const uint8_t *block)
{
	uint32_t at[2] = {0, 0}, n;

	if (type == TENSOR_MXFP4)
		return mxfp4_finite(block);
	if (type == TENSOR_NVFP4)
		return nvfp4_finite(block);
	if (type == TENSOR_IQ1_M)
		return half_finite(iq1_m_scale(
			(uint32_t)load_i32(block + 48), (uint32_t)load_i32(block + 52)));
	n = scales_at(type, at);
	return half_finite(load_u16(block + at[0])) &&
	       (n < 2 || half_finite(load_u16(block + at[1])));
}

static bool blocks_finite(const struct matrix *w, const uint8_t *block, uint32_t n_weights)
{
	const struct tensor_type_info *info = tensor_type_info((uint32_t)w->type);

	for (uint32_t i = 0; i < n_weights; i += info->block_weights, block += info->block_bytes)
		if (!block_finite(w->type, block))
			return false;
	return true;
}

bool tensor_row_finite(const struct matrix *w, uint32_t row)
{
	bool quantised = tensor_type_info((uint32_t)w->type)->quantised;
	uint8_t buffer[TILES_GROUP_BYTES];

	for (uint32_t i = 0; quantised && i < w->cols; i += TILES_GROUP_WEIGHTS) {
		uint32_t left = w->cols - i;

		if (!blocks_finite(w, tiles_row_group(w, row, i / TILES_GROUP_WEIGHTS, buffer),
			    left < TILES_GROUP_WEIGHTS ? left : TILES_GROUP_WEIGHTS))
			return false;
	}
	for (uint32_t i = 0; !quantised && i < w->cols; i++)
		if (!is_finite(plain_value(w->type, row_of(w, row), i)))
			return false;
	return true;
}
