/* gamma-tolerance: the paper's numbers, and what is found where the costs are planted. */
#include "services/policy-controller/estimates/passes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static bool near(double a, double b, double share)
{
	return fabs(a / b - 1) < share;
}

/* "Rethinking the high-throughput LLM inference", sections 3.2 and 4.1. */
static void the_papers_examples(void **state)
{
	(void)state;
	assert_true(near(tolerance_speedup(3, 0.81, 4, 0), 2.43, 1e-9));
	assert_true(near(tolerance_speedup(3, 0.34, 24, 0), 1.02, 1e-9));
	/* tau = 1: S = lambda / (1 + gamma delta). */
	assert_true(near(tolerance_speedup(3, 1, 4, 0.1), 3 / 1.4, 1e-9));
	/* At tau = 1 / lambda a free draft breaks even. */
	assert_true(near(tolerance_speedup(2.5, 1 / 2.5, 4, 0), 1, 1e-9));
	assert_true(near(tolerance_tau(1, 1 / 0.81), 0.81, 1e-9));
}

/* A planted machine: the time of a pass of b sessions with e extra tokens, and what it brings. */
struct machine {
	double fixed, token, expert; /* ns */
	double free_experts; /* share that each token leaves unused */
	double accepts; /* chance of each drafted token */
	double step; /* ns of the wait, for each drafted token of a session */
	double noise;
};

static double pass_ns(const struct machine *m, uint32_t b, uint32_t extra)
{
	double tokens = b + extra, experts = 0;

	if (m->expert > 0)
		experts = 64 * (1 - pow(m->free_experts, tokens));
	return m->fixed + m->token * tokens + m->expert * experts;
}

static double random_of(uint64_t *seed)
{
	*seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (double)(*seed >> 40) / (1 << 24);
}

/* One pass of b sessions that draft gamma tokens each. */
static void run(struct passes *passes, const struct machine *m, uint32_t b, uint32_t gamma,
	uint64_t *iteration, uint64_t *seed)
{
	double ns = pass_ns(m, b, b * gamma) * (1 + m->noise * (random_of(seed) - 0.5));
	struct iteration_record record = {.iteration = ++*iteration,
		.k = (uint8_t)gamma,
		.depth = (uint8_t)gamma,
		.drafted = (uint16_t)gamma,
		.method = DRAFT_MODEL,
		.batch_sessions = (uint16_t)b,
		.batch_tokens = b * (gamma + 1),
		.n_context = 100,
		.draft_ns = (uint64_t)(m->step * gamma)};

	record.iteration_ns = (uint64_t)ns + record.draft_ns;
	if (m->expert > 0)
		record.unique_experts =
			(uint32_t)(64 * (1 - pow(m->free_experts, b * (gamma + 1.0))));
	passes_observe(passes, &record, false);
	if (gamma > 0)
		cost_draft_observe(&passes->cost, DRAFT_MODEL, gamma, record.draft_ns, false);
	for (uint32_t s = 0; s < b; s++) {
		record.emitted = 1;
		while (record.emitted <= gamma && random_of(seed) < m->accepts)
			record.emitted++;
		passes_brought(passes, &record);
	}
}

static double tokens_of(double accepts, uint32_t gamma)
{
	double sum = 1, chance = 1;

	for (uint32_t i = 0; i < gamma; i++)
		sum += chance *= accepts;
	return sum;
}

static void check(const struct machine *m, uint32_t b)
{
	static struct passes passes;
	struct tolerance_point points[TOLERANCE_GAMMAS];
	uint64_t iteration = 0, seed = 11;

	passes_init(&passes);
	assert_int_equal(tolerance_points(&passes.tolerance, &passes.cost, b, 5, points), 0);
	assert_false(tolerance_seen(&passes.tolerance, b));
	for (int i = 0; i < 1500; i++)
		run(&passes, m, b, (uint32_t[]){0, 1, 2, 0, 4}[i % 5], &iteration, &seed);
	assert_true(tolerance_seen(&passes.tolerance, b));
	assert_int_equal(tolerance_points(&passes.tolerance, &passes.cost, b, 6, points), 6);
	for (uint32_t gamma = 0; gamma < 6; gamma++) {
		const struct tolerance_point *p = &points[gamma];
		double tau = pass_ns(m, b, 0) / pass_ns(m, b, b * gamma);

		assert_int_equal(p->gamma, gamma);
		/* 3 was never run: it lies between, and 5 beyond what was. */
		assert_true(near(p->tau, tau, gamma == 5 ? 0.1 : 0.05));
		if (gamma == 3 || gamma == 5) {
			assert_true(p->passes <= 0 && p->measured <= 0 && p->predicted <= 0);
			continue;
		}
		assert_true(near(p->lambda, tokens_of(m->accepts, gamma), 0.1));
		assert_true(near(p->context, 100, 1e-3));
		if (gamma == 0)
			continue;
		assert_true(near(p->delta, m->step / pass_ns(m, b, 0), 0.1));
		double s = tolerance_speedup(p->lambda, tau, gamma, m->step / pass_ns(m, b, 0));
		assert_true(near(p->predicted, s, 0.05));
		assert_true(near(p->measured, s, 0.05));
	}
}

static void planted_costs_are_found(void **state)
{
	/* Bound by memory, bound by arithmetic, and a mixture of experts. */
	static const struct machine machines[] = {
		{.fixed = 1e7, .token = 1e4, .accepts = 0.7, .step = 2e5, .noise = 0.06},
		{.fixed = 1e5, .token = 1e6, .accepts = 0.8, .step = 1e5, .noise = 0.06},
		{.fixed = 1e6,
			.token = 5e4,
			.expert = 2e5,
			.free_experts = 0.9,
			.accepts = 0.5,
			.step = 3e5,
			.noise = 0.06},
	};

	(void)state;
	for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
		for (uint32_t b = 1; b <= 16; b *= 4)
			check(&machines[i], b);
}

/* Passes whose time is not believed, and records of another pass, change nothing. */
static void what_is_no_pass_is_not_counted(void **state)
{
	static struct passes passes;
	const struct machine m = {.fixed = 1e6, .token = 1e4};
	uint64_t iteration = 0, seed = 1;
	struct tolerance_point before[1], after[1];

	(void)state;
	passes_init(&passes);
	for (int i = 0; i < 10; i++)
		run(&passes, &m, 2, 0, &iteration, &seed);
	assert_int_equal(tolerance_points(&passes.tolerance, &passes.cost, 2, 1, before), 1);
	iteration++;
	struct iteration_record bad = {.iteration = iteration,
		.batch_sessions = 2,
		.batch_tokens = 2,
		.iteration_ns = COST_NS_MAX + 1,
		.emitted = 1};
	passes_observe(&passes, &bad, false);
	passes_brought(&passes, &bad);
	bad.iteration--;
	passes_brought(&passes, &bad);
	assert_int_equal(tolerance_points(&passes.tolerance, &passes.cost, 2, 1, after), 1);
	assert_memory_equal(before, after, sizeof after);
}

/* A batch whose passes take thirty times as long as those that were seen before: its first pass
 * counts as long as it was. */
static void the_first_pass_of_a_batch_counts_in_full(void **state)
{
	static const struct machine m = {.fixed = 1e5, .token = 1e5, .free_experts = 1};
	static struct passes passes;
	struct tolerance_point points[TOLERANCE_GAMMAS];
	uint64_t iteration = 0, seed = 5;

	(void)state;
	passes_init(&passes);
	for (int i = 0; i < 8; i++)
		run(&passes, &m, 1, 0, &iteration, &seed);
	for (uint32_t i = 0; i < 8; i++)
		run(&passes, &m, 64, i % 2, &iteration, &seed);
	assert_int_equal(tolerance_points(&passes.tolerance, &passes.cost, 64, 2, points), 2);
	/* No draft is accepted. */
	assert_true(near(points[1].measured, pass_ns(&m, 64, 0) / pass_ns(&m, 64, 64), 0.01));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_papers_examples),
		cmocka_unit_test(planted_costs_are_found),
		cmocka_unit_test(what_is_no_pass_is_not_counted),
		cmocka_unit_test(the_first_pass_of_a_batch_counts_in_full),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
