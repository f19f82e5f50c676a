/* Products of weights and activations: every backend equals the definition to the bit, whatever the batch. */
#include "kernels/tiles.h"
#include "tests/kernels/reference.h"

#define TOKENS_MAX 33
#define COLS_MAX 1024
#define COLS_LONG 3328
#define ROWS_MAX 70

static const enum tensor_type all_types[] = {TENSOR_F32, TENSOR_F16, TENSOR_BF16, TENSOR_Q8_0,
	TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0, TENSOR_Q5_1, TENSOR_Q2_K, TENSOR_Q3_K, TENSOR_Q4_K,
	TENSOR_Q5_K, TENSOR_Q6_K, TENSOR_IQ4_NL, TENSOR_IQ4_XS, TENSOR_MXFP4, TENSOR_NVFP4,
	TENSOR_IQ1_S, TENSOR_IQ1_M, TENSOR_IQ2_XXS, TENSOR_IQ2_XS, TENSOR_IQ2_S, TENSOR_IQ3_XXS,
	TENSOR_IQ3_S, TENSOR_TQ1_0, TENSOR_TQ2_0};

/* LARGEST: the integers of a run, and so its sums. */
enum contents { ORDINARY, EXTREME, LARGEST };

struct problem {
	struct matrix w, tiled; /* the same rows; of no tile: w again */
	uint8_t *data, *tiles;
	uint32_t n;
	float x[TOKENS_MAX][COLS_LONG];
	struct q8_block q8[TOKENS_MAX][COLS_LONG / 32];
	struct activation in[TOKENS_MAX];
	float y[TOKENS_MAX][ROWS_MAX];
	float q8_expected[TOKENS_MAX][ROWS_MAX], f32_expected[TOKENS_MAX][ROWS_MAX];
	float *out[TOKENS_MAX];
};

/* Scales of a block: small normal ones, or zeros, subnormals, the largest, infinities and NaNs. */
static uint16_t random_half(uint64_t *rng, enum contents contents)
{
	static const uint16_t odd[] = {
		0, 0x8000, 1, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00};

	if (contents == EXTREME && random_below(rng, 3) == 0)
		return odd[random_below(rng, sizeof(odd) / sizeof(odd[0]))];
	return (uint16_t)((random_bits(rng) & 0x83ff) | 0x2000);
}

static float random_value(uint64_t *rng, enum contents contents)
{
	static const float odd[] = {0, -0.0f, 0x1p-149f, -0x1p-130f, 3e38f, -3e38f, 0x1p-126f};

	if (contents == EXTREME && random_below(rng, 4) == 0)
		return odd[random_below(rng, sizeof(odd) / sizeof(odd[0]))];
	return random_float(rng);
}

/* Where the float16 scale lies. */
static uint32_t scale_at(enum tensor_type type)
{
	switch (type) {
	case TENSOR_Q2_K:
		return 80;
	case TENSOR_Q3_K:
		return 108;
	case TENSOR_Q6_K:
		return 208;
	case TENSOR_TQ1_0:
		return 52;
	case TENSOR_TQ2_0:
		return 64;
	default:
		return 0;
	}
}

/* Sets the scales of a block of random bytes. */
static void fill_scales(
	enum tensor_type type, uint8_t *block, enum contents contents, uint64_t *rng)
{
	float value = random_value(rng, contents);
	uint32_t bits = bits_from(value), at = 0;
	uint16_t half = random_half(rng, contents), second = random_half(rng, contents);

	if (type == TENSOR_F32)
		memcpy(block, &value, 4);
	else if (type == TENSOR_BF16)
		memcpy(block, (const uint8_t *)&bits + 2, 2);
	else if (type == TENSOR_MXFP4 && contents != EXTREME)
		block[0] = (uint8_t)(110 + random_below(rng, 25));
	for (uint32_t i = 0; type == TENSOR_NVFP4 && i < 4; i++)
		block[i] = (uint8_t)random_below(rng, contents == EXTREME ? 256 : 127);
	for (uint32_t i = 0; type == TENSOR_IQ1_M && i < 4; i++)
		block[49 + 2 * i] = (uint8_t)((block[49 + 2 * i] & 15) | (half >> 4 * i & 15) << 4);
	if (type == TENSOR_F32 || type == TENSOR_BF16 || type == TENSOR_MXFP4 ||
		type == TENSOR_NVFP4 || type == TENSOR_IQ1_M)
		return;
	at = scale_at(type);
	memcpy(block + at, &half, 2);
	if (type == TENSOR_Q4_1 || type == TENSOR_Q5_1 || type == TENSOR_Q2_K ||
		type == TENSOR_Q4_K || type == TENSOR_Q5_K)
		memcpy(block + at + 2, &second, 2);
}

static void fill_weights(struct problem *p, enum contents contents, uint64_t *rng)
{
	const struct tensor_type_info *info = tensor_type_info((uint32_t)p->w.type);
	size_t size = p->w.rows * p->w.row_bytes;

	for (size_t i = 0; i < size; i++)
		p->data[i] = (uint8_t)random_bits(rng);
	for (size_t i = 0; i < size; i += info->block_bytes) {
		/* Now and then, or always, all bits alike: the largest weights and factors at once. */
		if (info->quantised &&
			(contents == LARGEST || (contents == EXTREME && random_below(rng, 3) == 0)))
			memset(p->data + i,
				(const uint8_t[]){0, 0x7f, 0x80, 0xff}[random_below(rng, 4)],
				info->block_bytes);
		fill_scales(p->w.type, p->data + i, contents, rng);
	}
}

/* Columns of a matrix of the type, at least one block and at most `most`. */
static uint32_t random_cols(enum tensor_type type, uint32_t most, uint64_t *rng)
{
	uint32_t block = tensor_type_info((uint32_t)type)->block_weights;

	return block * (1 + random_below(rng, most / block));
}

static void problem_init(struct problem *p, enum tensor_type type, uint32_t rows, uint32_t cols,
	uint32_t n, enum contents contents, uint64_t *rng)
{
	const struct tensor_type_info *info = tensor_type_info((uint32_t)type);
	size_t row_bytes = (size_t)cols / info->block_weights * info->block_bytes;

	/* Exactly as long as the weights: a sanitizer sees a read beyond them. */
	p->data = malloc(rows * row_bytes);
	assert_non_null(p->data);
	p->w = (struct matrix){
		.type = type, .rows = rows, .cols = cols, .row_bytes = row_bytes, .data = p->data};
	p->n = n;
	fill_weights(p, contents, rng);
	p->tiles = malloc(rows * row_bytes);
	assert_non_null(p->tiles);
	p->tiled = p->w;
	if (tiles_possible(&p->w)) {
		tiles_pack(&p->w, 0, rows, p->tiles);
		p->tiled.data = p->tiles;
		p->tiled.layout = LAYOUT_TILES;
	}
	for (uint32_t t = 0; t < n; t++) {
		for (uint32_t k = 0; k < cols; k++)
			p->x[t][k] = random_value(rng, contents);
		/* Signs by halves of a run. */
		for (uint32_t k = 0; contents == LARGEST && k < cols; k++)
			p->x[t][k] = k % 16 ? p->x[t][k - 1] : random_below(rng, 2) ? 1 : -1;
		if (info->quantised)
			scalar_backend()->quantise_q8(p->x[t], cols, p->q8[t]);
		p->in[t] = (struct activation){p->x[t], p->q8[t]};
		p->out[t] = p->y[t];
		for (uint32_t r = 0; r < rows; r++) {
			const uint8_t *row = p->data + r * row_bytes;

			p->q8_expected[t][r] = reference_product(type, row, cols, &p->in[t]);
			p->f32_expected[t][r] = reference_product_f32(type, row, cols, &p->in[t]);
		}
	}
}

static void problem_exit(struct problem *p)
{
	free(p->data);
	free(p->tiles);
}

static const float *expected(const struct problem *p, const struct kernels *k, uint32_t t)
{
	return is_reference(k) ? p->f32_expected[t] : p->q8_expected[t];
}

static void check_matrix(struct problem *p, const struct matrix *w, const struct kernels *k,
	uint32_t first, uint32_t last)
{
	const float untouched = 12345;
	char what[128];

	for (uint32_t t = 0; t < p->n; t++)
		for (uint32_t r = 0; r < ROWS_MAX; r++)
			p->y[t][r] = untouched;
	k->matmul(w, first, last, p->in, p->n, p->out);
	snprintf(what, sizeof(what), "%s %s %s %ux%u n %u rows %u..%u", k->name,
		w->layout == LAYOUT_TILES ? "tiles" : "rows",
		tensor_type_info((uint32_t)w->type)->name, w->rows, w->cols, p->n, first, last);
	for (uint32_t t = 0; t < p->n; t++)
		for (uint32_t r = 0; r < ROWS_MAX; r++)
			assert_same_floats(&p->y[t][r],
				r >= first && r < last ? &expected(p, k, t)[r] : &untouched, 1,
				what);
}

/* Rows first..last-1 are the definition's, and the others are not touched, in both layouts. */
static void check(struct problem *p, const struct kernels *k, uint32_t first, uint32_t last)
{
	check_matrix(p, &p->w, k, first, last);
	check_matrix(p, &p->tiled, k, first, last);
}

static void sweep(enum contents contents, uint64_t seed)
{
	struct problem *p = malloc(sizeof(*p));
	uint64_t rng = seed;

	assert_non_null(p);
	for (size_t i = 0; i < sizeof(all_types) / sizeof(all_types[0]); i++) {
		for (uint32_t n = 1; n <= 20; n++) {
			uint32_t rows = 1 + random_below(&rng, ROWS_MAX - 1);
			uint32_t cols = random_cols(all_types[i], n % 8 ? 416 : COLS_MAX, &rng);

			problem_init(p, all_types[i], rows, cols, n, contents, &rng);
			for (size_t b = 0; backend(b); b++) {
				uint32_t first = random_below(&rng, rows);

				check(p, backend(b), 0, rows);
				check(p, backend(b), first,
					first + random_below(&rng, rows - first + 1));
			}
			problem_exit(p);
		}
	}
	free(p);
}

static void every_backend_equals_the_definition_to_the_bit(void **state)
{
	(void)state;
	sweep(ORDINARY, 1);
	sweep(ORDINARY, 2);
}

/* Backends keep the sums of long rows of many tokens aside, between one part of the columns and the next. */
static void long_plain_rows_are_the_definition(void **state)
{
	const uint32_t all_cols[] = {512, 513, 528, 1000, COLS_MAX};
	const uint32_t counts[] = {7, 8, 9, 17};
	struct problem *p = malloc(sizeof(*p));
	uint64_t rng = 9;

	(void)state;
	assert_non_null(p);
	for (size_t i = 0; all_types[i] != TENSOR_Q8_0; i++)
		for (size_t c = 0; c < sizeof(all_cols) / sizeof(all_cols[0]); c++)
			for (size_t n = 0; n < sizeof(counts) / sizeof(counts[0]); n++) {
				problem_init(p, all_types[i], ROWS_MAX, all_cols[c], counts[n],
					c % 2 ? ORDINARY : EXTREME, &rng);
				for (size_t b = 0; backend(b); b++) {
					check(p, backend(b), 0, ROWS_MAX);
					check(p, backend(b), 5, 5 + random_below(&rng, 60));
				}
				problem_exit(p);
			}
	free(p);
}

/* Every segment of 1024 columns is a chain of its own; the last one may be short, and there may be no other. */
static void long_rows_of_blocks_are_summed_in_segments(void **state)
{
	const uint32_t counts[] = {1, 2, 3, 8, 17};
	struct problem *p = malloc(sizeof(*p));
	uint64_t rng = 10;

	(void)state;
	assert_non_null(p);
	for (size_t i = 3; i < sizeof(all_types) / sizeof(all_types[0]); i++) {
		const uint32_t block = tensor_type_info((uint32_t)all_types[i])->block_weights;
		const uint32_t all_cols[] = {1024, 1024 + block, 2048, 3072 - block, COLS_LONG};

		for (uint32_t c = 0; c < 5; c++) {
			problem_init(p, all_types[i], 19, all_cols[c], counts[(c + i) % 5],
				c % 2 ? EXTREME : ORDINARY, &rng);
			for (size_t b = 0; backend(b); b++) {
				check(p, backend(b), 0, 19);
				check(p, backend(b), 3, 18);
			}
			problem_exit(p);
		}
	}
	free(p);
}

static void extreme_weights_and_scales_give_the_same_bits_everywhere(void **state)
{
	(void)state;
	sweep(EXTREME, 3);
}

static void the_largest_sums_of_a_run_are_exact(void **state)
{
	(void)state;
	sweep(LARGEST, 7);
}

/* Of few tokens some types have functions of their own, for rows of whole groups of 256 weights. */
static void few_tokens_of_whole_groups_are_the_definition(void **state)
{
	const enum contents all_contents[] = {ORDINARY, EXTREME, LARGEST};
	struct problem *p = malloc(sizeof(*p));
	uint64_t rng = 8;

	(void)state;
	assert_non_null(p);
	for (size_t i = 0; i < sizeof(all_types) / sizeof(all_types[0]); i++)
		for (uint32_t c = 0; c < 9; c++) {
			const uint32_t rows = c % 4 ? 37 : 3, cols = c % 2 ? 256 : 768;

			problem_init(
				p, all_types[i], rows, cols, 1 + c % 3, all_contents[c / 3], &rng);
			for (size_t b = 0; backend(b); b++) {
				check(p, backend(b), 0, rows);
				check(p, backend(b), 1, rows - 1);
			}
			problem_exit(p);
		}
	free(p);
}

static void a_row_has_the_same_bits_alone_and_in_any_batch(void **state)
{
	struct problem *p = malloc(sizeof(*p));
	uint64_t rng = 4;

	(void)state;
	assert_non_null(p);
	for (size_t i = 0; i < sizeof(all_types) / sizeof(all_types[0]); i++) {
		uint32_t block = tensor_type_info((uint32_t)all_types[i])->block_weights;

		problem_init(
			p, all_types[i], 37, block > 192 ? block : 192, TOKENS_MAX, ORDINARY, &rng);
		for (size_t b = 0; backend(b); b++) {
			check(p, backend(b), 0, 37);
			for (uint32_t t = 0; t < TOKENS_MAX; t++) {
				float alone[37], *out = alone;

				for (uint32_t r = 0; r < 37; r++)
					backend(b)->matmul(&p->w, r, r + 1, &p->in[t], 1, &out);
				assert_same_floats(alone, expected(p, backend(b), t), 37,
					"one row, one token");
			}
			for (uint32_t first = 0; first <= 37; first++) {
				float parts[37], *out = parts;

				backend(b)->matmul(&p->w, 0, first, &p->in[3], 1, &out);
				backend(b)->matmul(&p->w, first, 37, &p->in[3], 1, &out);
				assert_same_floats(
					parts, expected(p, backend(b), 3), 37, "two parts");
			}
		}
		problem_exit(p);
	}
	free(p);
}

static void a_prefill_chunk_of_many_tokens_is_the_same_rows(void **state)
{
	enum { N = 150, ROWS = 19, COLS = 256 };
	static float x[N][COLS], y[N][ROWS];
	static struct q8_block q8[N][COLS / 32];
	struct problem *p = malloc(sizeof(*p));
	struct activation in[N];
	float *out[N];
	uint64_t rng = 5;

	(void)state;
	assert_non_null(p);
	for (size_t i = 0; i < sizeof(all_types) / sizeof(all_types[0]); i++) {
		problem_init(p, all_types[i], ROWS, COLS, 1, ORDINARY, &rng);
		for (uint32_t t = 0; t < N; t++) {
			for (uint32_t k = 0; k < COLS; k++)
				x[t][k] = random_float(&rng);
			scalar_backend()->quantise_q8(x[t], COLS, q8[t]);
			in[t] = (struct activation){x[t], q8[t]};
			out[t] = y[t];
		}
		for (size_t b = 0; backend(b); b++) {
			backend(b)->matmul(b % 2 ? &p->w : &p->tiled, 0, ROWS, in, N, out);
			for (uint32_t t = 0; t < N; t++)
				for (uint32_t r = 0; r < ROWS; r++) {
					const uint8_t *row = p->data + r * p->w.row_bytes;
					float value = is_reference(backend(b))
							      ? reference_product_f32(all_types[i],
									row, COLS, &in[t])
							      : reference_product(all_types[i], row,
									COLS, &in[t]);

					assert_same_floats(&y[t][r], &value, 1, backend(b)->name);
				}
		}
		problem_exit(p);
	}
	free(p);
}

/* What a matrix is scaled by comes last, in either layout, whatever rows are wanted. */
static void a_scale_of_the_matrix_is_rounded_last(void **state)
{
	const float scales[] = {0.00123f, -1.7f, 0, 3e38f};
	struct problem *p = malloc(sizeof(*p));
	uint64_t rng = 12;

	(void)state;
	assert_non_null(p);
	for (size_t i = 0; i < sizeof(all_types) / sizeof(all_types[0]); i++) {
		float plain[256], scaled[256];

		problem_init(p, all_types[i], 37, 256, 1 + (uint32_t)i % 9, ORDINARY, &rng);
		kernels_all[0]->dequantise_row(&p->tiled, 5, plain);
		p->w.scaled = p->tiled.scaled = true;
		p->w.scale = p->tiled.scale = scales[i % 4];
		kernels_all[0]->dequantise_row(&p->tiled, 5, scaled);
		for (uint32_t c = 0; c < 256; c++) {
			plain[c] *= scales[i % 4];
			assert_same_floats(&scaled[c], &plain[c], 1, "values");
		}
		for (uint32_t t = 0; t < p->n; t++)
			for (uint32_t r = 0; r < 37; r++) {
				p->q8_expected[t][r] *= scales[i % 4];
				p->f32_expected[t][r] *= scales[i % 4];
			}
		for (size_t b = 0; backend(b); b++) {
			check(p, backend(b), 0, 37);
			check(p, backend(b), 3, 20);
		}
		problem_exit(p);
	}
	free(p);
}

/* Packed to a place so many bytes below; a matrix without tiles is what it was. */
static void expect_packed_down(const struct problem *p, size_t below)
{
	size_t bytes = p->w.rows * p->w.row_bytes;
	unsigned char *memory = malloc(below + bytes), *scratch = malloc(16 * p->w.row_bytes);
	assert_non_null(memory);
	assert_non_null(scratch);
	memcpy(memory + below, p->data, bytes);
	tiles_pack_down(&p->w, memory + below, memory, scratch);
	assert_memory_equal(memory, tiles_possible(&p->w) ? p->tiles : p->data, bytes);
	free(memory);
	free(scratch);
}

/* Rows read back, values, and packing where the rows are and below. */
static void a_packed_matrix_is_the_same_matrix(void **state)
{
	struct problem *p = malloc(sizeof(*p));
	uint64_t rng = 6;

	(void)state;
	assert_non_null(p);
	for (size_t i = 0; i < sizeof(all_types) / sizeof(all_types[0]); i++) {
		const struct tensor_type_info *info = tensor_type_info((uint32_t)all_types[i]);

		for (uint32_t rows = 1; rows < ROWS_MAX; rows += 15) {
			uint32_t cols = random_cols(all_types[i], COLS_MAX, &rng);
			float plain[COLS_MAX], packed[COLS_MAX];
			uint8_t buffer[TILES_GROUP_BYTES];

			problem_init(p, all_types[i], rows, cols, 1, ORDINARY, &rng);
			assert_int_equal(tiles_possible(&p->w), info->quantised && rows >= 16);
			for (uint32_t r = 0; r < rows; r++) {
				kernels_all[0]->dequantise_row(&p->w, r, plain);
				kernels_all[0]->dequantise_row(&p->tiled, r, packed);
				assert_same_floats(plain, packed, cols, info->name);
				assert_int_equal(tensor_row_finite(&p->w, r),
					tensor_row_finite(&p->tiled, r));
				if (info->quantised)
					assert_memory_equal(
						tiles_row_group(&p->tiled, r, 0, buffer),
						p->data + r * p->w.row_bytes,
						(cols < 256 ? cols : 256) / info->block_weights *
							info->block_bytes);
			}
			expect_packed_down(p, 0);
			expect_packed_down(p, 32);
			expect_packed_down(p, 3 * 16 * p->w.row_bytes);
			problem_exit(p);
		}
	}
	free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_backend_equals_the_definition_to_the_bit),
		cmocka_unit_test(long_plain_rows_are_the_definition),
		cmocka_unit_test(long_rows_of_blocks_are_summed_in_segments),
		cmocka_unit_test(extreme_weights_and_scales_give_the_same_bits_everywhere),
		cmocka_unit_test(the_largest_sums_of_a_run_are_exact),
		cmocka_unit_test(few_tokens_of_whole_groups_are_the_definition),
		cmocka_unit_test(a_row_has_the_same_bits_alone_and_in_any_batch),
		cmocka_unit_test(a_scale_of_the_matrix_is_rounded_last),
		cmocka_unit_test(a_packed_matrix_is_the_same_matrix),
		cmocka_unit_test(a_prefill_chunk_of_many_tokens_is_the_same_rows),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
