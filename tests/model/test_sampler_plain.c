/* The sampler beside a plain one, which looks at every token, sorts them all and takes every logarithm: the same token, the
 * same distribution and the same confidence to the bit, in every backend. */
#include "kernels/sampler.h"
#include "shared/base/rand.h"
#include "tests/model/rig.h"

#include <float.h>
#include <math.h>

#define LARGE 150001
#define HISTORY 40

static uint64_t rng = 21;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(rig_random(&rng) % n);
}

static float normal(void)
{
	float sum = -6;
	for (int i = 0; i < 12; i++)
		sum += (float)below(1 << 16) * 0x1p-16f;
	return sum;
}

static float odd(void)
{
	const float values[] = {NAN, -NAN, INFINITY, -INFINITY, 0, -0.0f, FLT_MAX, -FLT_MAX, 1e-40f,
		-1e-40f, 0x1p-149f, 3e38f, -3e38f, 87.3f, -87.3f};
	return values[below(sizeof(values) / sizeof(values[0]))];
}

/* What a row is made of, drawn anew for each. */
static void random_row(float *x, uint32_t n)
{
	const float spreads[] = {1e-42f, 1e-3f, 0.1f, 2.5f, 20, 1e4f, 1e30f};
	const float bases[] = {0, 0, 0, 30, -30, 1e7f, 1e17f, -3e38f};
	float spread = spreads[below(7)], base = bases[below(8)];
	uint32_t kind = below(6), rare = below(2) ? 3 : 200;
	float only = below(4) ? 0 : odd();
	for (uint32_t i = 0; i < n; i++) {
		x[i] = base + spread * normal();
		if (kind == 1)
			x[i] = base + spread * (float)below(4); /* ties */
		else if (kind == 2 && below(rare) == 0)
			x[i] = odd();
		else if (kind == 3)
			x[i] = only;
		else if (kind == 4 && below(rare) > 0)
			x[i] = -INFINITY;
	}
	if (kind == 5)
		for (uint32_t i = 0; i < 3; i++)
			x[below(n)] = base + spread * (float)(4 + below(8));
}

static void random_params(struct sampler_params *p, uint32_t n)
{
	const float temperatures[] = {0, 1e-30f, 0.01f, 0.6f, 1, 1, 3, 20, 100};
	const float top_ps[] = {1, 1, 0.95f, 0.5f, 1e-6f}, min_ps[] = {0, 0, 0.05f, 0.5f, 1};
	sampler_params_default(p);
	p->temperature = temperatures[below(9)];
	p->top_p = top_ps[below(5)];
	p->min_p = min_ps[below(5)];
	p->top_k = below(2) ? 0 : 1 + below(below(2) ? 30 : n + 3);
	p->repeat_penalty = below(3) ? 1 : 0.3f + (float)below(20) / 10;
	p->repeat_window = below(3) * 7;
	p->presence_penalty = below(3) ? 0 : 2 - (float)below(41) / 10;
	p->frequency_penalty = below(3) ? 0 : 2 - (float)below(41) / 10;
	p->dry_multiplier = below(2) ? 0 : (float)below(40) / 10;
	p->dry_base = 1 + (float)below(20) / 10;
	p->dry_allowed_length = 1 + below(4);
	p->dry_window = below(3) * 9;
	p->top_n_sigma = below(3) ? 0 : (float)below(40) / 10;
	p->xtc_probability = below(2) ? 0 : below(2) ? 1 : 0.5f;
	p->xtc_threshold = below(2) ? 0.1f : 1e-3f + (float)below(49) / 100;
	p->seed = rig_random(&rng);
	p->n_biases = below(3) ? 0 : 1 + below(5);
	for (uint32_t i = 0; i < p->n_biases; i++) {
		float bias = below(4) ? 3 * normal() : odd();
		p->biases[i] =
			(struct logit_bias){(int32_t)below(n + 2), isnan(bias) ? -INFINITY : bias};
	}
}

static float sane(float x)
{
	return isnan(x) ? -INFINITY : x > FLT_MAX ? FLT_MAX : x;
}

/* The longest end of the text that came before this token, at most `reach` long. */
static uint32_t plain_repeats(const int32_t *text, uint32_t n, uint32_t reach, int32_t token)
{
	uint32_t longest = 0;
	for (uint32_t at = 1; at < n; at++) {
		uint32_t length = 0;
		while (length < reach && length < at &&
			text[at - 1 - length] == text[n - 1 - length])
			length++;
		if (text[at] == token && length > longest)
			longest = length;
	}
	return longest;
}

static void plain_dry(const struct sampler_params *p, const int32_t *text, uint32_t n_text,
	uint32_t reach, float *z, uint32_t n)
{
	if (p->dry_window > 0 && n_text > p->dry_window) {
		text += n_text - p->dry_window;
		n_text = p->dry_window;
	}
	for (uint32_t token = 0; token < n; token++) {
		uint32_t longest = plain_repeats(text, n_text, reach, (int32_t)token);
		float penalty = p->dry_multiplier;
		if (longest < p->dry_allowed_length)
			continue;
		for (uint32_t i = p->dry_allowed_length; i < longest; i++)
			penalty *= p->dry_base;
		z[token] = sane(z[token] - penalty);
	}
}

static void plain_adjust(const struct sampler_params *p, const float *x, uint32_t n,
	const int32_t *history, uint32_t n_history, uint32_t n_prompt, uint32_t reach, float *z)
{
	for (uint32_t i = 0; i < n; i++)
		z[i] = sane(x[i]);
	for (uint32_t i = 0; i < p->n_biases; i++)
		if ((uint32_t)p->biases[i].token < n)
			z[p->biases[i].token] = sane(z[p->biases[i].token] + p->biases[i].bias);
	uint32_t first = p->repeat_window > 0 && n_history > p->repeat_window
				 ? n_history - p->repeat_window
				 : 0;
	for (uint32_t i = first; p->repeat_penalty != 1 && i < n_history; i++) {
		bool again = false;
		for (uint32_t j = first; j < i; j++)
			again |= history[j] == history[i];
		if (again || (uint32_t)history[i] >= n)
			continue;
		float *y = &z[history[i]];
		*y = sane(*y > 0 ? *y / p->repeat_penalty : *y * p->repeat_penalty);
	}
	for (uint32_t i = n_prompt; i < n_history; i++) {
		uint32_t times = 0, before = 0;
		for (uint32_t j = n_prompt; j < n_history; j++) {
			times += history[j] == history[i];
			before += j < i && history[j] == history[i];
		}
		if (before > 0 || (uint32_t)history[i] >= n)
			continue;
		float *y = &z[history[i]];
		*y = sane(*y - ((float)times * p->frequency_penalty + p->presence_penalty));
	}
	if (p->dry_multiplier > 0)
		plain_dry(p, history, n_history, reach, z, n);
	for (uint32_t i = 0; p->temperature > 0 && i < n; i++)
		z[i] = sane(z[i] / p->temperature);
}

static int by_p(const void *a, const void *b)
{
	const struct token_prob *x = a, *y = b;
	if (x->p != y->p)
		return x->p > y->p ? -1 : 1;
	return x->token - y->token;
}

static double plain_exp_sum(const float *z, uint32_t n, float z_max)
{
	double sum[64] = {0};
	for (uint32_t c = 0; 64 * c < n; c++) {
		float lane[16] = {0};
		for (uint32_t i = 64 * c; i < n && i < 64 * c + 64; i++)
			lane[i % 16] += kernels_exp(z[i] - z_max);
		for (uint32_t half = 8; half > 0; half /= 2)
			for (uint32_t i = 0; i < half; i++)
				lane[i] += lane[i + half];
		sum[c % 64] += (double)lane[0];
	}
	for (uint32_t half = 32; half > 0; half /= 2)
		for (uint32_t i = 0; i < half; i++)
			sum[i] += sum[i + half];
	return sum[0];
}

/* top-k, then top-p, then min-p; dist[].p is not divided by the sum yet, which is returned. */
static double plain_keep(const struct sampler_params *p, const float *z, uint32_t n,
	struct token_prob *dist, uint32_t *n_dist)
{
	bool top_k = p->top_k > 0 && p->top_k < n;
	uint32_t k = 0, kept = 0;
	double total = 0, sum = 0;
	for (uint32_t i = 0; i < n; i++)
		dist[i] = (struct token_prob){(int32_t)i, z[i]};
	qsort(dist, n, sizeof(*dist), by_p);
	float z_max = dist[0].p;
	while (k < (top_k ? p->top_k : n)) {
		float e = kernels_exp(dist[k].p - z_max);
		if (e == 0)
			break;
		dist[k++].p = e;
		total += (double)e;
	}
	if (!top_k)
		total = plain_exp_sum(z, n, z_max);
	while (kept < k && (kept == 0 || dist[kept].p >= p->min_p)) {
		sum += (double)dist[kept++].p;
		if (p->top_p < 1 && sum >= (double)p->top_p * total)
			break;
	}
	*n_dist = kept;
	return sum;
}

static double plain_sum(double part[16])
{
	for (uint32_t half = 8; half > 0; half /= 2)
		for (uint32_t i = 0; i < half; i++)
			part[i] += part[i + half];
	return part[0];
}

static void plain_sigma(const struct sampler_params *p, float *z, uint32_t n, uint32_t top)
{
	double sum[16] = {0}, squares[16] = {0}, count = 0, z_max = (double)z[top];
	for (uint32_t i = 0; i < n; i++) {
		if (z[i] == -INFINITY)
			continue;
		double x = (double)z[i] - z_max;
		sum[i % 16] += x;
		squares[i % 16] += x * x;
		count++;
	}
	double s = plain_sum(sum), v = count * plain_sum(squares) - s * s;
	double far = (double)p->top_n_sigma * (double)p->top_n_sigma * (v > 0 ? v : 0);
	for (uint32_t i = 0; i < n; i++) {
		double x = count * ((double)z[i] - z_max);
		z[i] = x * x <= far ? z[i] : -INFINITY;
	}
}

/* How many of dist, by rank, XTC leaves out where all weigh so much together. */
static uint32_t plain_xtc(const struct sampler_params *p, uint64_t position,
	const struct token_prob *kept, uint32_t n, double sum)
{
	uint32_t heavy = 0;
	if (!(rand_uniform(p->seed, RAND_XTC, position, 0) < (double)p->xtc_probability))
		return 0;
	while (heavy < n && kept[heavy].p >= (float)((double)p->xtc_threshold * sum))
		heavy++;
	return heavy > 1 ? heavy - 1 : 0;
}

/* dist, *n_dist: what was kept; empty where nothing is filtered (greedy, or all -inf). */
static int32_t plain_pick(const struct sampler_params *p, float *z, uint32_t n, uint64_t position,
	struct token_prob *dist, uint32_t *n_dist, float *confidence)
{
	uint32_t top = 0, best = 0;
	*n_dist = 0;
	*confidence = 1;
	for (uint32_t i = 1; i < n; i++)
		if (z[i] > z[top])
			top = i;
	if (z[top] == -INFINITY)
		return 0;
	if (p->temperature == 0) {
		*confidence = (float)(1 / plain_exp_sum(z, n, z[top]));
		return (int32_t)top;
	}
	if (p->top_n_sigma > 0)
		plain_sigma(p, z, n, top);
	/* What has no weight may win all the same, where nothing filters. */
	bool filtered = (p->top_k > 0 && p->top_k < n) || p->top_p < 1 || p->min_p > 0;
	double kept_sum = plain_keep(p, z, n, dist, n_dist), most = -INFINITY;
	double sum = filtered ? kept_sum : plain_exp_sum(z, n, z[top]);
	uint32_t out = plain_xtc(p, position, dist, *n_dist, sum);
	if (!filtered && out > 0) {
		for (uint32_t i = 0; i < out; i++)
			z[dist[i].token] = -INFINITY;
		top = (uint32_t)dist[out].token;
		sum = plain_exp_sum(z, n, z[top]);
	}
	out = plain_xtc(p, position, dist, *n_dist, kept_sum);
	if (out > 0) {
		*n_dist -= out;
		kept_sum = 0;
		for (uint32_t i = 0; i < *n_dist; i++) {
			dist[i] = dist[i + out];
			kept_sum += (double)dist[i].p;
		}
		sum = filtered ? kept_sum : sum;
	}
	for (uint32_t i = 0; i < (filtered ? *n_dist : n); i++) {
		uint32_t token = filtered ? (uint32_t)dist[i].token : i;
		double score = (double)z[token] + sampler_gumbel(p->seed, position, token);
		if (z[token] == -INFINITY || score < most || (score == most && token > best))
			continue;
		most = score;
		best = token;
	}
	*confidence = (float)((double)kernels_exp(z[best] - z[top]) / sum);
	for (uint32_t i = 0; i < *n_dist; i++)
		dist[i].p = (float)((double)dist[i].p / kept_sum);
	return (int32_t)best;
}

static struct sampler sampler;
static struct sampler_params params;
static float row[LARGE], z[LARGE];
static struct token_prob dist[LARGE];

/* The tokens that may be chosen by z + G, best first, up to SAMPLER_RANK_MAX. Called after plain_pick. */
static uint32_t plain_rank(uint32_t n, uint64_t position, uint32_t n_dist, uint32_t *best)
{
	bool filtered =
		(params.top_k > 0 && params.top_k < n) || params.top_p < 1 || params.min_p > 0;
	double score[SAMPLER_RANK_MAX + 1];
	uint32_t n_best = 0;
	for (uint32_t i = 0; i < (filtered ? n_dist : n); i++) {
		uint32_t token = filtered ? (uint32_t)dist[i].token : i, at = n_best;
		if (z[token] == -INFINITY)
			continue;
		double own = (double)z[token] + sampler_gumbel(params.seed, position, token);
		for (; at > 0 &&
			(own > score[at - 1] || (own == score[at - 1] && token < best[at - 1]));
			at--) {
			score[at] = score[at - 1];
			best[at] = best[at - 1];
		}
		score[at] = own;
		best[at] = token;
		n_best += n_best < SAMPLER_RANK_MAX;
	}
	return n_best;
}

/* expected: the token that is chosen, which ranks first. */
static void compare_ranks(uint32_t n, const struct sampler_input *input, uint64_t position,
	uint32_t n_dist, int32_t expected)
{
	struct token_prob best[SAMPLER_RANK_MAX];
	uint32_t by_hand[SAMPLER_RANK_MAX + 1], n_best;
	float sum = 0;
	n_best = sampler_rank(&sampler, &params, input, position, best, SAMPLER_RANK_MAX);
	if (n_best == 0) {
		assert_int_equal(expected, 0);
		return;
	}
	assert_int_equal(best[0].token, expected);
	for (uint32_t i = 0; i < n_best; i++) {
		assert_true(best[i].p >= 0 && best[i].p <= (i > 0 ? best[i - 1].p : 1));
		sum += best[i].p;
	}
	assert_true(sum < 1.0001f);
	if (params.temperature == 0)
		return;
	assert_true(sum > 0.9999f);
	assert_int_equal(n_best, plain_rank(n, position, n_dist, by_hand));
	for (uint32_t i = 0; i < n_best; i++)
		assert_int_equal(best[i].token, by_hand[i]);
	struct token_prob few[2];
	assert_int_equal(
		sampler_rank(&sampler, &params, input, position, few, 2), n_best < 2 ? n_best : 2);
	assert_memory_equal(few, best, (n_best < 2 ? n_best : 2) * sizeof(*few));
}

static void compare(uint32_t n)
{
	int32_t history[HISTORY];
	uint32_t n_dist, n_history = below(HISTORY), n_tail = below(n_history + 1);
	uint32_t n_prompt = below(n_history - n_tail + 1);
	float expected_confidence;
	for (uint32_t i = 0; i < n_history; i++)
		history[i] = below(2) ? (int32_t)below(n + 5) - 2 : (int32_t)below(3);
	random_row(row, n);
	random_params(&params, n);
	const struct sampler_input input = {
		.logits = row,
		.history = history,
		.n_history = n_history - n_tail,
		.tail = history + (n_history - n_tail),
		.n_tail = n_tail,
		.n_prompt = n_prompt,
		.dry_reach = below(3) ? 1000 : below(5),
	};
	plain_adjust(&params, row, n, history, n_history, n_prompt, input.dry_reach, z);
	int32_t expected =
		plain_pick(&params, z, n, n_history, dist, &n_dist, &expected_confidence);
	for (size_t k = 0; kernels_all[k]; k++) {
		if (!kernels_all[k]->supported())
			continue;
		sampler.kernels = kernels_all[k];
		struct sampler_choice choice =
			sampler_choose(&sampler, &params, &input, n_history, true, NULL, 0);
		assert_int_equal(choice.token, expected);
		assert_memory_equal(&choice.p, &expected_confidence, sizeof(choice.p));
		for (uint32_t i = 0; i < n; i++)
			assert_true(sampler.logits[i] == z[i]);
		compare_ranks(n, &input, n_history, n_dist, expected);
		if (n_dist == 0)
			continue;
		sampler_distribution(&sampler, &params, &input);
		assert_int_equal(sampler.n_dist, n_dist);
		assert_memory_equal(sampler.dist, dist, n_dist * sizeof(*dist));
	}
}

static void small_rows_give_what_the_plain_sampler_gives(void **state)
{
	(void)state;
	for (int round = 0; round < 1500; round++) {
		uint32_t n = 1 + below(300);
		assert_int_equal(sampler_init(&sampler, n), 0);
		for (int i = 0; i < 6; i++)
			compare(n);
		sampler_exit(&sampler);
	}
}

static void large_rows_give_what_the_plain_sampler_gives(void **state)
{
	(void)state;
	assert_int_equal(sampler_init(&sampler, LARGE), 0);
	for (int i = 0; i < 24; i++)
		compare(LARGE);
	sampler_exit(&sampler);
}

static void draws_are_those_of_philox(void **state)
{
	(void)state;
	for (int round = 0; round < 300; round++) {
		uint64_t seed = rig_random(&rng), position = rig_random(&rng);
		uint32_t first = round % 10 ? below(1u << 31) : UINT32_MAX - below(64);
		for (size_t k = 0; kernels_all[k]; k++) {
			uint32_t out[SAMPLE_CHUNK];
			if (!kernels_all[k]->supported())
				continue;
			kernels_all[k]->draws(seed, RAND_REPLAY, position, first, out);
			for (uint32_t i = 0; i < SAMPLE_CHUNK; i++)
				assert_true(rand_uniform_of(out[i]) ==
					    rand_uniform(seed, RAND_REPLAY, position, first + i));
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(small_rows_give_what_the_plain_sampler_gives),
		cmocka_unit_test(large_rows_give_what_the_plain_sampler_gives),
		cmocka_unit_test(draws_are_those_of_philox),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
