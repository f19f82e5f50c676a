/* Attention: the chunked order of kernels.h to the bit, and softmax(q k / sqrt(d)) v in float64, with values of their
 * own or in the keys, with sinks and without, over every type of stored cells. */
#include "tests/kernels/reference.h"

#define CELLS_MAX 200
#define DIM_MAX 260
#define HEADS_MAX 9

struct case_data {
	struct attention_job job;
	uint32_t cells[CELLS_MAX];
	float sinks[HEADS_MAX];
	float q[HEADS_MAX * (DIM_MAX + 3)], out[HEADS_MAX * (DIM_MAX + 5)],
		expected[HEADS_MAX][DIM_MAX];
	float k[CELLS_MAX][DIM_MAX], v[CELLS_MAX][DIM_MAX]; /* as the kernel sees them, widened */
	uint8_t *k_raw, *v_raw;
};

/* What a stored vector says, by the definition of its type. */
static void widen(const uint8_t *raw, uint32_t dim, enum kv_type type, float *values)
{
	for (uint32_t d = 0; type == KV_F16 && d < dim; d++)
		values[d] = reference_half(u16_at(raw + (size_t)2 * d));
	for (uint32_t d = 0; type == KV_Q8_0 && d < dim; d++) {
		const uint8_t *block = raw + (size_t)(d / 32) * 34;

		values[d] = reference_half(u16_at(block)) * (float)(int8_t)block[2 + d % 32];
	}
}

static void put_cells(
	float (*values)[DIM_MAX], uint32_t dim, enum kv_type type, uint8_t *raw, uint64_t *rng)
{
	size_t cell_bytes = kv_vector_bytes(type, dim);

	for (uint32_t c = 0; c < CELLS_MAX; c++) {
		for (uint32_t d = 0; d < dim; d++)
			values[c][d] = random_float(rng) * 2;
		scalar_backend()->kv_store(values[c], dim, type, raw + c * cell_bytes);
		widen(raw + c * cell_bytes, dim, type, values[c]);
	}
}

/* The order of kernels.h, a head at a time, everything else sequential. */
static void reference_attention(const struct case_data *a, uint32_t head, float *out)
{
	const struct attention_job *job = &a->job;
	const float *q = job->q + head * job->q_stride;
	bool begun = job->sinks != NULL;
	float m = begun ? job->sinks[head] : 0, s = begun ? 1 : 0;

	memset(out, 0, job->v_dim * sizeof(*out));
	for (uint32_t from = 0; from < job->n_cells; from += ATTENTION_CHUNK) {
		uint32_t n = job->n_cells - from < ATTENTION_CHUNK ? job->n_cells - from
								   : ATTENTION_CHUNK;
		float scores[ATTENTION_CHUNK], most = -INFINITY, factor;

		for (uint32_t c = 0; c < n; c++) {
			scores[c] = reference_lanes(q, a->k[job->cells[from + c]], job->k_dim) *
				    job->scale;
			most = fmaxf(most, scores[c]);
		}
		most = begun ? fmaxf(m, most) : most;
		factor = begun ? kernels_exp(m - most) : 0;
		s = begun ? s * factor : 0;
		for (uint32_t d = 0; d < job->v_dim; d++)
			out[d] = begun ? out[d] * factor : 0;
		m = most;
		begun = true;
		for (uint32_t c = 0; c < n; c++) {
			float p = kernels_exp(scores[c] - m);

			s += p;
			for (uint32_t d = 0; d < job->v_dim; d++)
				out[d] = fmaf(p, a->v[job->cells[from + c]][d], out[d]);
		}
	}
	for (uint32_t d = 0; d < job->v_dim; d++)
		out[d] *= 1 / s;
}

static void check_exact(const struct case_data *a, uint32_t head)
{
	const struct attention_job *job = &a->job;
	double p[CELLS_MAX], most = job->sinks ? (double)job->sinks[head] : -INFINITY, sum;

	for (uint32_t c = 0; c < job->n_cells; c++) {
		p[c] = 0;
		for (uint32_t d = 0; d < job->k_dim; d++)
			p[c] += (double)job->q[head * job->q_stride + d] *
				(double)a->k[job->cells[c]][d];
		p[c] *= (double)job->scale;
		most = fmax(most, p[c]);
	}
	sum = job->sinks ? exp((double)job->sinks[head] - most) : 0;
	for (uint32_t c = 0; c < job->n_cells; c++)
		sum += p[c] = exp(p[c] - most);
	for (uint32_t d = 0; d < job->v_dim; d++) {
		double exact = 0;

		for (uint32_t c = 0; c < job->n_cells; c++)
			exact += p[c] / sum * (double)a->v[job->cells[c]][d];
		assert_true(fabs(exact - (double)a->expected[head][d]) < 4e-6);
	}
}

static void run_backends(struct case_data *a)
{
	struct attention_job *job = &a->job;

	for (size_t k = 0; backend(k); k++) {
		size_t floats = backend(k)->attention_scratch(job->n_heads);

		/* Exactly as long as promised: a sanitizer sees a write beyond it. */
		job->scratch = malloc(floats * sizeof(float));
		assert_non_null(job->scratch);
		memset(a->out, 0x7f, sizeof(a->out));
		backend(k)->attention(job);
		for (uint32_t h = 0; h < job->n_heads; h++) {
			assert_same_floats(a->out + h * job->out_stride, a->expected[h], job->v_dim,
				backend(k)->name);
			if (h + 1 < job->n_heads && job->out_stride > job->v_dim)
				assert_int_equal(
					bits_from(a->out[h * job->out_stride + job->v_dim]),
					0x7f7f7f7f);
		}
		free(job->scratch);
	}
}

/* v_dim 0: the values lie in the keys, all but the last few of them. */
static void random_case(struct case_data *a, uint32_t k_dim, uint32_t v_dim, uint32_t heads,
	uint32_t n_cells, enum kv_type type, uint64_t *rng)
{
	size_t k_bytes = kv_vector_bytes(type, k_dim), v_bytes = kv_vector_bytes(type, v_dim);
	uint32_t out_dim = v_dim ? v_dim : k_dim > 8 ? k_dim - 8 : k_dim;

	a->k_raw = malloc(CELLS_MAX * k_bytes);
	a->v_raw = v_dim ? malloc(CELLS_MAX * v_bytes) : NULL;
	assert_true(a->k_raw && (a->v_raw || !v_dim));
	put_cells(a->k, k_dim, type, a->k_raw, rng);
	if (v_dim)
		put_cells(a->v, v_dim, type, a->v_raw, rng);
	else
		memcpy(a->v, a->k, sizeof(a->v));
	for (uint32_t c = 0; c < n_cells; c++)
		a->cells[c] = random_below(rng, CELLS_MAX);
	for (size_t i = 0; i < sizeof(a->q) / sizeof(a->q[0]); i++)
		a->q[i] = random_float(rng) * 3;
	for (size_t i = 0; i < HEADS_MAX; i++)
		a->sinks[i] = random_float(rng) * 6;
	a->job = (struct attention_job){
		.n_cells = n_cells,
		.cells = a->cells,
		.kv_type = type,
		.k = a->k_raw,
		.v = v_dim ? a->v_raw : a->k_raw,
		.k_cell_bytes = k_bytes,
		.v_cell_bytes = v_dim ? v_bytes : k_bytes,
		.k_dim = k_dim,
		.v_dim = out_dim,
		.n_heads = heads,
		.q = a->q,
		.out = a->out,
		.q_stride = k_dim + 3,
		.out_stride = out_dim + 5,
		.scale = 1 / sqrtf((float)k_dim),
		.sinks = random_below(rng, 2) ? a->sinks : NULL,
	};
	for (uint32_t h = 0; h < heads; h++)
		reference_attention(a, h, a->expected[h]);
}

static void sweep(enum kv_type type)
{
	static const uint32_t dims[] = {2, 14, 16, 30, 32, 64, 66, 80, 128, 256, 258};
	static const uint32_t counts[] = {1, 2, 63, 64, 65, 128, 129, 200};
	struct case_data *a = malloc(sizeof(*a));
	uint64_t rng = (uint64_t)type + 1;

	assert_non_null(a);
	for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
		for (size_t j = 0; j < sizeof(counts) / sizeof(counts[0]); j++) {
			/* As long as the keys, of another length, and part of the keys. */
			const uint32_t v_dims[] = {dims[i], dims[(i + j + 1) % 11], 0};

			random_case(a, dims[i], v_dims[j % 3], 1 + random_below(&rng, HEADS_MAX),
				counts[j], type, &rng);
			run_backends(a);
			for (uint32_t h = 0; h < a->job.n_heads; h++)
				check_exact(a, h);
			free(a->k_raw);
			free(a->v_raw);
		}
	free(a);
}

static void attention_over_float32_cells_is_the_definition(void **state)
{
	(void)state;
	sweep(KV_F32);
}

static void attention_over_float16_cells_is_the_definition(void **state)
{
	(void)state;
	sweep(KV_F16);
}

static void attention_over_8_bit_cells_is_the_definition(void **state)
{
	(void)state;
	sweep(KV_Q8_0);
}

/* A group's heads may be computed in any parts: the bits are a head's own. */
static void heads_do_not_depend_on_their_neighbours(void **state)
{
	struct case_data *a = malloc(sizeof(*a));
	uint64_t rng = 12;

	(void)state;
	assert_non_null(a);
	random_case(a, 80, 64, HEADS_MAX, 150, KV_F16, &rng);
	a->job.sinks = a->sinks;
	for (uint32_t h = 0; h < HEADS_MAX; h++)
		reference_attention(a, h, a->expected[h]);
	for (uint32_t first = 0; first < HEADS_MAX; first += 2) {
		struct attention_job part = a->job;
		float scratch[2 * (ATTENTION_CHUNK + 2)];

		part.n_heads = HEADS_MAX - first < 2 ? HEADS_MAX - first : 2;
		part.q += first * part.q_stride;
		part.out += first * part.out_stride;
		part.sinks += first;
		part.scratch = scratch;
		assert_true(sizeof(scratch) / sizeof(float) >=
			    backend(0)->attention_scratch(part.n_heads));
		backend(0)->attention(&part);
		for (uint32_t h = first; h < first + part.n_heads; h++)
			assert_same_floats(
				a->out + h * part.out_stride, a->expected[h], 64, backend(0)->name);
	}
	free(a->k_raw);
	free(a->v_raw);
	free(a);
}

/* A sink far above all scores leaves next to nothing, one far below changes nothing. */
static void a_sink_takes_its_share(void **state)
{
	struct case_data *a = malloc(sizeof(*a));
	float without[64];
	uint64_t rng = 13;

	(void)state;
	assert_non_null(a);
	random_case(a, 64, 64, 1, 70, KV_F32, &rng);
	a->job.sinks = NULL;
	reference_attention(a, 0, without);
	a->job.sinks = a->sinks;
	a->sinks[0] = 60;
	reference_attention(a, 0, a->expected[0]);
	run_backends(a);
	for (int d = 0; d < 64; d++)
		assert_true(fabsf(a->out[d]) < 1e-20f);
	a->sinks[0] = -80;
	reference_attention(a, 0, a->expected[0]);
	run_backends(a);
	for (int d = 0; d < 64; d++)
		assert_true(fabsf(a->out[d] - without[d]) < 1e-5f);
	free(a->k_raw);
	free(a->v_raw);
	free(a);
}

/* Whole blocks are what quantising activations gives; a short last block is one with zeros behind it. */
static void stored_8_bit_vectors_are_quantised_blocks(void **state)
{
	float x[160], wide[160];
	uint8_t raw[200], expected[200];
	uint64_t rng = 14;

	(void)state;
	for (uint32_t n = 1; n <= 160; n++) {
		size_t bytes = kv_vector_bytes(KV_Q8_0, n);
		struct q8_block blocks[5];

		assert_int_equal(bytes, n + 2 * ((n + 31) / 32));
		memset(x, 0, sizeof(x));
		for (uint32_t i = 0; i < n; i++)
			x[i] = random_float(&rng) * ldexpf(1, (int)random_below(&rng, 12) - 6);
		scalar_backend()->quantise_q8(x, 160, blocks);
		scalar_backend()->kv_store(x, n, KV_Q8_0, expected);
		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(
				(int8_t)expected[2 + i + 2 * (i / 32)], blocks[i / 32].q[i % 32]);
		widen(expected, n, KV_Q8_0, wide);
		for (uint32_t i = 0; i < n; i++)
			assert_true(fabsf(wide[i] - x[i]) <= 0.57f * blocks[i / 32].d);
		for (size_t k = 0; backend(k); k++) {
			raw[bytes] = 0xa5;
			backend(k)->kv_store(x, n, KV_Q8_0, raw);
			assert_memory_equal(raw, expected, bytes);
			assert_int_equal(raw[bytes], 0xa5);
		}
	}
}

static void infinite_and_nan_values_give_the_same_bits_everywhere(void **state)
{
	static const uint16_t odd[] = {0x7c00, 0xfc00, 0x7e00, 0x0001, 0x8001, 0x7bff};
	struct case_data *a = malloc(sizeof(*a));
	uint64_t rng = 9;

	(void)state;
	assert_non_null(a);
	for (int i = 0; i < 60; i++) {
		random_case(a, 34, 34, 3, 100, KV_F16, &rng);
		for (int j = 0; j < 2; j++) {
			size_t at = random_below(&rng, CELLS_MAX * 34);
			uint16_t value = odd[random_below(&rng, 6)];
			bool key = random_below(&rng, 2) == 0;

			memcpy((key ? a->k_raw : a->v_raw) + 2 * at, &value, 2);
			(key ? a->k : a->v)[at / 34][at % 34] = reference_half(value);
		}
		for (uint32_t h = 0; h < 3; h++)
			reference_attention(a, h, a->expected[h]);
		run_backends(a);
		free(a->k_raw);
		free(a->v_raw);
	}
	free(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(attention_over_float32_cells_is_the_definition),
		cmocka_unit_test(attention_over_float16_cells_is_the_definition),
		cmocka_unit_test(attention_over_8_bit_cells_is_the_definition),
		cmocka_unit_test(heads_do_not_depend_on_their_neighbours),
		cmocka_unit_test(a_sink_takes_its_share),
		cmocka_unit_test(stored_8_bit_vectors_are_quantised_blocks),
		cmocka_unit_test(infinite_and_nan_values_give_the_same_bits_everywhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
