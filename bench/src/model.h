/*
 * `outrider-bench model`: the engine alone on a model file: prefill, decode, the cost of a pass
 * over n tokens (T(n), which decides whether speculation pays), and the cost of context. Every
 * figure is shown with its floor: the time that its bytes need at the read bandwidth measured in
 * the same rounds, or its operations at the peak of the registers. No service.
 */
#pragma once

#include "bench/src/passes.h"

#include <jansson.h>

enum { MODEL_BATCHES = 32, MODEL_DEPTHS = 16, MODEL_ROUNDS = PEAKS_ROUNDS };

struct model_bench {
	struct {
		struct engine_options engine;
		const char *batch, *depth;
		uint32_t prefill, tokens, passes, rounds;
		uint64_t seed;
		bool help, mapped, json;
	} options;
	struct passes passes;
	struct peaks peaks[MODEL_ROUNDS];
	struct series prefill, batch[MODEL_BATCHES], decode[MODEL_DEPTHS]; /* decode: by depth */
	uint32_t n_batch, n_depths;
};

/* Prints to stdout; returns a sysexits status. argv[0] is the subcommand. */
int bench_model(int argc, char **argv);

/* The report of a bench whose rounds are done; a new reference. */
json_t *model_report(const struct model_bench *b, const char *cpu);
/* The same as text. */
void model_report_text(const struct model_bench *b, const json_t *report);
