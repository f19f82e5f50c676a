/*
 * The attention of a batch of tokens, divided among threads. It is cut by KV heads, by groups of
 * tokens whose cells are the same (so that a cell is read once for the whole group), and along the
 * positions. The splits of a row lie where numerics.md puts them and are joined in ascending order,
 * so neither the batch nor the threads change a bit.
 *
 * One thread takes all splits of a group if there are enough groups and heads for the threads, if
 * no group has more than one split, or if there is little work. Otherwise the splits are handed out
 * as well, in waves of as many as there is memory for, and joined after each wave.
 */
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/pool.h"

/* A token that attends to positions first..last-1, first < last. */
struct attention_token {
	const float *q; /* [heads][k_dim]; heads are q_stride floats apart */
	float *out; /* [heads][v_dim]; heads are out_stride floats apart */
	uint32_t first, last;
	/* indexed by position; neighbouring tokens with the same list are a group */
	const uint32_t *cells;
	/* number of positions for which the list holds for this token; from there on `tail` gives
	 * its cells */
	uint32_t shared;
};

/* Memory for attention_run, enough for the largest batch. */
struct attention_memory {
	void *memory;
	uint32_t n_threads, rows; /* rows: in `parts` */
	float *most, *sum; /* [tokens][heads] */
	struct attention_unit *units; /* [tokens * KV heads * blocks of heads] */
	float *parts; /* [rows][v_dim + 2] */
	float *scratch; /* [threads][scratch_floats] of the kernel */
	size_t scratch_floats;
	struct attention_queries *kept; /* [threads] the queries that each thread's scratch holds */
	uint32_t *cells; /* [threads][ATTENTION_SPLIT] */
};

/* The attention of one layer. Query heads h * n_heads and the next n_heads - 1 share KV head h. */
struct attention_step {
	const struct kernels *kernels;
	struct pool *pool;
	const struct attention_token *tokens;
	uint32_t n_tokens;
	uint32_t first; /* number that tail, prepare and done use for tokens[0] */
	enum kv_type kv_type;
	const unsigned char *k, *v; /* those of KV head 0 */
	size_t k_head_bytes, v_head_bytes; /* distance between heads */
	size_t k_cell_bytes, v_cell_bytes;
	bool k_turned, v_paired; /* as in struct attention_job */
	uint32_t k_dim, v_dim;
	uint32_t n_kv_heads, n_heads; /* n_heads: per KV head */
	size_t q_stride, out_stride;
	float scale;
	const float *sinks; /* [n_kv_heads * n_heads] or NULL */
	const uint32_t *cell_of; /* from cell to this layer's own cell, or NULL */
	/* Writes the cells of positions from..to-1 of a token, with from >= its `shared`. Called
	 * only when there are such positions. */
	void (*tail)(void *arg, uint32_t token, uint32_t from, uint32_t to, uint32_t *cells);
	void *tail_arg;
	/* Two ways to make the queries, keys and values; both NULL if they exist already. `prepare`
	 * makes those of one KV head of a token. It runs on the thread that then attends, and is
	 * used when one thread attends to that head for all tokens. Otherwise prepare_all makes all
	 * of them; it runs on the calling thread, which may use the pool. */
	void (*prepare)(void *arg, uint32_t token, uint32_t kv_head);
	void (*prepare_all)(void *arg);
	/* Called on a thread when the heads of one KV head of a token are ready; may be NULL. */
	void (*done)(void *arg, uint32_t token, uint32_t kv_head);
	void *arg;
};

/* The largest batch and the shape of the heads that memory is allocated for. */
struct attention_limits {
	const struct kernels *kernels;
	uint32_t n_threads, n_tokens, n_kv_heads, n_heads; /* n_heads: per KV head */
	uint32_t k_dim, v_dim;
};

/* Bytes that attention_memory_get allocates. */
size_t attention_memory_bytes(const struct attention_limits *limits);
/* Allocates the memory. -ENOMEM. */
int attention_memory_get(
	struct attention_memory *m, const struct attention_limits *limits, struct error *err);
void attention_memory_put(struct attention_memory *m);

void attention_run(const struct attention_step *step, struct attention_memory *m);
