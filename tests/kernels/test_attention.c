/* Attention: the chunked order of kernels.h to the bit, and softmax(q k / sqrt(d)) v in float64. */
#include "tests/kernels/reference.h"

#define CELLS_MAX 200
#define DIM_MAX 260
#define HEADS_MAX 9

struct case_data {
	struct attention_job job;
	uint32_t cells[CELLS_MAX];
	float q[HEADS_MAX * (DIM_MAX + 3)], out[HEADS_MAX * (DIM_MAX + 5)],
		expected[HEADS_MAX][DIM_MAX];
	float k[CELLS_MAX][DIM_MAX], v[CELLS_MAX][DIM_MAX]; /* as the kernel sees them, widened */
	uint8_t *k_raw, *v_raw;
};

static void put_cells(float (*values)[DIM_MAX], uint32_t dim, enum kv_type type, size_t cell_bytes,
	uint8_t *raw, uint64_t *rng)
{
	for (uint32_t c = 0; c < CELLS_MAX; c++) {
		for (uint32_t d = 0; d < dim; d++)
			values[c][d] = random_float(rng) * 2;
		scalar_backend()->kv_store(values[c], dim, type, raw + c * cell_bytes);
		for (uint32_t d = 0; type == KV_F16 && d < dim; d++)
			values[c][d] = reference_half(u16_at(raw + c * cell_bytes + (size_t)2 * d));
	}
}

/* The order of kernels.h, a head at a time, everything else sequential. */
static void reference_attention(const struct case_data *a, uint32_t head, float *out)
{
	const struct attention_job *job = &a->job;
	const float *q = job->q + head * job->q_stride;
	float m = 0, s = 0;

	for (uint32_t from = 0; from < job->n_cells; from += ATTENTION_CHUNK) {
		uint32_t n = job->n_cells - from < ATTENTION_CHUNK ? job->n_cells - from
								   : ATTENTION_CHUNK;
		float scores[ATTENTION_CHUNK], most = -INFINITY, factor;

		for (uint32_t c = 0; c < n; c++) {
			scores[c] = reference_lanes(q, a->k[job->cells[from + c]], job->head_dim) *
				    job->scale;
			most = fmaxf(most, scores[c]);
		}
		most = from > 0 ? fmaxf(m, most) : most;
		factor = from > 0 ? kernels_exp(m - most) : 0;
		s = from > 0 ? s * factor : 0;
		for (uint32_t d = 0; d < job->head_dim; d++)
			out[d] = from > 0 ? out[d] * factor : 0;
		m = most;
		for (uint32_t c = 0; c < n; c++) {
			float p = kernels_exp(scores[c] - m);

			s += p;
			for (uint32_t d = 0; d < job->head_dim; d++)
				out[d] = fmaf(p, a->v[job->cells[from + c]][d], out[d]);
		}
	}
	for (uint32_t d = 0; d < job->head_dim; d++)
		out[d] *= 1 / s;
}

static void check_exact(const struct case_data *a, uint32_t head)
{
	const struct attention_job *job = &a->job;
	double p[CELLS_MAX], most = -INFINITY, sum = 0;

	for (uint32_t c = 0; c < job->n_cells; c++) {
		p[c] = 0;
		for (uint32_t d = 0; d < job->head_dim; d++)
			p[c] += (double)job->q[head * job->q_stride + d] *
				(double)a->k[job->cells[c]][d];
		p[c] *= (double)job->scale;
		most = fmax(most, p[c]);
	}
	for (uint32_t c = 0; c < job->n_cells; c++)
		sum += p[c] = exp(p[c] - most);
	for (uint32_t d = 0; d < job->head_dim; d++) {
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
		size_t floats = backend(k)->attention_scratch(job->n_heads, job->head_dim);

		/* Exactly as long as promised: a sanitizer sees a write beyond it. */
		job->scratch = malloc(floats * sizeof(float));
		assert_non_null(job->scratch);
		memset(a->out, 0x7f, sizeof(a->out));
		backend(k)->attention(job);
		for (uint32_t h = 0; h < job->n_heads; h++) {
			assert_same_floats(a->out + h * job->out_stride, a->expected[h],
				job->head_dim, backend(k)->name);
			if (h + 1 < job->n_heads && job->out_stride > job->head_dim)
				assert_int_equal(
					bits_from(a->out[h * job->out_stride + job->head_dim]),
					0x7f7f7f7f);
		}
		free(job->scratch);
	}
}

static void random_case(struct case_data *a, uint32_t dim, uint32_t heads, uint32_t n_cells,
	enum kv_type type, uint64_t *rng)
{
	size_t cell_bytes = (size_t)dim * (type == KV_F32 ? 4 : 2);

	a->k_raw = malloc(CELLS_MAX * cell_bytes);
	a->v_raw = malloc(CELLS_MAX * cell_bytes);
	assert_true(a->k_raw && a->v_raw);
	put_cells(a->k, dim, type, cell_bytes, a->k_raw, rng);
	put_cells(a->v, dim, type, cell_bytes, a->v_raw, rng);
	for (uint32_t c = 0; c < n_cells; c++)
		a->cells[c] = random_below(rng, CELLS_MAX);
	for (size_t i = 0; i < sizeof(a->q) / sizeof(a->q[0]); i++)
		a->q[i] = random_float(rng) * 3;
	a->job = (struct attention_job){n_cells, a->cells, type, a->k_raw, a->v_raw, cell_bytes,
		cell_bytes, dim, heads, a->q, a->out, dim + 3, dim + 5, 1 / sqrtf((float)dim),
		NULL};
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
			random_case(a, dims[i], 1 + random_below(&rng, HEADS_MAX), counts[j], type,
				&rng);
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

static void infinite_and_nan_values_give_the_same_bits_everywhere(void **state)
{
	static const uint16_t odd[] = {0x7c00, 0xfc00, 0x7e00, 0x0001, 0x8001, 0x7bff};
	struct case_data *a = malloc(sizeof(*a));
	uint64_t rng = 9;

	(void)state;
	assert_non_null(a);
	for (int i = 0; i < 60; i++) {
		random_case(a, 34, 3, 100, KV_F16, &rng);
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
		cmocka_unit_test(infinite_and_nan_values_give_the_same_bits_everywhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
