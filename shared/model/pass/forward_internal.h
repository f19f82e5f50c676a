/*
 * What the parts of a forward pass share: forward.c (memory, embedding, output), work.c (cutting work for the pool),
 * forward_rope.c (frequencies), attention.c, moe.c, moe_route.c, and the other mixers. Nobody else includes it.
 *
 * Every element of every buffer is computed by one thread, in the order kernels.h defines; the cut into items only
 * decides which thread that is. T = tokens of the batch, D = n_embd, A = assignments = T * (experts used, plus 1 for a
 * shared one, and at least 1).
 */
#pragma once

#include "shared/model/pass/attention_split.h"
#include "shared/model/pass/forward.h"

/* A product of the pass: y[t][rows] = w * x[t]. */
struct product {
	struct matrix w;
	const struct activation *x; /* [n] */
	float *const *y; /* [n], each [w.rows] */
	uint32_t n;
};

/* Gate and up of one feed-forward and what comes between them and down: rows first..last-1 of both, silu, the product,
 * and its quantised form. */
struct ffn_task {
	struct matrix gate, up, down;
	const float *gate_bias, *up_bias; /* [gate.rows] or NULL */
	uint32_t first, n; /* its assignments */
};

/* Rows first..last-1 of one product or ffn task, for n of its tokens from `token` on. */
struct work_item {
	uint32_t task, first, last, token, n;
};

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
	const struct kernels *kernels;
	struct pool *pool;
	struct kv *kv;
	struct expert_source *experts;
	uint32_t n_batch, n_logits, n_context, n_threads;
	uint32_t assignments_max; /* per token: A / T */
	uint32_t ff_max; /* widest feed-forward, rounded up to 32 */
	struct forward_hooks hooks;
	struct forward_stats stats;
	void *memory;
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
	float *selection; /* [T][n_experts] scratch of the routing */
	float *shared, *shared_weight; /* [T][D], [T]: the shared expert */
	float *weights; /* [T][n_experts_used], by falling weight */
	uint16_t *chosen; /* [T][n_experts_used] */
	float *cos_sin; /* [T][n_rot] */
	bool *on_main; /* [T]: its cells are a prefix of seq->cell; see attention.c */
	bool *has_main_child; /* [T] */
	uint32_t *main_roots; /* [T] */

	/* Rows by assignment: by expert, then by token; behind them the shared expert's, by token. */
	float *act; /* [A][ff_max]; NULL when every `down` is multiplied with quantised activations */
	struct q8_block *act_q8; /* [A][ff_max / 32] */
	float *down; /* [T][n_experts_used][D], by token and rank */
	uint32_t *assigned; /* [A] token * n_experts_used + rank */

	/* Pointer rows for the kernels. */
	struct activation *h_rows, *att_rows; /* [T] */
	float **q_rows, **k_rows, **v_rows, **out_rows, **router_rows, **shared_rows; /* [T] */
	const float **hidden_rows; /* [T] */
	struct activation *in_rows, *act_rows; /* [A] */
	float **down_rows; /* [A] */

	/* One layer's experts. */
	uint16_t *distinct, *distinct_tokens; /* [n_experts] */
	uint32_t *expert_first; /* [n_experts + 1] first assignment of an expert */
	struct expert_view *views; /* [n_experts] */
	struct ffn_task *ffn; /* [max(1, n_experts)] */

	/* Logits of the last pass. */
	float *logits; /* [n_logits][n_vocab] */
	float **logit_rows; /* [n_logits] */
	struct activation *last_x; /* [n_logits] */
	uint32_t *logit_row; /* [T] row, or UINT32_MAX */

	/* Cutting. */
	struct product *products; /* [max(3, n_experts)] */
	struct work_item *items;
	uint32_t n_items;
	float *gate_up; /* [threads][2][WORK_FFN_FLOATS] */

	struct attention_memory attention;
	struct attention_token *attention_tokens; /* [T] */
};

enum {
	WORK_ITEMS = 128, /* items per thread, at most */
	/* Of gate's rows, and of up's, that a thread works out before it goes on to what follows: they stay in its second-level
	 * cache. */
	WORK_FFN_FLOATS = 16 << 10,
};
/* A step has at most this many items: rounding adds one per task at most. */
#define WORK_ITEMS_MAX(threads, tasks) ((size_t)(threads)*WORK_ITEMS * 2 + (tasks))

static inline bool forward_quantised(const struct matrix *w)
{
	return w->type != TENSOR_F32 && w->type != TENSOR_F16 && w->type != TENSOR_BF16;
}

/* fn(f, token) for every token of the batch; bytes: about what one touches, to decide whether the pool is worth it. */
void work_tokens(struct forward *f, void (*fn)(struct forward *f, uint32_t token), size_t bytes);
/* The first n of f->products. */
void work_products(struct forward *f, uint32_t n);
/* Products that follow the next step: while threads wait for them they fetch the weights that they will read first. Of the
 * products only w and n are looked at. */
void work_ahead(struct forward *f, const struct product *products, uint32_t n);
/* Said before a step on the pool, of what follows it (ahead.c): one matrix; the first of the layer's feed-forward; the first
 * of a layer's mixer, or behind the last layer the output; or what is not known yet. */
void ahead_matrix(struct forward *f, const struct matrix *w);
void ahead_ffn(struct forward *f);
void ahead_mixer(struct forward *f, uint32_t layer);
void ahead_nothing(struct forward *f);
/* Gate, up and what follows, of the first n of f->ffn. */
void work_ffn(struct forward *f, uint32_t n);
/* fn(f, item, thread) for items 0..n-1; bytes: about what all of them touch. */
void work_items(struct forward *f, uint32_t n, size_t bytes,
	void (*fn)(struct forward *f, uint32_t item, uint32_t thread));

/* f->frequency and f->rope_magnitude from the model's configuration and f->n_context. */
void forward_rope_init(struct forward *f);

/* y = norm(x) * w, plus bias where there is one (LayerNorm), and its quantised form when q8 is not NULL. */
void forward_norm_bias(const struct forward *f, const float *x, const float *w, const float *bias,
	float *y, struct q8_block *q8);
/* y = norm(x) * w, and its quantised form when q8 is not NULL. */
void forward_norm(
	const struct forward *f, const float *x, const float *w, float *y, struct q8_block *q8);

/* Positions, parents and cells of the batch; -EINVAL when they contradict each other. */
int attention_prepare(struct forward *f);
/* x += attention(norm(x)) of the layer. */
void attention_layer(struct forward *f);
/* What f->kv says about attending in this layer, f->attention_tokens to be filled with attention_token_of; the rest is left 0. */
void attention_step_of(struct forward *f, struct attention_step *step);
struct attention_token attention_token_of(
	const struct forward *f, uint32_t t, uint32_t first, const float *q, float *out);
/* Memory for latent attention, for models that have it; -ENOMEM. */
int mla_create(struct forward *f, struct error *err);
void mla_destroy(struct forward *f);
/* As attention_layer, of a MIX_MLA layer. */
void mla_layer(struct forward *f);
/* Router outputs of token t to f->chosen and f->weights. */
void route_token(struct forward *f, uint32_t t);
/* x += ffn(norm(x)) of the layer; -EIO. */
int ffn_layer(struct forward *f);
