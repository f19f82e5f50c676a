/*
 * One forward pass over a batch of tokens: chains, trees and many sequences are the same call. Used by one thread,
 * whose queue of a back end it runs in. All memory is allocated in forward_create; a pass allocates nothing.
 */
#pragma once

#include "kernels/backend.h"
#include "shared/model/pass/experts.h"
#include "shared/model/kv/kv.h"

struct batch_token {
	struct kv_seq *seq;
	int32_t token;
	uint32_t position;
	int32_t parent; /* batch index (smaller) of the token before it, or -1: seq's committed tokens end before it */
	bool logits; /* compute this token's logits, and keep them for forward_logits */
	uint32_t cell; /* in: taken by the caller with kv_take */
	/* May be rejected. Only models with recurrent layers (kv_states) need to know: there the others of a sequence
	 * are a chain in front of its drafts, and are committed all together, before any draft, or not at all. At most
	 * n_drafts tokens of a pass are drafts. */
	bool draft;
};

/* Called on the driving thread, once per layer: what the router chose for each token of the batch.
 * experts, weights: [n_tokens][n_experts_used], by falling weight. hidden: rows of [n_embd], the input of the
 * feed-forward (after norm), until the layer ends. For dense layers experts and weights are NULL. (Sparsemixer: the first choice, then the
 * second.) Either callback may be NULL. */
struct forward_hooks {
	void (*layer)(void *arg, uint32_t layer, uint32_t n_tokens, const uint16_t *experts,
		const float *weights, const struct rows *hidden);
	/* x: rows of [n_embd], the residual stream before the layer; with layer = n_layers behind the last. */
	void (*residual)(void *arg, uint32_t layer, uint32_t n_tokens, const struct rows *x);
	void *arg;
};

struct forward_stats {
	uint64_t unique_experts; /* summed over the layers of the last pass */
	uint64_t attention_ns, moe_ns, output_ns, pick_ns, total_ns; /* of the last pass */
};

struct forward;

/* The most that a pass has room for. */
struct forward_limits {
	uint32_t n_batch; /* tokens: 1..LIMIT_BATCH */
	uint32_t n_logits; /* tokens whose logits are kept: 0..n_batch */
	uint32_t
		n_picks; /* picks: 0..n_batch. Their rows of logits take turns in room for FORWARD_PICKS of them. */
	uint32_t n_drafts; /* drafts, if the model has recurrent layers */
	uint32_t n_context; /* positions of a sequence: 1..LIMIT_CONTEXT */
};
/* So many rows share a reading of the output's weights. */
#define FORWARD_PICKS 64

/* Makes a queue of the back end, for the calling thread. Borrows everything. experts may be NULL for dense models. */
int forward_create(const struct model *model, struct backend *backend, struct kv *kv,
	struct expert_source *experts, const struct forward_limits *limits, struct forward **out,
	struct error *err);
/* The bytes of the buffers, tables and queue that forward_create allocates with these limits. */
size_t forward_bytes(
	const struct model *model, struct backend *backend, const struct forward_limits *limits);
void forward_destroy(struct forward **forward);
void forward_set_hooks(struct forward *forward, const struct forward_hooks *hooks);

/* The tokens of a sequence continue its committed ones (seq->n): position = the parent's + 1, or seq->n without. The
 * value of every logit depends on the token's own ancestors only, to the bit. seq->cell[n..] is used as scratch.
 * -EIO when an expert could not be read, -EINVAL when positions, parents, cells or the number of rows of logits
 * contradict this or forward_create; the cells stay the caller's to return. */
int forward_run(struct forward *forward, const struct batch_token *tokens, uint32_t n);
/* The same, and picks from the logits of its tokens: the source of a row is a batch index, whose logits need not be kept. Fills
 * results[0..n_picks-1]. -EINVAL also when pick_check refuses the rows, or there are more than forward_create was told. */
int forward_run_picks(struct forward *forward, const struct batch_token *tokens, uint32_t n,
	const struct pick_row *picks, uint32_t n_picks, struct pick_result *results);
/* The same in two (n_picks may be 0): begin queues the pass, wait blocks until all of it has run; meanwhile the caller may do anything but begin
 * another or change the sequences. wait is only for who has begun one with 0; -errno when the back end failed. tokens may go
 * when begin returns, picks and results when wait does. */
int forward_begin(struct forward *forward, const struct batch_token *tokens, uint32_t n,
	const struct pick_row *picks, uint32_t n_picks, struct pick_result *results);
int forward_wait(struct forward *forward);

/* After kv_commit of the last pass: brings the recurrent states of its sequences up to those of their drafts that were
 * accepted, from what the pass kept of them. A sequence whose state is behind is refused by forward_run. Does nothing for
 * models without recurrent layers. */
void forward_replay(struct forward *forward);

/* Logits of batch token i of the last pass ([n_vocab]); it must have asked for them. Valid until the next pass. */
const float *forward_logits(const struct forward *forward, uint32_t i);
const struct forward_stats *forward_stats(const struct forward *forward);
/* What its passes run in: for steps beside them, on the same thread. */
struct queue *forward_queue(const struct forward *forward);
