/*
 * How fast a model will be, of what its tokens read and what memory and disk give. Pure.
 *
 * A token takes the least time of its bytes and operations (shared/measure/floor.h), a little more for what the kernels do not
 * reach, and the hand-overs to the threads. Experts that are not in memory are read meanwhile, so the longer of the two counts.
 * Routing counts as uniform: experts of a trained model are used again and again, and fewer of them are read.
 */
#pragma once

#include "client/cli/doctor/measure.h"

/* The share of the floor's speed that decoding reaches with each instruction set: AVX-512 0.84 to 0.95
 * (bench/results/model-qwen3-30b-a3b-12.txt, peers-qwen3-30b-a3b.txt), AVX2 0.64 to 0.75 (doctor.txt there). That of the scalar
 * kernels has not been measured. */
double predict_kernel_share(const char *kernels);
/* Times the disk's own time that a token takes when it waits for the disk: 1.03 to 1.09 (bench/results/capped.txt). */
#define PREDICT_DISK_TIMES 1.06

enum { PREDICT_DEPTH = 512, PREDICT_ROWS = 6, PREDICT_DRAFTS = 3 };

struct prediction {
	double token_bytes; /* that one token reads, PREDICT_DEPTH tokens behind the first */
	double tokens_s; /* with all experts in memory */
	double expected_tokens_s; /* with the share that was planned */
	uint32_t n_rows;
	struct predict_row {
		double share; /* of the experts in memory */
		uint64_t bytes; /* of the budget */
		double compute_ms, disk_ms, tokens_s;
		bool planned; /* the row of the plan */
	} rows[PREDICT_ROWS]; /* descending; none of a dense model */
	/* With the planned share. */
	struct predict_draft {
		uint32_t k;
		double cost; /* of drafting and verifying K tokens, in tokens without drafts */
		double break_even; /* the share of drafted tokens that must be accepted; more than 1: it cannot pay */
	} drafts[PREDICT_DRAFTS];
	double draft_token_ms; /* of the draft model; 0: none */
};

/* kernels: the name of those that compute. share: of the experts in memory; all_bytes, least_bytes: of the budgets. draft: or NULL. -ENOMEM. */
int predict(const struct facts *facts, const struct facts *draft, const struct measured *measured,
	const char *kernels, double share, uint64_t all_bytes, uint64_t least_bytes,
	struct prediction *out);

/* The acceptance at which K drafted tokens bring `cost` tokens; 2: none does. */
double predict_break_even(uint32_t k, double cost);
