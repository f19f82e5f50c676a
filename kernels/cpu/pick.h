/*
 * Picks on the CPU: rows run in parallel on a pool. Called by the one thread that drives the pool.
 * pick_create allocates everything.
 */
#pragma once

#include "kernels/pick.h"
#include "kernels/pool.h"

struct pick;

/* For rows of n_vocab logits. Borrows the pool and the kernels. */
int pick_create(const struct kernels *kernels, struct pool *pool, uint32_t n_vocab,
	struct pick **out, struct error *err);
void pick_destroy(struct pick **pick);
/* How many bytes pick_create allocates. */
size_t pick_bytes(uint32_t n_threads, uint32_t n_vocab);

/* Fills results[first..first+n-1]. rows[0..first+n-1] are a batch, or its beginning. logits[i]:
 * [n_vocab] of row first + i. */
void pick_run(struct pick *pick, const struct pick_row *rows, uint32_t first, uint32_t n,
	const float *const *logits, struct pick_result *results);
