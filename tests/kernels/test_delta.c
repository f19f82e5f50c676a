/* The parts of gated delta nets: the definition to the bit in every backend, and the mathematics. */
#include "tests/kernels/reference.h"

#define N_MAX 300

static void random_vector(uint64_t *rng, float *x, uint32_t n, float scale)
{
	for (uint32_t i = 0; i < n; i++)
		x[i] = random_float(rng) * scale;
}

static float reference_sigmoid(float x)
{
	return 1 / (1 + kernels_exp(-x));
}

static void sigmoid_mul_is_the_definition(void **state)
{
	float g[N_MAX], x[N_MAX], expected[N_MAX], out[N_MAX];
	uint64_t rng = 1;

	(void)state;
	for (uint32_t n = 1; n < N_MAX; n++) {
		random_vector(&rng, g, n, n % 7 == 0 ? 200 : 8);
		random_vector(&rng, x, n, 3);
		for (uint32_t i = 0; i < n; i++) {
			expected[i] = x[i] * reference_sigmoid(g[i]);
			assert_true(fabs((double)expected[i] -
					    (double)x[i] / (1 + exp(-(double)g[i]))) <=
				    1e-6 * fabs((double)x[i]));
		}
		for (size_t k = 0; backend(k); k++) {
			backend(k)->sigmoid_mul(g, x, n, out);
			assert_same_floats(out, expected, n, backend(k)->name);
			memcpy(out, x, n * sizeof(*x));
			backend(k)->sigmoid_mul(g, out, n, out);
			assert_same_floats(out, expected, n, "in place");
		}
	}
}

static void a_convolution_looks_back_over_its_taps(void **state)
{
	float rows[5][N_MAX], w[5 * N_MAX], expected[N_MAX], out[N_MAX];
	uint64_t rng = 2;

	(void)state;
	for (uint32_t n = 1; n < N_MAX; n++) {
		uint32_t taps = 1 + n % 5;
		const float *at[5];

		for (uint32_t t = 0; t < taps; t++) {
			random_vector(&rng, rows[t], n, 3);
			at[t] = rows[t];
		}
		random_vector(&rng, w, taps * n, 1);
		for (uint32_t i = 0; i < n; i++) {
			float s = 0;
			double sum = 0;

			for (uint32_t t = 0; t < taps; t++) {
				s = fmaf(rows[t][i], w[t * n + i], s);
				sum += (double)rows[t][i] * (double)w[t * n + i];
			}
			expected[i] = s * reference_sigmoid(s);
			assert_true(fabs((double)expected[i] - sum / (1 + exp(-sum))) < 1e-5);
		}
		for (size_t k = 0; backend(k); k++) {
			backend(k)->conv_silu(at, w, taps, n, out);
			assert_same_floats(out, expected, n, backend(k)->name);
		}
	}
}

static void l2_norm_is_the_definition(void **state)
{
	float x[N_MAX], expected[N_MAX], y[N_MAX];
	uint64_t rng = 3;

	(void)state;
	for (uint32_t n = 1; n < N_MAX; n++) {
		const float eps = 1e-6f, scale = n % 2 ? 1 : 0.3f;
		double ss = 0;
		float factor;

		random_vector(&rng, x, n, n % 5 ? 2 : 1e-4f);
		factor = 1 / sqrtf(reference_norm_sum(x, x, n) + eps);
		for (uint32_t i = 0; i < n; i++)
			ss += (double)x[i] * (double)x[i];
		for (uint32_t i = 0; i < n; i++) {
			expected[i] = x[i] * factor;
			expected[i] *= scale;
			assert_true(
				fabs((double)expected[i] - (double)x[i] / sqrt(ss + (double)eps) *
								   (double)scale) < 1e-6);
		}
		for (size_t k = 0; backend(k); k++) {
			memcpy(y, x, n * sizeof(*x));
			backend(k)->l2_norm(y, eps, scale, n, y);
			assert_same_floats(y, expected, n, backend(k)->name);
		}
	}
}

static float reference_softplus(float x)
{
	float e = kernels_exp(x), u = 1 + e;

	if (x > 20)
		return x;
	return u == 1 ? e : kernels_log(u) * (e / (u - 1));
}

static void gates_keep_their_precision_over_the_whole_range(void **state)
{
	uint64_t rng = 4;

	(void)state;
	for (int round = 0; round < 2000; round++) {
		float a[33], dt[33], alpha[33], beta[33], decay[33], rate[33], y[33], z[33];
		uint32_t n = 1 + random_below(&rng, 33);

		random_vector(&rng, alpha, n, (float)(1 << round % 8));
		random_vector(&rng, dt, n, 4);
		random_vector(&rng, beta, n, 10);
		for (uint32_t h = 0; h < n; h++) {
			float sum = alpha[h] + dt[h], softplus = reference_softplus(sum);
			double exact = log1p(exp((double)sum));

			a[h] = -expf(random_float(&rng) * 3);
			if (!(fabs((double)softplus - exact) <= 4e-7 * exact + 1e-37))
				fail_msg("softplus(%g) is %g, not %g", (double)sum,
					(double)softplus, exact);
			y[h] = kernels_exp(a[h] * softplus);
			z[h] = reference_sigmoid(beta[h]);
		}
		for (size_t k = 0; backend(k); k++) {
			backend(k)->delta_gates(a, dt, alpha, beta, n, decay, rate);
			assert_same_floats(decay, y, n, backend(k)->name);
			assert_same_floats(rate, z, n, backend(k)->name);
		}
	}
}

struct head {
	uint32_t d_k, d_v;
	float q[70], k[70], v[70], decay, rate;
	float s[70 * 70], out[70];
};

static float fold(const float *r)
{
	return (r[0] + r[2]) + (r[1] + r[3]);
}

static void reference_step(struct head *h)
{
	for (uint32_t j = 0; j < h->d_v; j++) {
		float r[4] = {0}, o[4] = {0}, d;

		for (uint32_t i = 0; i < h->d_k; i++)
			r[i % 4] = fmaf(h->s[i * h->d_v + j], h->k[i], r[i % 4]);
		d = h->v[j] - h->decay * fold(r);
		d *= h->rate;
		for (uint32_t i = 0; i < h->d_k; i++) {
			float *s = &h->s[i * h->d_v + j];

			*s = fmaf(h->k[i], d, *s * h->decay);
			o[i % 4] = fmaf(*s, h->q[i], o[i % 4]);
		}
		h->out[j] = fold(o);
	}
}

static void random_head(uint64_t *rng, struct head *h)
{
	h->d_k = 1 + random_below(rng, 70);
	h->d_v = 1 + random_below(rng, 70);
	random_vector(rng, h->q, h->d_k, 0.3f);
	random_vector(rng, h->k, h->d_k, 0.3f);
	random_vector(rng, h->v, h->d_v, 2);
	random_vector(rng, h->s, h->d_k * h->d_v, 1);
	h->decay = fabsf(random_float(rng));
	h->rate = fabsf(random_float(rng));
}

/* The whole state, then in columns: the same bits, and without output the same state. */
static void a_step_is_the_delta_rule_in_any_cut_of_columns(void **state)
{
	static struct head h, expected;
	static float s[70 * 70], out[70];
	uint64_t rng = 5;

	(void)state;
	for (int round = 0; round < 400; round++) {
		random_head(&rng, &h);
		expected = h;
		reference_step(&expected);
		for (size_t k = 0; backend(k); k++) {
			uint32_t cut = 1 + random_below(&rng, h.d_v);
			bool with_out = round % 3 != 0;

			memcpy(s, h.s, sizeof(s));
			for (uint32_t j = 0; j < h.d_v; j += cut) {
				struct delta_step step = {
					.state = s + j,
					.stride = h.d_v,
					.d_k = h.d_k,
					.columns = h.d_v - j < cut ? h.d_v - j : cut,
					.q = with_out ? h.q : NULL,
					.k = h.k,
					.v = h.v + j,
					.decay = h.decay,
					.rate = h.rate,
					.out = with_out ? out + j : NULL,
				};

				backend(k)->delta_step(&step);
			}
			assert_same_floats(s, expected.s, h.d_k * h.d_v, backend(k)->name);
			if (with_out)
				assert_same_floats(out, expected.out, h.d_v, backend(k)->name);
		}
	}
}

/* With rate 1, no decay and a key of length 1, what is written under a key is what is read with it. */
static void what_was_written_under_a_key_is_read_with_it(void **state)
{
	static struct head h;
	uint64_t rng = 6;

	(void)state;
	for (size_t k = 0; backend(k); k++) {
		random_head(&rng, &h);
		backend(k)->l2_norm(h.k, 0, 1, h.d_k, h.k);
		struct delta_step step = {.state = h.s,
			.stride = h.d_v,
			.d_k = h.d_k,
			.columns = h.d_v,
			.q = h.k,
			.k = h.k,
			.v = h.v,
			.decay = 1,
			.rate = 1,
			.out = h.out};

		backend(k)->delta_step(&step);
		for (uint32_t j = 0; j < h.d_v; j++)
			assert_true(fabs((double)h.out[j] - (double)h.v[j]) < 1e-5);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sigmoid_mul_is_the_definition),
		cmocka_unit_test(a_convolution_looks_back_over_its_taps),
		cmocka_unit_test(l2_norm_is_the_definition),
		cmocka_unit_test(gates_keep_their_precision_over_the_whole_range),
		cmocka_unit_test(a_step_is_the_delta_rule_in_any_cut_of_columns),
		cmocka_unit_test(what_was_written_under_a_key_is_read_with_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
