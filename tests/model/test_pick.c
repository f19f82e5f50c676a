/* The step that picks from a batch of rows: to the bit what the sampler picks row by row, for any threads, trees of drafts and
 * masks; probabilities and the most likely tokens beside a computation in double; rows that are not finite. */
#include "kernels/cpu/pick.h"
#include "kernels/logits_hash.h"
#include "tests/model/rig.h"

#include <float.h>
#include <math.h>

enum { V = 1000, WORDS = SAMPLER_ALLOWED_WORDS(V), ROWS = 90, HISTORY = 50, BEST = 20 };

static uint64_t rng = 5;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(rig_random(&rng) % n);
}

/* A batch of rows, their logits, and what they were made of. */
struct world {
	float logits[ROWS][V];
	const float *pointers[ROWS];
	struct sampler_params params[ROWS];
	uint64_t allowed[ROWS][WORDS];
	int32_t history[HISTORY];
	struct token_prob best[ROWS][BEST];
	struct pick_row rows[ROWS];
	struct pick_result results[ROWS];
};
static struct world w;

static void random_logits(float *x)
{
	const float spreads[] = {0.01f, 1, 5, 100};
	float spread = spreads[below(4)];
	uint32_t kind = below(5);
	for (uint32_t i = 0; i < V; i++) {
		x[i] = spread * (float)((int32_t)below(2001) - 1000) * 1e-3f;
		if (kind == 0 && below(50) == 0)
			x[i] = below(2) ? NAN : -INFINITY;
		else if (kind == 1)
			x[i] = (float)below(4); /* ties */
	}
}

static void random_params(struct sampler_params *p)
{
	const float temperatures[] = {0, 0.3f, 1, 1, 5};
	sampler_params_default(p);
	p->temperature = temperatures[below(5)];
	p->top_k = below(2) ? 0 : 1 + below(100);
	p->top_p = below(2) ? 1 : 0.9f;
	p->min_p = below(3) ? 0 : 0.02f;
	p->repeat_penalty = below(2) ? 1 : 1.7f;
	p->repeat_window = below(2) ? 0 : below(HISTORY + 20);
	p->seed = rig_random(&rng);
	p->n_biases = below(3) ? 0 : 3;
	for (uint32_t i = 0; i < p->n_biases; i++)
		p->biases[i] =
			(struct logit_bias){(int32_t)below(V), (float)((int32_t)below(20) - 10)};
}

static void random_mask(uint64_t *words)
{
	uint32_t kind = below(4);
	for (uint32_t i = 0; i < WORDS; i++)
		words[i] = kind == 0   ? rig_random(&rng)
			   : kind == 1 ? UINT64_MAX
			   : kind == 2 ? (below(8) ? 0 : rig_random(&rng))
				       : 0;
	/* One token alone, and noise behind the vocabulary. */
	if (kind == 3)
		words[below(V) / 64] = (uint64_t)1 << below(40);
	words[WORDS - 1] |= UINT64_MAX << (V % 64);
}

/* Several trees: chains mostly, so that some are deep. */
static void random_world(uint32_t n)
{
	for (uint32_t i = 0; i < HISTORY; i++)
		w.history[i] = (int32_t)below(V + 3) - 1;
	for (uint32_t i = 0; i < n; i++) {
		bool root = i % PICK_PATH_MAX == 0 || below(40) == 0;
		random_logits(w.logits[i]);
		random_params(&w.params[i]);
		random_mask(w.allowed[i]);
		w.pointers[i] = w.logits[i];
		w.rows[i] = (struct pick_row){
			.params = &w.params[i],
			.history = w.history,
			.n_history = root ? below(HISTORY + 1) : w.rows[i - 1].n_history,
			.parent = -1,
			.token = (int32_t)below(V),
			.position = below(2) ? below(4000) : rig_random(&rng),
			.allowed = below(2) ? w.allowed[i] : NULL,
			.best = w.best[i],
			.n_best = below(2) ? 0 : below(BEST + 1),
			.want_p = below(4) > 0,
			.want_hash = below(2) > 0,
		};
		if (root)
			continue;
		/* A node of the same tree: its history is that of the row before. */
		uint32_t first = i - 1;
		while (w.rows[first].parent >= 0)
			first = (uint32_t)w.rows[first].parent;
		w.rows[i].parent = (int32_t)(below(8) ? i - 1 : first + below(i - first));
	}
}

/* What the sampler says of row i, its path written out behind the history, the tokens that are not allowed taken away. */
static void assert_picked(struct sampler *sampler, uint32_t i)
{
	const struct pick_row *row = &w.rows[i];
	const struct pick_result *result = &w.results[i];
	int32_t tokens[HISTORY + PICK_PATH_MAX], path[PICK_PATH_MAX];
	uint32_t n = row->n_history, n_path = 0;
	float logits[V], p;
	for (uint32_t at = i; w.rows[at].parent >= 0; at = (uint32_t)w.rows[at].parent)
		path[n_path++] = w.rows[at].token;
	memcpy(tokens, row->history, n * sizeof(*tokens));
	while (n_path > 0)
		tokens[n++] = path[--n_path];
	memcpy(logits, w.logits[i], sizeof(logits));
	for (uint32_t t = 0; t < V && row->allowed; t++)
		if ((row->allowed[t / 64] >> (t % 64) & 1) == 0)
			logits[t] = -INFINITY;
	assert_int_equal(sampler_pick(sampler, row->params, logits, tokens, n, row->position, &p),
		result->token);
	if (row->want_p)
		assert_memory_equal(&p, &result->p, sizeof(p));
	assert_int_equal(result->finite, sampler_finite(w.logits[i], V));
	assert_int_equal(result->hash, row->want_hash ? logits_hash(w.logits[i], V) : 0);
}

static void run(struct pick *pick, uint32_t first, uint32_t n)
{
	assert_int_equal(pick_check(w.rows, first, n), 0);
	pick_run(pick, w.rows, first, n, w.pointers + first, w.results);
}

static void picks_are_what_the_sampler_picks_row_by_row(void **state)
{
	(void)state;
	const uint32_t threads[] = {1, 2, 5};
	struct error err;
	struct sampler sampler;
	assert_int_equal(sampler_init(&sampler, V), 0);
	for (size_t t = 0; t < sizeof(threads) / sizeof(threads[0]); t++) {
		struct pool *pool;
		struct pick *pick;
		assert_int_equal(pool_create(threads[t], 0, 20000, &pool, &err), 0);
		pool_use(pool, threads[t]);
		assert_int_equal(
			pick_create(kernels_select("auto", &err), pool, V, &pick, &err), 0);
		for (int round = 0; round < 40; round++) {
			uint32_t n = 1 + below(ROWS), step = 1 + below(n);
			random_world(n);
			memset(w.results, 0xAA, sizeof(w.results));
			for (uint32_t first = 0; first < n; first += step)
				run(pick, first, n - first < step ? n - first : step);
			for (uint32_t i = 0; i < n; i++)
				assert_picked(&sampler, i);
		}
		pick_destroy(&pick);
		assert_null(pick);
		pool_destroy(&pool);
	}
	sampler_exit(&sampler);
}

static struct pool *pool;
static struct pick *pick;

static int set_up(void **state)
{
	(void)state;
	struct error err;
	return pool_create(2, 0, 20000, &pool, &err) ||
	       pick_create(kernels_select("auto", &err), pool, V, &pick, &err);
}

static int tear_down(void **state)
{
	(void)state;
	pick_destroy(&pick);
	pool_destroy(&pool);
	return 0;
}

/* A batch of one row, whose logits all differ. */
static void one_row(const struct sampler_params *params)
{
	for (uint32_t i = 0; i < V; i++)
		w.logits[0][i] = (float)((i * 379) % V) * 0.01f - 5;
	w.pointers[0] = w.logits[0];
	w.rows[0] = (struct pick_row){
		.params = params,
		.parent = -1,
		.best = w.best[0],
		.n_best = BEST,
		.want_p = true,
	};
}

static void run_one(void)
{
	run(pick, 0, 1);
}

struct ranked {
	double z, p;
	int32_t token;
};

static int by_rank(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;
	if (x->z != y->z)
		return x->z > y->z ? -1 : 1;
	return x->token - y->token;
}

/* The kept set in double, by rank; how many. No history, so no penalty. */
static uint32_t kept_in_double(
	const struct sampler_params *p, const struct pick_row *row, struct ranked *out)
{
	double t = p->temperature > 0 ? (double)p->temperature : 1, sum = 0, kept_sum = 0;
	uint32_t n = 0, kept = 0;
	for (uint32_t i = 0; i < V; i++) {
		double x = (double)w.logits[0][i];
		for (uint32_t b = 0; b < p->n_biases; b++)
			if (p->biases[b].token == (int32_t)i)
				x += (double)p->biases[b].bias;
		if (!row->allowed || row->allowed[i / 64] >> (i % 64) & 1)
			out[n++] = (struct ranked){x / t, 0, (int32_t)i};
	}
	qsort(out, n, sizeof(*out), by_rank);
	for (uint32_t i = 0; i < n; i++)
		out[i].p = exp(out[i].z - out[0].z);
	if (p->temperature > 0 && p->top_k > 0 && p->top_k < n)
		n = p->top_k;
	for (uint32_t i = 0; i < n; i++)
		sum += out[i].p;
	if (p->temperature > 0) {
		while (kept < n && (kept == 0 || (kept_sum < (double)p->top_p * sum &&
							 out[kept].p >= (double)p->min_p)))
			kept_sum += out[kept++].p;
	} else {
		kept = n;
		kept_sum = sum;
	}
	for (uint32_t i = 0; i < kept; i++)
		out[i].p /= kept_sum;
	return kept;
}

static void probabilities_and_the_best_are_those_computed_in_double(void **state)
{
	(void)state;
	static struct ranked expected[V];
	static struct sampler_params params;
	uint32_t n_short = 0;
	for (int round = 0; round < 300; round++) {
		random_params(&params);
		params.repeat_penalty = 1;
		one_row(&params);
		random_mask(w.allowed[0]);
		w.rows[0].allowed = below(2) ? w.allowed[0] : NULL;
		w.rows[0].position = below(100);
		run_one();
		uint32_t n = kept_in_double(&params, &w.rows[0], expected);
		const struct pick_result *r = &w.results[0];
		if (n == 0) {
			assert_true(r->none);
			continue;
		}
		assert_true(!r->none && r->finite);
		assert_int_equal(r->n_best, n < BEST ? n : BEST);
		n_short += n < BEST;
		for (uint32_t i = 0; i < r->n_best; i++) {
			assert_int_equal(w.best[0][i].token, expected[i].token);
			assert_true(fabs((double)w.best[0][i].p - expected[i].p) <=
				    2e-5 * expected[i].p + 1e-12);
		}
		uint32_t at = 0;
		while (at < n && expected[at].token != r->token)
			at++;
		assert_true(at < n);
		assert_true(fabs((double)r->p - expected[at].p) <= 2e-5 * expected[at].p + 1e-12);
		if (params.temperature == 0)
			assert_int_equal(at, 0);
	}
	assert_true(n_short > 10);
}

/* The same bits in every back end; picked or not, whatever the parameters. */
static void log_probabilities_are_those_of_the_logits_as_they_are(void **state)
{
	(void)state;
	enum { TOP = LIMIT_TOP_LOGPROBS };
	static struct ranked expected[V];
	static struct sampler_params params;
	struct token_logprob top[TOP], first[TOP];
	for (int round = 0; round < 200; round++) {
		random_params(&params);
		one_row(&params);
		struct pick_row *asked = &w.rows[0];
		asked->n_top = below(TOP + 1);
		asked->top = top;
		asked->want_logprobs = true;
		asked->next = (int32_t)below(V);
		asked->score_next = round % 3 == 0;
		if (round % 4 == 0)
			asked->params = NULL;
		double sum = 0;
		for (uint32_t i = 0; i < V; i++)
			expected[i] = (struct ranked){(double)w.logits[0][i], 0, (int32_t)i};
		qsort(expected, V, sizeof(*expected), by_rank);
		for (uint32_t i = 0; i < V; i++)
			sum += exp(expected[i].z - expected[0].z);
		double log_sum = expected[0].z + log(sum), first_log_sum = NAN;
		for (size_t k = 0; kernels_all[k]; k++) {
			struct pick *other;
			struct pool *threads;
			struct error err;
			if (!kernels_all[k]->supported())
				continue;
			assert_int_equal(pool_create(1, 0, 20000, &threads, &err), 0);
			assert_int_equal(pick_create(kernels_all[k], threads, V, &other, &err), 0);
			run(other, 0, 1);
			const struct pick_result *r = &w.results[0];
			bool picked = asked->params && !asked->score_next;
			int32_t token = picked ? r->token : asked->next;
			assert_true(
				fabs((double)r->logprob - ((double)w.logits[0][token] - log_sum)) <=
				1e-5 + 1e-6 * fabs(log_sum));
			for (uint32_t i = 0; i < asked->n_top; i++) {
				assert_int_equal(top[i].token, expected[i].token);
				assert_true(top[i].logprob ==
					    sampler_logprob((float)expected[i].z, r->log_sum));
			}
			if (!isnan(first_log_sum)) {
				assert_memory_equal(&r->log_sum, &first_log_sum, sizeof(log_sum));
				assert_memory_equal(top, first, asked->n_top * sizeof(*top));
			}
			first_log_sum = r->log_sum;
			memcpy(first, top, sizeof(top));
			pick_destroy(&other);
			pool_destroy(&threads);
		}
		asked->want_logprobs = asked->score_next = false;
		asked->n_top = 0;
	}
	w.rows[0].n_top = LIMIT_TOP_LOGPROBS + 1;
	assert_int_equal(pick_check(w.rows, 0, 1), -EINVAL);
	w.rows[0].n_top = 0;
}

static void a_number_that_is_none_is_told_wherever_it_is(void **state)
{
	(void)state;
	static struct sampler_params params;
	const float odd[] = {NAN, -NAN, INFINITY, -INFINITY};
	sampler_params_default(&params);
	for (uint32_t i = 0; i < 4; i++) {
		one_row(&params);
		run_one();
		assert_true(w.results[0].finite);
		w.logits[0][below(V)] = odd[i];
		run_one();
		assert_false(w.results[0].finite);
		/* Whatever is allowed, and whether or not a token is wanted. */
		memset(w.allowed[0], 0, sizeof(w.allowed[0]));
		w.rows[0].allowed = w.allowed[0];
		run_one();
		assert_false(w.results[0].finite);
		w.rows[0].params = NULL;
		w.rows[0].want_hash = true;
		run_one();
		assert_false(w.results[0].finite);
		assert_int_equal(w.results[0].token, 0);
		assert_int_equal(w.results[0].hash, logits_hash(w.logits[0], V));
	}
}

static void masks_of_no_token_of_one_and_of_all_do_what_they_say(void **state)
{
	(void)state;
	static struct sampler_params params;
	for (int round = 0; round < 100; round++) {
		random_params(&params);
		one_row(&params);
		w.rows[0].allowed = w.allowed[0];
		memset(w.allowed[0], 0, sizeof(w.allowed[0]));
		run_one();
		assert_true(w.results[0].none && w.results[0].finite);
		assert_int_equal(w.results[0].token, 0);
		assert_int_equal(w.results[0].n_best, 0);
		assert_true(w.results[0].p == 1);
		uint32_t only = below(V);
		w.allowed[0][only / 64] = (uint64_t)1 << (only % 64);
		run_one();
		assert_false(w.results[0].none);
		assert_int_equal(w.results[0].token, only);
		assert_int_equal(w.results[0].n_best, 1);
		assert_int_equal(w.best[0][0].token, only);
		assert_true(w.results[0].p == 1 && w.best[0][0].p == 1);
		memset(w.allowed[0], 0xFF, sizeof(w.allowed[0]));
		run_one();
		struct pick_result masked = w.results[0];
		w.rows[0].allowed = NULL;
		run_one();
		assert_int_equal(masked.token, w.results[0].token);
		assert_memory_equal(&masked.p, &w.results[0].p, sizeof(masked.p));
	}
	/* A bias does not bring back what is not allowed. */
	sampler_params_default(&params);
	params.n_biases = 1;
	params.biases[0] = (struct logit_bias){7, 100};
	one_row(&params);
	run_one();
	assert_int_equal(w.results[0].token, 7);
	memset(w.allowed[0], 0xFF, sizeof(w.allowed[0]));
	w.allowed[0][0] &= ~((uint64_t)1 << 7);
	w.rows[0].allowed = w.allowed[0];
	run_one();
	assert_int_not_equal(w.results[0].token, 7);
}

/* Tokens of other branches are not penalised: the same logits give another token on each path. */
static void a_path_is_penalised_for_its_own_tokens_alone(void **state)
{
	(void)state;
	static struct sampler_params params;
	sampler_params_default(&params);
	params.repeat_penalty = 4;
	one_row(&params);
	w.rows[0].best = NULL;
	w.rows[0].n_best = 0;
	for (uint32_t i = 0; i < 4; i++) {
		memset(w.logits[i], 0, sizeof(w.logits[i]));
		w.logits[i][10] = 3;
		w.logits[i][11] = 2;
		w.logits[i][12] = 1;
		w.pointers[i] = w.logits[i];
		w.rows[i] = w.rows[0];
	}
	w.rows[1].parent = w.rows[2].parent = 0;
	w.rows[1].token = 10;
	w.rows[2].token = 11;
	w.rows[3].parent = 1;
	w.rows[3].token = 11;
	const int32_t expected[] = {10, 11, 10, 12};
	run(pick, 0, 4);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(w.results[i].token, expected[i]);
}

static void rows_that_contradict_themselves_are_refused(void **state)
{
	(void)state;
	static struct sampler_params params;
	sampler_params_default(&params);
	one_row(&params);
	w.rows[0].parent = 0;
	assert_int_equal(pick_check(w.rows, 0, 1), -EINVAL);
	w.rows[0].parent = -1;
	w.rows[0].n_best = PICK_BEST_MAX + 1;
	assert_int_equal(pick_check(w.rows, 0, 1), -EINVAL);
	w.rows[0].n_best = 0;
	for (uint32_t i = 0; i < PICK_PATH_MAX + 2; i++) {
		w.rows[i] = w.rows[0];
		w.rows[i].parent = (int32_t)i - 1;
	}
	assert_int_equal(pick_check(w.rows, 0, PICK_PATH_MAX + 1), 0);
	assert_int_equal(pick_check(w.rows, 0, PICK_PATH_MAX + 2), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(picks_are_what_the_sampler_picks_row_by_row),
		cmocka_unit_test(probabilities_and_the_best_are_those_computed_in_double),
		cmocka_unit_test(log_probabilities_are_those_of_the_logits_as_they_are),
		cmocka_unit_test(a_number_that_is_none_is_told_wherever_it_is),
		cmocka_unit_test(masks_of_no_token_of_one_and_of_all_do_what_they_say),
		cmocka_unit_test(a_path_is_penalised_for_its_own_tokens_alone),
		cmocka_unit_test(rows_that_contradict_themselves_are_refused),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
