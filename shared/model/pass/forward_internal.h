/*
 * What the parts of a forward pass share: forward.c (memory, embedding, output), work.c (cutting work for the pool),
 * forward_rope.c (frequencies), attention.c, moe.c, moe_route.c, and the other mixers. Nobody else includes it.
 *
 * Every element of every buffer is computed by one thread, in the order kernels.h defines; the cut into items only
 * decides which thread that is. T = tokens of the batch, D = n_embd.
 */
#pragma once

#include "kernels/backend_cpu.h"
#include "shared/model/pass/attention_split.h"
#include "shared/model/pass/forward.h"

/* Hands out pieces of one allocation; with base NULL it only counts. */
struct carve {
	unsigned char *base;
	size_t used;
};

static inline void *carve(struct carve *c, size_t n, size_t each)
{
	void *piece = c->base ? c->base + c->used : NULL;
	c->used += (n * each + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
	return piece;
}

#define CARVE(c, field, n) ((field) = carve((c), (n), sizeof(*(field))))

struct delta_net;
struct mla_pass;

struct forward {
	const struct model *model;
	struct backend *backend;
	struct queue *queue;
	const struct kernels *kernels;
	struct pool *pool;
	struct kv *kv;
	struct expert_source *experts;
	struct forward_limits limits;
	uint32_t n_batch, n_context, n_threads; /* the first two are of limits */
	struct forward_hooks hooks;
	struct forward_stats stats;
	struct buffer memory; /* of all rows */
	struct buffer batch; /* of what the host writes and reads */
	void *tables; /* the host's own */
	struct delta_net *delta; /* delta_net.h; NULL for models without such layers */
	struct mla_pass *mla; /* attention_mla.c; NULL for models without such layers */

	/* The running pass. */
	const struct batch_token *tokens;
	uint32_t n;
	uint32_t layer;
	bool layer_att_q8; /* this layer's o takes quantised activations */

	/* Constants of the model. */
	double *frequency; /* [n_rot / 2] radians per position */
	double rope_magnitude; /* of cos and sin */
	float attention_scale;

	/* Rows by token. */
	float *x; /* [T][D] residual stream */
	float *h; /* [T][D] after a norm */
	struct q8_block *h_q8; /* [T][D / 32] */
	float *q, *k, *v; /* [T][n_heads * head_dim], [T][n_kv_heads * head_dim] x2 */
	float *att; /* [T][n_heads * head_dim] */
	struct q8_block *att_q8;
	float *out; /* [T][D] of the o product, then of the feed-forward */
	float *router; /* [T][n_experts] */
	float *shared, *shared_weight; /* [T][D], [T]: the shared expert */
	float *down; /* [T][n_experts_used][D], by token and rank */
	float *cos_sin; /* [T][n_rot] */
	bool *on_main; /* [T]: its cells are a prefix of seq->cell; see attention.c */
	bool *has_main_child; /* [T] */
	uint32_t *main_roots; /* [T] */

	/* In f->batch, which the host sees. */
	struct step_token *step_tokens; /* [T] */
	uint32_t *
		which; /* [n_logits + n_picks] tokens whose logits are kept, then those of picks alone */
	float *weights; /* [T][n_experts_used], by falling weight */
	uint16_t *chosen; /* [T][n_experts_used] */
	uint32_t *pairs; /* [T * n_experts_used] */
	struct expert_use *uses; /* [n_experts] */
	uint32_t *n_uses;
	struct expert_order order; /* these */

	/* Pointer rows. */
	float **q_rows, **k_rows, **v_rows; /* [T] */

	/* One layer's experts. */
	uint16_t *distinct, *distinct_tokens; /* [n_experts] */
	struct expert_view *views; /* [n_experts] */
	struct step_expert *ready; /* [n_experts] */

	/* Logits of the last pass. */
	float *logits; /* [n_logits + FORWARD_PICKS][n_vocab]: first those that are kept */
	uint32_t *logit_row; /* [T] row that is kept, or UINT32_MAX */
	uint32_t n_kept; /* such rows */
	const struct pick_row *picks; /* [n_picks] */
	struct pick_result *picked; /* [n_picks] */
	uint32_t *pick_row; /* [n_picks] row that a pick is made from */
	uint32_t n_picks;

	struct attention_memory attention;
	struct attention_token *attention_tokens; /* [T] */
};

enum { WORK_ITEMS = 128 }; /* items per thread, at most */

static inline bool forward_quantised(const struct matrix *w)
{
	return w->type != TENSOR_F32 && w->type != TENSOR_F16 && w->type != TENSOR_BF16;
}

/* Rows of the batch, in f->memory. */
static inline struct rows rows_of(const struct forward *f, const void *at, size_t stride)
{
	return (struct rows){
		&f->memory, (size_t)((const unsigned char *)at - f->memory.host), stride, f->n};
}

static inline struct rows floats_of(const struct forward *f, const float *at, size_t width)
{
	return rows_of(f, at, width * sizeof(float));
}

static inline struct rows q8_of(const struct forward *f, const struct q8_block *at, size_t width)
{
	return rows_of(f, at, width / Q8_BLOCK * sizeof(*at));
}

/* Both forms; width that is no whole blocks has no second. */
static inline struct inputs inputs_of(
	const struct forward *f, const float *at, const struct q8_block *q8, size_t width)
{
	return (struct inputs){floats_of(f, at, width), q8_of(f, q8, width)};
}

static inline struct step_product product_of(const struct matrix *w, struct inputs x, struct rows y)
{
	return (struct step_product){.w = *w, .x = x, .y = y};
}

/* The same in f->batch. */
static inline struct place batch_place(const struct forward *f, const void *at)
{
	return (struct place){&f->batch, (size_t)((const unsigned char *)at - f->batch.host)};
}

static inline struct rows batch_rows(
	const struct forward *f, const void *at, size_t stride, uint32_t n)
{
	struct place place = batch_place(f, at);
	return (struct rows){place.buffer, place.offset, stride, n};
}

/* fn(f, token) for every token of the batch; bytes: about what one touches, to decide whether the pool is worth it. */
void work_tokens(struct forward *f, void (*fn)(struct forward *f, uint32_t token), size_t bytes);
/* What follows a step (next.c): one matrix; the first of the layer's feed-forward; or the first of a layer's mixer, and behind
 * the last layer the output. */
void next_matrix(const struct forward *f, const struct matrix *w, struct step_next *next);
void next_ffn(const struct forward *f, struct step_next *next);
void next_mixer(const struct forward *f, uint32_t layer, struct step_next *next);
/* fn(f, item, thread) for items 0..n-1; bytes: about what all of them touch. */
void pass_items(struct forward *f, uint32_t n, size_t bytes,
	void (*fn)(struct forward *f, uint32_t item, uint32_t thread));

/* f->frequency and f->rope_magnitude from the model's configuration and f->n_context. */
void forward_rope_init(struct forward *f);

/* Positions, parents and cells of the batch; -EINVAL when they contradict each other. */
int attention_prepare(struct forward *f);
/* The norm before a layer's mixer, to f->h; the last product of the mixer, to f->out. */
void mixer_norm(struct forward *f, bool quantised);
void mixer_out(struct forward *f, const struct matrix *w, struct inputs in);
/* f->out = attention(norm(x)) of the layer, which ffn_layer adds. */
void attention_layer(struct forward *f);
/* What f->kv says about attending in this layer, f->attention_tokens to be filled with attention_token_of; the rest is left 0. */
void attention_step_of(struct forward *f, struct attention_step *step);
struct attention_token attention_token_of(
	const struct forward *f, uint32_t t, uint32_t first, const float *q, float *out);
/* Its rows in f->memory. */
void mla_layout(struct forward *f, struct carve *c);
int mla_begin(struct forward *f, struct error *err);
/* Memory for latent attention, for models that have it; -ENOMEM. */
int mla_create(struct forward *f, struct error *err);
void mla_destroy(struct forward *f);
/* As attention_layer, of a MIX_MLA layer. */
void mla_layer(struct forward *f);
/* x += f->out + ffn(norm(x + f->out)) of the layer; -EIO. */
int ffn_layer(struct forward *f);
