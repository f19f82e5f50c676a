/*
 * Timed forward passes of the engine alone, each compared with its floor (floor.h). One sequence.
 * The tokens of a pass are never committed, so every pass of a series begins at the same depth. One
 * thread, which drives the pool.
 */
#pragma once

#include "bench/src/gpu_copy.h"
#include "shared/measure/floor.h"
#include "client/model/engine.h"

/* Options of commands that run the engine. o: struct engine_options. */
#define BENCH_CPU_ARGS(o)                                                                \
	{"threads", ARG_U32, &(o)->threads, 1, LIMIT_THREADS, "N", ENGINE_THREADS_HELP}, \
		{"kernels", ARG_STRING, &(o)->kernels, 0, 0, "NAME", "default: the best"},
#define BENCH_CACHE_ARGS(o)                                                 \
	{"kv", ARG_STRING, &(o)->kv, 0, 0, "TYPE", "as in outrider-model"}, \
		{"context", ARG_U32, &(o)->context, 1, LIMIT_CONTEXT, "N",  \
			"default: the model's"},

/* Passes of one kind. What depends on time: the mean of each round. The rest: sums over all rounds.
 */
struct series {
	uint32_t n, depth; /* tokens of a pass; committed tokens before them */
	/* logits of every token, as a verification needs; otherwise only of the last */
	bool all_logits;
	double seconds[PEAKS_ROUNDS], bytes_s[PEAKS_ROUNDS], kv_s[PEAKS_ROUNDS],
		expert_s[PEAKS_ROUNDS], roofline_s[PEAKS_ROUNDS], read_gb_s[PEAKS_ROUNDS];
	double bytes, expert_bytes, kv_bytes, int8_ops, experts;
	uint32_t n_passes; /* in all */
};

struct passes {
	struct engine engine;
	/* [1 + most][n_layers][n_experts]: first of the pass that runs, then of the passes of a
	 * series */
	uint16_t *chosen;
	uint64_t random; /* decides the tokens */
	struct peaks_memory memory;
	struct gpu_copy copy; /* on a GPU or its emulation */
};

/* Opens options->model (engine_check_options must have accepted options) for passes of up to
 * n_batch tokens behind up to `depth` committed ones, at most `most` passes in a row. -EINVAL when
 * the model's context is shorter than that. Call passes_close in any case. */
int passes_open(struct passes *p, const struct engine_options *options, uint32_t n_batch,
	uint32_t depth, uint32_t most, uint64_t seed, struct error *err);
void passes_close(struct passes *p);

/* Measures one round of peaks: the CPU's, or of a GPU how fast it copies in its memory, read and
 * written. Its other peaks are not known: they are PASSES_NO_PEAK, so that floors are of bytes alone. */
void passes_peaks(struct passes *p, struct peaks *out);
#define PASSES_NO_PEAK 1e15

/* Commits `depth` tokens. Their keys and values are finite numbers in memory that were never
 * computed, because the cost of a pass does not depend on them. Only models with recurrent layers
 * compute them. */
int passes_depth(struct passes *p, uint32_t depth, struct error *err);

/* Runs `count` passes of s->n random tokens at the present depth, for the given round of s. peaks:
 * of the same round. The read bandwidth is measured before and after the passes, and the floors use
 * the mean. */
int passes_run(struct passes *p, struct series *s, uint32_t round, uint32_t count,
	const struct peaks *peaks, struct error *err);

/* The most memory that a process had, in bytes, including pages of the huge-page pool, and how much
 * of it the model file's mapping was. 0 where the system does not say. status, smaps:
 * "/proc/self/status" and "/proc/self/smaps". */
void passes_memory(const char *status, const char *smaps, uint64_t *peak, uint64_t *mapped);
