#include "bench/src/device_run.h"

#include <errno.h>
#include <math.h>

#define GIB 1073741824.

double device_need_gib(const struct device_case *of, uint32_t share)
{
	const struct device_model *model = of->model;
	double experts = (double)model->layers * model->experts * device_model_expert_bytes(model);
	double layer = device_dense_bytes(model) + device_kv_bytes(model, of->workload->context);
	/* The embedding is as large as the output matrix. */
	return (experts * share / 100 + model->layers * layer + 2 * device_head_bytes(model)) / GIB;
}

static uint32_t warm_passes(const struct cache_trace *trace)
{
	return trace->n_passes / 2;
}

static double rate(const struct replay_totals *totals)
{
	return totals->time_ns > 0 ? (double)totals->tokens * 1e9 / (double)totals->time_ns : 0;
}

static uint64_t hand_over_ns(const struct device_machine *machine)
{
	return (uint64_t)llround(1e3 * machine->link_us);
}

static int run_cell(const struct device_machine *machine, const struct balance_costs *costs,
	const struct device_way *way, const struct cache_trace *trace, double share,
	struct device_cell *out, struct error *err)
{
	struct replay_device device = {.rule = way->rule,
		.costs = *costs,
		.hand_over_ns = hand_over_ns(machine),
		.blocking = way->blocking};
	struct replay_options options = {.policy = way->policy,
		.demand_only = way->blocking,
		.n_slots = (uint32_t)ceil(cache_trace_experts(trace) * share / 100 - 1e-9),
		.link = {machine->link_gb_s * 1e9, hand_over_ns(machine)},
		.device = &device,
		.preload = true,
		.warm_passes = warm_passes(trace)};
	struct replay_result result;
	*out = (struct device_cell){0};
	if (options.n_slots < cache_replay_slots_min(trace))
		return 0;
	int rc = cache_replay(trace, &options, &result, err);
	if (rc < 0)
		return rc;
	*out = (struct device_cell){
		.ran = true, .totals = result.decode, .tokens_per_s = rate(&result.decode)};
	return 0;
}

/* The same passes with no expert on the device. */
static double cpu_alone(const struct device_machine *machine, const struct balance_costs *costs,
	const struct cache_trace *trace)
{
	struct replay_totals totals = {0};
	for (uint32_t i = warm_passes(trace); i < trace->n_passes; i++) {
		const struct trace_pass *pass = &trace->passes[i];
		if (pass->prefill)
			continue;
		double ns = (double)pass->draft_ns;
		for (uint32_t l = 0; l < pass->n_layers; l++) {
			const struct trace_layer *layer = &trace->layers[pass->first_layer + l];
			ns += (double)layer->before_ns + (double)hand_over_ns(machine);
			for (uint32_t u = 0; u < layer->n_uses; u++)
				ns += balance_cpu_ns(
					costs, trace->uses[layer->first_use + u].tokens);
		}
		totals.time_ns += (uint64_t)llround(ns);
		totals.tokens += pass->emitted;
	}
	return rate(&totals);
}

static int run_cells(const struct device_plan *plan, const struct cache_trace *trace,
	struct device_case *of, struct error *err)
{
	struct device_cell resident;
	int rc = run_cell(of->machine, &of->costs, &plan->ways[0], trace, 100, &resident, err);
	of->resident_tokens_per_s = resident.tokens_per_s;
	of->cpu_tokens_per_s = cpu_alone(of->machine, &of->costs, trace);
	for (uint32_t way = 0; way < plan->n_ways; way++)
		for (uint32_t s = 0; rc == 0 && s < plan->n_shares; s++)
			rc = run_cell(of->machine, &of->costs, &plan->ways[way], trace,
				plan->shares[s], &of->cells[way][s], err);
	return rc;
}

int device_run(const struct device_plan *plan, const struct device_machine *machine,
	const struct device_model *model, const struct device_workload *workload,
	struct device_case *out, struct error *err)
{
	struct cache_trace trace;
	*out = (struct device_case){.machine = machine,
		.model = model,
		.workload = workload,
		.costs = device_costs(machine, model)};
	int rc = device_trace(machine, model, workload, &trace, err);
	if (rc < 0)
		return rc;
	out->condition = device_condition(machine, model, &trace);
	out->emitted = out->condition.omega;
	rc = run_cells(plan, &trace, out, err);
	cache_trace_exit(&trace);
	return rc;
}
