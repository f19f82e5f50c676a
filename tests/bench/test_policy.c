/* outrider-bench policy: what no policy can do better in hindsight, against every way of doing it. */
#include "bench/src/policy_sim.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LANES = 3, TOKENS = 9, ROUNDS = 400, STATES = 1000 };
static_assert((TOKENS + 1) * (TOKENS + 1) * (TOKENS + 1) <= STATES, "each lane anywhere");

/* A case small enough to try everything. */
struct small {
	struct sim_curve curve;
	struct sim_point points[LANES][TOKENS];
	struct sim_text texts[LANES];
	uint32_t n, k_max;
};

static double draw(void)
{
	return rand() / (RAND_MAX + 1.0);
}

/* Costs that rise with falling, rising or any steps, or fall at times. */
static void make_curve(struct sim_curve *curve, uint32_t shape)
{
	double cost = 1, step = shape == 1 ? 0.05 : 0.5;
	memset(curve, 0, sizeof(*curve));
	curve->base_ms = 1 + draw();
	curve->draft_fixed = draw() < 0.5 ? 0 : 0.2 * draw();
	curve->draft_step = draw() < 0.5 ? 0 : 0.1 * draw();
	for (uint32_t i = 0; i < 6; i++) {
		curve->knots[i].n = 1 + 3 * i;
		curve->knots[i].cost = cost;
		cost += 3 * (shape < 2 ? step : 0.5 * draw() - (shape == 3 ? 0.15 : 0));
		cost = fmax(cost, 0.5);
		step *= shape == 1 ? 1.6 : 0.6;
	}
	curve->n_knots = 6;
}

static void make_text(struct small *s, uint32_t lane, double right)
{
	struct sim_text *text = &s->texts[lane];
	bool is_right[TOKENS + LIMIT_DRAFT_DEPTH];
	text->points = s->points[lane];
	text->n = TOKENS - (uint32_t)(3 * draw());
	for (uint32_t i = 0; i < TOKENS + LIMIT_DRAFT_DEPTH; i++)
		is_right[i] = draw() < right;
	for (uint32_t x = 0; x < text->n; x++) {
		struct sim_point *point = &text->points[x];
		*point = (struct sim_point){.available = draw() < 0.8 ? LIMIT_DRAFT_DEPTH : 0};
		while (point->run < point->available && is_right[x + point->run])
			point->run++;
	}
}

static void make_small(struct small *s, uint32_t shape, double right)
{
	memset(s, 0, sizeof(*s));
	make_curve(&s->curve, shape);
	s->n = 2 + (uint32_t)(2 * draw());
	s->k_max = 1 + (uint32_t)(4 * draw());
	for (uint32_t i = 0; i < s->n; i++)
		make_text(s, i, right);
}

static uint32_t place_of(const uint32_t *at)
{
	return (at[0] * (TOKENS + 1) + at[1]) * (TOKENS + 1) + at[2];
}

/* A pass in which each lane drafts as said, as policy_run.c reckons it. */
static double pass_ms(const struct small *s, const uint32_t *at, const uint32_t *k, uint32_t *then)
{
	uint32_t tokens = 0, most = 0;
	memcpy(then, at, LANES * sizeof(*then));
	for (uint32_t i = 0; i < s->n; i++) {
		const struct sim_point *point = &s->texts[i].points[at[i]];
		tokens += 1 + k[i];
		most = k[i] > most ? k[i] : most;
		then[i] += 1 + (k[i] < point->run ? k[i] : point->run);
	}
	double draft = most > 0 ? s->curve.draft_fixed + s->curve.draft_step * most : 0;
	return s->curve.base_ms * (sim_curve_cost(&s->curve, tokens) + draft);
}

/* The next combination of drafts; false behind the last one. */
static bool next_drafts(const struct small *s, const uint32_t *at, uint32_t *k)
{
	for (uint32_t i = 0; i < s->n; i++) {
		const struct sim_text *text = &s->texts[i];
		if (k[i] < s->k_max && k[i] < text->points[at[i]].available &&
			at[i] + k[i] + 1 < text->n) {
			k[i]++;
			return true;
		}
		k[i] = 0;
	}
	return false;
}

/* The least time per token over every way through all lanes' positions until one is done, drafts that are rejected among them. */
static double least_of_all(const struct small *s)
{
	double time[STATES], best = INFINITY;
	uint32_t at[LANES], then[LANES];
	for (uint32_t i = 0; i < STATES; i++)
		time[i] = i == 0 ? 0 : INFINITY;
	/* Every pass leads to a higher place. */
	for (uint32_t place = 0; place < STATES; place++) {
		at[0] = place / ((TOKENS + 1) * (TOKENS + 1));
		at[1] = place / (TOKENS + 1) % (TOKENS + 1);
		at[2] = place % (TOKENS + 1);
		bool done = false;
		for (uint32_t i = 0; i < s->n; i++)
			done |= at[i] == s->texts[i].n;
		if (time[place] < INFINITY && done)
			best = fmin(best, time[place] / (at[0] + at[1] + at[2]));
		if (!(time[place] < INFINITY) || done)
			continue;
		uint32_t k[LANES] = {0};
		do {
			double ms = pass_ms(s, at, k, then);
			double *to = &time[place_of(then)];
			*to = fmin(*to, time[place] + ms);
		} while (next_drafts(s, at, k));
	}
	return best;
}

static void no_way_through_a_batch_is_faster_than_its_bound(void **state)
{
	(void)state;
	double nearest = INFINITY, sum = 0;
	srand(1);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		struct small s;
		make_small(&s, i % 4, 0.2 + 0.7 * draw());
		double least = least_of_all(&s);
		double bound = sim_bound_ms(&s.curve, s.texts, s.n, s.k_max);
		if (bound > least * (1 + 1e-9))
			fail_msg("case %u: %.6f ms per token, the bound is %.6f", i, least, bound);
		nearest = fmin(nearest, bound / least);
		sum += bound / least / ROUNDS;
	}
	/* Nor is it any number that is low enough. */
	print_message("the bound over the least: %.3f in the mean, %.3f at least\n", sum, nearest);
	assert_true(sum > 0.8 && nearest > 0.5);
}

static void the_bound_is_what_can_be_done_where_no_draft_is_right(void **state)
{
	(void)state;
	srand(2);
	for (uint32_t i = 0; i < 20; i++) {
		struct small s;
		make_small(&s, i % 3, 0);
		double least = least_of_all(&s);
		double bound = sim_bound_ms(&s.curve, s.texts, s.n, s.k_max);
		assert_true(fabs(bound / least - 1) < 1e-9);
	}
}

static void the_bound_of_one_session_is_its_optimum(void **state)
{
	(void)state;
	srand(3);
	for (uint32_t i = 0; i < 50; i++) {
		struct small s;
		make_small(&s, i % 3, 0.6);
		double optimum = sim_optimum_ms(&s.curve, s.texts, s.k_max);
		double bound = sim_bound_ms(&s.curve, s.texts, 1, s.k_max);
		assert_true(fabs(bound * s.texts[0].n / optimum - 1) < 1e-9);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_way_through_a_batch_is_faster_than_its_bound),
		cmocka_unit_test(the_bound_is_what_can_be_done_where_no_draft_is_right),
		cmocka_unit_test(the_bound_of_one_session_is_its_optimum),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
