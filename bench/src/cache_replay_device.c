#include "bench/src/cache_replay_private.h"

#include <math.h>
#include <string.h>

static enum balance_place place_of(const struct sim *sim, uint32_t layer, uint32_t expert)
{
	uint32_t where = *replay_slot_of(sim, layer, expert);
	if (where == 0)
		return BALANCE_IN_HOST;
	return sim->slots[where - 1].use == RESIDENT ? BALANCE_IN_SLOT : BALANCE_COMING;
}

static double until(const struct sim *sim, uint64_t at_ns)
{
	return at_ns > sim->now_ns ? (double)(at_ns - sim->now_ns) : 0;
}

static struct balance_expert describe(
	const struct sim *sim, uint32_t layer, const struct trace_use *use)
{
	struct balance_expert expert = {.expert = use->expert,
		.tokens = use->tokens,
		.place = place_of(sim, layer, use->expert)};
	if (expert.place == BALANCE_COMING)
		expert.arrives_ns = until(
			sim, sim->slots[*replay_slot_of(sim, layer, use->expert) - 1].arrives_ns);
	if (sim->utility.of)
		expert.utility =
			sim->utility.of[(size_t)layer * sim->trace->n_experts + use->expert].score;
	return expert;
}

/* Says who computes each expert of the layer, in by_cpu. Returns how long the CPU takes. */
static uint64_t decide(
	struct sim *sim, const struct trace_pass *pass, const struct trace_layer *layer)
{
	struct balance_expert experts[LIMIT_EXPERTS];
	const struct replay_device *device = sim->options->device;
	struct balance_layer of = {.experts = experts,
		.n = layer->n_uses,
		.slots = sim->options->n_slots,
		.link_busy_ns = until(sim, sim->link_free_ns),
		.cpu_busy_ns = (double)device->hand_over_ns,
		.window_ns = (double)pass->draft_ns / sim->trace->n_layers,
		.bound = sim->utility.of ? sim->utility.bound : 1};
	for (uint32_t i = 0; i < of.n; i++) {
		experts[i] = describe(sim, layer->layer, &sim->trace->uses[layer->first_use + i]);
		of.slots -= experts[i].place != BALANCE_IN_HOST && of.slots > 0;
	}
	sim->totals->tau += balance(device->rule, &of, &device->costs);
	sim->totals->layers++;
	double cpu_ns = 0;
	for (uint32_t i = 0; i < of.n; i++) {
		sim->by_cpu[experts[i].expert] = experts[i].who == BALANCE_CPU;
		if (experts[i].who != BALANCE_CPU)
			continue;
		cpu_ns += balance_cpu_ns(&device->costs, experts[i].tokens);
		sim->totals->cpu_uses++;
	}
	sim->totals->cpu_ns += (uint64_t)llround(cpu_ns);
	return (uint64_t)llround(cpu_ns);
}

static void compute(struct sim *sim, double ns)
{
	sim->totals->device_ns += (uint64_t)llround(ns);
	replay_advance(sim, (uint64_t)llround(ns));
}

static double expert_ns(const struct sim *sim, uint32_t tokens)
{
	return balance_gpu_ns(&sim->options->device->costs, tokens);
}

static uint32_t tokens_of(const struct sim *sim, const struct trace_layer *layer, uint32_t expert)
{
	for (uint32_t i = 0; i < layer->n_uses; i++)
		if (sim->trace->uses[layer->first_use + i].expert == expert)
			return sim->trace->uses[layer->first_use + i].tokens;
	return 1;
}

/* The device's part. there_ns: its resident experts; n_missing: how many it waits for. */
static void run_device(
	struct sim *sim, const struct trace_layer *layer, double there_ns, uint32_t n_missing)
{
	bool blocking = sim->options->device->blocking;
	if (!blocking)
		compute(sim, there_ns);
	for (; n_missing > 0; n_missing--) {
		uint32_t expert = replay_wait(sim);
		if (sim->stuck)
			return;
		double ns = expert_ns(sim, tokens_of(sim, layer, expert));
		if (blocking)
			there_ns += ns;
		else
			compute(sim, ns);
	}
	if (blocking)
		compute(sim, there_ns);
}

/* Algorithm 1 of MoE-SpAc for the layer's experts. */
static void learn(struct sim *sim, const struct trace_layer *layer)
{
	uint32_t n = sim->trace->n_experts, at = layer->first_use;
	for (uint32_t e = 0; sim->utility.of && e < n; e++) {
		const struct trace_use *use = &sim->trace->uses[at];
		bool used = at < layer->first_use + layer->n_uses && use->expert == e;
		uint32_t id = layer->layer * n + e;
		if (used || sim->utility.of[id].frequency > 0)
			utility_step(&sim->utility, id, used ? use->tokens : 0);
		at += used;
	}
}

/* The link's queue of what nobody waits for: the last that the CPU computed. */
static void fill(struct sim *sim, const struct trace_layer *layer)
{
	for (uint32_t i = 0; i < layer->n_uses; i++) {
		uint32_t expert = sim->trace->uses[layer->first_use + i].expert;
		bool cpu = sim->by_cpu[expert];
		sim->by_cpu[expert] = false;
		if (!cpu || sim->options->device->rule != BALANCE_GREEDY)
			continue;
		if (sim->n_fills == REPLAY_FILLS)
			memmove(sim->fills, sim->fills + 1, --sim->n_fills * sizeof(*sim->fills));
		sim->fills[sim->n_fills++] =
			(struct cache_prefetch){.layer = layer->layer, .expert = expert};
	}
}

void replay_device_layer(
	struct sim *sim, const struct trace_pass *pass, const struct trace_layer *layer)
{
	compute(sim, layer->before_ns);
	sim->iteration++;
	uint64_t began_ns = sim->now_ns, cpu_ns = decide(sim, pass, layer);
	double there_ns = 0;
	uint32_t n_missing = 0;
	for (uint32_t i = 0; i < layer->n_uses; i++) {
		const struct trace_use *use = &sim->trace->uses[layer->first_use + i];
		bool there = replay_find(sim, layer->layer, use->expert) != SLOT_NONE;
		there_ns += there ? expert_ns(sim, use->tokens) : 0;
		n_missing += !there && !sim->by_cpu[use->expert];
	}
	replay_ask(sim, pass, layer);
	replay_layer_hints(sim, pass, layer);
	run_device(sim, layer, there_ns, n_missing);
	if (sim->stuck)
		return;
	uint64_t end_ns = began_ns + cpu_ns + sim->options->device->hand_over_ns;
	if (cpu_ns > 0 && end_ns > sim->now_ns) {
		sim->totals->cpu_wait_ns += end_ns - sim->now_ns;
		replay_advance(sim, end_ns - sim->now_ns);
	}
	replay_end_layer(sim, layer);
	learn(sim, layer);
	fill(sim, layer);
}
