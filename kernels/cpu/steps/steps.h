/*
 * What the CPU's steps share: the queue that they run in, its memory, and how work is cut for its threads. backend_cpu.c has
 * the table. Nobody else includes it.
 *
 * Every element of every row is computed by one thread, in the order numerics.md defines; the cut into items only decides
 * which thread that is.
 */
#pragma once

#include "kernels/backend.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/steps/attention_split.h"
#include "kernels/pool.h"
#include "shared/base/carve.h"

#include <assert.h>

/* Rows first..last-1 of one task, for n of its rows of inputs from `row` on. */
struct work_item {
	uint32_t task, first, last, row, n;
};

/* A product as the kernels take it: y[i] = w * x[i]. */
struct work_product {
	struct matrix w;
	const struct activation *x; /* [n] */
	float *const *y; /* [n] */
	uint32_t n;
};

/* Gate, up and what comes between them and down, of pairs first..first+n-1. */
struct work_ffn {
	struct ffn ffn;
	uint32_t first, n;
};

struct cpu_backend {
	struct backend backend;
	const struct kernels *kernels;
	uint32_t threads;
	bool pin;
	uint64_t spin_ns;
};

struct cpu_queue {
	struct queue queue;
	const struct kernels *kernels;
	struct pool *pool;
	uint32_t n_threads;
	struct queue_limits limits;
	ticket ticket; /* the last that was given */
	void *memory;
	/* Of one step: */
	struct work_product *products; /* [limits.products] */
	struct activation *x_rows; /* [limits.pairs] */
	float **y_rows;
	struct work_item *items;
	uint32_t n_items;
	/* Of feed-forwards: */
	struct work_ffn *ffn; /* [limits.products] */
	float *act; /* [limits.ffn_pairs][limits.ffn_width] or NULL: none takes float32 values */
	struct q8_block *act_q8;
	struct activation *act_rows; /* [limits.ffn_pairs]: these, by row */
	float *gate_up; /* [threads][2][WORK_FFN_FLOATS] */
	/* Of attention: */
	struct attention_memory attention;
	struct attention_token *attention_tokens; /* [limits.n_tokens] */
	float *latent_q; /* [MLA_TOKENS][n_heads][k_dim] */
	float *latent; /* [MLA_TOKENS][n_heads][v_dim] */
	struct q8_block *head_q8; /* [threads][mla_q8_blocks] */
	float *head_row; /* [threads][mla_row_floats] */
	size_t mla_q8_blocks, mla_row_floats;
	/* Of delta nets: */
	float *delta_zeros; /* [limits.delta_channels] */
	float *delta_state; /* [threads][limits.delta_d_k][DELTA_COLUMNS] */
	uint32_t *delta_path; /* [threads][limits.delta_drafts] */
	struct pick *pick; /* NULL: the queue picks no tokens */
	/* Of routing: */
	float *selection; /* [threads][limits.n_experts] */
	uint32_t *ends; /* [limits.n_experts + 1] */
};

static inline struct cpu_queue *cpu_queue(struct queue *q)
{
	return (struct cpu_queue *)q;
}

static inline void *row_at(const struct rows *rows, size_t i)
{
	return rows->buffer->host + rows->offset + i * rows->stride;
}

static inline const struct step_token *token_at(const struct rows *tokens, uint32_t t)
{
	return (const struct step_token *)row_at(tokens, t);
}

static inline float *floats_at(const struct rows *rows, size_t i)
{
	return (float *)row_at(rows, i);
}

/* NULL where there are no such rows. */
static inline struct q8_block *q8_at(const struct rows *rows, size_t i)
{
	return rows->buffer ? (struct q8_block *)row_at(rows, i) : NULL;
}

static inline void *place_at(struct place place)
{
	return place.buffer->host + place.offset;
}

/* Row i, or the one of `kept` that takes its place. */
static inline float *kept_at(
	const struct rows *rows, struct place keep, const struct rows *kept, uint32_t i)
{
	uint32_t at = keep.buffer ? ((const uint32_t *)place_at(keep))[i] : UINT32_MAX;

	return at == UINT32_MAX ? floats_at(rows, i) : floats_at(kept, at);
}

/* Pointers to n rows of inputs, `first` and on. */
static inline void input_rows(
	const struct inputs *x, uint32_t first, uint32_t n, struct activation *out)
{
	for (uint32_t i = 0; i < n; i++)
		out[i] = (struct activation){
			x->f32.buffer ? floats_at(&x->f32, first + i) : NULL,
			q8_at(&x->q8, first + i),
		};
}

enum {
	WORK_ITEMS = 128, /* items per thread, at most */
	/* Rows are cut in multiples of this: a whole number of Q8 blocks, and of any kernel's row group. */
	WORK_ROWS = 32,
	/* Tokens likewise: so many share a reading of the weights (matmul of simd.h). */
	WORK_TOKENS = 64,
	/* Of gate's rows, and of up's, that a thread works out before it goes on to what follows: they stay in its second-level
	 * cache. */
	WORK_FFN_FLOATS = 16 << 10,
	MLA_TOKENS = 16, /* of a block: a head's two matrices are read once for them */
	/* Of a state, that one thread takes through all tokens: they stay in its first-level cache. */
	DELTA_COLUMNS = 16,
};
/* A step has at most this many items: rounding adds one per task at most. */
#define WORK_ITEMS_MAX(threads, tasks) ((size_t)(threads)*WORK_ITEMS * 2 + (tasks))

/* fn(arg, item, thread) for items 0..n-1; bytes: about what all of them touch, to decide whether the pool is worth it. */
void work_items(struct cpu_queue *q, uint32_t n, size_t bytes,
	void (*fn)(void *arg, uint32_t item, uint32_t thread), void *arg);
/* n rows of `width` values to their quantised form. */
void work_quantise(struct cpu_queue *q, uint32_t n, uint32_t width, const struct rows *x,
	const struct rows *q8);
/* The first n of q->products; alone: by the caller. */
void work_products(struct cpu_queue *q, uint32_t n, bool alone);
/* The first n of q->ffn, with inputs q->x_rows, to q->act and q->act_q8. */
void work_ffn(struct cpu_queue *q, uint32_t n);
/* Products that follow: while threads wait for them they fetch the weights that they will read first. Of the products only w and
 * n are looked at. */
void work_ahead(struct cpu_queue *q, const struct work_product *products, uint32_t n);
void work_next(struct cpu_queue *q, const struct step_next *next);

void cpu_embed(struct queue *q, const struct step_embed *step);
void cpu_norm(struct queue *q, const struct step_norm *step);
void cpu_products(struct queue *q, const struct step_products *step);
/* attend.c: what attention_run needs of a batch, but for dimensions, scale and what is done before and after; a token of it. */
struct attention_step attention_step_of(
	struct cpu_queue *q, const struct batch_cells *batch, const struct kv_cells *cells);
struct attention_token attention_token_of(
	const struct batch_cells *batch, uint32_t t, const float *q, float *out);
/* mla.c */
void mla_layout(struct cpu_queue *q, struct carve *c);

void cpu_attend(struct queue *q, const struct step_attend *step);
void cpu_mla(struct queue *q, const struct step_mla *step);
void cpu_delta(struct queue *q, const struct step_delta *step);
void cpu_replay(struct queue *q, const struct step_replay *step);
void cpu_dense_ffn(struct queue *q, const struct step_dense_ffn *step);
void cpu_route(struct queue *q, const struct step_route *step);
void cpu_experts(struct queue *q, const struct step_experts *step);
void cpu_combine(struct queue *q, const struct step_combine *step);
void cpu_logits(struct queue *q, const struct step_logits *step);
void cpu_pick(struct queue *q, const struct step_pick *step);
