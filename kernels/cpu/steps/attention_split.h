/*
 * The attention of a batch of tokens, cut for the threads: by KV heads, by groups of tokens whose cells are the same, so that
 * a cell is read once for all of them, and along the positions. The splits of a row lie where numerics.md puts them and
 * are joined in ascending order, so that neither the batch nor the threads change a bit.
 *
 * Where there are enough groups and heads for the threads, or a group has one split only, one thread takes a group's splits
 * one after the other. Otherwise the splits are handed out too, in waves of as many as there is memory for, and joined after each.
 */
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/pool.h"

/* Attends to positions first..last-1, first < last. */
struct attention_token {
	const float *q; /* [heads][k_dim], heads q_stride floats apart */
	float *out; /* [heads][v_dim], heads out_stride floats apart */
	uint32_t first, last;
	const uint32_t *
		cells; /* by position; tokens one behind the other with the same list are a group */
	uint32_t shared; /* positions from which on the list is not this token's; `tail` knows */
};

/* Memory for attention_run, as much as the largest batch needs. */
struct attention_memory {
	void *memory;
	uint32_t n_threads, rows; /* rows: of `parts` */
	float *most, *sum; /* [tokens][heads] */
	struct attention_unit *units; /* [tokens * KV heads * blocks of heads] */
	float *parts; /* [rows][v_dim + 2] */
	float *scratch; /* [threads][scratch_floats] of the kernel */
	size_t scratch_floats;
	struct attention_queries *kept; /* [threads] that lie in the thread's scratch */
	uint32_t *cells; /* [threads][ATTENTION_SPLIT] */
};

/* What is attended to in one layer. Heads h * n_heads .. belong to KV head h. */
struct attention_step {
	const struct kernels *kernels;
	struct pool *pool;
	const struct attention_token *tokens;
	uint32_t n_tokens;
	uint32_t first; /* tail, prepare and done call token i first + i */
	enum kv_type kv_type;
	const unsigned char *k, *v; /* of KV head 0 */
	size_t k_head_bytes, v_head_bytes; /* to the next */
	size_t k_cell_bytes, v_cell_bytes;
	bool k_turned, v_paired; /* as attention_job has them */
	uint32_t k_dim, v_dim;
	uint32_t n_kv_heads, n_heads; /* n_heads: per KV head */
	size_t q_stride, out_stride;
	float scale;
	const float *sinks; /* [n_kv_heads * n_heads] or NULL */
	const uint32_t *cell_of; /* the layer's own cell of a cell, or NULL */
	/* The cells of positions from..to-1 of a token, from >= its `shared`. Only called when there are such. */
	void (*tail)(void *arg, uint32_t token, uint32_t from, uint32_t to, uint32_t *cells);
	void *tail_arg;
	/* What makes queries, keys and values, unless they are there: of one KV head of a token, on the thread that attends to it
	 * afterwards, where one thread attends to it for all tokens; else of all, on the caller. Both or none. */
	void (*prepare)(void *arg, uint32_t token, uint32_t kv_head);
	void (*prepare_all)(void *arg);
	/* On a thread, when the heads of one KV head of a token are ready; or NULL. */
	void (*done)(void *arg, uint32_t token, uint32_t kv_head);
	void *arg;
};

/* For up to n_tokens tokens. -ENOMEM. */
int attention_memory_get(struct attention_memory *m, const struct kernels *kernels,
	uint32_t n_threads, uint32_t n_tokens, uint32_t n_kv_heads, uint32_t n_heads,
	uint32_t k_dim, uint32_t v_dim, struct error *err);
void attention_memory_put(struct attention_memory *m);

void attention_run(const struct attention_step *step, struct attention_memory *m);
