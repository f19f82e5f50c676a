/* outrider-bench tolerance: what the policy-controller's estimate makes of the passes
 * (tolerance.h). */
#include "bench/src/tolerance.h"

#include "services/policy-controller/estimates/tolerance.h"
#include "shared/base/median.h"

#include <math.h>
#include <stdlib.h>

static_assert((int)GRID_GAMMA_MOST < (int)TOLERANCE_GAMMAS, "each length has a cell of its own");

static double uniform(uint64_t *random)
{
	*random = *random * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (double)(*random >> 11) / (double)(UINT64_C(1) << 53);
}

/* Tokens that a session gets from a pass with a draft of gamma tokens: those accepted, and one. */
static uint8_t emitted(const struct tolerance_bench *b, uint32_t gamma, uint64_t *random)
{
	uint32_t n = 0;

	while (n < gamma) {
		uint32_t at = n < b->n_accepted ? n : b->n_accepted - 1;

		if (100 * uniform(random) >= b->accepted[at])
			break;
		n++;
	}
	return (uint8_t)(n + 1);
}

static struct iteration_record record_of(
	const struct tolerance_bench *b, const struct grid_sample *s)
{
	uint32_t sessions = b->batch[s->batch], gamma = b->gamma[s->gamma];
	uint64_t draft_ns = (uint64_t)(gamma * s->draft_ns);

	return (struct iteration_record){
		.n_context = b->context[s->context],
		.batch_sessions = (uint16_t)sessions,
		.batch_tokens = sessions * (gamma + 1),
		.unique_experts = s->experts,
		.expert_hits = s->experts,
		.draft_ns = draft_ns,
		.iteration_ns = (uint64_t)s->ns + draft_ns,
	};
}

static void learn(struct cost *cost, const struct iteration_record *record)
{
	cost_observe(cost, &(struct cost_pass){
				   .sessions = record->batch_sessions,
				   .extra = record->batch_tokens - record->batch_sessions,
				   .ns = record->iteration_ns - record->draft_ns,
				   .experts = record->unique_experts,
				   .hits = record->expert_hits,
			   });
}

/* The passes of a context, each predicted before it is learned from; what they brought is drawn. */
static void follow(const struct tolerance_bench *b, const struct grid_series *series,
	uint32_t context, struct cost *cost, struct tolerance *t)
{
	uint64_t random = b->options.seed;

	for (size_t i = 0; i < series->n_samples; i++) {
		const struct grid_sample *s = &series->samples[i];

		if (s->context != context)
			continue;
		struct iteration_record record = record_of(b, s);
		tolerance_pass(t, cost, &record);
		for (uint32_t session = 0; session < record.batch_sessions; session++) {
			record.emitted = emitted(b, b->gamma[s->gamma], &random);
			tolerance_brought(t, &record);
		}
		learn(cost, &record);
	}
}

static void medians(const struct grid_series *series, uint32_t context, uint32_t batch,
	uint32_t gamma, double *values, struct grid_cell *cell)
{
	double *experts = values + series->n_samples, *draft = experts + series->n_samples;
	size_t n = 0;

	for (size_t i = 0; i < series->n_samples; i++) {
		const struct grid_sample *s = &series->samples[i];

		if (s->context != context || s->batch != batch || s->gamma != gamma)
			continue;
		values[n] = s->ns;
		experts[n] = s->experts;
		draft[n++] = s->draft_ns;
	}
	cell->passes = (uint32_t)n;
	if (n == 0)
		return;
	cell->pass_ns = median(values, n);
	cell->experts = median(experts, n);
	cell->draft_ns = median(draft, n);
}

/* The speed-up that is expected by who saw all other cells of the context. */
static double held_out(const struct tolerance_bench *b, const struct grid_series *series,
	uint32_t context, uint32_t batch, uint32_t gamma, const struct tolerance_point *p,
	struct cost *cost)
{
	uint32_t sessions = b->batch[batch];
	double base_ns;

	cost_init(cost);
	for (size_t i = 0; i < series->n_samples; i++) {
		const struct grid_sample *s = &series->samples[i];
		const struct iteration_record record = record_of(b, s);

		if (s->context == context && (s->batch != batch || s->gamma != gamma))
			learn(cost, &record);
	}
	double pass_ns = cost_time(cost, sessions, sessions * b->gamma[gamma], &base_ns);
	return tolerance_speedup(p->lambda, tolerance_tau(base_ns, pass_ns), p->drafted, p->delta);
}

static void fit_batch(const struct tolerance_bench *b, struct grid_series *series, uint32_t context,
	uint32_t batch, struct cost *cost, struct cost *other, const struct tolerance *t)
{
	struct tolerance_point points[TOLERANCE_GAMMAS];
	struct grid_cell *cells = series->cells[context][batch];
	uint32_t n = tolerance_points(t, cost, b->batch[batch], TOLERANCE_GAMMAS, points);

	for (uint32_t g = 0; g < b->n_gammas && b->gamma[g] < n; g++) {
		const struct tolerance_point *p = &points[b->gamma[g]];
		struct grid_cell *cell = &cells[g];

		cell->model_tau = p->tau;
		if (cell->passes == 0)
			continue;
		cell->tau = tolerance_tau(cells[0].pass_ns, cell->pass_ns);
		cell->lambda = p->lambda;
		cell->delta = p->delta;
		cell->expected = p->predicted;
		cell->measured = p->measured;
		if (g > 0 && p->measured > 0)
			cell->held_out = held_out(b, series, context, batch, g, p, other);
	}
}

int grid_fit(const struct tolerance_bench *b, struct grid_series *series, struct error *err)
{
	struct cost *cost = malloc(2 * sizeof(*cost));
	struct tolerance *t = calloc(1, sizeof(*t));
	double *values = calloc(3 * series->n_samples + 1, sizeof(*values));
	bool room = cost && t && values;

	for (uint32_t c = 0; room && c < b->n_contexts; c++) {
		*t = (struct tolerance){0};
		cost_init(&cost[0]);
		follow(b, series, c, &cost[0], t);
		for (uint32_t i = 0; i < b->n_batches; i++)
			for (uint32_t g = 0; g < b->n_gammas; g++)
				medians(series, c, i, g, values, &series->cells[c][i][g]);
		for (uint32_t i = 0; i < b->n_batches; i++)
			fit_batch(b, series, c, i, &cost[0], &cost[1], t);
	}
	free(values);
	free(t);
	free(cost);
	return room ? 0 : error_set(err, ENOMEM, "no memory for the estimate");
}

double grid_error(double predicted, double measured)
{
	return predicted > 0 && measured > 0 ? predicted / measured - 1 : (double)NAN;
}

static void add_errors(const struct tolerance_bench *b, const struct grid_series *series,
	double *expected, double *held_out, size_t *n)
{
	for (uint32_t c = 0; c < b->n_contexts; c++)
		for (uint32_t i = 0; i < b->n_batches; i++)
			for (uint32_t g = 1; g < b->n_gammas; g++) {
				const struct grid_cell *cell = &series->cells[c][i][g];

				if (!(cell->measured > 0) || !(cell->expected > 0))
					continue;
				expected[*n] = fabs(grid_error(cell->expected, cell->measured));
				held_out[(*n)++] = fabs(grid_error(cell->held_out, cell->measured));
			}
}

size_t grid_errors(const struct tolerance_bench *b, const struct grid_series *series,
	double *expected, double *held_out)
{
	enum { MOST = GRID_SERIES * GRID_CONTEXTS * GRID_BATCHES * GRID_GAMMAS };
	double *values = calloc(2 * (size_t)MOST, sizeof(*values));
	size_t n = 0;

	if (!values)
		return 0;
	for (uint32_t i = 0; i < b->n_series; i++)
		if (!series || series == &b->series[i])
			add_errors(b, &b->series[i], values, values + MOST, &n);
	if (n > 0) {
		*expected = median(values, n);
		*held_out = median(values + MOST, n);
	}
	free(values);
	return n;
}
