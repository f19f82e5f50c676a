/*
 * What the CPU's steps share: the queue that they run in, its memory, and how work is divided among
 * its threads. The table of the back end is in backend_cpu.c. Only this folder includes this
 * header.
 *
 * Every element of every row is computed by one thread, in the order that numerics.md defines. The
 * division into items only decides which thread that is.
 */
#pragma once

#include "kernels/backend.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/steps/attention_split.h"
#include "kernels/pool.h"
#include "shared/base/carve.h"

#include <assert.h>

/* An item: rows first..last-1 of a task's matrix, for n of its rows of inputs from `row` on. */
struct work_item {
	uint32_t task, first, last, row, n;
};

/* A product in the form of kernels->matmul: y[i] = w * x[i]. */
struct work_product {
	struct matrix w;
	const struct activation *x; /* [n] */
	float *const *y; /* [n] */
	uint32_t n;
};

/* The gate and up products and the activation, for pairs first..first+n-1. */
struct work_ffn {
	struct ffn ffn;
	uint32_t first, n;
	const struct ffn_adapt *adapt; /* NULL: it has no additions */
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
	ticket ticket; /* the last that was issued */
	void *memory;
	/* For one step: */
	struct work_product *products; /* [limits.products] */
	struct activation *x_rows; /* [limits.pairs] */
	float **y_rows;
	struct work_item *items;
	uint32_t n_items;
	/* For feed-forwards: */
	struct work_ffn *ffn; /* [limits.products] */
	/* [limits.ffn_pairs][limits.ffn_width], or NULL: no down product takes float32 */
	float *act;
	struct q8_block *act_q8;
	struct activation *act_rows; /* [limits.ffn_pairs]: the same, by row */
	float *gate_up; /* [threads][2][WORK_FFN_FLOATS] */
	/* [limits.ffn_pairs]: the pair takes its feed-forward's additions; then [2][adapt_rank]
	 * between the two products of gate and of up */
	uint8_t *gated;
	float *adapted;
	/* For attention: */
	struct attention_memory attention;
	struct attention_token *attention_tokens; /* [limits.n_tokens] */
	float *latent_q; /* [MLA_TOKENS][n_heads][k_dim] */
	float *latent; /* [MLA_TOKENS][n_heads][v_dim] */
	struct q8_block *head_q8; /* [threads][mla_q8_blocks] */
	float *head_row; /* [threads][mla_row_floats] */
	size_t mla_q8_blocks, mla_row_floats;
	/* For delta nets: */
	float *delta_zeros; /* [limits.delta_channels] */
	float *delta_state; /* [threads][limits.delta_d_k][DELTA_COLUMNS] */
	uint32_t *delta_path; /* [threads][limits.delta_drafts] */
	struct pick *pick; /* NULL: the queue picks no tokens */
	/* For routing: */
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

/* NULL when there are no such rows. */
static inline struct q8_block *q8_at(const struct rows *rows, size_t i)
{
	return rows->buffer ? (struct q8_block *)row_at(rows, i) : NULL;
}

static inline void *place_at(struct place place)
{
	return place.buffer->host + place.offset;
}

/* Row i, or the row of `kept` that replaces it. */
static inline float *kept_at(
	const struct rows *rows, struct place keep, const struct rows *kept, uint32_t i)
{
	uint32_t at = keep.buffer ? ((const uint32_t *)place_at(keep))[i] : UINT32_MAX;

	return at == UINT32_MAX ? floats_at(rows, i) : floats_at(kept, at);
}

/* Sets `out` to n rows of inputs, from `first` on. */
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
	/* Rows are cut in multiples of this, which is a whole number of Q8 blocks and of the row
	 * groups of all functions. */
	WORK_ROWS = 32,
	/* Tokens are cut in multiples of this: as many as share one reading of the weights (matmul
	 * in simd.h). */
	WORK_TOKENS = 64,
	/* Floats of gate's rows, and of up's, that a thread computes before it goes on with the
	 * activation. They stay in its second-level cache. */
	WORK_FFN_FLOATS = 16 << 10,
	MLA_TOKENS = 16, /* tokens in a block, for which a head's two matrices are read once */
	/* Columns of a state that one thread takes through all tokens. They stay in its first-level
	 * cache. */
	DELTA_COLUMNS = 16,
};
/* No step has more items: about WORK_ITEMS per thread, fewer than as many again because the bytes
 * of an item are rounded down, and one for each task, which has at least one. */
#define WORK_ITEMS_MAX(threads, tasks) ((size_t)(threads)*WORK_ITEMS * 2 + (tasks))

/* Calls fn(arg, item, thread) for items 0..n-1. bytes: roughly what all items touch; decides
 * whether the pool is used. */
void work_items(struct cpu_queue *q, uint32_t n, size_t bytes,
	void (*fn)(void *arg, uint32_t item, uint32_t thread), void *arg);
/* Quantises n rows of `width` values. */
void work_quantise(struct cpu_queue *q, uint32_t n, uint32_t width, const struct rows *x,
	const struct rows *q8);
/* Computes the first n of q->products. alone: on the calling thread. */
void work_products(struct cpu_queue *q, uint32_t n, bool alone);
/* Computes the first n of q->ffn, with inputs q->x_rows, to q->act and q->act_q8. */
void work_ffn(struct cpu_queue *q, uint32_t n);
/* adapt.c. Adds the rows first..last-1 of b times the rows t, n <= ADAPT_ROWS; y[i] points to the
 * first of them. */
enum { ADAPT_ROWS = 16, ADAPT_OUT = 64 };
void adapt_add(const struct kernels *kernels, const struct low_rank *w, const struct activation *t,
	uint32_t n, uint32_t first, uint32_t last, float *const *y);
/* For the first n of q->ffn: computes q->adapted, before work_ffn; and adds to q->y_rows, behind the
 * last products. */
void adapt_begin(struct cpu_queue *q, uint32_t n);
void adapt_end(struct cpu_queue *q, uint32_t n);

/* Announce the products that follow: while threads wait for them, they prefetch the weights that
 * they will read first. Only w and n of the products are used. */
void work_ahead(struct cpu_queue *q, const struct work_product *products, uint32_t n);
void work_next(struct cpu_queue *q, const struct step_next *next);

void cpu_embed(struct queue *q, const struct step_embed *step);
void cpu_norm(struct queue *q, const struct step_norm *step);
void cpu_products(struct queue *q, const struct step_products *step);
/* attend.c: fills in the fields of attention_run's arguments that follow from the batch and from
 * where its cells lie. The caller adds dimensions, scale, `prepare` and `done`. */
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
void cpu_budget(struct queue *q, const struct step_budget *step);

/* In route.c, for the step `budget`. */
/* Chooses by the rule among the experts whose bits are set in `in`. score: [n_experts] as the step
 * left it; scratch: [n_experts]. Fills chosen and weights; places without an expert are marked
 * (ROUTE_DROPPED in route_choice.h) and have the weight 0. */
void route_within(const struct step_route *step, const struct kernels *kernels, const float *score,
	const uint64_t *in, float *scratch, uint16_t *chosen, float *weights);
/* Makes the step's order without the marked places. */
void route_order(struct cpu_queue *q, const struct step_route *step);
void cpu_experts(struct queue *q, const struct step_experts *step);
void cpu_combine(struct queue *q, const struct step_combine *step);
void cpu_logits(struct queue *q, const struct step_logits *step);
void cpu_pick(struct queue *q, const struct step_pick *step);
void cpu_adapt(struct queue *q, const struct step_adapt *step);
void cpu_silu_norm(struct queue *q, const struct step_silu_norm *step);
