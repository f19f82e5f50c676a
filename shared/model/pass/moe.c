/*
 * The feed-forward half of a layer, dense or routed. A dense layer is one expert that all tokens chose.
 *
 * Assignments (token, rank) are ordered by expert, then by token, so each expert's matrices are read once for all its
 * tokens. Which expert is computed first depends on what is resident; the results meet only in combine_token,
 * which adds them by rank: y = +0, then y = fma(weight_j, expert_j, y) for j = 0..k-1, then the shared expert, then
 * x = x + y.
 */
#include "kernels/tiles.h"
#include "shared/model/pass/forward_internal.h"

#include <string.h>

/* Whether a matrix that the norm's result goes to takes quantised activations. */
static bool any_quantised(const struct layer *layer)
{
	const struct matrix *dense[] = {&layer->ffn_gate, &layer->ffn_up};
	const struct matrix *moe[] = {&layer->router, &layer->gate.shape, &layer->up.shape,
		&layer->shared_gate, &layer->shared_up, &layer->shared_weight};
	const struct matrix **matrices = layer->moe ? moe : dense;
	size_t n = layer->moe ? sizeof(moe) / sizeof(moe[0]) : sizeof(dense) / sizeof(dense[0]);
	bool any = false;
	for (size_t i = 0; i < n; i++)
		any |= matrices[i]->data && forward_quantised(matrices[i]);
	return any;
}

static void norm_token(struct forward *f, uint32_t t)
{
	uint32_t n = f->model->config.n_embd;
	const struct layer *layer = &f->model->layers[f->layer];
	forward_norm_bias(f, f->x + (size_t)t * n, layer->ffn_norm, layer->ffn_norm_bias,
		f->h + (size_t)t * n,
		any_quantised(layer) ? f->h_q8 + (size_t)t * (n / Q8_BLOCK) : NULL);
}

/* Orders the assignments by expert (counting sort) and lists the distinct experts; returns how many. */
static uint32_t group_by_expert(struct forward *f)
{
	uint32_t n = f->model->config.n_experts, k = f->model->config.n_experts_used;
	uint32_t total = f->n * k, distinct = 0;
	memset(f->expert_first, 0, (n + 1) * sizeof(*f->expert_first));
	for (uint32_t i = 0; i < total; i++)
		f->expert_first[f->chosen[i] + 1]++;
	for (uint32_t e = 0; e < n; e++) {
		if (f->expert_first[e + 1] > 0) {
			f->distinct[distinct] = (uint16_t)e;
			f->distinct_tokens[distinct++] = (uint16_t)f->expert_first[e + 1];
		}
		f->expert_first[e + 1] += f->expert_first[e];
	}
	/* Placing advances each first to the end of its expert; run_experts reads it as that. */
	for (uint32_t i = 0; i < total; i++)
		f->assigned[f->expert_first[f->chosen[i]]++] = i;
	uint32_t n_embd = f->model->config.n_embd;
	for (uint32_t a = 0; a < total; a++) {
		f->in_rows[a] = f->h_rows[f->assigned[a] / k];
		f->down_rows[a] = f->down + (size_t)f->assigned[a] * n_embd;
	}
	return distinct;
}

/* Gate, up, silu, down of the first n of f->ffn; last: of the layer, as far as is known. */
static void run_ffn(struct forward *f, uint32_t n, bool last)
{
	for (uint32_t i = 0; i < n; i++) {
		const struct ffn_task *task = &f->ffn[i];
		f->products[i] = (struct product){
			task->down, f->act_rows + task->first, f->down_rows + task->first, task->n};
	}
	work_ahead(f, f->products, n);
	work_ffn(f, n);
	if (last)
		ahead_mixer(f, f->layer + 1);
	else
		ahead_nothing(f);
	work_products(f, n);
}

static struct matrix with_data(const struct expert_tensor *tensor, uint16_t expert,
	const void *data, enum matrix_layout layout)
{
	struct matrix matrix = tensor->shape;
	matrix.data = data;
	/* What has no tiles is not packed with the others. */
	matrix.layout = tiles_possible(&matrix) ? layout : LAYOUT_ROWS;
	matrix.scaled = tensor->scales != NULL;
	matrix.scale = tensor->scales ? tensor->scales[expert] : 1;
	return matrix;
}

static const float *bias_row(const struct expert_bias *biases, uint16_t expert)
{
	return biases->rows ? biases->rows + expert * biases->stride : NULL;
}

/* The expert of every token, computed while those that are not resident arrive. */
static void run_shared(struct forward *f)
{
	const struct layer *layer = &f->model->layers[f->layer];
	uint32_t n_embd = f->model->config.n_embd;
	uint32_t first = f->n * f->model->config.n_experts_used;
	for (uint32_t t = 0; t < f->n; t++) {
		f->in_rows[first + t] = f->h_rows[t];
		f->down_rows[first + t] = f->shared + (size_t)t * n_embd;
	}
	f->ffn[0] = (struct ffn_task){.gate = layer->shared_gate,
		.up = layer->shared_up,
		.down = layer->shared_down,
		.gate_bias = layer->shared_gate_bias,
		.up_bias = layer->shared_up_bias,
		.first = first,
		.n = f->n};
	run_ffn(f, 1, false);
}

static void call_hook(struct forward *f, bool moe)
{
	if (f->hooks.layer)
		f->hooks.layer(f->hooks.arg, f->layer, f->n, moe ? f->chosen : NULL,
			moe ? f->weights : NULL, f->hidden_rows);
}

static int run_experts(struct forward *f, uint32_t n_distinct)
{
	const struct layer *layer = &f->model->layers[f->layer];
	const struct expert_source_ops *ops = f->experts->ops;
	uint32_t done = 0;
	int n;
	ops->begin(f->experts, f->layer, f->distinct, f->distinct_tokens, n_distinct);
	/* What is missing is on its way meanwhile. */
	call_hook(f, true);
	if (layer->shared_gate.data)
		run_shared(f);
	while ((n = ops->ready(f->experts, f->views)) > 0) {
		for (int i = 0; i < n; i++) {
			const struct expert_view *view = &f->views[i];
			uint32_t tokens = f->distinct_tokens[view->index];
			uint16_t expert = f->distinct[view->index];
			uint32_t last = f->expert_first[expert];
			f->ffn[i] = (struct ffn_task){
				.gate = with_data(&layer->gate, expert, view->gate, view->layout),
				.up = with_data(&layer->up, expert, view->up, view->layout),
				.down = with_data(&layer->down, expert, view->down, view->layout),
				.gate_bias = bias_row(&layer->gate_bias, expert),
				.up_bias = bias_row(&layer->up_bias, expert),
				.first = last - tokens,
				.n = tokens,
			};
		}
		done += (uint32_t)n;
		run_ffn(f, (uint32_t)n, done == n_distinct);
	}
	ops->end(f->experts);
	return n < 0 ? -EIO : 0;
}

static void combine_token(struct forward *f, uint32_t t)
{
	uint32_t n = f->model->config.n_embd, k = f->model->config.n_experts_used;
	const struct layer *layer = &f->model->layers[f->layer];
	float *y = f->out + (size_t)t * n;
	float *shared = f->shared + (size_t)t * n;
	memset(y, 0, n * sizeof(*y));
	for (uint32_t j = 0; j < k; j++) {
		size_t a = (size_t)t * k + j;
		if (layer->down_bias.rows)
			f->kernels->add(
				f->down + a * n, bias_row(&layer->down_bias, f->chosen[a]), n);
		f->kernels->axpy(y, f->weights[a], f->down + a * n, n);
	}
	if (layer->shared_down_bias)
		f->kernels->add(shared, layer->shared_down_bias, n);
	if (layer->shared_weight.data) {
		f->kernels->sigmoid(f->shared_weight + t, 1);
		f->kernels->axpy(y, f->shared_weight[t], shared, n);
	} else if (layer->shared_gate.data) {
		f->kernels->add(y, shared, n);
	}
	f->kernels->add(f->x + (size_t)t * n, y, n);
}

static void dense_residual(struct forward *f, uint32_t t)
{
	uint32_t n = f->model->config.n_embd;
	const float *bias = f->model->layers[f->layer].ffn_down_bias;
	float *out = f->out + (size_t)t * n;
	if (bias)
		f->kernels->add(out, bias, n);
	f->kernels->add(f->x + (size_t)t * n, out, n);
}

static void dense_layer(struct forward *f)
{
	const struct layer *layer = &f->model->layers[f->layer];
	call_hook(f, false);
	for (uint32_t t = 0; t < f->n; t++) {
		f->in_rows[t] = f->h_rows[t];
		f->down_rows[t] = f->out_rows[t];
	}
	f->ffn[0] = (struct ffn_task){.gate = layer->ffn_gate,
		.up = layer->ffn_up,
		.down = layer->ffn_down,
		.gate_bias = layer->ffn_gate_bias,
		.up_bias = layer->ffn_up_bias,
		.first = 0,
		.n = f->n};
	run_ffn(f, 1, true);
	work_tokens(f, dense_residual, 2 * f->model->config.n_embd * sizeof(float));
}

int ffn_layer(struct forward *f)
{
	const struct model_config *config = &f->model->config;
	const struct layer *layer = &f->model->layers[f->layer];
	size_t row_bytes = config->n_embd * sizeof(float);
	work_tokens(f, norm_token, 2 * row_bytes);
	if (!layer->moe) {
		dense_layer(f);
		return 0;
	}
	f->products[0] = (struct product){layer->router, f->h_rows, f->router_rows, f->n};
	f->products[1] = (struct product){layer->shared_weight, f->h_rows, f->shared_rows, f->n};
	if (layer->shared_gate.data)
		ahead_matrix(f, &layer->shared_gate);
	else
		ahead_nothing(f);
	work_products(f, layer->shared_weight.data ? 2 : 1);
	work_tokens(f, route_token, config->n_experts * 2 * sizeof(float));
	uint32_t n_distinct = group_by_expert(f);
	f->stats.unique_experts += n_distinct;
	int rc = run_experts(f, n_distinct);
	if (rc < 0)
		return rc;
	work_tokens(f, combine_token, (config->n_experts_used + 3) * row_bytes);
	return 0;
}
