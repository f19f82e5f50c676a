/* The steps route, budget and combine on the emulated GPU, against the scalar CPU. */
#include "tests/gpu/rig.h"

/* Biases of experts may lie apart. */
enum { STRIDE_MORE = 5 };

#include "shared/base/limits.h"

#include <math.h>

RIG_STEP(route)
RIG_STEP(budget)
RIG_STEP(combine)

static uint32_t below(struct rig *rig, uint32_t n)
{
	return rig_random(rig) % n;
}

enum values { ANY, COARSE, ODD, VALUES };

/* Scores: any numbers; few different ones, so that many are equal; with NaNs and infinities. */
static void random_scores(struct rig *rig, const struct rows *rows, uint32_t n, enum values kind)
{
	for (uint32_t t = 0; t < rows->n; t++)
		for (uint32_t e = 0; e < n; e++) {
			float *x = (float *)rig_row(rig, rows, t) + e;

			*x = kind == COARSE ? (float)below(rig, 4) : rig_float(rig) * 6;
			if (kind == ODD && below(rig, 20) == 0)
				*x = below(rig, 2) ? NAN : below(rig, 2) ? INFINITY : -INFINITY;
		}
}

/* A rule for n experts; returns the step without rows. */
static struct step_route random_rule(struct rig *rig, uint32_t n, enum gating gating)
{
	struct step_route step = {.n_experts = n, .n_used = 1 + below(rig, n < 12 ? n : 12)};
	struct routing_config *rule = &step.rule;

	*rule = (struct routing_config){gating, below(rig, 2), below(rig, 2) ? 1 : 2.5f, 1, 1};
	step.bias = below(rig, 2) ? rig_vector(rig, n, 1) : NULL;
	if (gating == GATING_SPARSEMIXER) {
		step.n_used = 2;
		return step;
	}
	step.selection_bias = below(rig, 2) ? rig_vector(rig, n, 0.25f) : NULL;
	if (n % 8 == 0 && n >= 32 && below(rig, 2)) {
		rule->n_groups = 8;
		rule->n_groups_used = 1 + below(rig, 4);
		if (step.n_used > rule->n_groups_used * (n / 8))
			step.n_used = rule->n_groups_used * (n / 8);
	}
	return step;
}

static void add_rows(struct rig *rig, struct step_route *step, uint32_t n)
{
	step->scores = rig_rows(rig, n, step->n_experts * sizeof(float));
	step->chosen = rig_rows(rig, n, step->n_used * sizeof(uint16_t));
	step->weights = rig_rows(rig, n, step->n_used * sizeof(float));
	step->order.pairs = rig_place(rig, (size_t)n * step->n_used * sizeof(uint32_t));
	step->order.uses = rig_place(rig, step->n_experts * sizeof(struct expert_use));
	step->order.n_uses = rig_place(rig, sizeof(uint32_t));
}

static void check_route(struct rig *rig, uint32_t n_experts, enum gating gating, uint32_t n)
{
	struct step_route step = random_rule(rig, n_experts, gating);
	enum values kind = (enum values)below(rig, VALUES);
	char what[128];

	add_rows(rig, &step, n);
	random_scores(rig, &step.scores, n_experts, kind);
	snprintf(what, sizeof(what),
		"%u of %u experts for %u rows, gating %d, groups %u, values %d", step.n_used,
		n_experts, n, gating, step.rule.n_groups, kind);
	rig_check(rig, what, run_route, &step);
	rig_clear(rig);
}

static const struct queue_limits limits = {.products = 1, .pairs = 1, .n_experts = LIMIT_EXPERTS};
static const uint32_t experts[] = {2, 8, 16, 33, 60, 64, 128, 256};

static void routes_are_the_cpus(void **state)
{
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, 1);
	for (size_t i = 0; i < sizeof(experts) / sizeof(experts[0]); i++)
		for (enum gating g = GATING_SOFTMAX; g <= GATING_SPARSEMIXER; g++)
			for (uint32_t round = 0; round < 5; round++)
				check_route(&rig, experts[i], g, 1 + below(&rig, 8));
	check_route(&rig, LIMIT_EXPERTS, GATING_SIGMOID, 2);
	rig_close(&rig);
}

/* More rows than the kernel orders at once. */
static void many_rows_are_ordered(void **state)
{
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, 2);
	for (uint32_t n = 127; n <= 130; n++)
		check_route(&rig, 8, GATING_SOFTMAX, n);
	check_route(&rig, 60, GATING_SOFTMAX, 300);
	rig_close(&rig);
}

/* ---- Budgets. ---- */

enum { GROUPS = 2, WIDTH = 37 };

struct limited {
	struct step_budget step;
	struct budget_group groups[GROUPS];
	uint64_t uses[LIMIT_EXPERTS];
};

static void run_limited(const struct backend_ops *ops, struct queue *q, const void *arg)
{
	const struct step_budget *step = arg;
	struct step_route route = step->route;

	route.order.pairs.buffer = NULL;
	ops->route(q, &route);
	run_budget(ops, q, step);
}

static void random_group(struct rig *rig, struct limited *l, uint32_t i, uint32_t first, uint32_t n)
{
	uint32_t n_experts = l->step.route.n_experts;

	l->groups[i] = (struct budget_group){
		.first = first,
		.n = n,
		.experts = 1 + below(rig, n_experts),
		.ranking = (enum budget_ranking)below(rig, BUDGET_RANKINGS),
		.coverage = (enum budget_coverage)below(rig, BUDGET_COVERAGES),
		.uses = l->uses,
		.outputs = rig_floats(rig, n * n_experts, WIDTH, 2),
		.rest = rig_rows(rig, n, WIDTH * sizeof(float)),
	};
	if (below(rig, 2))
		l->groups[i].list = rig_place(rig, l->groups[i].experts * sizeof(uint16_t));
}

static void check_budget(struct rig *rig, uint32_t n_experts, enum gating gating, uint32_t n)
{
	struct limited l = {.step = {.width = WIDTH,
				    .n = n > 1 ? GROUPS : 1,
				    .bias_stride = WIDTH + STRIDE_MORE}};
	enum values kind = (enum values)below(rig, VALUES);
	uint32_t half = n > 1 ? n / 2 : n;
	char what[160];

	l.step.route = random_rule(rig, n_experts, gating);
	add_rows(rig, &l.step.route, n);
	random_scores(rig, &l.step.route.scores, n_experts, kind);
	for (uint32_t e = 0; e < n_experts; e++)
		l.uses[e] = below(rig, 9);
	l.step.of = l.groups;
	random_group(rig, &l, 0, 0, half);
	if (n > 1)
		random_group(rig, &l, 1, half, n - half);
	l.step.bias =
		below(rig, 2) ? rig_vector(rig, (size_t)n_experts * l.step.bias_stride, 1) : NULL;
	l.step.affected = rig_rows(rig, n, sizeof(uint32_t));
	l.step.y = rig_floats(rig, n * l.step.route.n_used, WIDTH, 1);
	snprintf(what, sizeof(what), "budget of %u experts for %u rows, gating %d, rankings %d %d",
		n_experts, n, gating, l.groups[0].ranking, l.groups[1].ranking);
	rig_check(rig, what, run_limited, &l.step);
	rig_clear(rig);
}

static void budgets_are_the_cpus(void **state)
{
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, 3);
	for (size_t i = 0; i + 1 < sizeof(experts) / sizeof(experts[0]); i++)
		for (enum gating g = GATING_SOFTMAX; g <= GATING_SPARSEMIXER; g++)
			for (uint32_t round = 0; round < 3; round++)
				check_budget(&rig, experts[i], g, 1 + below(&rig, 9));
	rig_close(&rig);
}

/* ---- Combining. ---- */

static void check_combine(struct rig *rig, uint32_t width, uint32_t n, uint32_t parts)
{
	enum { EXPERTS = 7 };
	uint32_t k = 1 + below(rig, 6);
	struct step_combine step = {
		.width = width, .n_used = k, .bias_stride = width + STRIDE_MORE};
	char what[96];

	step.chosen = rig_rows(rig, n, k * sizeof(uint16_t));
	for (uint32_t t = 0; t < n; t++)
		for (uint32_t j = 0; j < k; j++)
			((uint16_t *)rig_row(rig, &step.chosen, t))[j] =
				(uint16_t)below(rig, EXPERTS);
	step.weights = rig_floats(rig, n, k, 1);
	step.y = rig_floats(rig, n * k, width, 3);
	step.sum = rig_rows(rig, n, width * sizeof(float));
	step.x = rig_floats(rig, n, width, 3);
	step.bias = parts & 1 ? rig_vector(rig, EXPERTS * step.bias_stride, 1) : NULL;
	step.shared_bias = parts & 2 ? rig_vector(rig, width, 1) : NULL;
	rig_ignore(rig, &step.y, width * sizeof(float));
	rig_ignore(rig, &step.sum, width * sizeof(float));
	if (parts & 4) {
		step.shared = rig_floats(rig, n, width, 3);
		rig_ignore(rig, &step.shared, width * sizeof(float));
	}
	if ((parts & 12) == 12) {
		step.shared_weight = rig_floats(rig, n, 1, 3);
		rig_ignore(rig, &step.shared_weight, sizeof(float));
	}
	snprintf(what, sizeof(what), "combining %u of width %u, parts %u", n, width, parts);
	rig_check(rig, what, run_combine, &step);
	rig_clear(rig);
}

static void sums_are_the_cpus(void **state)
{
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, 4);
	for (uint32_t parts = 0; parts < 16; parts++) {
		check_combine(&rig, 1 + below(&rig, 600), 1 + below(&rig, 4), parts);
		check_combine(&rig, 64, 66, parts);
	}
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(routes_are_the_cpus),
		cmocka_unit_test(many_rows_are_ordered),
		cmocka_unit_test(budgets_are_the_cpus),
		cmocka_unit_test(sums_are_the_cpus),
	};

	return cmocka_run_group_tests_name("gpu route", tests, NULL, NULL);
}
