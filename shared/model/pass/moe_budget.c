/* Expert budgets: which rows of a pass may use how many experts of a layer together. The step
 * `budget` comes between the router and the experts. */
#include "shared/model/pass/forward_internal.h"

#include <errno.h>

/* Whether a budget limits a layer: as many experts as there are, are no limit. */
static bool limits(const struct forward *f, const struct forward_budget *b, uint32_t layer)
{
	return b->experts[layer] > 0 && b->experts[layer] < f->model->config.n_experts;
}

int forward_set_budgets(struct forward *forward, const struct forward_budget *budgets, uint32_t n)
{
	struct forward *f = forward;
	uint32_t end = 0, n_oracle = 0;

	f->n_budgets = 0;
	if (n > f->limits.n_budgets)
		return -EINVAL;
	for (uint32_t i = 0; i < n; i++) {
		const struct forward_budget *b = &budgets[i];

		if (b->first < end || b->n == 0 || b->n > f->limits.n_batch - b->first ||
			b->experts == NULL || b->ranking >= BUDGET_RANKINGS ||
			b->coverage >= BUDGET_COVERAGES)
			return -EINVAL;
		if (b->ranking == BUDGET_ORACLE)
			n_oracle += b->n;
		if ((b->ranking == BUDGET_STATIC && !f->counts) || n_oracle > f->limits.n_oracle)
			return -EINVAL;
		end = b->first + b->n;
		f->budgets[f->n_budgets++] = *b;
	}
	return 0;
}

bool budget_limits(const struct forward *f, uint32_t layer)
{
	for (uint32_t i = 0; i < f->n_budgets; i++)
		if (limits(f, &f->budgets[i], layer))
			return true;
	return false;
}

void forward_set_uses(struct forward *forward, const uint64_t *uses)
{
	forward->counts = uses;
}

const uint32_t *forward_affected(const struct forward *forward)
{
	return forward->affected;
}

const uint16_t *forward_list(const struct forward *forward, uint32_t i)
{
	return forward->lists + (size_t)i * forward->model->config.n_experts;
}

int budget_begin(struct forward *f)
{
	uint32_t last = f->n_budgets - 1;

	if (f->n_budgets == 0)
		return 0;
	if (f->budgets[last].first + f->budgets[last].n > f->n) {
		f->n_budgets = 0;
		return -EINVAL;
	}
	for (uint32_t t = 0; t < f->n; t++)
		f->affected[t] = 0;
	return 0;
}

/* The results of all experts for n rows; `row` rows of other groups come before them. */
static struct rows outputs_of(const struct forward *f, uint32_t row, uint32_t n)
{
	uint32_t n_experts = f->model->config.n_experts;
	struct rows y = floats_of(f, f->oracle, f->model->config.n_embd);

	y.offset += (size_t)row * n_experts * y.stride;
	y.n = n * n_experts;
	return y;
}

/* Computes some of a layer's experts for all rows of a group. */
static void run_some(
	struct forward *f, const struct forward_budget *b, uint32_t row, uint32_t first, uint32_t n)
{
	uint32_t n_experts = f->model->config.n_experts, width = f->model->config.n_embd;
	struct inputs in = inputs_of(f, f->h, f->h_q8, width);

	for (uint32_t i = 0; i < n; i++) {
		const struct expert_view *view = &f->views[first + i];
		const struct expert_use use = {.expert = (uint16_t)view->index,
			.first = view->index * b->n,
			.n = (uint16_t)b->n};

		f->ready[i] = moe_expert(f, view, &use);
	}
	in.f32.offset += b->first * in.f32.stride;
	in.q8.offset += b->first * in.q8.stride;
	in.f32.n = in.q8.n = b->n;
	const struct step_experts step = {
		.shape = moe_shape(f),
		.of = f->ready,
		.n = n,
		.n_used = n_experts,
		.pairs = batch_place(f, f->oracle_pairs + (size_t)row * n_experts),
		.in = in,
		.y = outputs_of(f, row, b->n),
	};
	times_mark(f, TIMELINE_DEVICE_EXPERTS);
	f->queue->ops->experts(f->queue, &step);
}

/* Computes all of a layer's experts for the rows of a group. -EIO. */
static int run_all(struct forward *f, const struct forward_budget *b, uint32_t row)
{
	const struct expert_source_ops *ops = f->experts->ops;
	uint32_t n_experts = f->model->config.n_experts;
	uint32_t most = f->model->config.n_experts_used * f->limits.n_batch / b->n;
	uint32_t *pairs = f->oracle_pairs + (size_t)row * n_experts;
	int n;

	for (uint32_t e = 0; e < n_experts; e++) {
		f->distinct[e] = (uint16_t)e;
		f->distinct_tokens[e] = (uint16_t)b->n;
		for (uint32_t t = 0; t < b->n; t++)
			pairs[e * b->n + t] = t * n_experts + e;
	}
	f->experts->cpu_can = false;
	ops->begin(f->experts, f->layer, f->distinct, f->distinct_tokens, n_experts);
	while ((n = ops->ready(f->experts, f->views)) > 0) {
		for (uint32_t first = 0; first < (uint32_t)n; first += most) {
			uint32_t left = (uint32_t)n - first;
			run_some(f, b, row, first, left < most ? left : most);
		}
		ops->used(f->experts, f->queue, f->queue->ops->ticket(f->queue));
	}
	ops->end(f->experts);
	return n < 0 ? -EIO : 0;
}

static void describe(struct forward *f, uint32_t i, uint32_t row, struct budget_group *group)
{
	const struct forward_budget *b = &f->budgets[i];
	uint32_t n_experts = f->model->config.n_experts;

	*group = (struct budget_group){
		.first = b->first,
		.n = b->n,
		.experts = b->experts[f->layer],
		.ranking = b->ranking,
		.coverage = b->coverage,
		.uses = f->counts ? f->counts + (size_t)f->layer * n_experts : NULL,
		.list = batch_place(f, f->lists + (size_t)i * n_experts),
	};
	if (b->ranking != BUDGET_ORACLE)
		return;
	group->outputs = outputs_of(f, row, b->n);
	group->rest = floats_of(f, f->oracle_rest, f->model->config.n_embd);
	group->rest.offset += row * group->rest.stride;
	group->rest.n = b->n;
}

int budget_layer(struct forward *f, const struct step_route *route)
{
	const struct layer *layer = &f->model->layers[f->layer];
	uint32_t width = f->model->config.n_embd;
	struct step_budget step = {
		.route = *route,
		.of = f->groups,
		.width = width,
		.bias = layer->down_bias.rows,
		.bias_stride = layer->down_bias.stride,
		.affected = batch_rows(f, f->affected, sizeof(*f->affected), f->n),
		.y = floats_of(f, f->down, width),
	};

	step.route.order = f->order;
	step.y.n = f->n * route->n_used;
	for (uint32_t i = 0, row = 0; i < f->n_budgets; i++) {
		if (!limits(f, &f->budgets[i], f->layer))
			continue;
		describe(f, i, row, &f->groups[step.n++]);
		if (f->budgets[i].ranking != BUDGET_ORACLE)
			continue;
		section_end(f);
		int rc = run_all(f, &f->budgets[i], row);
		section_begin(f);
		if (rc < 0)
			return rc;
		row += f->budgets[i].n;
	}
	times_mark(f, TIMELINE_DEVICE_ROUTER);
	f->queue->ops->budget(f->queue, &step);
	return 0;
}

int budget_show(struct forward *f, const struct step_route *route)
{
	const struct forward_budget all = {.n = f->n};

	if (f->n > f->limits.n_oracle)
		return -EINVAL;
	section_end(f);
	int rc = run_all(f, &all, 0);
	if (rc == 0)
		rc = f->queue->ops->wait(f->queue, f->queue->ops->ticket(f->queue));
	const struct rows outputs = outputs_of(f, 0, f->n);
	if (rc == 0)
		f->hooks.outputs(f->hooks.arg, f->layer, route, &outputs);
	section_begin(f);
	return rc;
}
