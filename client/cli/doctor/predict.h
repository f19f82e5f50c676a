/*
 * The expected speed of a model, from what its tokens read and what memory and disk can do. No side
 * effects.
 *
 * A token takes the least time for its bytes and operations (shared/measure/floor.h), a little more
 * because the kernels do not reach that, and the time to give work to the threads. Experts that are
 * not in memory are read at the same time, so the longer of the two counts. Routing is assumed to
 * be uniform; with a trained model experts are used again and again, and fewer of them are read.
 */
#pragma once

#include "client/cli/doctor/measure.h"

/* The share of the floor's speed that decoding reaches with each instruction set: AVX-512 0.84 to
 * 0.95 (bench/results/model-qwen3-30b-a3b-12.txt, peers-qwen3-30b-a3b.txt), AVX2 0.64 to 0.75
 * (doctor.txt there). It has not been measured for the scalar kernels. */
double predict_kernel_share(const char *kernels);
/* The time of a token that waits for the disk, as a multiple of the disk's own time: 1.03 to 1.09
 * (bench/results/capped.txt). */
#define PREDICT_DISK_TIMES 1.06

enum { PREDICT_DEPTH = 512, PREDICT_ROWS = 6, PREDICT_DRAFTS = 3, PREDICT_SPEED_TEXT = 32 };

struct prediction {
	double token_bytes; /* bytes that one token reads, PREDICT_DEPTH tokens behind the first */
	double tokens_s; /* with all experts in memory */
	double expected_tokens_s; /* with the share that was planned */
	uint32_t n_rows;
	struct predict_row {
		double share; /* of the experts in memory */
		uint64_t bytes; /* of the budget */
		double compute_ms, disk_ms, tokens_s;
		bool planned; /* the row of the plan */
	} rows[PREDICT_ROWS]; /* descending; none for a dense model */
	/* With the planned share of experts. */
	struct predict_draft {
		uint32_t k;
		/* of drafting and verifying K tokens, in units of a token without drafts */
		double cost;
		/* the share of drafted tokens that must be accepted; more than 1: it cannot pay */
		double break_even;
	} drafts[PREDICT_DRAFTS];
	double draft_token_ms; /* time of the draft model; 0: there is none */
};

/* kernels: the name of the kernels that compute. share: of the experts in memory; all_bytes,
 * least_bytes: of the budgets. draft: or NULL. -ENOMEM. */
int predict(const struct facts *facts, const struct facts *draft, const struct measured *measured,
	const char *kernels, double share, uint64_t all_bytes, uint64_t least_bytes,
	struct prediction *out);

/* Tokens per second in so many digits, without an exponent: "2.72", "366.9", "11750". Returns out. */
const char *predict_speed_text(double tokens_s, int digits, char out[static PREDICT_SPEED_TEXT]);

/* The acceptance with which K drafted tokens yield `cost` tokens; 2: no acceptance does. */
double predict_break_even(uint32_t k, double cost);
