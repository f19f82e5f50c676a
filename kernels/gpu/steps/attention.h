/*
 * The attention of a batch, which the steps attend and mla share, and their memory of a queue
 * (attend.cc). Only those steps include this header.
 */
#pragma once

#include "kernels/gpu/kernels/attend_cells.cuh"
#include "kernels/gpu/steps/steps.h"

/* Tokens that the step mla takes at a time. */
enum { GPU_MLA_TOKENS = 64 };

/* A queue's memory, as kernels see it. */
struct gpu_attention {
	float *parts; /* results of splits, in waves of as many as there is room for */
	size_t parts_floats;
	float *most, *sum; /* [n_tokens][heads] between waves */
	/* Of mla: */
	float *latent_q, *latent; /* [GPU_MLA_TOKENS][heads][k_dim], and of v_dim */
	float *matrix; /* [nope][v_dim] values of one head's transposed matrix */
	struct step_token *numbers; /* [nope] with the numbers of that matrix's rows */
	struct q8_block *q8; /* [GPU_MLA_TOKENS][heads][the wider of nope and v_dim / Q8_BLOCK] */
};

struct gpu_attention gpu_attention_of(const struct gpu_queue *q);

/* Attention of n tokens, the batch's from `first` on. Rows begin with the first of them. */
struct attention_shape {
	const struct batch_cells *batch;
	struct gpu_cells cells; /* gpu_cells_of the batch */
	enum kv_type type; /* of the cells */
	uint32_t first, n;
	uint32_t n_kv_heads, n_heads; /* n_heads: query heads of a KV head */
	uint32_t k_dim, v_dim;
	struct dev_rows q; /* heads are q_stride floats apart */
	uint32_t q_stride;
	float scale;
	const float *sinks; /* [all heads] as kernels see it, or NULL */
	struct dev_rows out; /* [all heads * v_dim] */
	struct dev_rows gate; /* as in struct join_args */
	uint32_t gate_stride;
	struct dev_rows q8; /* as in struct join_args */
};

void gpu_attention_run(struct gpu_queue *q, const struct attention_shape *s);

/* The batch and its cells as kernels see them. */
struct gpu_cells gpu_cells_of(
	struct gpu_queue *q, const struct batch_cells *batch, const struct kv_cells *kv);

/* Quantises n rows of `width` values. */
void gpu_quantise_rows(
	struct gpu_queue *q, struct dev_rows x, struct dev_rows q8, uint32_t width, uint32_t n);
