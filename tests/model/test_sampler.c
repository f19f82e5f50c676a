/* From logits to tokens: filters against a brute-force reading of sampler.h, the noise against libm, the draws against
 * their distribution, and no allocation on the way from a token to the next. */
#include "kernels/sampler.h"
#include "shared/base/rand.h"
#include "tests/model/rig.h"

#include <float.h>
#include <math.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNT_ALLOCATIONS 0
#else
#define COUNT_ALLOCATIONS 1
/* Every allocation of the process passes here; glibc's own are behind these names. */
static _Atomic uint64_t n_allocations;
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *malloc(size_t bytes)
{
	n_allocations++;
	return __libc_malloc(bytes);
}
void *calloc(size_t n, size_t bytes)
{
	n_allocations++;
	return __libc_calloc(n, bytes);
}
void *realloc(void *old, size_t bytes)
{
	n_allocations++;
	return __libc_realloc(old, bytes);
}
#endif

#define V 300

static struct sampler sampler;
static struct sampler_params params;
static float logits[V];

static int set_up(void **state)
{
	(void)state;
	uint64_t random = 11;
	sampler_params_default(&params);
	for (uint32_t i = 0; i < V; i++)
		logits[i] = (float)(rig_random(&random) % 10000) / 1000.0f - 5;
	return sampler_init(&sampler, V);
}

static int tear_down(void **state)
{
	(void)state;
	sampler_exit(&sampler);
	return 0;
}

static int32_t pick(uint64_t position)
{
	return sampler_pick(&sampler, &params, logits, NULL, 0, position, NULL);
}

static void greedy_takes_the_largest_and_ties_go_to_the_smaller_id(void **state)
{
	(void)state;
	float confidence;
	logits[17] = logits[200] = 9;
	assert_int_equal(pick(0), 17);
	logits[16] = nextafterf(9, 10);
	assert_int_equal(pick(5), 16);
	assert_int_equal(sampler_pick(&sampler, &params, logits, NULL, 0, 0, &confidence), 16);
	double sum = 0;
	for (uint32_t i = 0; i < V; i++)
		sum += exp((double)logits[i] - (double)logits[16]);
	assert_true(fabs((double)confidence - 1 / sum) < 1e-5);
}

static void logits_that_are_not_numbers_are_never_taken(void **state)
{
	(void)state;
	for (float t = 0; t < 2; t++) {
		params.temperature = t;
		for (uint32_t i = 0; i < V; i++)
			logits[i] = NAN;
		assert_int_equal(pick(1), 0);
		for (uint32_t i = 0; i < V; i++)
			logits[i] = -INFINITY;
		assert_int_equal(pick(1), 0);
		logits[40] = -3e38f;
		assert_int_equal(pick(1), 40);
		logits[41] = INFINITY;
		assert_int_equal(pick(1), 41);
	}
}

static int by_p(const void *a, const void *b)
{
	const struct token_prob *x = a, *y = b;
	if (x->p != y->p)
		return x->p > y->p ? -1 : 1;
	return x->token - y->token;
}

/* The distribution as sampler.h says it, in double with libm and a full sort. */
static uint32_t by_the_book(struct token_prob *out)
{
	double sum = 0, kept = 0;
	uint32_t n = V, m = 0;
	for (uint32_t i = 0; i < V; i++)
		out[i] = (struct token_prob){(int32_t)i, logits[i] / params.temperature};
	qsort(out, V, sizeof(*out), by_p);
	if (params.top_k && params.top_k < V)
		n = params.top_k;
	float max = out[0].p;
	for (uint32_t i = 0; i < n; i++) {
		out[i].p = (float)exp((double)(out[i].p - max));
		sum += (double)out[i].p;
	}
	while (m < n && (m == 0 || (out[m].p >= params.min_p && kept < (double)params.top_p * sum)))
		kept += (double)out[m++].p;
	for (uint32_t i = 0; i < m; i++)
		out[i].p = (float)((double)out[i].p / kept);
	return m;
}

static void filters_keep_what_a_full_sort_keeps(void **state)
{
	(void)state;
	static const uint32_t top_k[] = {0, 1, 2, 40, V - 1, V, V + 7};
	static const float top_p[] = {1, 0.95f, 0.5f, 0.01f}, min_p[] = {0, 0.02f, 0.3f, 1};
	uint64_t random = 5;
	for (int round = 0; round < 7 * 4 * 4; round++) {
		struct token_prob expected[V];
		params.temperature = 0.5f + (float)(round % 5) * 0.3f;
		params.top_k = top_k[round % 7];
		params.top_p = top_p[round / 7 % 4];
		params.min_p = min_p[round / 28];
		logits[rig_random(&random) % V] = logits[rig_random(&random) % V];
		uint32_t n = by_the_book(expected);
		sampler_distribution(&sampler, &params,
			&(struct sampler_input){.logits = logits, .history = NULL, .n_history = 0});
		assert_int_equal(sampler.n_dist, n);
		for (uint32_t i = 0; i < n; i++) {
			assert_int_equal(sampler.dist[i].token, expected[i].token);
			assert_true(fabsf(sampler.dist[i].p - expected[i].p) <= 1e-6f);
		}
		int32_t token = pick((uint64_t)round);
		bool kept = false;
		for (uint32_t i = 0; i < n; i++)
			kept |= expected[i].token == token;
		assert_true(kept);
	}
}

static void the_repetition_penalty_counts_the_window_once_each(void **state)
{
	(void)state;
	int32_t history[] = {3, 9, 9, 9, -5, V + 3, 7};
	logits[3] = 10;
	logits[7] = 9.5f;
	logits[9] = 9;
	params.repeat_penalty = 1.25f; /* 3: 8; 7: 7.6; 9: 7.2 */
	logits[50] = 7.9f;
	assert_int_equal(sampler_pick(&sampler, &params, logits, history, 7, 7, NULL), 3);
	logits[50] = 8.1f;
	assert_int_equal(sampler_pick(&sampler, &params, logits, history, 7, 7, NULL), 50);
	params.repeat_window = 3;
	assert_int_equal(sampler_pick(&sampler, &params, logits, history, 7, 7, NULL), 3);
	/* Negative logits grow. */
	for (uint32_t i = 0; i < V; i++)
		logits[i] = -4;
	logits[3] = -3.5f;
	params.repeat_window = 0;
	assert_int_equal(sampler_pick(&sampler, &params, logits, history, 7, 7, NULL), 0);
}

static void biases_are_added_before_everything(void **state)
{
	(void)state;
	params.n_biases = 2;
	params.biases[0] = (struct logit_bias){120, 100};
	params.biases[1] = (struct logit_bias){120, 1};
	assert_int_equal(pick(0), 120);
	params.temperature = 1;
	assert_int_equal(pick(3), 120);
	params.biases[0].bias = -INFINITY;
	for (uint64_t i = 0; i < 2000; i++)
		assert_int_not_equal(pick(i), 120);
}

/* Of a row of four logits so many are kept. */
static void assert_keeps(struct sampler *s, const struct sampler_params *p, uint32_t n, float a,
	float b, float c, float d)
{
	const float row[4] = {a, b, c, d};
	const int32_t history[] = {0};
	sampler_distribution(
		s, p, &(struct sampler_input){.logits = row, .history = history, .n_history = 1});
	assert_int_equal(s->n_dist, n);
}

/* That README and outrider(1) give: at another place each step would keep others. */
static void the_steps_come_in_the_documented_order(void **state)
{
	struct sampler s;
	struct sampler_params p;
	(void)state;
	assert_int_equal(sampler_init(&s, 4), 0);
	/* The bias, then the penalty: (1 + 2) / 2 is below 2, 1 / 2 + 2 would not be. */
	sampler_params_default(&p);
	p.temperature = p.repeat_penalty = 1;
	p.top_k = 1;
	p.n_biases = 1;
	p.biases[0] = (struct logit_bias){0, 2};
	assert_keeps(&s, &p, 1, 1, 2, 0, 0);
	assert_int_equal(s.dist[0].token, 0);
	p.repeat_penalty = 2;
	assert_keeps(&s, &p, 1, 1, 2, 0, 0);
	assert_int_equal(s.dist[0].token, 1);
	/* The temperature before top-p: at 1 the first has 0.61 of all, at 3 only 0.37. */
	sampler_params_default(&p);
	p.top_p = 0.5f;
	p.temperature = 1;
	assert_keeps(&s, &p, 1, 2, 1, 0, 0);
	p.temperature = 3;
	assert_keeps(&s, &p, 2, 2, 1, 0, 0);
	/* And before min-p: at 1 the second is 0.37 of the first, at 3 0.72. */
	p.top_p = 1;
	p.min_p = 0.5f;
	p.temperature = 1;
	assert_keeps(&s, &p, 1, 2, 1, 0, 0);
	p.temperature = 3;
	assert_keeps(&s, &p, 4, 2, 1, 0, 0);
	/* Top-k before top-p: of two the first has 0.73, of all four 0.48. */
	sampler_params_default(&p);
	p.temperature = 1;
	p.top_p = 0.6f;
	assert_keeps(&s, &p, 2, 2, 1, 1, 1);
	p.top_k = 2;
	assert_keeps(&s, &p, 1, 2, 1, 1, 1);
	/* Top-p before min-p, which takes the last away: of three two would have 0.81, of all four they have 0.70. */
	sampler_params_default(&p);
	p.temperature = 1;
	p.top_p = 0.75f;
	p.min_p = 0.35f;
	assert_keeps(&s, &p, 3, 2, 1.5f, 1, 0.9f);
	sampler_exit(&s);
}

static void the_noise_is_minus_log_minus_log_of_the_uniform(void **state)
{
	(void)state;
	for (uint64_t position = 0; position < 300; position++) {
		for (uint32_t token = 0; token < 300; token++) {
			double u = rand_uniform(99, RAND_GUMBEL, position, token);
			double expected = -log(-log(u));
			double got = sampler_gumbel(99, position, token);
			assert_true(fabs(got - expected) <= 4e-15 * (fabs(expected) + 1));
		}
	}
}

static void pick_argmaxes(void)
{
	params.seed = 77;
	for (uint64_t position = 0; position < 2000; position++) {
		double best = -INFINITY;
		int32_t expected = 0;
		for (uint32_t i = 0; i < V; i++) {
			double score = (double)(logits[i] / params.temperature) +
				       sampler_gumbel(77, position, i);
			if (score > best) {
				best = score;
				expected = (int32_t)i;
			}
		}
		assert_int_equal(pick(position), expected);
	}
}

/* Without its shortcuts (what cannot win draws no noise, or is not taken the logarithm of) the argmax is the same. */
static void the_token_is_the_argmax_of_logit_and_noise(void **state)
{
	(void)state;
	params.temperature = 0.7f;
	pick_argmaxes();
	/* Flat: every token may win. */
	params.temperature = 50;
	pick_argmaxes();
	/* The noise is as large as what the logits are rounded to, or lost in it. */
	params.temperature = 1;
	for (float raised = 1e6f; raised < 1e18f; raised *= 1e3f) {
		for (uint32_t i = 0; i < V; i++)
			logits[i] = raised + (float)(i % 3);
		pick_argmaxes();
	}
}

static void draws_follow_the_distribution(void **state)
{
	(void)state;
	enum { DRAWS = 200000 };
	static uint32_t count[V];
	params.temperature = 1.3f;
	params.top_p = 0.9f;
	memset(count, 0, sizeof(count));
	for (uint64_t i = 0; i < DRAWS; i++) {
		params.seed = i * 0x9E3779B97F4A7C15u;
		count[pick(i % 50)]++;
	}
	sampler_distribution(&sampler, &params,
		&(struct sampler_input){.logits = logits, .history = NULL, .n_history = 0});
	double chi = 0, total = 0;
	for (uint32_t i = 0; i < sampler.n_dist; i++) {
		double expected = (double)sampler.dist[i].p * DRAWS;
		double d = (double)count[sampler.dist[i].token] - expected;
		chi += d * d / expected;
		total += count[sampler.dist[i].token];
	}
	assert_true(total == DRAWS);
	/* Mean df, variance 2 df: six sigmas. */
	double df = (double)sampler.n_dist - 1;
	assert_true(chi < df + 6 * sqrt(2 * df));
}

static void confidence_is_the_probability_of_the_token(void **state)
{
	(void)state;
	for (int filtered = 0; filtered < 2; filtered++) {
		params.temperature = 0.9f;
		params.top_k = filtered ? 30 : 0;
		for (uint64_t i = 0; i < 100; i++) {
			float confidence;
			int32_t token =
				sampler_pick(&sampler, &params, logits, NULL, 0, i, &confidence);
			sampler_distribution(&sampler, &params,
				&(struct sampler_input){
					.logits = logits, .history = NULL, .n_history = 0});
			for (uint32_t j = 0; j < sampler.n_dist; j++)
				if (sampler.dist[j].token == token)
					assert_true(fabsf(sampler.dist[j].p - confidence) < 1e-6f);
		}
	}
}

static void parameters_out_of_range_are_named(void **state)
{
	(void)state;
	struct error err;
	assert_int_equal(sampler_params_check(&params, V, &err), 0);
#define REFUSED(field, value, word)                                             \
	do {                                                                    \
		struct sampler_params bad = params;                             \
		bad.field = (value);                                            \
		assert_int_equal(sampler_params_check(&bad, V, &err), -EINVAL); \
		assert_non_null(strstr(err.text, word));                        \
	} while (0)
	REFUSED(temperature, -0.1f, "temperature");
	REFUSED(temperature, 101, "temperature is 101: allowed are 0, or 1e-30 to 100");
	REFUSED(temperature, NAN, "temperature");
	REFUSED(temperature, 1e-38f, "1e-30 to 100");
	REFUSED(top_k, LIMIT_VOCAB + 1, "top-k is 1048577: allowed are 0 to 1048576");
	REFUSED(top_p, 0, "top-p is 0: allowed are more than 0, up to 1");
	REFUSED(top_p, 1.1f, "top-p is 1.1: allowed are more than 0, up to 1");
	REFUSED(min_p, -1, "min-p is -1: allowed are 0 to 1");
	REFUSED(min_p, NAN, "min-p");
	REFUSED(repeat_penalty, 0, "repeat penalty is 0: allowed are more than 0, up to 10");
	REFUSED(repeat_penalty, 11, "repeat penalty is 11");
	REFUSED(repeat_window, LIMIT_CONTEXT + 1, "repeat window is 1048577");
	REFUSED(coupling, 2, "coupling");
	REFUSED(n_biases, LIMIT_LOGIT_BIASES + 1, "biases");
	params.n_biases = 1;
	REFUSED(biases[0].token, V, "token 300");
	REFUSED(biases[0].token, -1, "token -1");
	REFUSED(biases[0].bias, NAN, "token 0: logit bias is nan");
	REFUSED(biases[0].bias, INFINITY, "logit bias is inf");
}

/* The steady state of generation: forward pass, commit and sampling, 100 tokens, K = 0 and K = 3. */
static void a_token_costs_no_heap_allocation(void **state)
{
	(void)state;
#if COUNT_ALLOCATIONS
	struct rig rig;
	struct kv_seq seq;
	struct sampler own;
	int32_t history[RIG_CONTEXT] = {1};
	rig_open(&rig, "tests/data/golden/quants/qwen3moe-256.Q4_0.gguf", NULL, 2, KV_F16);
	rig_seq(&rig, &seq);
	assert_int_equal(sampler_init(&own, rig.n_vocab), 0);
	params.temperature = 0.8f;
	params.top_p = 0.95f;
	params.repeat_penalty = 1.1f;
	uint64_t before = n_allocations;
	for (uint32_t i = 0; i < 100; i++) {
		struct batch_token batch[4];
		uint32_t cells[4], n = i % 2 ? 4 : 1;
		assert_int_equal(kv_take(&rig.kv, &seq, n, cells), 0);
		for (uint32_t j = 0; j < n; j++)
			batch[j] = (struct batch_token){&seq, j ? 5 : history[i], i + j,
				(int32_t)j - 1, true, cells[j], j > 0, false};
		assert_int_equal(forward_run(rig.forward, batch, n), 0);
		history[i + 1] = sampler_pick(
			&own, &params, forward_logits(rig.forward, 0), history, i + 1, i + 1, NULL);
		kv_commit(&rig.kv, &seq, cells, 1, cells + 1, n - 1);
	}
	uint64_t after = n_allocations;
	void *volatile piece = malloc(1); /* The counter counts. */
	free(piece);
	assert_true(n_allocations > after);
	assert_int_equal(after, before);
	sampler_exit(&own);
	kv_seq_exit(&rig.kv, &seq);
	rig_close(&rig);
#else
	print_message("# the sanitizer has its own malloc\n");
	skip();
#endif
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(greedy_takes_the_largest_and_ties_go_to_the_smaller_id),
		TEST(logits_that_are_not_numbers_are_never_taken),
		TEST(filters_keep_what_a_full_sort_keeps),
		TEST(the_repetition_penalty_counts_the_window_once_each),
		TEST(biases_are_added_before_everything),
		TEST(the_steps_come_in_the_documented_order),
		TEST(the_noise_is_minus_log_minus_log_of_the_uniform),
		TEST(the_token_is_the_argmax_of_logit_and_noise),
		TEST(draws_follow_the_distribution),
		TEST(confidence_is_the_probability_of_the_token),
		TEST(parameters_out_of_range_are_named),
		TEST(a_token_costs_no_heap_allocation),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
