/* The step pick on the emulated GPU, against the scalar CPU: tokens, probabilities, lists, log
 * probabilities and hashes, to the bit, with all parameters of sampling. */
#include "tests/gpu/rig.h"

#include "kernels/pick.h"

#include <math.h>

enum { ROWS = 40, HISTORY = 60, SIDES = 1 + RIG_SEEDS };

/* What one side finds. */
struct found {
	struct pick_result results[ROWS];
	struct token_prob best[ROWS][PICK_BEST_MAX];
	struct token_logprob top[ROWS][LIMIT_TOP_LOGPROBS];
};

struct world {
	struct rows logits;
	uint32_t n_vocab, n, side;
	int32_t history[HISTORY];
	struct sampler_params params[ROWS];
	uint64_t *allowed[ROWS];
	struct pick_row rows[ROWS];
	uint32_t which[ROWS];
	struct found *found; /* [SIDES] */
};

static uint32_t below(struct rig *rig, uint32_t n)
{
	return rig_random(rig) % n;
}

static void random_logits(struct rig *rig, float *x, uint32_t n)
{
	const float spreads[] = {0.01f, 1, 5, 100, 3e38f};
	float spread = spreads[below(rig, 5)];
	uint32_t kind = below(rig, 7);

	for (uint32_t i = 0; i < n; i++) {
		x[i] = rig_float(rig) * spread;
		if (kind == 0 && below(rig, 50) == 0)
			x[i] = below(rig, 2) ? NAN : below(rig, 2) ? -INFINITY : INFINITY;
		else if (kind == 1)
			x[i] = (float)below(rig, 4);
		else if (kind == 2)
			x[i] = below(rig, 5) ? 0.0f : -0.0f;
		else if (kind == 3)
			x[i] = (rig_float(rig) + rig_float(rig) + rig_float(rig)) * 4;
		else if (kind == 4 && below(rig, 30) == 0)
			x[i] = -INFINITY;
	}
	for (uint32_t i = 0; i < n && below(rig, 60) == 0; i++)
		x[i] = -INFINITY;
}

static void random_penalties(struct rig *rig, uint32_t n_vocab, struct sampler_params *p)
{
	p->repeat_penalty = below(rig, 2) ? 1 : 1.7f;
	p->repeat_window = below(rig, 2) ? 0 : below(rig, HISTORY + 20);
	p->presence_penalty = below(rig, 3) ? 0 : 0.5f;
	p->frequency_penalty = below(rig, 3) ? 0 : 0.3f;
	if (below(rig, 3) == 0) {
		p->dry_multiplier = 0.8f;
		p->dry_allowed_length = 1 + below(rig, 3);
		p->dry_window = below(rig, 2) ? 0 : below(rig, HISTORY + 20);
	}
	p->n_biases = below(rig, 3) ? 0 : 4;
	for (uint32_t i = 0; i < p->n_biases; i++)
		p->biases[i] = (struct logit_bias){(int32_t)below(rig, n_vocab),
			below(rig, 10) ? rig_float(rig) * 9 : -INFINITY};
	/* Two for one token. */
	p->biases[2].token = p->biases[0].token;
}

static void random_params(struct rig *rig, uint32_t n_vocab, struct sampler_params *p)
{
	const float temperatures[] = {0, 0.3f, 1, 1, 5, 1e-30f};

	sampler_params_default(p);
	p->temperature = temperatures[below(rig, 6)];
	p->seed = (uint64_t)rig_random(rig) << 32 | rig_random(rig);
	if (below(rig, 4)) {
		p->top_k = below(rig, 2) ? 0 : 1 + below(rig, 100);
		p->top_p = below(rig, 2) ? 1 : below(rig, 2) ? 0.9f : 0.999f;
		p->min_p = below(rig, 3) ? 0 : 0.02f;
	}
	p->top_n_sigma = below(rig, 4) ? 0 : 0.5f + (float)below(rig, 3);
	if (below(rig, 3) == 0) {
		p->xtc_probability = 0.7f;
		p->xtc_threshold = below(rig, 2) ? 0.1f : 0.001f;
	}
	if (below(rig, 2))
		random_penalties(rig, n_vocab, p);
}

static uint64_t *random_mask(struct rig *rig, uint32_t n_vocab)
{
	size_t n = SAMPLER_ALLOWED_WORDS(n_vocab);
	uint64_t *words = rig_keep_placed(rig, n * sizeof(*words), 0);
	uint32_t kind = below(rig, 4);

	for (size_t i = 0; i < n; i++) {
		uint64_t any = (uint64_t)rig_random(rig) << 32 | rig_random(rig);

		words[i] = kind == 0 ? any : kind == 1 ? UINT64_MAX : below(rig, 8) ? 0 : any;
	}
	return words;
}

/* Tokens on the path to row i. */
static uint32_t depth_of(const struct world *w, uint32_t i)
{
	uint32_t n = 0;

	for (; w->rows[i].parent >= 0; i = (uint32_t)w->rows[i].parent)
		n++;
	return n;
}

static void random_row(struct rig *rig, struct world *w, uint32_t i)
{
	struct pick_row *row = &w->rows[i];
	uint32_t reach = below(rig, HISTORY);

	*row = (struct pick_row){
		.params = below(rig, 6) ? &w->params[i] : NULL,
		.history = w->history,
		.n_history = below(rig, HISTORY + 1),
		.n_prompt = below(rig, HISTORY + 1),
		.parent = i > 0 && below(rig, 3) ? (int32_t)below(rig, i) : -1,
		.token = (int32_t)below(rig, w->n_vocab),
		.position = below(rig, 2) ? below(rig, 4000) : rig_random(rig),
		.allowed = below(rig, 3) ? NULL : w->allowed[i],
		.n_best = below(rig, 2) ? 0 : below(rig, PICK_BEST_MAX + 1),
		.want_logprobs = below(rig, 3) == 0,
		.next = (int32_t)below(rig, w->n_vocab),
		.score_next = below(rig, 2) == 0,
		.n_top = below(rig, LIMIT_TOP_LOGPROBS + 1),
		.want_p = below(rig, 2),
		.want_hash = below(rig, 3) == 0,
	};
	if (row->n_top > w->n_vocab)
		row->n_top = w->n_vocab;
	if (row->parent >= 0)
		row->n_history = w->rows[row->parent].n_history;
	row->dry_reach = row->n_history + depth_of(w, i);
	if (row->dry_reach > reach)
		row->dry_reach = reach;
}

static void random_world(struct rig *rig, struct world *w, uint32_t n_vocab, uint32_t n)
{
	bool few = below(rig, 2); /* so that DRY finds repetitions */

	w->n_vocab = n_vocab;
	w->n = n;
	w->side = 0;
	w->logits = rig_rows(rig, n, n_vocab * sizeof(float));
	for (uint32_t i = 0; i < HISTORY; i++)
		w->history[i] = (int32_t)below(rig, few ? 4 : n_vocab + 3) - !few;
	for (uint32_t i = 0; i < n; i++) {
		random_logits(rig, rig_row(rig, &w->logits, i), n_vocab);
		random_params(rig, n_vocab, &w->params[i]);
		w->allowed[i] = random_mask(rig, n_vocab);
		w->which[i] = n - 1 - i;
		random_row(rig, w, i);
	}
	memset(w->found, 0, SIDES * sizeof(*w->found));
}

/* Picks on one side after the other. */
static void run_pick(const struct backend_ops *ops, struct queue *q, const void *arg)
{
	struct world *w = *(struct world *const *)arg;
	struct found *found = &w->found[w->side++];
	const struct step_pick step = {.logits = w->logits,
		.rows = w->rows,
		.n = w->n,
		.which = w->which,
		.results = found->results};

	for (uint32_t i = 0; i < w->n; i++) {
		w->rows[i].best = w->rows[i].n_best ? found->best[i] : NULL;
		w->rows[i].top = w->rows[i].n_top ? found->top[i] : NULL;
	}
	assert_int_equal(pick_check(w->rows, 0, w->n), 0);
	ops->pick(q, &step);
	assert_int_equal(ops->wait(q, ops->ticket(q)), 0);
}

static void assert_same_floats(const char *what, uint32_t row, double want, double got)
{
	if (memcmp(&want, &got, sizeof(want)) != 0 && !(isnan(want) && isnan(got)))
		fail_msg("row %u: %s is %a, not %a", row, what, got, want);
}

static void assert_same(const struct world *w, const struct found *want, const struct found *got)
{
	for (uint32_t i = 0; i < w->n; i++) {
		const struct pick_result *a = &want->results[i], *b = &got->results[i];
		bool scored = w->rows[i].want_logprobs && !isnan(a->log_sum);

		if (a->token != b->token)
			fail_msg("row %u: token %d, not %d", i, b->token, a->token);
		assert_same_floats("p", i, (double)a->p, (double)b->p);
		assert_same_floats("log_sum", i, a->log_sum, b->log_sum);
		assert_same_floats("logprob", i, (double)a->logprob, (double)b->logprob);
		assert_int_equal(a->n_best, b->n_best);
		assert_int_equal(a->finite, b->finite);
		assert_int_equal(a->none, b->none);
		assert_true(a->hash == b->hash);
		assert_memory_equal(want->best[i], got->best[i], sizeof(want->best[i]));
		if (scored)
			assert_memory_equal(want->top[i], got->top[i], sizeof(want->top[i]));
	}
}

static void check(struct rig *rig, struct world *w, uint32_t n_vocab, uint32_t n)
{
	random_world(rig, w, n_vocab, n);
	rig_check(rig, "logits stay as they are", run_pick, &w);
	for (uint32_t side = 1; side < SIDES; side++)
		assert_same(w, &w->found[0], &w->found[side]);
	rig_clear(rig);
}

static void check_vocabulary(uint32_t n_vocab, uint32_t n, uint32_t rounds)
{
	const struct queue_limits limits = {.products = 1, .pairs = ROWS, .pick_vocab = n_vocab};
	static struct world w;
	struct rig rig;

	w.found = calloc(SIDES, sizeof(*w.found));
	assert_non_null(w.found);
	rig_open(&rig, &limits, n_vocab);
	for (uint32_t i = 0; i < rounds; i++)
		check(&rig, &w, n_vocab, n);
	rig_close(&rig);
	free(w.found);
}

static void picks_are_the_cpus(void **state)
{
	static const uint32_t sizes[] = {1, 5, 16, 63, 64, 65, 500, 1000};

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		check_vocabulary(sizes[i], ROWS, 3);
}

/* Several tiles, and bands that are sorted in global memory. */
static void picks_of_large_vocabularies_are_the_cpus(void **state)
{
	(void)state;
	check_vocabulary(4096, 7, 1);
	check_vocabulary(4097, 7, 1);
	check_vocabulary(33000, 9, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(picks_are_the_cpus),
		cmocka_unit_test(picks_of_large_vocabularies_are_the_cpus),
	};

	return cmocka_run_group_tests_name("gpu pick", tests, NULL, NULL);
}
