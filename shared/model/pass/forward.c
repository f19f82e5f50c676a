#include "shared/model/pass/delta_net.h"
#include "shared/model/pass/forward_internal.h"
#include "shared/base/clock.h"
#include "shared/base/timeline.h"

#include <stdlib.h>
#include <string.h>

/* True when the last product of some feed-forward takes float32 activations. */
static bool plain_down(const struct model *model)
{
	bool any = false;
	for (uint32_t i = 0; i < model->config.n_layers; i++) {
		const struct layer *layer = &model->layers[i];
		const struct matrix *downs[] = {
			&layer->ffn_down, &layer->down.shape, &layer->shared_down};
		for (size_t j = 0; j < sizeof(downs) / sizeof(downs[0]); j++)
			any |= downs[j]->cols > 0 && !matrix_quantised(downs[j]);
	}
	return any;
}

/* Number of rows of logits that are picked from and not kept. */
static uint32_t pick_rows(const struct forward *f)
{
	return f->limits.n_picks < FORWARD_PICKS ? f->limits.n_picks : FORWARD_PICKS;
}

/* Lays out the logits: those that are kept, and those that are picked from. */
static void layout_logits(struct forward *f, struct carve *c)
{
	f->logits = carve_at(c, (size_t)(f->limits.n_logits + pick_rows(f)) * f->model->output.rows,
		sizeof(float));
}

/* Lays out every buffer of a pass. Called twice: to count, then to place. No product overflows: the
 * factors are within limits.h, and a sum that memory lacks is refused. */
static void layout(struct forward *f, struct carve *c)
{
	const struct model_config *config = &f->model->config;
	const struct mla_config *mla = &config->mla;
	size_t T = f->limits.n_batch, D = config->n_embd, k = config->n_experts_used,
	       one = sizeof(float);
	size_t q_width = (size_t)config->n_heads * config->head_dim;
	size_t kv_width = (size_t)config->n_kv_heads * config->head_dim;
	size_t att = (size_t)config->n_heads * mla->v > q_width ? (size_t)config->n_heads * mla->v
								: q_width;
	f->x = carve_at(c, T * D, one);
	f->h = carve_at(c, T * D, one);
	f->h_q8 = carve_at(c, T * (D / Q8_BLOCK), sizeof(struct q8_block));
	f->q = carve_at(c, T * (config->arch->q_gate ? 2 : 1) * q_width, one);
	f->k = carve_at(c, T * kv_width, one);
	f->v = carve_at(c, T * kv_width, one);
	f->q_a = carve_at(c, T * mla->q_rank, one);
	f->q_a_q8 = carve_at(c, T * (mla->q_rank / Q8_BLOCK), sizeof(struct q8_block));
	f->kv_a = carve_at(c, T * (mla->kv_rank + mla->rope), one);
	f->att = carve_at(c, T * att, one);
	f->att_q8 = carve_at(c, T * (att / Q8_BLOCK), sizeof(struct q8_block));
	f->out = carve_at(c, T * D, one);
	f->router = carve_at(c, T * config->n_experts, one);
	f->shared = carve_at(c, config->n_shared_ff ? T * D : 0, one);
	f->shared_weight = carve_at(c, T, one);
	f->down = carve_at(c, T * k * D, one);
	f->cos_sin = carve_at(c, T * config->n_rot, one);
	f->oracle = carve_at(c, (size_t)f->limits.n_oracle * config->n_experts * D, one);
	f->oracle_rest = carve_at(c, f->limits.n_oracle * D, one);
	if (f->limits.n_logits == 0)
		layout_logits(f, c);
	masks_layout(f, c);
	if (f->model->head)
		head_layout(f, c);
	if (f->delta)
		delta_layout(f, c);
}

/* Lays out what the host writes for a pass, or reads from it. */
static void layout_batch(struct forward *f, struct carve *c)
{
	size_t T = f->limits.n_batch, k = f->model->config.n_experts_used;
	CARVE(c, f->step_tokens, T);
	CARVE(c, f->which, f->limits.n_logits + f->limits.n_picks);
	CARVE(c, f->weights, T * k);
	CARVE(c, f->chosen, T * k);
	if (moe_known_limit(f) > 0)
		CARVE(c, f->all_chosen, f->model->config.n_layers * FORWARD_GRAPH_TOKENS * k);
	CARVE(c, f->pairs, T * k);
	CARVE(c, f->uses, f->model->config.n_experts);
	CARVE(c, f->n_uses, 1);
	CARVE(c, f->n_chosen, 1);
	CARVE(c, f->map_addresses, T);
	CARVE(c, f->affected, f->limits.n_budgets > 0 ? T : 0);
	CARVE(c, f->lists, (size_t)f->limits.n_budgets * f->model->config.n_experts);
	CARVE(c, f->oracle_pairs, (size_t)f->limits.n_oracle * f->model->config.n_experts);
	if (f->limits.n_logits > 0)
		layout_logits(f, c);
	masks_layout_batch(f, c);
	if (f->model->head)
		head_layout_batch(f, c);
	if (f->delta)
		delta_layout_batch(f, c);
}

static void layout_tables(struct forward *f, struct carve *c)
{
	size_t T = f->limits.n_batch, E = f->model->config.n_experts;
	CARVE(c, f->frequency, f->model->config.n_rot / 2);
	CARVE(c, f->fast, f->limits.fast ? T : 0);
	CARVE(c, f->on_main, T);
	CARVE(c, f->has_main_child, T);
	CARVE(c, f->seqs, T);
	CARVE(c, f->maps, T);
	CARVE(c, f->numbers, f->n_numbers);
	CARVE(c, f->distinct, E);
	CARVE(c, f->distinct_tokens, E);
	CARVE(c, f->views, E);
	CARVE(c, f->ready, E);
	CARVE(c, f->logit_row, T);
	CARVE(c, f->pick_row, f->limits.n_picks);
	CARVE(c, f->budgets, f->limits.n_budgets);
	CARVE(c, f->groups, f->limits.n_budgets);
	masks_layout_tables(f, c);
	if (f->delta)
		delta_layout_tables(f, c);
}

static int check(const struct forward *f, struct error *err)
{
	const struct model_config *config = &f->model->config;
	const struct kv_layout *kv = &f->kv->layout;
	if (f->limits.n_batch == 0 || f->limits.n_batch > LIMIT_BATCH)
		return error_set(err, EINVAL, "batch of %u tokens, allowed are 1..%d",
			f->limits.n_batch, LIMIT_BATCH);
	if (f->limits.n_logits > f->limits.n_batch || f->limits.n_picks > f->limits.n_batch)
		return error_set(err, EINVAL,
			"%u rows of logits and %u picks, allowed are 0..%u (the batch)",
			f->limits.n_logits, f->limits.n_picks, f->limits.n_batch);
	if (f->limits.n_context == 0 || f->limits.n_context > LIMIT_CONTEXT)
		return error_set(err, EINVAL, "context of %u tokens, allowed are 1..%d",
			f->limits.n_context, LIMIT_CONTEXT);
	if (config->n_experts > 0 && !f->experts)
		return error_set(err, EINVAL, "a model with experts needs an expert source");
	struct kv_layout wanted = kv_layout_of(f->model, kv->type, kv->n_pages);
	if (kv->n_layers != wanted.n_layers || kv->n_kv_heads != wanted.n_kv_heads ||
		kv->k_dim != wanted.k_dim || kv->v_dim != wanted.v_dim)
		return error_set(err, EINVAL,
			"the KV cache has %u layers of %u heads of %u and %u, the model %u of %u "
			"of "
			"%u and %u",
			kv->n_layers, kv->n_kv_heads, kv->k_dim, kv->v_dim, wanted.n_layers,
			wanted.n_kv_heads, wanted.k_dim, wanted.v_dim);
	return 0;
}

/* Sets what the layout depends on. */
static void set_shape(struct forward *f, const struct model *model, struct backend *backend,
	const struct forward_limits *limits)
{
	f->model = model;
	f->backend = backend;
	f->limits = *limits;
	for (f->n_numbers = 2; f->n_numbers < 2 * f->limits.n_batch; f->n_numbers *= 2)
		continue;
}

struct queue_limits forward_queue_limits(const struct forward *f)
{
	const struct model_config *config = &f->model->config;
	uint32_t ff = config->n_ff > config->n_expert_ff ? config->n_ff : config->n_expert_ff;
	uint32_t k = config->n_experts_used > 0 ? config->n_experts_used : 1;
	if (config->n_shared_ff > ff)
		ff = config->n_shared_ff;
	const struct mla_config *mla = &config->mla;
	const struct delta_config *delta = &config->delta;
	const struct adapter *adapter = f->limits.adapter;
	uint32_t cols = 0, rows = 0;
	if (f->limits.fast)
		fast_sizes(f->model, &cols, &rows);
	return (struct queue_limits){
		.products = config->n_experts > STEP_NEXT ? config->n_experts : STEP_NEXT,
		/* Up to six products read the same rows: in a layer with a delta net. */
		.pairs = (k > STEP_NEXT ? k : STEP_NEXT) * f->limits.n_batch,
		.ffn_pairs = k * f->limits.n_batch,
		.ffn_width = (ff + Q8_BLOCK - 1) / Q8_BLOCK * Q8_BLOCK,
		.ffn_plain = plain_down(f->model) || (adapter && adapter->in_down),
		.adapt_rank = adapter ? adapter->rank : 0,
		.n_experts = config->n_experts,
		.n_known = moe_known_limit(f),
		.n_tokens = f->limits.n_batch,
		.n_kv_heads = mla->kv_rank ? 1 : config->n_kv_heads,
		.n_heads = mla->kv_rank ? config->n_heads : config->n_heads / config->n_kv_heads,
		.k_dim = mla->kv_rank ? mla->kv_rank + mla->rope : config->head_dim,
		.v_dim = mla->kv_rank ? mla->kv_rank : config->head_dim,
		.mla_nope = mla->kv_rank ? mla->nope : 0,
		.delta_channels = delta->n_layers ? delta_channels(delta->n_k_heads, delta->d_k,
							    delta->n_v_heads, delta->d_v)
						  : 0,
		.delta_d_k = delta->d_k,
		.delta_drafts = f->limits.n_drafts,
		.pick_vocab = f->limits.n_picks > 0 ? f->model->output.rows : 0,
		.fast_rows = cols > 0 ? FORWARD_FAST_CHUNK : 0,
		.fast_cols = cols,
		.fast_outputs = rows,
	};
}

size_t forward_bytes(
	const struct model *model, struct backend *backend, const struct forward_limits *limits)
{
	struct forward f = {0};
	struct delta_net delta = {0};
	struct carve count = {0};
	set_shape(&f, model, backend, limits);
	if (model->config.delta.n_layers > 0) {
		delta_shape(&delta, model, &f.limits);
		f.delta = &delta;
	}
	struct queue_limits queue = forward_queue_limits(&f);
	layout(&f, &count);
	layout_batch(&f, &count);
	layout_tables(&f, &count);
	return count.used + backend->ops->queue_bytes(backend, &queue);
}

/* Allocates the buffers and the queue. */
static int place(struct forward *f, struct error *err)
{
	struct carve count = {0}, batch = {0}, tables = {0};
	struct queue_limits limits = forward_queue_limits(f);
	const struct backend_ops *ops = f->backend->ops;
	layout(f, &count);
	layout_batch(f, &batch);
	layout_tables(f, &tables);
	int rc = ops->alloc(f->backend, count.used, BUFFER_OWN, &f->memory, err);
	if (rc == 0)
		rc = ops->alloc(f->backend, batch.used, BUFFER_HOST, &f->batch, err);
	if (rc == 0)
		rc = ops->queue(f->backend, &limits, &f->queue, err);
	f->tables = aligned_alloc(CACHE_LINE, tables.used);
	if (rc == 0 && !f->tables)
		rc = error_set(err, ENOMEM, "no memory for tables of %zu bytes", tables.used);
	if (rc < 0)
		return error_prefix(
			err, rc, "the forward pass, for a batch of %u", f->limits.n_batch);
	layout_batch(f, &(struct carve){f->batch.host, 0});
	layout_tables(f, &(struct carve){f->tables, 0});
	f->order = (struct expert_order){
		batch_place(f, f->pairs), batch_place(f, f->uses), batch_place(f, f->n_uses)};
	for (size_t t = 0; t < f->limits.n_batch; t++)
		f->logit_row[t] = UINT32_MAX;
	forward_rope_init(f);
	if (f->delta)
		delta_fill(f);
	const struct kv *kv = f->kv;
	if (!kv->windows.of)
		return 0;
	return ops->wrap(f->backend, kv->windows.of,
		(size_t)kv->layout.n_pages * KV_PAGE_CELLS * sizeof(*kv->windows.of), &f->windows,
		err);
}

int forward_create(const struct model *model, struct backend *backend, struct kv *kv,
	struct expert_source *experts, const struct forward_limits *limits, struct forward **out,
	struct error *err)
{
	struct forward *f = calloc(1, sizeof(*f));
	if (!f)
		return error_set(err, ENOMEM, "no memory for the forward pass");
	set_shape(f, model, backend, limits);
	f->kv = kv;
	f->experts = experts;
	int rc = check(f, err);
	if (rc == 0)
		rc = delta_begin(f, err);
	if (rc == 0)
		rc = place(f, err);
	if (rc < 0)
		forward_destroy(&f);
	*out = f;
	return rc;
}

void forward_destroy(struct forward **forward)
{
	struct forward *f = *forward;
	if (f) {
		const struct backend_ops *ops = f->backend->ops;
		delta_destroy(f);
		if (f->queue)
			ops->queue_free(f->queue);
		moe_host_exit(f);
		ops->free(&f->windows);
		ops->free(&f->batch);
		ops->free(&f->memory);
		free(f->tables);
		free(f);
	}
	*forward = NULL;
}

void forward_set_hooks(struct forward *forward, const struct forward_hooks *hooks)
{
	forward->hooks = hooks ? *hooks : (struct forward_hooks){0};
}

/* Assigns rows to the tokens whose logits are kept; -EINVAL when there are more than forward_create
 * was told. */
static int assign_logits(struct forward *f)
{
	f->n_kept = 0;
	for (uint32_t t = 0; t < f->n; t++) {
		f->logit_row[t] = UINT32_MAX;
		if (!f->tokens[t].logits)
			continue;
		if (f->n_kept == f->limits.n_logits)
			return -EINVAL;
		f->which[f->n_kept] = t;
		f->logit_row[t] = f->n_kept++;
	}
	return 0;
}

/* Assigns rows to the picks: in order up to the room there is, then from the first row again. */
static int assign_picks(struct forward *f)
{
	uint32_t n = 0;
	if (f->n_picks > f->limits.n_picks || pick_check(f->picks, 0, f->n_picks) < 0)
		return -EINVAL;
	for (uint32_t i = 0; i < f->n_picks; i++) {
		uint32_t t = f->picks[i].source;
		if (t >= f->n)
			return -EINVAL;
		f->pick_row[i] = f->logit_row[t];
		if (f->logit_row[t] == UINT32_MAX) {
			f->pick_row[i] = f->n_kept + n % FORWARD_PICKS;
			f->which[f->n_kept + n++] = t;
		}
	}
	f->n_which = f->n_kept + n;
	/* More only if several picks read one token. */
	return f->n_kept + n > f->limits.n_batch ? -EINVAL : 0;
}

static void embed(struct forward *f)
{
	const struct model_config *config = &f->model->config;
	const struct step_embed step = {
		.tokens = batch_rows(f, f->step_tokens, sizeof(*f->step_tokens), f->n),
		.table = f->model->embedding,
		.x = floats_of(f, f->x, config->n_embd),
		.masks = f->n_gated > 0 ? f->limits.adapter->masks : NULL,
		.mask_stride =
			f->n_gated > 0 && f->limits.adapter->n_masks > 1 ? config->n_embd : 0,
		.n_rot = config->n_rot,
		.frequency = f->frequency,
		.magnitude = f->rope_magnitude,
		.cos_sin = floats_of(f, f->cos_sin, config->n_rot),
	};
	f->queue->ops->embed(f->queue, &step);
}

/* Computes logits of the tokens f->which[first..first+n_rows-1], to rows from `row` on. */
static void output_logits(
	struct forward *f, uint32_t first, uint32_t n_rows, uint32_t row, bool last)
{
	const struct model *model = f->model;
	uint32_t n = model->config.n_embd;
	struct rows h = floats_of(f, f->h, n), q8 = {0};
	struct rows logits = logits_of(f, row);
	if (matrix_quantised(&model->output))
		q8 = q8_of(f, f->h_q8, n);
	h.n = q8.n = logits.n = n_rows;
	struct step_logits step = {
		.x = floats_of(f, f->x, n),
		.which = batch_rows(f, f->which + first, sizeof(*f->which), n_rows),
		.w = model->output_norm,
		.bias = model->output_norm_bias,
		.eps = model->config.rms_eps,
		.h = {h, q8},
		.output = model->output,
		.output_bias = model->output_bias,
		.logits = logits,
	};
	/* those of the next pass */
	if (last)
		next_mixer(f, 0, &step.next);
	times_mark(f, TIMELINE_DEVICE_LOGITS);
	f->queue->ops->logits(f->queue, &step);
}

static void output_picks(struct forward *f, uint32_t first, uint32_t n)
{
	uint64_t start = clock_ns();
	const struct step_pick step = {
		.logits = logits_of(f, 0),
		.rows = f->picks,
		.first = first,
		.n = n,
		.which = f->pick_row + first,
		.results = f->picked,
	};
	times_mark(f, TIMELINE_DEVICE_PICK);
	f->queue->ops->pick(f->queue, &step);
	f->stats.pick_ns += clock_ns() - start;
}

/* Computes the kept logits, and those that are only picked from; the latter some at a time, in the
 * same room. Ends the section that is under way. */
static void output(struct forward *f)
{
	uint32_t first = 0, begin = 0; /* first: index of a pick; begin: index into f->which */
	do {
		uint32_t end = first, n = begin == 0 ? f->n_kept : 0, n_new = 0;
		for (; end < f->n_picks; end++) {
			bool kept = f->pick_row[end] < f->n_kept;
			if (!kept && n_new == FORWARD_PICKS)
				break;
			n_new += !kept;
		}
		n += n_new;
		/* All picks come at once then. */
		if (f->n_padding > 0)
			n = f->n_which;
		if (n > 0)
			output_logits(f, begin, n, begin == 0 ? 0 : f->n_kept, end == f->n_picks);
		section_end(f);
		if (end > first)
			output_picks(f, first, end - first);
		begin += n;
		first = end;
		if (first < f->n_picks)
			section_begin(f);
	} while (first < f->n_picks);
}

/* Shows the residual stream before f->layer, or after the last layer. */
static void call_residual_hook(struct forward *f)
{
	if (!f->hooks.residual)
		return;
	const struct rows x = floats_of(f, f->x, f->model->config.n_embd);
	section_end(f);
	f->hooks.residual(f->hooks.arg, f->layer, f->n - f->n_padding, &x);
	section_begin(f);
}

/* Indexed by layer->mixer: f->out = mixer(norm(x)). */
static void (*const mixers[])(struct forward *f) = {
	[MIX_ATTENTION] = attention_layer,
	[MIX_MLA] = mla_layer,
	[MIX_DELTA_NET] = delta_layer,
	[MIX_EAGLE3] = head_attention,
};

static int queue_layers(struct forward *f)
{
	uint64_t at = clock_ns();
	for (f->layer = 0; f->layer < f->model->config.n_layers; f->layer++) {
		call_residual_hook(f);
		times_mark(f, TIMELINE_DEVICE_ATTENTION);
		mixers[f->model->layers[f->layer].mixer](f);
		uint64_t attended = clock_ns();
		f->stats.attention_ns += attended - at;
		int rc = ffn_layer(f);
		if (rc < 0)
			return rc;
		at = clock_ns();
		f->stats.moe_ns += at - attended;
	}
	call_residual_hook(f);
	return 0;
}

int forward_begin(struct forward *forward, const struct batch_token *tokens, uint32_t n,
	const struct pick_row *picks, uint32_t n_picks, struct pick_result *results)
{
	struct forward *f = forward;
	memset(&f->stats, 0, sizeof(f->stats));
	f->began_ns = clock_ns();
	f->end = 0;
	if (n == 0 || n > f->limits.n_batch) {
		f->n_budgets = 0;
		return -EINVAL;
	}
	f->tokens = tokens;
	f->n = n;
	f->section = 0;
	f->picks = picks;
	f->n_picks = n_picks;
	f->picked = results;
	int rc = assign_logits(f);
	if (rc == 0)
		rc = assign_picks(f);
	if (rc == 0)
		rc = masks_prepare(f);
	if (rc == 0)
		rc = fast_prepare(f);
	if (rc == 0)
		rc = attention_prepare(f);
	if (rc == 0)
		rc = delta_prepare(f);
	if (rc == 0)
		rc = budget_begin(f);
	if (rc < 0) {
		f->n_budgets = 0;
		return rc;
	}
	padding_begin(f);
	f->stats.padding = f->n_padding;
	moe_known_begin(f);
	f->stats.whole = f->whole;
	times_begin(f);
	times_mark(f, TIMELINE_DEVICE_EMBED);
	section_begin(f);
	embed(f);
	if (f->model->head)
		head_begin(f);
	rc = queue_layers(f);
	if (rc < 0) {
		/* Nothing that was queued may still run when this returns. */
		f->end = f->queue->ops->ticket(f->queue);
		(void)forward_wait(f);
		return rc;
	}
	uint64_t at = clock_ns();
	times_mark(f, TIMELINE_DEVICE_LOGITS);
	if (f->model->head)
		head_end(f);
	output(f);
	f->stats.output_ns = clock_ns() - at - f->stats.pick_ns;
	f->end = f->queue->ops->ticket(f->queue);
	return 0;
}

int forward_wait(struct forward *forward)
{
	struct forward *f = forward;
	uint64_t start_ns = f->queue->ops->behind ? timeline_start() : 0;
	int rc = f->queue->ops->wait(f->queue, f->end);
	timeline_end(start_ns, TIMELINE_DEVICE_WAIT, 0, 0, 0);
	times_end(f, rc < 0);
	moe_known_end(f, rc == 0);
	/* Releases what its steps read. */
	if (f->experts)
		f->experts->ops->end(f->experts);
	f->n_budgets = 0;
	f->stats.total_ns = clock_ns() - f->began_ns;
	return rc;
}

int forward_run_picks(struct forward *forward, const struct batch_token *tokens, uint32_t n,
	const struct pick_row *picks, uint32_t n_picks, struct pick_result *results)
{
	int rc = forward_begin(forward, tokens, n, picks, n_picks, results);
	return rc < 0 ? rc : forward_wait(forward);
}

int forward_run(struct forward *forward, const struct batch_token *tokens, uint32_t n)
{
	return forward_run_picks(forward, tokens, n, NULL, 0, NULL);
}

void forward_replay(struct forward *forward)
{
	if (forward->delta)
		delta_replay(forward);
}

const float *forward_logits(const struct forward *forward, uint32_t i)
{
	const struct rows logits = logits_of(forward, 0);
	return (const float *)(const void *)(logits.buffer->host + logits.offset +
					     forward->logit_row[i] * logits.stride);
}

const struct forward_stats *forward_stats(const struct forward *forward)
{
	return &forward->stats;
}

struct queue *forward_queue(const struct forward *forward)
{
	return forward->queue;
}
