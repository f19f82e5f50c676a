/*
 * Forward passes of the engine alone, timed, each beside its floor (floor.h). One sequence; a pass's tokens are never
 * committed, so that every pass of a series starts from the same depth. One thread, which drives the pool.
 */
#pragma once

#include "shared/measure/floor.h"
#include "client/model/engine.h"

/* Passes of one kind: of each round the means, over all rounds the sums of what does not depend on time. */
struct series {
	uint32_t n, depth; /* tokens of a pass, committed ones before them */
	bool all_logits; /* of every token, as a verification needs; else of the last */
	double seconds[PEAKS_ROUNDS], bytes_s[PEAKS_ROUNDS], kv_s[PEAKS_ROUNDS],
		expert_s[PEAKS_ROUNDS], roofline_s[PEAKS_ROUNDS], read_gb_s[PEAKS_ROUNDS];
	double bytes, expert_bytes, kv_bytes, int8_ops, experts;
	uint32_t n_passes; /* in all */
};

struct passes {
	struct engine engine;
	uint16_t *
		chosen; /* [1 + most][n_layers][n_experts]: of the pass that runs, then of those of a series */
	uint64_t random; /* decides the tokens */
	struct peaks_memory memory;
};

/* Opens options->model (engine_check_options has seen them) for passes of up to n_batch tokens, behind up to `depth` committed ones, at most `most` in a row.
 * -EINVAL when the model's context is shorter than that. passes_close in any case. */
int passes_open(struct passes *p, const struct engine_options *options, uint32_t n_batch,
	uint32_t depth, uint32_t most, uint64_t seed, struct error *err);
void passes_close(struct passes *p);

/* Makes `depth` tokens committed. Their keys and values are finite numbers in memory that were never computed: what a
 * pass costs does not depend on them. Only models with recurrent layers compute them. */
int passes_depth(struct passes *p, uint32_t depth, struct error *err);

/* `count` passes of s->n random tokens at the depth there is, into s's round. peaks: of the same round; the read bandwidth
 * is measured before and after the passes, and their floors go by the mean. */
int passes_run(struct passes *p, struct series *s, uint32_t round, uint32_t count,
	const struct peaks *peaks, struct error *err);

/* What a process took at most, pages of the huge-page pool with it, and of that the model file's mapping, bytes. 0 where the
 * system does not say. status, smaps: "/proc/self/status" and "/proc/self/smaps". */
void passes_memory(const char *status, const char *smaps, uint64_t *peak, uint64_t *mapped);
