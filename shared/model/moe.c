/*
 * The feed-forward half of a layer, dense or routed. A dense layer is one expert that all tokens chose.
 *
 * Assignments (token, rank) are ordered by expert, then by token, so each expert's matrices are read once for all its
 * tokens. Which expert is computed first depends on what is resident; the results meet only in combine_token,
 * which adds them by rank: y = +0, then y = fma(weight_j, expert_j, y) for j = 0..k-1, then x = x + y.
 */
#include "shared/model/forward_internal.h"

#include <string.h>

static void norm_token(struct forward *f, uint32_t t)
{
	uint32_t n = f->model->config.n_embd;
	const struct layer *layer = &f->model->layers[f->layer];
	const struct matrix *gate = layer->moe ? &layer->gate.shape : &layer->ffn_gate;
	const struct matrix *up = layer->moe ? &layer->up.shape : &layer->ffn_up;
	bool q8 = forward_quantised(gate) || forward_quantised(up);
	forward_norm(f, f->x + (size_t)t * n, layer->ffn_norm, f->h + (size_t)t * n,
		q8 ? f->h_q8 + (size_t)t * (n / Q8_BLOCK) : NULL);
}

/* Softmax over all experts, then the k largest by falling weight, ties to the smaller index; renormalised by their sum in
 * that order where the architecture says so. Always k distinct experts, even of logits that are not numbers. */
static void route_token(struct forward *f, uint32_t t)
{
	const struct model_config *config = &f->model->config;
	uint32_t n = config->n_experts, k = config->n_experts_used, filled = 0;
	float *p = f->router + (size_t)t * n;
	float *weights = f->weights + (size_t)t * k;
	uint16_t *chosen = f->chosen + (size_t)t * k;
	f->kernels->softmax(p, n);
	for (uint32_t e = 0; e < n; e++) {
		if (filled == k && !(p[e] > weights[k - 1]))
			continue;
		uint32_t at = filled < k ? filled++ : k - 1;
		for (; at > 0 && p[e] > weights[at - 1]; at--) {
			weights[at] = weights[at - 1];
			chosen[at] = chosen[at - 1];
		}
		weights[at] = p[e];
		chosen[at] = (uint16_t)e;
	}
	if (config->arch->norm_topk) {
		float sum = 0;
		for (uint32_t j = 0; j < k; j++)
			sum += weights[j];
		for (uint32_t j = 0; j < k; j++)
			weights[j] /= sum;
	}
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

/* Gate, up, silu, down of the first n of f->ffn. */
static void run_ffn(struct forward *f, uint32_t n)
{
	work_ffn(f, n);
	for (uint32_t i = 0; i < n; i++) {
		const struct ffn_task *task = &f->ffn[i];
		f->products[i] = (struct product){
			task->down, f->act_rows + task->first, f->down_rows + task->first, task->n};
	}
	work_products(f, n);
}

static struct matrix with_data(const struct matrix *shape, const void *data)
{
	struct matrix matrix = *shape;
	matrix.data = data;
	return matrix;
}

static int run_experts(struct forward *f, uint32_t n_distinct)
{
	const struct layer *layer = &f->model->layers[f->layer];
	const struct expert_source_ops *ops = f->experts->ops;
	int n;
	ops->begin(f->experts, f->layer, f->distinct, f->distinct_tokens, n_distinct);
	while ((n = ops->ready(f->experts, f->views)) > 0) {
		for (int i = 0; i < n; i++) {
			const struct expert_view *view = &f->views[i];
			uint32_t tokens = f->distinct_tokens[view->index];
			uint32_t last = f->expert_first[f->distinct[view->index]];
			f->ffn[i] = (struct ffn_task){
				.gate = with_data(&layer->gate.shape, view->gate),
				.up = with_data(&layer->up.shape, view->up),
				.down = with_data(&layer->down.shape, view->down),
				.first = last - tokens,
				.n = tokens,
			};
		}
		run_ffn(f, (uint32_t)n);
	}
	ops->end(f->experts);
	return n < 0 ? -EIO : 0;
}

static void combine_token(struct forward *f, uint32_t t)
{
	uint32_t n = f->model->config.n_embd, k = f->model->config.n_experts_used;
	float *y = f->out + (size_t)t * n;
	memset(y, 0, n * sizeof(*y));
	for (uint32_t j = 0; j < k; j++) {
		size_t a = (size_t)t * k + j;
		f->kernels->axpy(y, f->weights[a], f->down + a * n, n);
	}
	f->kernels->add(f->x + (size_t)t * n, y, n);
}

static void dense_residual(struct forward *f, uint32_t t)
{
	uint32_t n = f->model->config.n_embd;
	f->kernels->add(f->x + (size_t)t * n, f->out + (size_t)t * n, n);
}

static void call_hook(struct forward *f, bool moe)
{
	if (f->hooks.layer)
		f->hooks.layer(f->hooks.arg, f->layer, f->n, moe ? f->chosen : NULL,
			moe ? f->weights : NULL, f->hidden_rows);
}

static void dense_layer(struct forward *f)
{
	const struct layer *layer = &f->model->layers[f->layer];
	call_hook(f, false);
	for (uint32_t t = 0; t < f->n; t++) {
		f->in_rows[t] = f->h_rows[t];
		f->down_rows[t] = f->out_rows[t];
	}
	f->ffn[0] = (struct ffn_task){
		layer->ffn_gate, layer->ffn_up, layer->ffn_down, .first = 0, .n = f->n};
	run_ffn(f, 1);
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
	work_products(f, 1);
	work_tokens(f, route_token, config->n_experts * 2 * sizeof(float));
	call_hook(f, true);
	uint32_t n_distinct = group_by_expert(f);
	f->stats.unique_experts += n_distinct;
	int rc = run_experts(f, n_distinct);
	if (rc < 0)
		return rc;
	work_tokens(f, combine_token, (config->n_experts_used + 2) * row_bytes);
	return 0;
}
