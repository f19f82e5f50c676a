/*
 * What the parts of a forward pass share: forward.c (memory, embedding, output), next.c (which
 * weights follow), forward_rope.c (frequencies), attention.c, moe.c and the other mixers. No other
 * file includes it.
 *
 * The pass describes steps and queues them (kernels/backend.h); it does not know what executes
 * them. T = tokens of the batch, D = n_embd.
 */
#pragma once

#include "kernels/backend.h"
#include "shared/base/carve.h"
#include "shared/base/timeline.h"
#include "shared/model/pass/forward.h"

struct delta_net;
struct moe_host;

/* Offset of rows of tokens in f->memory, which the host may not see. */
typedef size_t rows_at;

struct forward {
	const struct model *model;
	struct backend *backend;
	struct queue *queue;
	struct kv *kv;
	struct expert_source *experts;
	struct forward_limits limits;
	struct forward_hooks hooks;
	struct forward_stats stats;
	uint64_t began_ns;
	struct buffer memory; /* all rows */
	struct buffer batch; /* what the host writes and reads */
	struct buffer windows; /* kv->windows.of */
	void *tables; /* used by the host only */
	struct delta_net *delta; /* delta_net.h; NULL for models without such layers */
	struct moe_host *host; /* moe_host.c; NULL: the back end computes all experts */

	/* The present pass: */
	const struct batch_token *tokens; /* valid while steps are queued */
	uint32_t n;
	uint32_t layer;
	uint32_t section; /* number of graphs begun */
	uint32_t n_which; /* rows of logits in all */
	uint32_t n_padding; /* of the n rows, how many come last and are nobody's (padding.c) */
	uint32_t last_position; /* the greatest of its tokens */
	/* No layer waits for the host: the queue knows where every expert lies (moe_known.c). */
	bool whole;
	uint64_t known; /* the arrangement of experts that the queue knows; 0: none */
	uint32_t n_steps_beside; /* steps of experts in passes beside the CPU */
	const struct pick_row *picks; /* [n_picks] */
	struct pick_result *picked; /* [n_picks] */
	uint32_t n_picks;
	ticket end;
	bool timed; /* the queue takes the times of its steps (times.c) */

	struct step_run *fast; /* [n_batch] the runs of fast tokens; in tables */
	uint32_t n_fast;

	/* Constants of the model: */
	double *frequency; /* [n_rot / 2] radians per position */
	double rope_magnitude; /* factor for cos and sin */

	/* Rows by token, in f->memory: */
	rows_at x; /* [T][D] residual stream */
	rows_at h, h_q8; /* [T][D] after a norm, in both forms */
	rows_at q, k, v; /* [T][n_heads * head_dim], [T][n_kv_heads * head_dim] x2 */
	rows_at q_a, q_a_q8, kv_a; /* [T][q_rank], [T][kv_rank + rope]: latent attention */
	rows_at att, att_q8; /* [T][n_heads * head_dim], or the values of latent attention */
	rows_at out; /* [T][D] output of the mixer, then of the feed-forward */
	rows_at router; /* [T][n_experts] */
	rows_at shared, shared_weight; /* [T][D], [T]: the shared expert */
	rows_at down; /* [T][n_experts_used][D], by token and rank */
	rows_at cos_sin; /* [T][n_rot] */
	rows_at oracle, oracle_rest; /* [n_oracle][n_experts][D], [n_oracle][D] */
	/* Of an adapter (masks.c), for forward_draft: [FORWARD_PICKS] rows of [2 D] e and z beside each
	 * other, of [D] z, what the sampler has between its products, and its result in both forms */
	rows_at mask_in, mask_z, mask_y, mask_u, mask_s, mask_q8;
	rows_at logits; /* [n_logits + FORWARD_PICKS][n_vocab]; the kept ones come first */

	/* Of a draft head (head.c), in f->memory: two rows of [D], or the taps, beside each other */
	rows_at wide, wide_q8; /* [T][max(2 D, head->n_state)] */

	/* In f->batch, of an adapter: */
	uint32_t *gated_rows; /* [T] rows with masks */
	uint32_t n_gated;
	uint8_t *gated; /* [T] nonzero: the row is a mask */
	struct step_token *mask_tokens; /* [FORWARD_PICKS] */
	/* In f->tables: */
	struct ffn_adapt *adapts; /* [n_experts] of the present layer */
	struct pick_row *mask_picks; /* [draft_length][FORWARD_PICKS] */
	struct pick_result *mask_picked;

	/* In f->batch: */
	float *head_taps; /* [T][head->n_state] */
	float *head_states, *head_out; /* [T][D] */
	struct step_token *step_tokens; /* [T] */
	/* [n_logits + n_picks] tokens whose logits are kept, then those that are only picked
	 * from */
	uint32_t *which;
	float *weights; /* [T][n_experts_used], by descending weight */
	uint16_t *chosen; /* [T][n_experts_used] */
	/* [n_layers][FORWARD_GRAPH_TOKENS][n_experts_used] of a pass that is `whole`; or none */
	uint16_t *all_chosen;
	uint32_t *pairs; /* [T * n_experts_used] */
	struct expert_use *uses; /* [n_experts] */
	uint32_t *n_uses;
	struct expert_order order; /* pairs, uses and n_uses as places */
	uint32_t *n_chosen; /* sum of n_uses over the layers of a pass that is `whole` */
	uint64_t *map_addresses; /* [T] of the sequences' maps */
	uint32_t *affected; /* [T], or none without budgets */
	uint16_t *lists; /* [limits.n_budgets][n_experts] */
	uint32_t *oracle_pairs; /* [n_oracle * n_experts] */

	/* In f->tables: */
	bool *on_main; /* [T] the cells of its path are a prefix of seq->cell; see attention.c */
	bool *has_main_child; /* [T] */
	struct kv_seq **seqs; /* [T] the sequences of the pass, in order of appearance */
	uint32_t n_seqs;
	const struct buffer **maps; /* [T] their maps */
	/* a hash table of indices into seqs; n_numbers is a power of two */
	uint32_t *numbers, n_numbers;
	uint16_t *distinct, *distinct_tokens; /* [n_experts] those of one layer */
	struct expert_view *views; /* [n_experts] */
	struct step_expert *ready; /* [n_experts] */
	uint32_t *logit_row; /* [T] its row of kept logits, or UINT32_MAX */
	uint32_t n_kept; /* number of these rows */
	uint32_t *pick_row; /* [n_picks] row of logits that the pick reads */
	struct forward_budget *budgets; /* [n_budgets] of the present or next pass */
	struct budget_group *groups; /* [limits.n_budgets] */
	uint32_t n_budgets; /* 0: every row is computed exactly */
	const uint64_t *counts; /* [n_layers][n_experts] uses; borrowed, or NULL */
};

static inline struct rows floats_of(const struct forward *f, rows_at at, size_t width)
{
	return (struct rows){&f->memory, at, width * sizeof(float), f->n};
}

/* Rows of logits from row `row` on. What is kept lies where the host sees it. */
static inline struct rows logits_of(const struct forward *f, size_t row)
{
	size_t width = f->model->output.rows * sizeof(float);

	return (struct rows){f->limits.n_logits > 0 ? &f->batch : &f->memory,
		f->logits + row * width, width, f->n};
}

static inline struct rows q8_of(const struct forward *f, rows_at at, size_t width)
{
	return (struct rows){&f->memory, at, width / Q8_BLOCK * sizeof(struct q8_block), f->n};
}

/* Both forms. There is no q8 form when width is no multiple of the block size. */
static inline struct inputs inputs_of(const struct forward *f, rows_at at, rows_at q8, size_t width)
{
	return (struct inputs){floats_of(f, at, width), q8_of(f, q8, width)};
}

static inline struct step_fast fast_of(const struct forward *f)
{
	return (struct step_fast){f->fast, f->n_fast};
}

static inline struct step_product product_of(const struct matrix *w, struct inputs x, struct rows y)
{
	return (struct step_product){.w = *w, .x = x, .y = y};
}

/* The place of memory in f->batch. */
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

/* times.c: on a device, while somebody traces, the spans of what is queued. begin: before the first
 * step of a pass. mark: what is queued from now on is of this kind, and of f->layer. end: all of it has
 * run, or failed. */
void times_begin(struct forward *f);
void times_mark(struct forward *f, enum timeline_kind kind);
void times_end(struct forward *f, bool failed);

/* graphs.c. The steps of a pass come in sections; between them the host looks at their results. A
 * section is a graph of the back end where passes of its kind come again and again. */
void section_begin(struct forward *f);

static inline void section_end(struct forward *f)
{
	f->queue->ops->graph_end(f->queue);
}

/* padding.c: adds rows to the pass, of which the host is not told; the last of what prepares it. _uses: of
 * the rows that chose an expert, how many are such. */
void padding_begin(struct forward *f);
uint32_t padding_uses(const struct forward *f, uint16_t expert);

/* fast.c: the most columns and rows of a matrix of fast products; and the runs of the batch's fast tokens,
 * -EINVAL when there may be none, or when one is a draft or a mask. */
void fast_sizes(const struct model *model, uint32_t *cols, uint32_t *rows);
int fast_prepare(struct forward *f);

/* next.c: the weights that follow a step: one matrix; the first of the layer's feed-forward; or the
 * first of a layer's mixer, and behind the last layer those of the output. */
void next_matrix(const struct forward *f, const struct matrix *w, struct step_next *next);
void next_ffn(const struct forward *f, struct step_next *next);
void next_mixer(const struct forward *f, uint32_t layer, struct step_next *next);

/* masks.c: rows that an adapter applies to. All do nothing without an adapter. */
void masks_layout(struct forward *f, struct carve *c);
void masks_layout_batch(struct forward *f, struct carve *c);
void masks_layout_tables(struct forward *f, struct carve *c);
/* Notes the masks of the batch; -EINVAL when one is none of the adapter's. */
int masks_prepare(struct forward *f);
/* Queues the additions to n products that have been queued; w, x and y: [n]. */
void masks_adapt(struct forward *f, const struct low_rank *const *w, const struct rows *x,
	const struct rows *y, uint32_t n);
/* The additions to a feed-forward of f->layer, and to one of its experts; NULL: none in this pass. */
enum adapt_part { ADAPT_DENSE, ADAPT_SHARED };
const struct ffn_adapt *masks_ffn(const struct forward *f, enum adapt_part part);
const struct ffn_adapt *masks_expert(struct forward *f, uint16_t expert);

/* Sets f->frequency and f->rope_magnitude from the model's configuration and f->limits.n_context.
 */
void forward_rope_init(struct forward *f);

/* Checks positions, parents and cells of the batch; -EINVAL when they contradict each other. */
int attention_prepare(struct forward *f);
/* The batch as attention reads it, and where the layer's keys and values lie. */
struct batch_cells batch_cells_of(const struct forward *f);
struct kv_cells kv_cells_of(const struct forward *f);
/* The norm before a layer's mixer, to f->h; and the last product of the mixer, to f->out. */
void mixer_norm(struct forward *f, bool quantised);
void mixer_out(struct forward *f, const struct matrix *w, struct inputs in);
/* f->out = attention(norm(x)) of the layer; ffn_layer adds it. */
void attention_layer(struct forward *f);
/* The part of it behind the norm: the layer's queries, keys and values come from `in`. */
void attention_from(struct forward *f, struct inputs in);
/* Like attention_layer, for a MIX_EAGLE3 layer. */
void head_attention(struct forward *f);
/* Like attention_layer, for a MIX_MLA layer. */
void mla_layer(struct forward *f);
/* moe_budget.c: whether a budget of this pass limits the layer. */
bool budget_limits(const struct forward *f, uint32_t layer);
/* moe_budget.c: checks the budgets of the pass that begins; -EINVAL. */
int budget_begin(struct forward *f);
/* Limits the experts of one layer, behind its route step, and orders them; -EIO. */
int budget_layer(struct forward *f, const struct step_route *route);
/* Computes all experts of one layer for all tokens, behind its route step, and calls the hook
 * `outputs`. -EINVAL: the tokens are more than there is room for; -EIO. */
int budget_show(struct forward *f, const struct step_route *route);
/* moe_host.c: experts that the CPU computes beside the back end. _fetch: queues copies of the rows
 * that they read; when the source has said that there are some. _run: computes those of the n views
 * in f->views that are the CPU's, queues copies of the results, and returns how many they are; the
 * others come first in f->views then. */
bool moe_host_can(const struct forward *f);
void moe_host_fetch(struct forward *f, bool quantised);
uint32_t moe_host_run(struct forward *f, uint32_t n);
void moe_host_exit(struct forward *f);
/* n experts with n_pairs tokens in all have taken so long: smoothed, in the mean for an expert with
 * one token or in that for each of several. */
/* moe_known.c: a pass whose experts the back end finds by itself. _limit: how many it may have to
 * know. _begin: decides whether the present pass is one, and tells the queue what it needs. _layer:
 * queues the layer's experts, in place of the loop over what is ready. */
uint32_t moe_known_limit(const struct forward *f);
void moe_known_begin(struct forward *f);
static inline uint16_t *moe_chosen(const struct forward *f)
{
	return f->whole ? f->all_chosen + (size_t)f->layer * FORWARD_GRAPH_TOKENS *
						  f->model->config.n_experts_used
			: f->chosen;
}
void moe_known_layer(struct forward *f);
void moe_known_end(struct forward *f, bool ended);
void moe_measure(double *expert_ns, double *token_ns, uint32_t n, uint32_t n_pairs, uint64_t ns);
struct queue_limits forward_queue_limits(const struct forward *f);
/* moe.c: the layer's feed-forward without an expert, and an expert for the pairs of its use. */
struct ffn moe_shape(const struct forward *f);
struct step_expert moe_expert(
	const struct forward *f, const struct expert_view *view, const struct expert_use *use);
/* x += f->out, then x += ffn(norm(x)) of the layer; -EIO. A section is under way before and after.
 */
int ffn_layer(struct forward *f);

/* head.c: memory for draft heads; what comes between the embedding and the layer, and behind it. */
void head_layout(struct forward *f, struct carve *c);
void head_layout_batch(struct forward *f, struct carve *c);
void head_begin(struct forward *f);
void head_end(struct forward *f);
