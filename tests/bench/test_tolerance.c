/* outrider-bench tolerance: what is found where the costs of passes are planted. */
#include "bench/src/tolerance.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* A machine whose passes of b sessions with gamma drafted tokens each take this long, in ns. */
static double pass_ns(uint32_t sessions, uint32_t gamma)
{
	double rows = sessions * (gamma + 1);

	return 2e6 + 5e4 * rows + 8e4 * 64 * (1 - pow(0.9, rows));
}

static struct tolerance_bench *grid(void)
{
	struct tolerance_bench *b = calloc(1, sizeof(*b));

	assert_non_null(b);
	b->n_batches = 3;
	b->n_gammas = 4;
	b->n_contexts = 1;
	for (uint32_t i = 0; i < 3; i++)
		b->batch[i] = 1u << (2 * i);
	for (uint32_t g = 1; g < 4; g++)
		b->gamma[g] = (1u << g) - 1;
	b->context[0] = 256;
	b->accepted[0] = 100;
	b->n_accepted = 1;
	b->n_series = 1;
	b->n_layers = 1;
	b->options.seed = 1;
	return b;
}

/* `rounds` passes of each cell of the first n_batches. */
static void run(struct tolerance_bench *b, uint32_t n_batches, uint32_t rounds, double draft_ns)
{
	struct grid_series *s = &b->series[0];

	s->samples = calloc((size_t)rounds * n_batches * b->n_gammas, sizeof(*s->samples));
	assert_non_null(s->samples);
	for (uint32_t round = 0; round < rounds; round++)
		for (uint32_t i = 0; i < n_batches; i++)
			for (uint32_t g = 0; g < b->n_gammas; g++) {
				double rows = b->batch[i] * (b->gamma[g] + 1);

				s->cells[0][i][g].state = GRID_MEASURED;
				s->samples[s->n_samples++] = (struct grid_sample){
					.batch = i,
					.gamma = g,
					.experts = (uint32_t)(64 * (1 - pow(0.9, rows))),
					.ns = pass_ns(b->batch[i], b->gamma[g]),
					.draft_ns = draft_ns,
				};
			}
}

static void end(struct tolerance_bench *b)
{
	free(b->series[0].samples);
	free(b);
}

static void what_is_measured_is_what_was_planted(void **state)
{
	struct tolerance_bench *b = grid();
	struct error err;
	double expected, held_out;

	(void)state;
	run(b, 3, 8, 1e5);
	assert_int_equal(grid_fit(b, &b->series[0], &err), 0);
	for (uint32_t i = 0; i < 3; i++)
		for (uint32_t g = 0; g < 4; g++) {
			const struct grid_cell *c = &b->series[0].cells[0][i][g];
			double base = pass_ns(b->batch[i], 0);
			double pass = pass_ns(b->batch[i], b->gamma[g]);
			double tau = base / pass, gamma = b->gamma[g];

			assert_int_equal(c->passes, 8);
			assert_true(fabs(c->tau / tau - 1) < 1e-6);
			if (g == 0)
				continue;
			/* All drafted tokens are accepted. */
			assert_true(fabs(c->lambda / (gamma + 1) - 1) < 1e-6);
			double s = (gamma + 1) * base / (pass + gamma * 1e5);
			assert_true(fabs(c->measured / s - 1) < 1e-3);
			assert_true(fabs(c->delta / (1e5 / base) - 1) < 0.2);
		}
	assert_int_equal(grid_errors(b, NULL, &expected, &held_out), 9);
	assert_true(expected < 0.05);
	assert_true(held_out > 0 && held_out < 0.3);
	end(b);
}

/* A cell's own passes are what the estimate of it is held out from. */
static void a_line_is_held_out_from_itself(void **state)
{
	struct tolerance_bench *b = grid();
	struct grid_series *s = &b->series[0];
	struct error err;

	(void)state;
	run(b, 3, 8, 0);
	assert_int_equal(grid_fit(b, s, &err), 0);
	double before = s->cells[0][1][2].held_out;
	assert_true(before > 0);
	/* Its passes become ten times as long: what the others say of it stays. */
	for (size_t i = 0; i < s->n_samples; i++)
		if (s->samples[i].batch == 1 && s->samples[i].gamma == 2)
			s->samples[i].ns *= 10;
	assert_int_equal(grid_fit(b, s, &err), 0);
	assert_true(fabs(s->cells[0][1][2].held_out / before - 1) < 1e-9);
	assert_true(s->cells[0][1][2].measured < 0.2 * before);
	end(b);
}

static void what_was_not_measured_is_extrapolated_and_no_error(void **state)
{
	struct tolerance_bench *b = grid();
	struct grid_series *s = &b->series[0];
	struct error err;
	double expected, held_out;

	(void)state;
	run(b, 2, 8, 0);
	for (uint32_t g = 0; g < 4; g++)
		s->cells[0][2][g].state = GRID_TOO_LARGE;
	assert_int_equal(grid_fit(b, s, &err), 0);
	for (uint32_t g = 1; g < 4; g++) {
		const struct grid_cell *c = &s->cells[0][2][g];

		assert_true(c->model_tau > 0 && c->model_tau < 1);
		assert_true(c->tau == 0 && c->measured == 0 && c->expected == 0);
	}
	assert_int_equal(grid_errors(b, NULL, &expected, &held_out), 6);
	end(b);
}

static void without_passes_nothing_is_known(void **state)
{
	struct tolerance_bench *b = grid();
	struct error err;
	double expected, held_out;

	(void)state;
	assert_int_equal(grid_fit(b, &b->series[0], &err), 0);
	assert_true(b->series[0].cells[0][0][1].model_tau == 0);
	assert_int_equal(grid_errors(b, NULL, &expected, &held_out), 0);
	assert_true(isnan(grid_error(0, 1)) && isnan(grid_error(1, 0)));
	end(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_measured_is_what_was_planted),
		cmocka_unit_test(a_line_is_held_out_from_itself),
		cmocka_unit_test(what_was_not_measured_is_extrapolated_and_no_error),
		cmocka_unit_test(without_passes_nothing_is_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
