/* Quantisation, norm, rope, activation, softmax and sums: the definition to the bit, and the mathematics. */
#include "tests/kernels/reference.h"

#define N_MAX 600

static void random_vector(uint64_t *rng, float *x, uint32_t n, float scale)
{
	for (uint32_t i = 0; i < n; i++)
		x[i] = random_float(rng) * scale;
}

static void assert_close(const float *got, const double *expected, uint32_t n, double tolerance)
{
	for (uint32_t i = 0; i < n; i++)
		if (!(fabs((double)got[i] - expected[i]) <=
			    tolerance * fmax(fabs(expected[i]), 1e-30)))
			fail_msg("element %u is %.9g, expected %.9g", i, (double)got[i],
				expected[i]);
}

static void check_quantised(const float *x, uint32_t cols)
{
	struct q8_block got[N_MAX / 32 + 1];

	for (size_t k = 0; backend(k); k++) {
		memset(got, 0xa5, sizeof(got));
		backend(k)->quantise_q8(x, cols, got);
		for (uint32_t b = 0; b < cols / 32; b++) {
			float amax = 0, d, inverse;
			int32_t sums[2] = {0, 0};

			for (uint32_t i = 0; i < 32; i++)
				amax = fmaxf(amax, fabsf(x[b * 32 + i]));
			d = amax < 0x1p-110f ? 0 : amax / 127;
			inverse = d > 0 ? 127 / amax : 0;
			assert_true(same_float(got[b].d, d));
			for (uint32_t i = 0; i < 32; i++) {
				int q = (int)rintf(x[b * 32 + i] * inverse);

				assert_int_equal(got[b].q[i], q);
				sums[i / 16] += q;
			}
			assert_int_equal(got[b].sums[0], sums[0]);
			assert_int_equal(got[b].sums[1], sums[1]);
			assert_true(same_float(got[b].d_sum, d * (float)(sums[0] + sums[1])));
			assert_int_equal(got[b].minus_128, -128 * (sums[0] + sums[1]));
		}
	}
}

static void quantising_rounds_to_nearest_even_in_every_backend(void **state)
{
	float x[288], scale = 0x1p-140f;
	uint64_t rng = 1;

	(void)state;
	for (int i = 0; i<500; i++, scale = scale> 1e37f ? 0x1p-140f : scale * 1.8f) {
		random_vector(&rng, x, 288, scale);
		check_quantised(x, 32 * (1 + random_below(&rng, 9)));
	}
	/* amax 127 makes x itself the quotient: the halves are ties. */
	for (int i = 0; i < 32; i++)
		x[i] = (float)(i - 16) + 0.5f;
	x[31] = 127;
	check_quantised(x, 32);
	memset(x, 0, sizeof(x));
	check_quantised(x, 64);
	x[5] = 0x1p-149f;
	x[40] = -0x1.fffffep127f;
	check_quantised(x, 64);
}

static void a_block_with_infinity_or_nan_is_zeros_with_that_scale(void **state)
{
	const float odd[] = {INFINITY, -INFINITY, NAN, -NAN};
	uint64_t rng = 2;

	(void)state;
	for (uint32_t i = 0; i < 4 * 32; i++) {
		float x[64];

		random_vector(&rng, x, 64, 3);
		x[i % 32] = odd[i / 32];
		for (size_t k = 0; backend(k); k++) {
			struct q8_block got[2];

			backend(k)->quantise_q8(x, 64, got);
			assert_true(i / 32 < 2 ? got[0].d == INFINITY : isnan(got[0].d));
			assert_int_equal(got[0].sums[0], 0);
			assert_int_equal(got[0].sums[1], 0);
			for (uint32_t j = 0; j < 32; j++)
				assert_int_equal(got[0].q[j], 0);
			assert_true(got[1].d > 0 && got[1].d < 1);
		}
	}
}

static void rms_norm_is_the_definition(void **state)
{
	float x[N_MAX], w[N_MAX], expected[N_MAX], y[N_MAX];
	double exact[N_MAX];
	uint64_t rng = 3;

	(void)state;
	for (uint32_t n = 1; n < N_MAX; n++) {
		const float eps = 1e-6f;
		double ss = 0;
		float inverse;

		random_vector(&rng, x, n, 4);
		random_vector(&rng, w, n, 2);
		for (uint32_t i = 0; i < n; i++)
			ss += (double)x[i] * (double)x[i];
		inverse = 1 / sqrtf(reference_norm_sum(x, x, n) / (float)n + eps);
		for (uint32_t i = 0; i < n; i++) {
			expected[i] = x[i] * inverse;
			expected[i] *= w[i];
			exact[i] = (double)x[i] / sqrt(ss / n + (double)eps) * (double)w[i];
		}
		for (size_t k = 0; backend(k); k++) {
			backend(k)->rms_norm(x, w, eps, n, y);
			assert_same_floats(y, expected, n, backend(k)->name);
			assert_close(y, exact, n, 2e-6);
			memcpy(y, x, n * sizeof(*x));
			backend(k)->rms_norm(y, w, eps, n, y);
			assert_same_floats(y, expected, n, "in place");
		}
	}
}

static void layer_norm_is_the_definition(void **state)
{
	float x[N_MAX], w[N_MAX], b[N_MAX], one[N_MAX], d[N_MAX], expected[N_MAX], y[N_MAX];
	double exact[N_MAX];
	uint64_t rng = 13;

	(void)state;
	for (uint32_t i = 0; i < N_MAX; i++)
		one[i] = 1;
	for (uint32_t n = 2; n < N_MAX; n++) {
		const float eps = 1e-5f;
		double mean = 0, ss = 0;
		float float_mean, inverse;

		random_vector(&rng, x, n, 4);
		random_vector(&rng, w, n, 2);
		random_vector(&rng, b, n, 2);
		for (uint32_t i = 0; i < n; i++)
			mean += (double)x[i] / n;
		for (uint32_t i = 0; i < n; i++)
			ss += ((double)x[i] - mean) * ((double)x[i] - mean);
		float_mean = reference_norm_sum(x, one, n) / (float)n;
		for (uint32_t i = 0; i < n; i++)
			d[i] = x[i] - float_mean;
		inverse = 1 / sqrtf(reference_norm_sum(d, d, n) / (float)n + eps);
		for (uint32_t i = 0; i < n; i++) {
			float scaled = d[i] * inverse;

			expected[i] = fmaf(scaled, w[i], b[i]);
			exact[i] =
				((double)x[i] - mean) / sqrt(ss / n + (double)eps) * (double)w[i] +
				(double)b[i];
			assert_true(fabs((double)expected[i] - exact[i]) < 1e-5);
		}
		for (size_t k = 0; backend(k); k++) {
			backend(k)->layer_norm(x, w, b, eps, n, y);
			assert_same_floats(y, expected, n, backend(k)->name);
			memcpy(y, x, n * sizeof(*x));
			backend(k)->layer_norm(y, w, b, eps, n, y);
			assert_same_floats(y, expected, n, "in place");
		}
	}
}

static void rope_turns_pairs_of_both_layouts(void **state)
{
	float table[128], head[160], expected[160];
	uint64_t rng = 4;

	(void)state;
	for (uint32_t n_rot = 2; n_rot <= 128; n_rot += 2) {
		for (int neox = 0; neox < 2; neox++) {
			float start[160];

			random_vector(&rng, start, 160, 2);
			memcpy(expected, start, sizeof(start));
			for (uint32_t i = 0; i < n_rot / 2; i++) {
				uint32_t a = neox ? i : 2 * i, b = neox ? i + n_rot / 2 : 2 * i + 1;
				double s, c;

				kernels_sincos((double)random_float(&rng) * 1e4, &s, &c);
				table[2 * i] = (float)c;
				table[2 * i + 1] = (float)s;
				expected[a] = fmaf(
					start[a], table[2 * i], -(start[b] * table[2 * i + 1]));
				expected[b] =
					fmaf(start[a], table[2 * i + 1], start[b] * table[2 * i]);
				assert_true(fabs((double)start[a] * c - (double)start[b] * s -
						    (double)expected[a]) < 1e-6);
			}
			for (size_t k = 0; backend(k); k++) {
				memcpy(head, start, sizeof(start));
				backend(k)->rope(head, table, n_rot, neox);
				assert_same_floats(head, expected, 160, backend(k)->name);
			}
		}
	}
}

static void silu_mul_is_close_and_the_same_everywhere(void **state)
{
	float g[N_MAX], u[N_MAX], y[N_MAX], expected[N_MAX];
	double exact[N_MAX];
	uint64_t rng = 5;

	(void)state;
	for (uint32_t n = 1; n < N_MAX; n++) {
		random_vector(&rng, g, n, n % 3 ? 8 : 80);
		random_vector(&rng, u, n, 3);
		for (uint32_t i = 0; i < n; i++) {
			float sigmoid = 1 / (1 + kernels_exp(-g[i]));

			expected[i] = g[i] * sigmoid;
			expected[i] *= u[i];
			exact[i] = (double)g[i] / (1 + exp(-(double)g[i])) * (double)u[i];
		}
		for (size_t k = 0; backend(k); k++) {
			backend(k)->silu_mul(g, u, n, y);
			assert_same_floats(y, expected, n, backend(k)->name);
			assert_close(y, exact, n, 1e-6);
		}
	}
}

static void silu_of_odd_values_is_the_same_everywhere(void **state)
{
	const float g[] = {0, -0.0f, INFINITY, -INFINITY, NAN, 3e38f, -3e38f, 0x1p-149f, -100, 100,
		-87.3f, -88.8f, 87.4f, 88.7f, 1, -1, 2};
	float u[17], y[17], expected[17];

	(void)state;
	for (uint32_t i = 0; i < 17; i++) {
		u[i] = 1;
		expected[i] = g[i] * (1 / (1 + kernels_exp(-g[i])));
	}
	for (size_t k = 0; backend(k); k++) {
		backend(k)->silu_mul(g, u, 17, y);
		assert_same_floats(y, expected, 17, backend(k)->name);
	}
}

static float reference_swiglu_oai(float g, float u)
{
	float sigmoid, product;

	g = g > 7 ? 7 : g;
	u = u > 7 ? 7 : u < -7 ? -7 : u;
	product = 1.702f * g;
	sigmoid = 1 / (1 + kernels_exp(-product));
	product = g * sigmoid;
	u = u + 1;
	return product * u;
}

static void sigmoid_and_swiglu_oai_are_the_definition(void **state)
{
	const float odd[] = {0, -0.0f, INFINITY, -INFINITY, NAN, 7, -7, 0x1.c00002p2f, 3e38f,
		-3e38f, -100, 100, 0x1p-149f};
	float g[N_MAX], u[N_MAX], y[N_MAX], expected[N_MAX], sigmoids[N_MAX];
	double exact[N_MAX];
	uint64_t rng = 14;

	(void)state;
	for (uint32_t n = 1; n < N_MAX; n++) {
		random_vector(&rng, g, n, n % 3 ? 9 : 80);
		random_vector(&rng, u, n, 9);
		for (uint32_t i = 0; i < n && n % 4 == 1; i++) {
			g[i] = odd[random_below(&rng, 13)];
			u[i] = odd[random_below(&rng, 13)];
		}
		for (uint32_t i = 0; i < n; i++) {
			sigmoids[i] = 1 / (1 + kernels_exp(-g[i]));
			expected[i] = reference_swiglu_oai(g[i], u[i]);
			exact[i] = 1 / (1 + exp(-(double)g[i]));
		}
		for (size_t k = 0; backend(k); k++) {
			backend(k)->swiglu_oai(g, u, n, y);
			assert_same_floats(y, expected, n, backend(k)->name);
			memcpy(y, g, n * sizeof(*g));
			backend(k)->sigmoid(y, n);
			assert_same_floats(y, sigmoids, n, backend(k)->name);
			if (n % 4 != 1 && n % 3)
				assert_close(y, exact, n, 1e-6);
		}
	}
	/* The limits of gpt-oss: the gate from above, the other from both sides. */
	assert_true(fabs((double)reference_swiglu_oai(100, -100) + 6 * 7 / (1 + exp(-1.702 * 7))) <
		    1e-4);
}

static void add_and_axpy_are_the_definition(void **state)
{
	float x[N_MAX], y[N_MAX], got[N_MAX], sum[N_MAX], scaled[N_MAX];
	uint64_t rng = 6;

	(void)state;
	for (uint32_t n = 1; n < N_MAX; n += 3) {
		float a = random_float(&rng);

		random_vector(&rng, x, n, 5);
		random_vector(&rng, y, n, 5);
		for (uint32_t i = 0; i < n; i++) {
			sum[i] = y[i] + x[i];
			scaled[i] = fmaf(a, x[i], y[i]);
		}
		for (size_t k = 0; backend(k); k++) {
			memcpy(got, y, sizeof(y));
			backend(k)->add(got, x, n);
			assert_same_floats(got, sum, n, backend(k)->name);
			memcpy(got, y, sizeof(y));
			backend(k)->axpy(got, a, x, n);
			assert_same_floats(got, scaled, n, backend(k)->name);
		}
	}
}

static void reference_softmax(const float *x, uint32_t n, float *out)
{
	float ones[N_MAX], most = -INFINITY, inverse;

	for (uint32_t i = 0; i < n; i++) {
		most = fmaxf(most, x[i]);
		ones[i] = 1;
	}
	for (uint32_t i = 0; i < n; i++)
		out[i] = kernels_exp(x[i] - most);
	inverse = 1 / reference_lanes(out, ones, n);
	for (uint32_t i = 0; i < n; i++)
		out[i] *= inverse;
}

static void softmax_is_the_definition_and_sums_to_one(void **state)
{
	float x[N_MAX], y[N_MAX], expected[N_MAX];
	double exact[N_MAX];
	uint64_t rng = 7;

	(void)state;
	for (uint32_t n = 1; n < N_MAX; n++) {
		double most = -INFINITY, sum = 0;

		random_vector(&rng, x, n, 20);
		for (uint32_t i = 0; i < n; i++)
			most = fmax(most, (double)x[i]);
		for (uint32_t i = 0; i < n; i++)
			sum += exact[i] = exp((double)x[i] - most);
		for (uint32_t i = 0; i < n; i++)
			exact[i] /= sum;
		reference_softmax(x, n, expected);
		for (size_t k = 0; backend(k); k++) {
			memcpy(y, x, sizeof(x));
			backend(k)->softmax(y, n);
			assert_same_floats(y, expected, n, backend(k)->name);
			assert_close(y, exact, n, 4e-6);
		}
	}
}

static void softmax_of_odd_values_is_the_same_everywhere(void **state)
{
	const float odd[] = {-INFINITY, INFINITY, NAN, 3e38f, -3e38f, 0, -0.0f};
	uint64_t rng = 8;

	(void)state;
	for (int i = 0; i < 2000; i++) {
		uint32_t n = 1 + random_below(&rng, 40);
		float x[40], y[40], expected[40];

		for (uint32_t j = 0; j < n; j++)
			x[j] = random_below(&rng, 3) ? random_float(&rng)
						     : odd[random_below(&rng, 7)];
		memcpy(expected, x, sizeof(x));
		scalar_backend()->softmax(expected, n);
		for (size_t k = 0; backend(k); k++) {
			memcpy(y, x, sizeof(x));
			backend(k)->softmax(y, n);
			assert_same_floats(y, expected, n, backend(k)->name);
		}
	}
}

/* Of several blocks and a part of one, with ties, zeros of both signs, and now and then a value that is not finite. */
static void the_first_of_the_greatest_is_found_if_all_are_finite(void **state)
{
	enum { N = 5000 };
	const float odd[] = {-INFINITY, INFINITY, NAN, -NAN};
	static float x[N], z[N], most[N / SAMPLE_CHUNK + 1];
	uint64_t rng = 12;

	(void)state;
	for (int round = 0; round < 400; round++) {
		uint32_t n = 1 + random_below(&rng, round % 2 ? N : 70), best = 0;
		uint32_t levels = 1 + random_below(&rng, 5000);
		bool finite = random_below(&rng, 4) > 0;

		for (uint32_t i = 0; i < n; i++) {
			x[i] = (float)random_below(&rng, levels) - (float)levels + 1;
			x[i] = x[i] == 0 && random_below(&rng, 2) ? -0.0f : x[i];
			best = x[i] > x[best] ? i : best;
		}
		if (!finite)
			x[random_below(&rng, n)] = odd[random_below(&rng, 4)];
		for (size_t k = 0; backend(k); k++) {
			assert_int_equal(backend(k)->greatest(x, n), finite ? best : UINT32_MAX);
			assert_int_equal(backend(k)->scale_logits(x, n, 0.5f, z, most), finite);
		}
	}
}

static void exp_sums_are_those_of_chunks(void **state)
{
	float z[N_MAX], e[N_MAX], ones[SAMPLE_CHUNK], sums[N_MAX / SAMPLE_CHUNK + 1];
	float expected[N_MAX / SAMPLE_CHUNK + 1];
	uint64_t rng = 10;

	(void)state;
	for (uint32_t i = 0; i < SAMPLE_CHUNK; i++)
		ones[i] = 1;
	for (uint32_t n = 1; n < N_MAX; n++) {
		uint32_t chunks = 0;

		random_vector(&rng, z, n, 60);
		z[n / 2] = -INFINITY;
		for (uint32_t i = 0; i < n; i++)
			e[i] = kernels_exp(z[i] - 3.5f);
		for (uint32_t at = 0; at < n; at += SAMPLE_CHUNK)
			expected[chunks++] = reference_lanes(
				e + at, ones, n - at < SAMPLE_CHUNK ? n - at : SAMPLE_CHUNK);
		for (size_t k = 0; backend(k); k++) {
			sums[chunks - 1] = -1;
			backend(k)->exp_sums(z, n, 3.5f, sums);
			assert_same_floats(sums, expected, chunks, backend(k)->name);
		}
	}
}

/* In a chunk where all else has no weight, the sum is one exponential. */
static void exp_of_any_bits_is_the_scalar_exp(void **state)
{
	const float limits[] = {-87.3f, 88.72283f, 0, -0.0f, INFINITY, -INFINITY, NAN, 3e38f,
		-3e38f, 1e-40f, -1e-40f};
	enum { LIMITS = sizeof(limits) / sizeof(limits[0]), N = 4096 };
	static float z[N * SAMPLE_CHUNK];
	float sums[N], expected[N];
	uint64_t rng = 11;

	(void)state;
	for (uint32_t i = 0; i < N * SAMPLE_CHUNK; i++)
		z[i] = -INFINITY;
	for (uint32_t i = 0; i < N; i++) {
		float x = float_from((uint32_t)random_bits(&rng));

		if (i % 3 == 1)
			x = nextafterf(limits[i % LIMITS], x);
		else if (i % 3 == 2)
			x = limits[i % LIMITS];
		z[i * SAMPLE_CHUNK + i % SAMPLE_CHUNK] = x;
		expected[i] = kernels_exp(x);
	}
	for (size_t k = 0; backend(k); k++) {
		backend(k)->exp_sums(z, N * SAMPLE_CHUNK, 0, sums);
		assert_same_floats(sums, expected, N, backend(k)->name);
	}
}

static void kv_store_keeps_float32_and_rounds_to_float16(void **state)
{
	float x[N_MAX], plain[N_MAX];
	uint16_t half[N_MAX + 1], expected[N_MAX];
	uint64_t rng = 9;

	(void)state;
	for (uint32_t n = 1; n < N_MAX; n++) {
		for (uint32_t i = 0; i < n; i++)
			x[i] = i % 3 ? random_float(&rng) *
					       ldexpf(1, (int)random_below(&rng, 50) - 30)
				     : float_from((uint32_t)random_bits(&rng));
		scalar_backend()->kv_store(x, n, KV_F16, expected);
		for (size_t k = 0; backend(k); k++) {
			half[n] = 0xbeef;
			backend(k)->kv_store(x, n, KV_F16, half);
			assert_memory_equal(half, expected, n * sizeof(*half));
			assert_int_equal(half[n], 0xbeef);
			backend(k)->kv_store(x, n, KV_F32, plain);
			assert_memory_equal(plain, x, n * sizeof(*x));
		}
	}
}

static void selecting_names_what_there_is(void **state)
{
	struct error err = {0};

	(void)state;
	assert_ptr_equal(kernels_select("auto", &err), backend(0));
	assert_ptr_equal(kernels_select(NULL, &err), backend(0));
	for (size_t k = 0; kernels_all[k]; k++)
		assert_ptr_equal(kernels_select(kernels_all[k]->name, &err),
			kernels_all[k]->supported() ? kernels_all[k] : NULL);
	assert_null(kernels_select("abacus", &err));
	assert_non_null(strstr(err.text, "abacus"));
	assert_non_null(strstr(err.text, "auto, scalar"));
	assert_null(strstr(err.text, "reference")); /* that is no setting */
	assert_null(kernels_notice(kernels_select("reference", NULL), "reference"));
	assert_non_null(kernels_notice(kernels_select("scalar", NULL), "scalar"));
	assert_null(tensor_type_info(9)); /* Q8_1 */
	assert_string_equal(tensor_type_info(8)->name, "Q8_0");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(quantising_rounds_to_nearest_even_in_every_backend),
		cmocka_unit_test(a_block_with_infinity_or_nan_is_zeros_with_that_scale),
		cmocka_unit_test(rms_norm_is_the_definition),
		cmocka_unit_test(layer_norm_is_the_definition),
		cmocka_unit_test(sigmoid_and_swiglu_oai_are_the_definition),
		cmocka_unit_test(rope_turns_pairs_of_both_layouts),
		cmocka_unit_test(silu_mul_is_close_and_the_same_everywhere),
		cmocka_unit_test(silu_of_odd_values_is_the_same_everywhere),
		cmocka_unit_test(add_and_axpy_are_the_definition),
		cmocka_unit_test(softmax_is_the_definition_and_sums_to_one),
		cmocka_unit_test(the_first_of_the_greatest_is_found_if_all_are_finite),
		cmocka_unit_test(exp_sums_are_those_of_chunks),
		cmocka_unit_test(exp_of_any_bits_is_the_scalar_exp),
		cmocka_unit_test(softmax_of_odd_values_is_the_same_everywhere),
		cmocka_unit_test(kv_store_keeps_float32_and_rounds_to_float16),
		cmocka_unit_test(selecting_names_what_there_is),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
