/*
 * The feed-forward half of a layer, dense or routed. Which experts of a routed layer are computed
 * first depends on residency; steps.h says how their results are combined.
 */
#include "shared/base/clock.h"
#include "shared/model/pass/forward_internal.h"

/* True when a matrix that multiplies the norm's result takes quantised activations. */
static bool any_quantised(const struct layer *layer)
{
	const struct matrix *dense[] = {&layer->ffn_gate, &layer->ffn_up};
	const struct matrix *moe[] = {&layer->router, &layer->gate.shape, &layer->up.shape,
		&layer->shared_gate, &layer->shared_up, &layer->shared_weight};
	const struct matrix **matrices = layer->moe ? moe : dense;
	size_t n = layer->moe ? sizeof(moe) / sizeof(moe[0]) : sizeof(dense) / sizeof(dense[0]);
	bool any = false;
	for (size_t i = 0; i < n; i++)
		any |= matrices[i]->data && matrix_quantised(matrices[i]);
	return any;
}

/* x += the mixer's result in f->out, then the norm. */
static void norm(struct forward *f)
{
	const struct layer *layer = &f->model->layers[f->layer];
	uint32_t n = f->model->config.n_embd;
	const struct step_norm step = {
		.width = n,
		.x = floats_of(f, f->x, n),
		.add = floats_of(f, f->out, n),
		.add_bias = layer->o_bias,
		.w = layer->ffn_norm,
		.bias = layer->ffn_norm_bias,
		.eps = f->model->config.rms_eps,
		.y = floats_of(f, f->h, n),
		.y_q8 = any_quantised(layer) ? q8_of(f, f->h_q8, n) : (struct rows){0},
	};
	f->queue->ops->norm(f->queue, &step);
}

static void call_hook(struct forward *f, bool moe)
{
	const struct rows hidden = floats_of(f, f->h, f->model->config.n_embd);
	if (f->hooks.layer)
		f->hooks.layer(f->hooks.arg, f->layer, f->n - f->n_padding, moe ? f->chosen : NULL,
			moe ? f->weights : NULL, &hidden);
	if (f->hooks.routed && moe)
		f->hooks.routed(f->hooks.arg, f->layer, f->n - f->n_padding, f->chosen);
}

static void dense_layer(struct forward *f)
{
	const struct layer *layer = &f->model->layers[f->layer];
	uint32_t n = f->model->config.n_embd;
	struct step_dense_ffn step = {
		.ffn = {.gate = layer->ffn_gate,
			.up = layer->ffn_up,
			.down = layer->ffn_down,
			.gate_bias = layer->ffn_gate_bias,
			.up_bias = layer->ffn_up_bias,
			.activation = f->model->config.arch->activation},
		.in = inputs_of(f, f->h, f->h_q8, n),
		.y = floats_of(f, f->out, n),
		.x = floats_of(f, f->x, n),
		.bias = layer->ffn_down_bias,
		.adapt = masks_ffn(f, ADAPT_DENSE),
		.gated = batch_place(f, f->gated),
		.fast = fast_of(f),
	};
	if (f->hooks.layer) {
		section_end(f);
		call_hook(f, false);
		section_begin(f);
	}
	next_mixer(f, f->layer + 1, &step.next);
	f->queue->ops->dense_ffn(f->queue, &step);
}

/* The router's products, the choice of experts, and its order by expert. Only budgets and the hook
 * `outputs` can fail. */
static int route(struct forward *f)
{
	const struct model_config *config = &f->model->config;
	const struct layer *layer = &f->model->layers[f->layer];
	uint32_t n = config->n_embd, k = config->n_experts_used;
	struct inputs in = inputs_of(f, f->h, f->h_q8, n);
	struct rows scores = floats_of(f, f->router, config->n_experts);
	const struct step_product products[] = {
		product_of(&layer->router, in, scores),
		product_of(&layer->shared_weight, in, floats_of(f, f->shared_weight, 1)),
	};
	struct step_products step = {.of = products, .n = layer->shared_weight.data ? 2 : 1};
	next_matrix(f, &layer->shared_gate, &step.next);
	f->queue->ops->products(f->queue, &step);
	struct step_route choice = {
		.rule = config->routing,
		.n_experts = config->n_experts,
		.n_used = k,
		.bias = layer->router_bias,
		.selection_bias = layer->selection_bias,
		.scores = scores,
		.chosen = batch_rows(f, moe_chosen(f), k * sizeof(*f->chosen), f->n),
		.weights = batch_rows(f, f->weights, k * sizeof(*f->weights), f->n),
		.order = f->order,
	};
	bool limited = budget_limits(f, f->layer);
	if (limited)
		choice.order.pairs.buffer = NULL;
	f->queue->ops->route(f->queue, &choice);
	int rc = f->hooks.outputs ? budget_show(f, &choice) : 0;
	return rc == 0 && limited ? budget_layer(f, &choice) : rc;
}

static const float *bias_row(const struct expert_bias *biases, uint16_t expert)
{
	return biases->rows ? biases->rows + expert * biases->stride : NULL;
}

static float scale_of(const struct expert_tensor *tensor, uint16_t expert)
{
	return tensor->scales ? tensor->scales[expert] : 1;
}

struct ffn moe_shape(const struct forward *f)
{
	const struct layer *layer = &f->model->layers[f->layer];
	struct ffn ffn = {.gate = layer->gate.shape,
		.up = layer->up.shape,
		.down = layer->down.shape,
		.activation = f->model->config.arch->activation};
	ffn.gate.scaled = layer->gate.scales != NULL;
	ffn.up.scaled = layer->up.scales != NULL;
	ffn.down.scaled = layer->down.scales != NULL;
	return ffn;
}

struct step_expert moe_expert(
	const struct forward *f, const struct expert_view *view, const struct expert_use *use)
{
	const struct layer *layer = &f->model->layers[f->layer];
	uint16_t e = use->expert;

	return (struct step_expert){
		.gate = view->gate,
		.up = view->up,
		.down = view->down,
		.layout = view->layout,
		.gate_scale = scale_of(&layer->gate, e),
		.up_scale = scale_of(&layer->up, e),
		.down_scale = scale_of(&layer->down, e),
		.gate_bias = bias_row(&layer->gate_bias, e),
		.up_bias = bias_row(&layer->up_bias, e),
		.first = use->first,
		.n = use->n,
	};
}

/* The shared expert of every token, computed while missing experts arrive. */
static void run_shared(struct forward *f)
{
	const struct layer *layer = &f->model->layers[f->layer];
	uint32_t n = f->model->config.n_embd;
	const struct step_dense_ffn step = {
		.ffn = {.gate = layer->shared_gate,
			.up = layer->shared_up,
			.down = layer->shared_down,
			.gate_bias = layer->shared_gate_bias,
			.up_bias = layer->shared_up_bias,
			.activation = f->model->config.arch->activation},
		.in = inputs_of(f, f->h, f->h_q8, n),
		.y = floats_of(f, f->shared, n),
		.adapt = masks_ffn(f, ADAPT_SHARED),
		.gated = batch_place(f, f->gated),
		.fast = fast_of(f),
	};
	times_mark(f, TIMELINE_DEVICE_DENSE);
	f->queue->ops->dense_ffn(f->queue, &step);
}

static void wait_for_all(struct forward *f)
{
	/* The pass sees a failure where it ends. */
	(void)f->queue->ops->wait(f->queue, f->queue->ops->ticket(f->queue));
}

/* So often, in steps, the back end's experts are waited for, to know what they take. */
#define MEASURED_STEPS 64u

/* Computes the n experts whose views are there. last: no more will follow. */
static void run_some(struct forward *f, uint32_t n, bool last)
{
	const struct model_config *config = &f->model->config;
	struct rows y = floats_of(f, f->down, config->n_embd);
	for (uint32_t i = 0; i < n; i++) {
		const struct expert_view *view = &f->views[i];
		f->ready[i] = moe_expert(f, view, &f->uses[view->index]);
		f->ready[i].adapt = masks_expert(f, f->uses[view->index].expert);
	}
	y.n = f->n * config->n_experts_used;
	struct step_experts step = {
		.shape = moe_shape(f),
		.of = f->ready,
		.n = n,
		.n_used = config->n_experts_used,
		.pairs = f->order.pairs,
		.in = inputs_of(f, f->h, f->h_q8, config->n_embd),
		.y = y,
		.gated = batch_place(f, f->gated),
	};
	if (last)
		next_mixer(f, f->layer + 1, &step.next);
	times_mark(f, TIMELINE_DEVICE_EXPERTS);
	f->queue->ops->experts(f->queue, &step);
}

/* run_some, in a pass beside the CPU: what the back end takes is measured now and then. */
static void run_beside(struct forward *f, uint32_t n, bool last)
{
	struct expert_costs *costs = &f->experts->costs;
	uint32_t n_pairs = 0;
	bool waits = false;
	for (uint32_t i = 0; i < n; i++) {
		n_pairs += f->uses[f->views[i].index].n;
		waits |= f->views[i].waits;
	}
	bool look = !waits && f->n_steps_beside++ % MEASURED_STEPS == 0;
	if (look)
		wait_for_all(f);
	uint64_t began_ns = look ? clock_ns() : 0;
	run_some(f, n, last);
	if (!look)
		return;
	wait_for_all(f);
	moe_measure(&costs->gpu_expert_ns, &costs->gpu_token_ns, n, n_pairs, clock_ns() - began_ns);
}

static int run_experts(struct forward *f)
{
	const struct layer *layer = &f->model->layers[f->layer];
	const struct expert_source_ops *ops = f->experts->ops;
	if (f->whole) {
		if (layer->shared_gate.data)
			run_shared(f);
		moe_known_layer(f);
		return 0;
	}
	section_end(f);
	bool cpu_too = moe_host_can(f);
	int n = f->queue->ops->wait(f->queue, f->queue->ops->ticket(f->queue));
	if (n < 0)
		return n;
	uint32_t n_distinct = *f->n_uses, done = 0;
	for (uint32_t i = 0; i < n_distinct; i++) {
		f->distinct[i] = f->uses[i].expert;
		f->distinct_tokens[i] =
			(uint16_t)(f->uses[i].n - padding_uses(f, f->uses[i].expert));
	}
	f->stats.unique_experts += n_distinct;
	f->experts->cpu_can = cpu_too;
	ops->begin(f->experts, f->layer, f->distinct, f->distinct_tokens, n_distinct);
	if (cpu_too && f->experts->n_by_cpu > 0)
		moe_host_fetch(f, any_quantised(layer));
	/* The missing experts arrive meanwhile. */
	call_hook(f, true);
	if (layer->shared_gate.data)
		run_shared(f);
	while ((n = ops->ready(f->experts, f->views)) > 0) {
		done += (uint32_t)n;
		n -= cpu_too ? (int)moe_host_run(f, (uint32_t)n) : 0;
		if (n > 0 && cpu_too)
			run_beside(f, (uint32_t)n, done == n_distinct);
		else if (n > 0)
			run_some(f, (uint32_t)n, done == n_distinct);
		ops->used(f->experts, f->queue, f->queue->ops->ticket(f->queue));
	}
	/* The pass ends here. forward_wait reports it to the source, after what was queued. */
	if (n < 0)
		return -EIO;
	ops->end(f->experts);
	return 0;
}

static void combine(struct forward *f)
{
	const struct model_config *config = &f->model->config;
	const struct layer *layer = &f->model->layers[f->layer];
	uint32_t n = config->n_embd, k = config->n_experts_used;
	struct step_combine step = {
		.width = n,
		.n_used = k,
		.chosen = batch_rows(f, moe_chosen(f), k * sizeof(*f->chosen), f->n),
		.weights = batch_rows(f, f->weights, k * sizeof(*f->weights), f->n),
		.y = floats_of(f, f->down, n),
		.bias = layer->down_bias.rows,
		.bias_stride = layer->down_bias.stride,
		.shared_bias = layer->shared_down_bias,
		.sum = floats_of(f, f->out, n),
		.x = floats_of(f, f->x, n),
	};
	if (layer->shared_gate.data)
		step.shared = floats_of(f, f->shared, n);
	if (layer->shared_weight.data)
		step.shared_weight = floats_of(f, f->shared_weight, 1);
	times_mark(f, TIMELINE_DEVICE_EXPERTS);
	f->queue->ops->combine(f->queue, &step);
}

int ffn_layer(struct forward *f)
{
	times_mark(
		f, f->model->layers[f->layer].moe ? TIMELINE_DEVICE_ROUTER : TIMELINE_DEVICE_DENSE);
	norm(f);
	if (!f->model->layers[f->layer].moe) {
		dense_layer(f);
		return 0;
	}
	int rc = route(f);
	if (rc == 0)
		rc = run_experts(f);
	if (rc < 0)
		return rc;
	if (!f->whole)
		section_begin(f);
	combine(f);
	return 0;
}
