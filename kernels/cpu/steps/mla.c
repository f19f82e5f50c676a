/*
 * Multi-head latent attention in its absorbed form (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).
 * A cell stores the normalised latent c and the rotated part of the key; no head's keys or values
 * are ever made. Because of
 *
 *   q_nope . (W_k c) = (W_k^T q_nope) . c   and   sum_i p_i W_v c_i = W_v sum_i p_i c_i
 *
 * a head maps its query to the latent space, attends there, where all heads share one key, and maps
 * the result back.
 *
 * The batch is cut into blocks of MLA_TOKENS tokens. Each is mapped by heads and attends with all
 * heads together. Every value is computed separately in the order that numerics.md defines, so the
 * blocks do not affect the result. In files of the older layout the matrix to the latent space is
 * transposed. Its product is then the sum over n of q_n times row n, n ascending, by axpy from +0.
 * (A transposed copy would cost memory and start-up time, and for quantised files its weights would
 * differ.)
 */
#include "kernels/cpu/steps/steps.h"

#include <string.h>

/* The current block: tokens first..first+n-1. */
struct mla {
	struct cpu_queue *q;
	const struct step_mla *step;
	uint32_t first, n;
};

void mla_layout(struct cpu_queue *q, struct carve *c)
{
	const struct queue_limits *limits = &q->limits;
	uint32_t widest = limits->mla_nope > limits->v_dim ? limits->mla_nope : limits->v_dim;

	/* Each takes whole cache lines, so that threads do not share one. */
	q->mla_q8_blocks = (size_t)MLA_TOKENS * (widest / Q8_BLOCK);
	q->mla_row_floats = (limits->v_dim + 15u) / 16 * 16;
	CARVE(c, q->latent_q, (size_t)MLA_TOKENS * limits->n_heads * limits->k_dim);
	CARVE(c, q->latent, (size_t)MLA_TOKENS * limits->n_heads * limits->v_dim);
	CARVE(c, q->head_q8, q->n_threads * q->mla_q8_blocks);
	CARVE(c, q->head_row, q->n_threads * q->mla_row_floats);
}

/* Normalises the latent and rotates the rest of the key, stores both in the token's cell, and
 * rotates the last part of each query head. */
static void finish_row(void *arg, uint32_t t, uint32_t thread)
{
	const struct mla *m = arg;
	const struct step_mla *s = m->step;
	const struct kernels *kernels = m->q->kernels;
	const float *cos_sin = floats_at(&s->batch.cos_sin, t);
	const struct step_token *token = token_at(&s->batch.tokens, t);
	float *kv = floats_at(&s->kv, t), *q = floats_at(&s->q, t);

	(void)thread;
	if (s->kv_bias)
		kernels->add(kv, s->kv_bias, s->kv_rank + s->rope);
	if (s->q_bias)
		kernels->add(q, s->q_bias, s->n_heads * (s->nope + s->rope));
	kernels->rms_norm(kv, s->kv_norm, s->eps, s->kv_rank, kv);
	kernels->rope(kv + s->kv_rank, cos_sin, s->rope, false);
	kernels->kv_store(kv, s->kv_rank + s->rope, s->cells.type,
		s->cells.buffer->host + s->cells.k + token->cell * s->cells.k_bytes);
	for (uint32_t h = 0; h < s->n_heads; h++)
		kernels->rope(
			q + (size_t)h * (s->nope + s->rope) + s->nope, cos_sin, s->rope, false);
}

static struct matrix of_head(const struct matrix *first, size_t head_bytes, uint32_t head)
{
	struct matrix m = *first;

	m.data = (const unsigned char *)first->data + head_bytes * head;
	return m;
}

/* Maps one head's queries of the block to the latent space. */
static void absorb(void *arg, uint32_t head, uint32_t thread)
{
	const struct mla *m = arg;
	const struct step_mla *s = m->step;
	const struct kernels *kernels = m->q->kernels;
	struct matrix k_b = of_head(&s->k_b, s->k_b_head_bytes, head);
	struct q8_block *q8 = m->q->head_q8 + thread * m->q->mla_q8_blocks;
	float *row = m->q->head_row + thread * m->q->mla_row_floats;
	struct activation x[MLA_TOKENS];
	float *y[MLA_TOKENS];

	for (uint32_t i = 0; i < m->n; i++) {
		const float *q =
			floats_at(&s->q, m->first + i) + (size_t)head * (s->nope + s->rope);

		x[i] = (struct activation){q, q8 + (size_t)i * (s->nope / Q8_BLOCK)};
		y[i] = m->q->latent_q + ((size_t)i * s->n_heads + head) * (s->kv_rank + s->rope);
		memcpy(y[i] + s->kv_rank, q + s->nope, s->rope * sizeof(*q));
		if (s->k_b_transposed)
			memset(y[i], 0, s->kv_rank * sizeof(*q));
		else if (matrix_quantised(&k_b))
			kernels->quantise_q8(q, s->nope, q8 + (size_t)i * (s->nope / Q8_BLOCK));
	}
	if (!s->k_b_transposed) {
		kernels->matmul(&k_b, 0, s->kv_rank, x, m->n, y);
		return;
	}
	for (uint32_t d = 0; d < s->nope; d++) {
		kernels->dequantise_row(&k_b, d, row);
		for (uint32_t i = 0; i < m->n; i++)
			kernels->axpy(y[i], x[i].f32[d], row, s->kv_rank);
	}
}

/* Attends for the tokens of the block. */
static void attend(struct mla *m)
{
	const struct step_mla *s = m->step;
	struct cpu_queue *q = m->q;
	struct attention_step run = attention_step_of(q, &s->batch, &s->cells);

	for (uint32_t i = 0; i < m->n; i++)
		q->attention_tokens[i] = attention_token_of(&s->batch, m->first + i,
			q->latent_q + (size_t)i * s->n_heads * (s->kv_rank + s->rope),
			q->latent + (size_t)i * s->n_heads * s->kv_rank);
	run.n_tokens = m->n;
	run.first = m->first;
	run.k_dim = s->kv_rank + s->rope;
	run.v_dim = s->kv_rank;
	run.n_kv_heads = 1;
	run.n_heads = s->n_heads;
	run.q_stride = run.k_dim;
	run.out_stride = run.v_dim;
	run.scale = s->scale;
	attention_run(&run, &q->attention);
}

/* Maps one head's results of the block from the latent space to values. */
static void take_back(void *arg, uint32_t head, uint32_t thread)
{
	const struct mla *m = arg;
	const struct step_mla *s = m->step;
	const struct kernels *kernels = m->q->kernels;
	struct matrix v_b = of_head(&s->v_b, s->v_b_head_bytes, head);
	struct q8_block *q8 = m->q->head_q8 + thread * m->q->mla_q8_blocks;
	struct activation x[MLA_TOKENS];
	float *y[MLA_TOKENS];

	for (uint32_t i = 0; i < m->n; i++) {
		const float *latent = m->q->latent + ((size_t)i * s->n_heads + head) * s->kv_rank;

		x[i] = (struct activation){latent, q8 + (size_t)i * (s->kv_rank / Q8_BLOCK)};
		y[i] = floats_at(&s->out, m->first + i) + (size_t)head * s->v;
		if (matrix_quantised(&v_b))
			kernels->quantise_q8(
				latent, s->kv_rank, q8 + (size_t)i * (s->kv_rank / Q8_BLOCK));
	}
	kernels->matmul(&v_b, 0, s->v, x, m->n, y);
}

void cpu_mla(struct queue *queue, const struct step_mla *s)
{
	struct cpu_queue *q = cpu_queue(queue);
	struct mla m = {.q = q, .step = s};
	uint32_t n = s->batch.tokens.n;
	size_t head_bytes = (size_t)s->n_heads * s->rope * sizeof(float);
	size_t absorb_bytes = (size_t)s->n_heads * s->kv_rank * s->nope;
	size_t back_bytes = (size_t)s->n_heads * s->kv_rank * s->v;

	work_items(q, n, n * 4 * head_bytes, finish_row, &m);
	for (; m.first < n; m.first += m.n) {
		m.n = n - m.first < MLA_TOKENS ? n - m.first : MLA_TOKENS;
		work_items(q, s->n_heads, absorb_bytes * m.n, absorb, &m);
		attend(&m);
		work_items(q, s->n_heads, back_bytes * m.n, take_back, &m);
	}
	if (s->out_q8.buffer)
		work_quantise(q, n, s->n_heads * s->v, &s->out, &s->out_q8);
}
