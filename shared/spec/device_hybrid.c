/*
 * Which of the experts that a device lacks the CPU computes, in the slots in memory, while the device
 * computes what it has and others are copied to it. The rules are balance.h's; what they weigh is
 * measured while the service runs: computing by the pass, copies by the expert-cache.
 */
#include "shared/base/counter.h"
#include "shared/spec/slots_source_private.h"

#include <string.h>

/* gamma of MoE-SpAc's utilities: counts are scaled to so many tokens, and one. */
#define GAMMA UTILITY_BOUND
/* A fill that has not come after so many layers is given up. */
#define FILL_LAYERS 256u

int device_hybrid_init(struct experts_cached *cached, struct error *err)
{
	const struct slots_geometry *geometry = &cached->geometry;
	if (cached->options.host == NULL)
		return 0;
	return utility_init(
		&cached->hybrid.utility, geometry->n_layers * geometry->n_experts, GAMMA, err);
}

void device_hybrid_exit(struct experts_cached *cached)
{
	if (cached->hybrid.utility.of != NULL)
		utility_exit(&cached->hybrid.utility);
}

void experts_cached_hybrid(struct experts_cached *cached, int rule)
{
	cached->hybrid.rule = cached->options.host != NULL ? (enum balance_rule)rule : BALANCE_OFF;
	cached->source.cpu_wanted = cached->hybrid.rule != BALANCE_OFF;
}

void experts_cached_drafted(struct experts_cached *cached, uint64_t ns)
{
	cached->hybrid.window_ns += ((double)ns - cached->hybrid.window_ns) / 8;
}

static struct utility_state *utility_of(struct experts_cached *cached, uint32_t expert)
{
	return &cached->hybrid.utility
			.of[(size_t)cached->layer * cached->geometry.n_experts + expert];
}

/* How many rows chose so many experts. */
static uint32_t rows_of(const struct experts_cached *cached, uint32_t choices)
{
	uint32_t used = cached->source.model->config.n_experts_used;
	return used > 0 && choices >= used ? choices / used : 1;
}

/* Algorithm 1 of MoE-SpAc, for the layer that begins: its scores are those of the steps before. */
static void learn(struct experts_cached *cached, const uint16_t *tokens)
{
	uint32_t first = cached->layer * cached->geometry.n_experts, choices = 0;
	uint16_t chosen[LIMIT_EXPERTS] = {0};
	for (uint32_t i = 0; i < cached->n; i++) {
		chosen[cached->experts[i]] = tokens[i];
		choices += tokens[i];
	}
	uint32_t rows = rows_of(cached, choices);
	for (uint32_t e = 0; e < cached->geometry.n_experts; e++) {
		uint32_t f = (uint32_t)utility_scale(chosen[e], rows, GAMMA + 1);
		if (f > 0 || utility_of(cached, e)->frequency > 0)
			utility_step(&cached->hybrid.utility, first + e, f);
	}
}

static double load_ns(_Atomic uint64_t *measured)
{
	return (double)atomic_load_explicit(measured, memory_order_relaxed);
}

static struct balance_costs costs_of(struct experts_cached *cached)
{
	const struct expert_costs *measured = &cached->source.costs;
	return (struct balance_costs){.cpu_expert_ns = measured->cpu_expert_ns,
		.cpu_token_ns = measured->cpu_token_ns,
		.gpu_expert_ns = measured->gpu_expert_ns,
		.gpu_token_ns = measured->gpu_token_ns,
		.link_ns = load_ns(&cached->device.slots.header->load_ns)};
}

/* When the CPU has the inputs of the layer, and can begin. */
static double rows_ns(const struct experts_cached *cached, const uint16_t *tokens)
{
	uint32_t choices = 0;
	for (uint32_t i = 0; i < cached->n; i++)
		choices += tokens[i];
	uint32_t rows = rows_of(cached, choices);
	const struct expert_costs *costs = &cached->source.costs;
	return rows <= EXPERT_ROWS_FEW ? costs->rows_ns : rows * costs->row_ns;
}

/* What is not in memory either comes from the disk and over the link, whoever wants it. */
static double from_disk_ns(struct experts_cached *cached)
{
	return load_ns(&cached->slots.header->load_ns) +
	       load_ns(&cached->device.slots.header->load_ns);
}

/* Describes the layer's experts, and pins those in memory that the device lacks. */
static void describe(struct experts_cached *cached, const uint16_t *tokens, double link_ns,
	struct balance_expert experts[LIMIT_EXPERTS])
{
	const uint16_t *lists[] = {cached->missing, cached->unserved};
	const uint32_t n[] = {cached->n_missing, cached->n_unserved};
	for (uint32_t i = 0; i < cached->n; i++)
		experts[i] = (struct balance_expert){.expert = i,
			.tokens = tokens[i],
			.utility = utility_of(cached, cached->experts[i])->score};
	for (uint32_t c = 0; c < cached->n_coming; c++) {
		experts[cached->coming[c]].place = BALANCE_COMING;
		experts[cached->coming[c]].arrives_ns = link_ns * (c + 1);
	}
	for (int l = 0; l < 2; l++)
		for (uint32_t m = 0; m < n[l]; m++) {
			uint32_t i = lists[l][m];
			cached->slot[i] = slots_pin(
				&cached->slots, cached->epoch, cached->layer, cached->experts[i]);
			bool there = cached->slot[i] != SLOT_NONE;
			experts[i].place = there ? BALANCE_IN_HOST : BALANCE_COMING;
			experts[i].arrives_ns = there ? 0 : from_disk_ns(cached);
		}
}

/* Takes the CPU's out of a list of what is missing; unpins the others. */
static uint32_t take(struct experts_cached *cached, uint16_t *list, uint32_t n,
	const struct balance_expert experts[LIMIT_EXPERTS])
{
	uint32_t kept = 0;
	for (uint32_t m = 0; m < n; m++) {
		uint16_t i = list[m];
		if (experts[i].who == BALANCE_CPU) {
			cached->hybrid.of[cached->hybrid.n++] = i;
			continue;
		}
		list[kept++] = i;
		if (experts[i].place == BALANCE_IN_HOST)
			cached->damaged |= !slots_unpin(&cached->slots, cached->slot[i],
				cached->epoch, cached->layer, cached->experts[i]);
	}
	return kept;
}

/* What is on its way may arrive later than the CPU would have computed it: the CPU takes it, and the
 * copy goes on for later passes. Those that arrive last come first. */
static void take_late(struct experts_cached *cached, const struct balance_costs *costs,
	double busy_ns, const struct balance_expert experts[LIMIT_EXPERTS])
{
	struct device_hybrid *hybrid = &cached->hybrid;
	for (uint32_t i = 0; i < hybrid->n; i++)
		busy_ns += balance_cpu_ns(costs, experts[hybrid->of[i]].tokens);
	while (cached->n_coming > 0) {
		uint16_t i = cached->coming[cached->n_coming - 1];
		busy_ns += balance_cpu_ns(costs, experts[i].tokens);
		if (busy_ns >= experts[i].arrives_ns)
			return;
		uint32_t slot =
			slots_pin(&cached->slots, cached->epoch, cached->layer, cached->experts[i]);
		if (slot == SLOT_NONE)
			return;
		cached->damaged |= !device_unpin(&cached->device.slots, cached->slot[i],
			cached->device.epoch, cached->layer, cached->experts[i]);
		cached->slot[i] = slot;
		hybrid->of[hybrid->n++] = i;
		hybrid->n_late++;
		cached->n_coming--;
	}
}

static void show(struct experts_cached *cached, uint32_t tau)
{
	struct device_header *header = cached->device.slots.header;
	const struct expert_costs *costs = &cached->source.costs;
	const double ns[] = {costs->cpu_expert_ns, costs->cpu_token_ns, costs->gpu_expert_ns,
		costs->gpu_token_ns, costs->rows_ns, costs->row_ns, cached->hybrid.window_ns};
	_Atomic uint64_t *const to[] = {&header->cpu_expert_ns, &header->cpu_token_ns,
		&header->gpu_expert_ns, &header->gpu_token_ns, &header->rows_ns, &header->row_ns,
		&header->window_ns};
	for (size_t i = 0; i < sizeof(ns) / sizeof(*ns); i++)
		atomic_store_explicit(to[i], (uint64_t)ns[i], memory_order_relaxed);
	atomic_store_explicit(&header->tau[cached->layer], (uint8_t)tau, memory_order_relaxed);
	counter_add(&header->by_cpu, cached->hybrid.n);
}

static void share(struct experts_cached *cached, const uint16_t *tokens)
{
	struct balance_expert experts[LIMIT_EXPERTS];
	struct balance_costs costs = costs_of(cached);
	struct balance_layer layer = {.experts = experts,
		.n = cached->n,
		.slots = cached->device.slots.n_slots,
		.link_busy_ns = costs.link_ns * cached->n_coming,
		.cpu_busy_ns = rows_ns(cached, tokens),
		.window_ns = cached->hybrid.window_ns / cached->geometry.n_layers,
		.bound = UTILITY_BOUND};
	describe(cached, tokens, costs.link_ns, experts);
	uint32_t tau = balance(cached->hybrid.rule, &layer, &costs);
	cached->n_missing = take(cached, cached->missing, cached->n_missing, experts);
	cached->n_unserved = take(cached, cached->unserved, cached->n_unserved, experts);
	take_late(cached, &costs, layer.cpu_busy_ns, experts);
	show(cached, tau);
}

void device_hybrid_choose(struct experts_cached *cached, const uint16_t *tokens)
{
	enum balance_rule rule = cached->hybrid.rule;
	atomic_store_explicit(&cached->device.slots.header->hybrid, rule, memory_order_relaxed);
	cached->hybrid.n_late = 0;
	if (rule == BALANCE_OFF)
		return;
	if (cached->source.cpu_can && cached->n_missing + cached->n_unserved + cached->n_coming > 0)
		share(cached, tokens);
	cached->source.n_by_cpu = cached->hybrid.n;
	if (rule == BALANCE_SPAC)
		learn(cached, tokens);
}

uint32_t device_hybrid_view(struct experts_cached *cached, struct expert_view *views)
{
	uint32_t n = 0;
	while (cached->hybrid.n > 0) {
		slots_view_in_memory(cached, cached->hybrid.of[--cached->hybrid.n], &views[n]);
		views[n++].by_cpu = true;
	}
	return n;
}

static bool filled(struct experts_cached *cached)
{
	const struct device_hybrid *hybrid = &cached->hybrid;
	const struct device_slots *slots = &cached->device.slots;
	return !hybrid->filling || cached->iteration - hybrid->fill_iteration > FILL_LAYERS ||
	       atomic_load_explicit(device_word(slots, hybrid->fill_layer, hybrid->fill_expert),
		       memory_order_relaxed) != 0;
}

void device_hybrid_fill(struct experts_cached *cached, const uint16_t *tokens)
{
	struct device_hybrid *hybrid = &cached->hybrid;
	/* MoE-SpAc leaves what is cold where it is; demands that are waited for come first. */
	uint32_t n = hybrid->n - hybrid->n_late;
	if (hybrid->rule != BALANCE_GREEDY || n == 0 ||
		cached->n_missing + cached->n_unserved > 0 || !filled(cached) ||
		!slots_cache_alive(cached) || !slots_worker_alive(cached))
		return;
	uint16_t most = hybrid->of[0];
	for (uint32_t i = 1; i < n; i++)
		if (tokens[hybrid->of[i]] > tokens[most])
			most = hybrid->of[i];
	uint32_t expert = cached->experts[most];
	hybrid->filling = slots_push_demand(cached, expert, tokens[most]);
	hybrid->fill_layer = cached->layer;
	hybrid->fill_expert = expert;
	hybrid->fill_iteration = cached->iteration;
	doorbell_ring(&cached->slots.hinted->work);
}
