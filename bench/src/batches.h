/*
 * Timed forward passes over many sequences, as a verification makes them: each sequence has a
 * context of its own and one chain of new tokens, and a token is picked behind each of them. The
 * new tokens are random and never committed, so every pass of the same kind costs the same.
 *
 * The contexts are not computed one by one. The keys and values of one computed prompt of
 * BATCHES_PROMPT random tokens are copied to all pages of the cache. So every sequence reads memory
 * of its own, and attention gives vectors of the size and variety that it gives behind computed
 * tokens: with constant keys and values it would pull all rows to one direction, and the router
 * would give them all the same experts. One thread, which drives the pool.
 */
#pragma once

#include "client/model/engine.h"

enum { BATCHES_PROMPT = 256 };

struct batches {
	struct engine engine;
	struct sampler_params greedy;
	struct kv_seq *seqs; /* [n_seqs] with their contexts */
	uint32_t n_seqs;
	uint32_t *cells; /* [n_cells] */
	uint32_t n_cells;
	struct pick_row *picks; /* [engine.n_batch] */
	struct pick_result *results; /* [engine.n_batch] */
	uint64_t random; /* decides the tokens */
};

/* What one pass took. */
struct batches_pass {
	double seconds, layers_s; /* layers_s: of that in the layers, not in the output */
	uint32_t experts; /* distinct ones, summed over the layers */
};

/* Opens options->model (engine_check_options must have accepted options). -ENOTSUP: it has
 * recurrent layers, whose states cannot be copied from another sequence. Call batches_close in any
 * case. */
int batches_open(
	struct batches *b, const struct engine_options *options, uint64_t seed, struct error *err);
void batches_close(struct batches *b);
/* Pages for sequences of `context` tokens and `rows` more in flight. */
uint64_t batches_pages(uint32_t sessions, uint32_t context, uint32_t rows);
/* Bytes of the packed weights and of a KV cache of so many pages. */
uint64_t batches_bytes(const struct batches *b, uint64_t pages);
/* Allocates the cache and the buffers for passes of up to `rows` rows behind up to `context` tokens,
 * and fills all pages. -ENOMEM when they do not fit. */
int batches_start(
	struct batches *b, uint32_t pages, uint32_t rows, uint32_t context, struct error *err);
/* Begins `sessions` sequences of `context` tokens, in place of those there were. rows: the most new
 * ones of a sequence in a pass. */
int batches_begin(
	struct batches *b, uint32_t sessions, uint32_t context, uint32_t rows, struct error *err);
/* Runs a pass in which each of the sequences has `rows` new tokens. */
int batches_run(struct batches *b, uint32_t rows, struct batches_pass *out, struct error *err);
