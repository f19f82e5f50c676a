/* outrider-bench device: time is neither lost nor found, what is resident is not copied, and a link that is too slow is seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "bench/src/device_run.h"

#include <math.h>
#include <string.h>

static struct device_workload workload(enum device_routing routing, uint32_t k)
{
	return (struct device_workload){.routing = routing,
		.k = k,
		.passes = 60,
		.accept_percent = 70,
		.context = 512,
		.seed = 3};
}

static struct cache_trace trace_of(const struct device_machine *machine,
	const struct device_model *model, const struct device_workload *of)
{
	struct cache_trace trace;
	struct error err = {""};
	if (device_trace(machine, model, of, &trace, &err) != 0)
		fail_msg("%s", err.text);
	return trace;
}

struct way {
	const struct cache_policy_ops *policy;
	enum balance_rule rule;
	bool blocking;
	double percent;
	uint64_t hand_over_ns;
};

static struct replay_totals run(const struct device_machine *machine,
	const struct device_model *model, const struct cache_trace *trace, const struct way *way)
{
	struct replay_device device = {.rule = way->rule,
		.costs = device_costs(machine, model),
		.hand_over_ns = way->hand_over_ns,
		.blocking = way->blocking};
	struct replay_options options = {.policy = way->policy,
		.demand_only = way->blocking,
		.n_slots = (uint32_t)ceil(cache_trace_experts(trace) * way->percent / 100),
		.link = {machine->link_gb_s * 1e9, way->hand_over_ns},
		.device = &device,
		.preload = true};
	struct replay_result result;
	struct error err = {""};
	if (cache_replay(trace, &options, &result, &err) != 0)
		fail_msg("%s", err.text);
	return result.decode;
}

/* The passes with nothing to wait for. */
static uint64_t least_ns(const struct device_machine *machine, const struct device_model *model,
	const struct cache_trace *trace)
{
	struct balance_costs costs = device_costs(machine, model);
	uint64_t ns = 0;
	for (uint32_t i = 0; i < trace->n_passes; i++)
		ns += trace->passes[i].draft_ns;
	for (uint32_t i = 0; i < trace->n_layer_runs; i++) {
		double experts_ns = 0;
		for (uint32_t u = 0; u < trace->layers[i].n_uses; u++)
			experts_ns += balance_gpu_ns(
				&costs, trace->uses[trace->layers[i].first_use + u].tokens);
		ns += trace->layers[i].before_ns + (uint64_t)llround(experts_ns);
	}
	return ns;
}

/* Every nanosecond is drafting, the device's work, or a wait for an expert or for the CPU; and no resource works longer than
 * the time there is. */
static void time_is_conserved(void **state)
{
	(void)state;
	static const char *const models[] = {"demo", "olmoe-1b-7b", "mixtral-8x7b"};
	for (uint32_t m = 0; m < 3; m++)
		for (uint32_t k = 0; k < 4; k += 3) {
			const struct device_machine *machine = &device_machines[m];
			const struct device_model *model = device_model_find(models[m]);
			struct device_workload of = workload(k ? ROUTING_PHASES : ROUTING_ZIPF, k);
			struct cache_trace trace = trace_of(machine, model, &of);
			uint64_t least = least_ns(machine, model, &trace), draft_ns = 0;
			for (uint32_t i = 0; i < trace.n_passes; i++)
				draft_ns += trace.passes[i].draft_ns;
			for (size_t p = 0; cache_policies[p]; p++)
				for (int rule = 0; rule <= BALANCE_RULES; rule++) {
					struct way way = {cache_policies[p],
						(enum balance_rule)(rule % BALANCE_RULES),
						rule == BALANCE_RULES, 40, 5000};
					struct replay_totals t = run(machine, model, &trace, &way);
					assert_int_equal(t.time_ns, draft_ns + t.device_ns +
									    t.stall_ns +
									    t.cpu_wait_ns);
					assert_true(
						t.link_ns <= t.time_ns && t.cpu_ns <= t.time_ns);
					assert_true(t.device_ns + draft_ns <= least + t.layers * 8);
					assert_int_equal(t.uses, t.hits + t.late + t.misses);
					assert_int_equal(t.uses, trace.n_uses);
					assert_true(t.cpu_uses <= t.misses);
					assert_true(way.rule != BALANCE_OFF ||
						    (t.cpu_uses == 0 && t.cpu_ns == 0));
					assert_true(way.rule != BALANCE_OFF ||
						    t.time_ns + t.layers * 8 >= least);
				}
			cache_trace_exit(&trace);
		}
}

static void what_is_resident_is_not_copied(void **state)
{
	(void)state;
	const struct device_machine *machine = device_machine_find("4090-x4");
	const struct device_model *model = device_model_find("olmoe-1b-7b");
	for (uint32_t k = 0; k < 4; k += 3) {
		struct device_workload of = workload(ROUTING_ZIPF, k);
		struct cache_trace trace = trace_of(machine, model, &of);
		for (size_t p = 0; cache_policies[p]; p++)
			for (int rule = 0; rule < BALANCE_RULES; rule++) {
				struct way way = {cache_policies[p], (enum balance_rule)rule, false,
					100, 5000};
				struct replay_totals t = run(machine, model, &trace, &way);
				assert_int_equal(t.loads, 0);
				assert_int_equal(t.link_ns, 0);
				assert_int_equal(t.cpu_uses, 0);
				assert_int_equal(t.time_ns, least_ns(machine, model, &trace));
			}
		cache_trace_exit(&trace);
	}
}

static void a_link_without_cost_is_like_residence(void **state)
{
	(void)state;
	struct device_machine machine = *device_machine_find("4090");
	const struct device_model *model = device_model_find("olmoe-1b-7b");
	struct device_workload of = workload(ROUTING_UNIFORM, 3);
	machine.link_gb_s = 1e9;
	struct cache_trace trace = trace_of(&machine, model, &of);
	double least = (double)least_ns(&machine, model, &trace);
	for (size_t p = 0; cache_policies[p]; p++)
		for (int rule = 0; rule <= BALANCE_RULES; rule++) {
			struct way way = {cache_policies[p],
				(enum balance_rule)(rule % BALANCE_RULES), rule == BALANCE_RULES,
				50, 0};
			struct replay_totals t = run(&machine, model, &trace, &way);
			/* MoE-SpAc's threshold leaves what is cold to the CPU however fast the link is. */
			if (way.rule == BALANCE_SPAC)
				continue;
			assert_true(fabs((double)t.time_ns / least - 1) < 1e-3);
			/* The CPU may take one where a layer has very many. */
			assert_true(t.misses > 0 && t.cpu_uses * 20 < t.misses);
		}
	cache_trace_exit(&trace);
}

/* On four lanes an expert takes longer over the link than on the CPU. Copying what is missing is then slower than to have no
 * cache at all, and the balancer leaves it to the CPU. */
static void a_link_that_is_too_slow_is_seen(void **state)
{
	(void)state;
	const struct device_machine *slow = device_machine_find("4090-x4"),
				    *fast = device_machine_find("4090");
	const struct device_model *model = device_model_find("qwen3-30b-a3b");
	struct device_plan plan = {.ways = {{&policy_lru, BALANCE_OFF, true},
					   {&policy_outrider, BALANCE_GREEDY, false}},
		.n_ways = 2,
		.shares = {17},
		.n_shares = 1};
	struct device_workload of = workload(ROUTING_ZIPF, 0);
	static struct device_case on_slow, on_fast;
	struct error err = {""};
	assert_int_equal(device_run(&plan, slow, model, &of, &on_slow, &err), 0);
	assert_int_equal(device_run(&plan, fast, model, &of, &on_fast, &err), 0);
	const struct device_cell *copied = &on_slow.cells[0][0], *balanced = &on_slow.cells[1][0];
	assert_true(copied->tokens_per_s < on_slow.cpu_tokens_per_s);
	assert_true(balanced->tokens_per_s > on_slow.cpu_tokens_per_s);
	assert_true(balanced->tokens_per_s < on_slow.resident_tokens_per_s);
	assert_true(balanced->totals.cpu_uses > balanced->totals.misses * 9 / 10);
	/* Sixteen lanes carry more. */
	assert_true(
		on_fast.cells[1][0].totals.cpu_uses < on_fast.cells[1][0].totals.misses * 3 / 4);
	assert_true(on_fast.cells[1][0].tokens_per_s > balanced->tokens_per_s);
	assert_true(on_fast.cells[0][0].tokens_per_s > copied->tokens_per_s);
	/* Equal calls give equal figures. */
	static struct device_case again;
	assert_int_equal(device_run(&plan, slow, model, &of, &again, &err), 0);
	assert_memory_equal(&again.cells, &on_slow.cells, sizeof(again.cells));
}

static void shapes_weigh_what_their_files_do(void **state)
{
	(void)state;
	const struct device_model *model = device_model_find("qwen3-30b-a3b");
	/* 3 * 2048 * 768 weights of 4.5 bits; 21.2 MB for eight, and 11.6 MB beside them. */
	assert_true(device_model_expert_bytes(model) == 3 * 2048 * 768 * 4.5 / 8);
	assert_true(fabs(device_dense_bytes(model) / 11.6e6 - 1) < 0.01);
	/* The demo's file has 14.3 MiB of experts, 192 in all. */
	assert_true(
		fabs(192 * device_model_expert_bytes(device_model_find("demo")) / 14.3 / 1048576 -
			1) < 0.01);
	struct balance_costs costs = device_costs(device_machine_find("4090-x4"), model);
	assert_true(fabs(costs.link_ns / 336.8e3 - 1) < 1e-3);
	assert_true(fabs(costs.gpu_expert_ns / 2.633e3 - 1) < 1e-3);
	assert_null(device_model_find("gpt-2"));
	assert_null(device_machine_find("abacus"));
}

static void drafts_pay_where_the_paper_says(void **state)
{
	(void)state;
	const struct device_machine *machine = device_machine_find("h100");
	const struct device_model *model = device_model_find("mixtral-8x7b");
	struct device_workload of = workload(ROUTING_UNIFORM, 3);
	of.accept_percent = 100;
	struct cache_trace trace = trace_of(machine, model, &of);
	struct device_condition all = device_condition(machine, model, &trace);
	assert_true(all.omega == 4);
	/* Four tokens with two of eight experts: 8 (1 - (6/8)^4) = 5.47 of them, over 2. */
	assert_true(fabs(all.a_over_b - 2.73) < 0.05);
	assert_true(all.draft > 0 && all.draft < 0.1);
	cache_trace_exit(&trace);
	of.accept_percent = 0;
	trace = trace_of(machine, model, &of);
	struct device_condition none = device_condition(machine, model, &trace);
	assert_true(none.omega == 1 && none.a_over_b > none.omega);
	cache_trace_exit(&trace);
}

/* What was accepted in a recording is accepted again, whatever the model; its experts need its shape. */
static void recorded_drafts_are_accepted_as_they_were(void **state)
{
	(void)state;
	const struct device_machine *machine = device_machine_find("3060");
	struct device_workload of = workload(ROUTING_ZIPF, 3);
	struct error err = {""};
	struct cache_trace recorded, trace;
	assert_int_equal(
		cache_trace_read("tests/data/traces/mixed-model-3.trace", &recorded, &err), 0);
	uint64_t emitted = 0, passes = 0;
	for (uint32_t i = 0; i < recorded.n_passes; i++)
		if (!recorded.passes[i].prefill) {
			emitted += recorded.passes[i].emitted;
			passes++;
		}
	of.recorded = &recorded;
	of.passes = (uint32_t)passes;
	trace = trace_of(machine, device_model_find("olmoe-1b-7b"), &of);
	uint64_t again = 0;
	for (uint32_t i = 0; i < trace.n_passes; i++)
		again += trace.passes[i].emitted;
	assert_int_equal(again, emitted);
	cache_trace_exit(&trace);
	of.routing = ROUTING_RECORDED;
	trace = trace_of(machine, device_model_find("demo"), &of);
	assert_int_equal(trace.n_uses, recorded.n_uses);
	assert_memory_equal(trace.uses, recorded.uses, trace.n_uses * sizeof(*trace.uses));
	cache_trace_exit(&trace);
	assert_int_equal(device_trace(machine, device_model_find("olmoe-1b-7b"), &of, &trace, &err),
		-EINVAL);
	assert_non_null(
		strstr(err.text, "6 layers with 4 of 32 experts, olmoe-1b-7b has 16 with 8 of 64"));
	cache_trace_exit(&recorded);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(time_is_conserved),
		cmocka_unit_test(what_is_resident_is_not_copied),
		cmocka_unit_test(a_link_without_cost_is_like_residence),
		cmocka_unit_test(a_link_that_is_too_slow_is_seen),
		cmocka_unit_test(shapes_weigh_what_their_files_do),
		cmocka_unit_test(drafts_pay_where_the_paper_says),
		cmocka_unit_test(recorded_drafts_are_accepted_as_they_were),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
