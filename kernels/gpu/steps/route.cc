/* The steps `route` and `budget`. */
#include "kernels/gpu/kernels/budget.cuh"
#include "kernels/gpu/kernels/group.cuh"
#include "kernels/gpu/steps/steps.h"

/* Threads of a block in which each has one expert. */
static unsigned expert_threads(uint32_t n_experts)
{
	unsigned threads = (n_experts + 31) / 32 * 32;

	return threads < 128 ? 128 : threads;
}

static route_args route_args_of(const struct gpu_queue *q, const struct step_route *step)
{
	route_args a = {};

	a.rule.gating = step->rule.gating;
	a.rule.norm = step->rule.norm;
	a.rule.scale = step->rule.scale;
	a.rule.n_groups = step->rule.n_groups;
	a.rule.n_groups_used = step->rule.n_groups_used;
	a.rule.n_experts = step->n_experts;
	a.rule.n_used = step->n_used;
	a.rule.bias = dev_floats(q, step->bias, step->n_experts);
	a.rule.selection_bias = dev_floats(q, step->selection_bias, step->n_experts);
	a.scores = dev_rows(&step->scores);
	a.chosen = dev_rows(&step->chosen);
	a.weights = dev_rows(&step->weights);
	return a;
}

static void make_order(struct gpu_queue *q, const struct step_route *step)
{
	group_args a = {};

	a.n_rows = step->scores.n;
	a.n_experts = step->n_experts;
	a.n_used = step->n_used;
	a.chosen = dev_rows(&step->chosen);
	a.pairs = dev_array<uint32_t>(step->order.pairs);
	a.uses = dev_array<struct expert_use>(step->order.uses);
	a.n_uses = dev_array<uint32_t>(step->order.n_uses);
	LAUNCH(q->stream, group, simt_dim{1, 1, 1}, expert_threads(step->n_experts),
		sizeof(group_shared), a);
}

void gpu_route(struct queue *queue, const struct step_route *step)
{
	struct gpu_queue *q = gpu_queue(queue);

	assert(step->n_experts <= q->limits.n_experts);
	LAUNCH(q->stream, route, simt_dim{step->scores.n, 1, 1}, expert_threads(step->n_experts),
		sizeof(route_shared), route_args_of(q, step));
	if (step->order.pairs.buffer)
		make_order(q, step);
}

/* The groups as the kernels read them, in memory of the queue. */
static const budget_one *budget_groups(struct gpu_queue *q, const struct step_budget *step)
{
	size_t uses_bytes = step->route.n_experts * sizeof(uint64_t);
	budget_one *of = stream_array<budget_one>(q->stream, step->n);

	for (uint32_t i = 0; i < step->n; i++) {
		const struct budget_group *group = &step->of[i];

		of[i] = budget_one{};
		of[i].first = group->first;
		of[i].n = group->n;
		of[i].experts = group->experts;
		of[i].ranking = group->ranking;
		of[i].coverage = group->coverage;
		of[i].list = dev_array<uint16_t>(group->list);
		if (group->ranking == BUDGET_STATIC)
			of[i].uses = (const uint64_t *)memcpy(
				stream_args(q->stream, uses_bytes), group->uses, uses_bytes);
		if (group->ranking == BUDGET_ORACLE) {
			of[i].outputs = dev_rows(&group->outputs);
			of[i].rest = dev_rows(&group->rest);
		}
	}
	return of;
}

void gpu_budget(struct queue *queue, const struct step_budget *step)
{
	struct gpu_queue *q = gpu_queue(queue);
	unsigned threads = expert_threads(step->route.n_experts), most = 0;
	budget_args a = {};

	for (uint32_t i = 0; i < step->n; i++)
		most = step->of[i].n > most ? step->of[i].n : most;
	a.route = route_args_of(q, &step->route);
	a.n = step->n;
	a.width = step->width;
	a.bias = dev_floats(q, step->bias, step->width);
	a.bias_stride = step->bias_stride;
	a.affected = dev_rows(&step->affected);
	a.y = dev_rows(&step->y);
	if (most > 0) {
		a.of = budget_groups(q, step);
		a.in = stream_array<uint64_t>(q->stream, step->n * LIST_WORDS);
		LAUNCH(q->stream, budget_rank, simt_dim{step->n, 1, 1}, threads,
			sizeof(budget_shared), a);
		LAUNCH(q->stream, budget_cover, simt_dim{most, step->n, 1}, threads,
			sizeof(budget_shared), a);
	}
	make_order(q, &step->route);
	if (most > 0)
		LAUNCH(q->stream, budget_clear, simt_dim{most * step->route.n_used, step->n, 1},
			128, 0, a);
}
