/*
 * One forward pass over a batch of tokens; chains, trees and many sequences are the same call. Used
 * by one thread, in whose queue of a back end it runs. All memory is allocated in forward_create; a
 * pass allocates nothing.
 */
#pragma once

#include "kernels/backend.h"
#include "shared/model/arch/adapter.h"
#include "shared/model/pass/experts.h"
#include "shared/model/kv/kv.h"

struct batch_token {
	struct kv_seq *seq;
	int32_t token; /* or BATCH_MASK */
	uint32_t position;
	/* smaller index in the batch of the preceding token; -1: the committed tokens of seq
	 * precede it */
	int32_t parent;
	bool logits; /* keep this token's logits for forward_logits */
	uint32_t cell; /* taken by the caller with kv_take */
	/* The token may be rejected. Only models with recurrent layers (kv_states) use this: there
	 * the other tokens of a sequence form a chain before its drafts, and are committed all
	 * together before any draft, or not at all. At most n_drafts tokens of a pass are drafts.
	 */
	bool draft;
	/* F16 and BF16 weights are multiplied in the back end's own arithmetic (struct step_fast), if
	 * forward_limits.fast allows it: for tokens of a prompt, which are no drafts and no masks. */
	bool fast;
};

/* In place of a token: the j-th mask of the adapter, j = 0, 1, .. draft_length - 1. Only such rows
 * take the adapter's additions. The masks behind a token are a branch of their own: the first mask's
 * parent is the token, and no other row's parent is a mask but that of the next mask. */
#define BATCH_MASK(j) (-1 - (int32_t)(j))

/* Callbacks on the thread of the pass; each may be NULL. layer: called once per layer with the
 * router's choice for each token of the batch. experts, weights: [n_tokens][n_experts_used], by
 * descending weight (sparsemixer: the first choice, then the second); NULL for dense layers.
 * hidden: rows of [n_embd], the input of the feed-forward after its norm, valid until the layer
 * ends. */
struct forward_hooks {
	void (*layer)(void *arg, uint32_t layer, uint32_t n_tokens, const uint16_t *experts,
		const float *weights, const struct rows *hidden);
	/* The same for layers with experts alone, and without `hidden`: behind the router, or behind
	 * the pass. */
	void (*routed)(void *arg, uint32_t layer, uint32_t n_tokens, const uint16_t *experts);
	/* x: rows of [n_embd], the residual stream before the layer; layer = n_layers: after the
	 * last. */
	void (*residual)(void *arg, uint32_t layer, uint32_t n_tokens, const struct rows *x);
	/* Behind the router of a layer with experts: its choice, and what every expert gives for
	 * every token. outputs: rows of [n_embd], of expert e for token t at t * n_experts + e,
	 * without biases, valid during the call. All experts are computed for it. A pass of more
	 * than n_oracle tokens ends with -EINVAL. */
	void (*outputs)(void *arg, uint32_t layer, const struct step_route *route,
		const struct rows *outputs);
	void *arg;
};

/* The most tokens of a pass that a back end may record as a graph, and replay. */
enum { FORWARD_GRAPH_TOKENS = 64 };

/* Fast tokens are computed in runs that end at multiples of this position. What a run gives depends on
 * its tokens and on those before them alone: whoever wants the same bits again gives the same run,
 * whole. */
enum { FORWARD_FAST_CHUNK = 128 };

struct forward_stats {
	bool whole; /* no layer of the last pass waited for the host */
	uint32_t padding; /* rows that the last pass had beyond its tokens, for a graph */
	uint64_t unique_experts; /* summed over the layers of the last pass */
	uint64_t attention_ns, moe_ns, output_ns, pick_ns, total_ns; /* of the last pass */
};

struct forward;

/* The largest pass that there is memory for. */
struct forward_limits {
	uint32_t n_batch; /* tokens: 1..LIMIT_BATCH */
	uint32_t n_logits; /* tokens whose logits are kept: 0..n_batch */
	/* picks: 0..n_batch. Their rows of logits share the room for FORWARD_PICKS rows. */
	uint32_t n_picks;
	uint32_t n_drafts; /* drafts, if the model has recurrent layers */
	uint32_t n_context; /* positions of a sequence: 1..LIMIT_CONTEXT */
	uint32_t n_budgets; /* groups of rows that may have an expert budget */
	uint32_t n_oracle; /* rows in all groups with BUDGET_ORACLE, each with n_experts results */
	const struct adapter *adapter; /* for masks; borrowed; NULL: there are none */
	bool fast; /* tokens may be fast: backend_ops.fast has succeeded */
};
/* This many rows share one reading of the output's weights. */
#define FORWARD_PICKS 64

/* Whether the model has matrices that fast tokens are multiplied with in another arithmetic: F16 or BF16
 * ones, but for routers, whose choice turns small differences into large ones, and for experts. */
bool forward_can_be_fast(const struct model *model);
/* How many tokens of a prompt, from the first on, are fast where the answer must not depend on how it is
 * computed: the whole chunks before its last token, which every pass takes as a whole. All others are
 * exact: the rest of the prompt, and tokens of the answer, whether they are drafted or computed again. */
static inline uint32_t forward_fast_tokens(uint32_t n_prompt)
{
	return n_prompt == 0 ? 0 : (n_prompt - 1) / FORWARD_FAST_CHUNK * FORWARD_FAST_CHUNK;
}

/* Makes a queue of the back end for the calling thread. Borrows everything. experts: may be NULL
 * for dense models. */
int forward_create(const struct model *model, struct backend *backend, struct kv *kv,
	struct expert_source *experts, const struct forward_limits *limits, struct forward **out,
	struct error *err);
/* The bytes of the buffers, tables and queue that forward_create allocates with these limits. */
size_t forward_bytes(
	const struct model *model, struct backend *backend, const struct forward_limits *limits);
/* Lets `host`, the CPU's back end, compute experts beside the pass's own back end: those of which
 * the source says so. Takes memory that both see, for n_batch rows of inputs and the results of all
 * experts that they choose. Borrows host. Before the first pass, on its thread. -ENOMEM. */
int forward_use_host(struct forward *forward, struct backend *host, struct error *err);
void forward_destroy(struct forward **forward);
void forward_set_hooks(struct forward *forward, const struct forward_hooks *hooks);

/* Runs a pass. The tokens of a sequence continue its committed ones (seq->n): position = the
 * parent's + 1, or seq->n without a parent. Every logit depends only on the token's own ancestors,
 * to the bit. seq->cell[n..] is used as scratch memory. -EIO when an expert could not be read.
 * -EINVAL when positions, parents, cells or the number of rows of logits contradict this or
 * forward_create. The cells stay the caller's to return. */
int forward_run(struct forward *forward, const struct batch_token *tokens, uint32_t n);
/* The same, and picks from the logits of its tokens. A pick's source is a batch index; its logits
 * need not be kept. Fills results[0..n_picks-1]. -EINVAL also when pick_check refuses the rows, or
 * when there are more than forward_create was told. */
int forward_run_picks(struct forward *forward, const struct batch_token *tokens, uint32_t n,
	const struct pick_row *picks, uint32_t n_picks, struct pick_result *results);
/* The same in two calls (n_picks may be 0). forward_begin queues the pass; forward_wait blocks
 * until all of it has run. Between them the caller may do anything but begin another pass or change
 * the sequences. Call forward_wait only after forward_begin returned 0; it returns -errno when the
 * back end failed. tokens may be freed when forward_begin returns, picks and results when
 * forward_wait does. */
int forward_begin(struct forward *forward, const struct batch_token *tokens, uint32_t n,
	const struct pick_row *picks, uint32_t n_picks, struct pick_result *results);
int forward_wait(struct forward *forward);

/* Rows first..first+n-1 of a pass, which may use no more than experts[layer] experts of each layer
 * together (kernels/steps.h): the results are no longer the model's. */
struct forward_budget {
	uint32_t first, n;
	const uint16_t *experts; /* [n_layers], borrowed until the pass ends; 0: no limit */
	enum budget_ranking ranking;
	enum budget_coverage coverage;
};
/* Sets the budgets of the next pass, and of no other one; in the order of their rows, without
 * overlap. As many experts as a layer has are no limit: its results are then equal to the bit.
 * -EINVAL, without any budget set: rows or their number are impossible, forward_create was told of
 * fewer, or BUDGET_STATIC lacks its counts. */
int forward_set_budgets(struct forward *forward, const struct forward_budget *budgets, uint32_t n);
/* [n_layers][n_experts] how often each expert was used, for BUDGET_STATIC; borrowed. */
void forward_set_uses(struct forward *forward, const uint64_t *uses);
/* [n] of the last pass, if it had budgets: in how many layers each row chose an expert that it
 * could not use. Valid until the next pass. */
const uint32_t *forward_affected(const struct forward *forward);
/* For hooks: the experts that the i-th budget listed in the present layer, the best first; what it
 * listed before if it does not limit this one. */
const uint16_t *forward_list(const struct forward *forward, uint32_t i);

/* The masks behind one token of the last pass, and the drafts that are read from them. */
struct forward_masks {
	uint32_t row; /* of the first mask in the batch; the others follow it */
	uint32_t n; /* masks: 1..draft_length */
	int32_t token; /* that comes before the first drafted one */
	/* How the first drafted token is picked: parameters, history, position. What concerns the
	 * row and its path is set by forward_draft. */
	struct pick_row like;
	int32_t *drafted; /* out: [n] */
	float *chance; /* out: [n] the probability of each, given those before it */
};
/* Reads the drafts of n groups, 1..FORWARD_PICKS and no more than n_picks of forward_create; between a pass and the next, which
 * destroys the masks' states. -EINVAL when a row is no mask of the last pass; -errno when the back
 * end failed. */
int forward_draft(struct forward *forward, const struct forward_masks *groups, uint32_t n);

/* Call after kv_commit of the last pass: updates the recurrent states of its sequences with their
 * accepted drafts, from what the pass kept of them. forward_run refuses a sequence whose state is
 * behind. Does nothing for models without recurrent layers. */
void forward_replay(struct forward *forward);

/* Logits [n_vocab] of batch token i of the last pass, which must have asked for them. Valid until
 * the next pass. */
const float *forward_logits(const struct forward *forward, uint32_t i);
const struct forward_stats *forward_stats(const struct forward *forward);
/* The queue that its passes run in; for other steps on the same thread. */
struct queue *forward_queue(const struct forward *forward);

/*
 * Draft heads (shared/model/arch/head.h). Row i belongs to token i of the pass. The caller fills
 * `states` before a pass, and reads `out` after it; D = n_embd.
 *
 * A state is forward_head_fuse's result from `taps`, the target's hidden states, or, for a token
 * behind a drafted one, the row of `out` of the token before it.
 */
struct forward_head_rows {
	float *taps; /* [n_batch][head->n_state] */
	float *states; /* [n_batch][D] */
	const float *out; /* [n_batch][D] */
};
struct forward_head_rows forward_head_rows(const struct forward *forward);
/* Computes states[first..first+n-1] from the same rows of `taps`. fast: as batch_token.fast, for all of
 * them; what it gives depends on all n rows. -errno when the back end failed. Not during a pass. */
int forward_head_fuse(struct forward *forward, uint32_t first, uint32_t n, bool fast);
