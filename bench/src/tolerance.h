/*
 * outrider-bench tolerance: the grid of "Rethinking the high-throughput LLM inference: an
 * opportunity for speculative decoding" (2025), section 3.2, of any model on this machine. T(gamma)
 * of passes over 1 to 256 sequences is measured, by length of the context, type of the KV cache and
 * CPU kernels, and given to the estimate that the policy-controller has (estimates/cost.h,
 * tolerance.h), pass by pass, as the service would. What the estimate expects of each length of draft
 * is compared with what the measured passes give. Which drafted tokens are accepted is
 * drawn, with chances that the user gives: the weights need not be trained. Main thread.
 *
 * As in `outriderctl tolerance`, gamma is the number of drafted tokens, so a pass verifies gamma + 1
 * tokens of each sequence.
 */
#pragma once

#include "bench/src/batches.h"

#include <jansson.h>

enum {
	GRID_BATCHES = 12,
	GRID_GAMMAS = 16,
	GRID_CONTEXTS = 8,
	GRID_SERIES = 16, /* pairs of a type of KV and of kernels */
	GRID_GAMMA_MOST = 16, /* what the estimate tells apart (TOLERANCE_GAMMAS) */
};

struct tolerance_options {
	const char *batch, *gamma, *context, *kv, *kernels, *acceptance, *draft, *plot;
	struct engine_options engine;
	uint32_t rounds, slice_ms, seconds, layers, memory_mib;
	uint64_t seed;
	bool help, json;
};

enum grid_state {
	GRID_UNMEASURED, /* --seconds were over */
	GRID_MEASURED,
	GRID_TOO_LARGE, /* weights and KV exceed the memory */
};

/* A length of draft of a size of batch at a context. What is not known is 0. */
struct grid_cell {
	enum grid_state state;
	uint64_t bytes; /* weights and KV that it needs */
	uint32_t passes;
	double pass_ns, experts, draft_ns; /* medians; draft_ns: of one step of the draft model */
	double tau; /* measured: T(1) / T(gamma + 1), of the medians */
	/* What the policy-controller's estimate says: tau(gamma + 1) behind all passes, and the
	 * speed-ups. expected: as predicted just before each pass. held_out: by an estimate that saw
	 * no pass of this cell. */
	double model_tau, lambda, delta, expected, measured, held_out;
};

/* One pass, in the order in which they ran. */
struct grid_sample {
	uint32_t context, batch, gamma; /* indices */
	uint32_t experts;
	double ns, draft_ns; /* draft_ns: of one step of the draft model; 0: none */
};

/* Everything that was measured with one type of KV and one set of kernels. */
struct grid_series {
	const char *kv, *kernels; /* as asked for; of what is used once the model is open */
	struct grid_cell cells[GRID_CONTEXTS][GRID_BATCHES][GRID_GAMMAS];
	struct grid_sample *samples;
	size_t n_samples, samples_max;
};

struct tolerance_bench {
	struct tolerance_options options;
	uint32_t batch[GRID_BATCHES], gamma[GRID_GAMMAS], context[GRID_CONTEXTS];
	uint32_t n_batches, n_gammas, n_contexts; /* gamma[0] is 0 */
	uint32_t accepted[GRID_GAMMA_MOST], n_accepted; /* percent, by position */
	struct grid_series series[GRID_SERIES];
	uint32_t n_series;
	/* Of the model: */
	uint32_t n_layers, n_context;
	bool moe;
	uint64_t memory; /* bytes that weights and KV may take */
	uint64_t start_ns;
	struct batches target, draft;
};

/* tolerance_grid.c: measures a series. */
int grid_measure(struct tolerance_bench *b, struct grid_series *series, struct error *err);

/* tolerance_fit.c: fills in what follows from the samples of a series. -ENOMEM. */
int grid_fit(const struct tolerance_bench *b, struct grid_series *series, struct error *err);
/* The error of a prediction, relative to what was measured; NAN: one of them is missing. */
double grid_error(double predicted, double measured);
/* The medians of the sizes of the errors, as expected and held out, over all measured cells of a
 * series, or of all of them (NULL). Returns the number of cells; 0: there is no median. */
size_t grid_errors(const struct tolerance_bench *b, const struct grid_series *series,
	double *expected, double *held_out);

/* tolerance_report.c */
void grid_print(const struct tolerance_bench *b, const char *cpu);
json_t *grid_json(const struct tolerance_bench *b, const char *cpu);
int grid_plot(const struct tolerance_bench *b, struct error *err);

/* Runs the subcommand; returns a sysexits status. */
int bench_tolerance(int argc, char **argv);
