#include "services/expert-cache/stats.h"

#include "services/expert-cache/live_drafter.h"

#include "shared/base/memory.h"
#include "shared/spec/balance.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HOT_DEFAULT = 20 };

/* Pins of another epoch are a dead verifier's, and void. */
static bool is_pinned(uint64_t word, const _Atomic uint32_t *epoch)
{
	return slot_pins(word) > 0 &&
	       slot_epoch(word) == atomic_load_explicit(epoch, memory_order_acquire);
}

struct census stats_census(const struct slots *slots, uint32_t *layers)
{
	struct census census = {0};
	for (uint32_t slot = 0; slot < slots->n_slots; slot++) {
		uint64_t word = stats_load(&slots->state[slot]);
		if (slot_state(word) != SLOT_READY)
			continue;
		census.resident++;
		census.pinned += is_pinned(word, &slots->header->verifier_epoch);
		census.packed += slot_layout(word) == LAYOUT_TILES;
		if (layers != NULL && slot_layer(word) < slots->n_layers)
			layers[slot_layer(word)]++;
	}
	return census;
}

/* Cached bytes of all parts of the model's file; -1 when the kernel does not tell. */
static int64_t file_cached_bytes(const struct model *model)
{
	int64_t bytes = 0;
	for (size_t i = 0; i < gguf_n_parts(model->gguf); i++) {
		/* O_NONBLOCK: the file may have been replaced by something that blocks, and this
		 * thread must not wait. */
		int fd =
			open(gguf_part_at(model->gguf, i)->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
		int64_t part = fd >= 0 ? memory_file_cached(fd) : -1;
		if (fd >= 0)
			close(fd);
		if (part < 0)
			return -1;
		bytes += part;
	}
	return bytes;
}

static void fill_memory(struct service *service, Outrider__CacheStats *stats)
{
	struct slots_header *header = service->store.slots.header;
	stats->slots = service->budget;
	stats->slot_bytes = service->geometry.slot_bytes;
	stats->budget_bytes = service->budget * service->geometry.slot_bytes;
	stats->budget_min_bytes = slots_min(&service->geometry) * service->geometry.slot_bytes;
	stats->in_use = atomic_load_explicit(&header->in_use, memory_order_relaxed);
	stats->table_bytes = store_table_bytes(&service->store);
	stats->arena_bytes = store_arena_bytes(&service->store);
	stats->kept_bytes = store_kept_bytes(&service->store);
	stats->file_cached_bytes = file_cached_bytes(service->model);
}

static bool fill_room(const struct service *service, Outrider__CacheStats *stats)
{
	const struct settled *settled = &service->settled;
	const struct room *room = &settled->room;
	char text[512];
	budget_describe(room, settled->limit.where, text, sizeof(text));
	stats->room_bytes = room->bytes;
	stats->memory_bytes = room->memory;
	stats->weights_bytes = room->needs.of.weights;
	stats->kv_bytes = room->needs.of.kv;
	stats->sessions_bytes = room->needs.of.rest;
	stats->reserve_bytes = room->reserve;
	stats->needs_said = room->needs.said;
	stats->room = strdup(text);
	return stats->room != NULL;
}

static void fill_link(struct service *service, Outrider__CacheStats *stats)
{
	struct slots_header *header = service->store.slots.header;
	stats->link_bytes_per_second = reader_rate(service->reader);
	stats->link_reads = reader_depth(service->reader);
	stats->load_ns = stats_load(&header->load_ns);
	stats->submits = stats_load(&header->submits);
	stats->submit_ns = stats_load(&header->submit_ns);
	stats->submit_ns_max = stats_load(&header->submit_ns_max);
	stats->load_failures = stats_load(&service->transfer.loads.failures);
	stats->queue_depth = atomic_load_explicit(&service->transfer.queue, memory_order_relaxed);
}

static bool fill_hybrid(const struct device_slots *slots, Outrider__CacheDevice *to)
{
	struct device_header *header = slots->header;
	uint32_t rule = atomic_load_explicit(&header->hybrid, memory_order_relaxed);
	char *name = strdup(balance_rule_names[rule < BALANCE_RULES ? rule : BALANCE_OFF]);
	if (name == NULL)
		return false;
	to->hybrid = name;
	to->streamed = stats_load(&header->streamed);
	to->by_cpu = stats_load(&header->by_cpu);
	to->cpu_expert_ns = stats_load(&header->cpu_expert_ns);
	to->cpu_token_ns = stats_load(&header->cpu_token_ns);
	to->device_expert_ns = stats_load(&header->gpu_expert_ns);
	to->device_token_ns = stats_load(&header->gpu_token_ns);
	to->rows_ns = stats_load(&header->rows_ns);
	to->row_ns = stats_load(&header->row_ns);
	to->window_ns = stats_load(&header->window_ns);
	if (rule != BALANCE_SPAC)
		return true;
	to->tau = calloc(slots->n_layers, sizeof(*to->tau));
	if (to->tau == NULL)
		return false;
	to->n_tau = slots->n_layers;
	for (uint32_t l = 0; l < slots->n_layers; l++)
		to->tau[l] = atomic_load_explicit(&header->tau[l], memory_order_relaxed);
	return true;
}

static bool fill_device(const struct service *service, Outrider__CacheStats *stats)
{
	if (service->device == NULL)
		return true;
	const struct device *device = service->device;
	const struct device_slots *slots = &device->slots;
	struct device_header *header = slots->header;
	Outrider__CacheDevice *to = malloc(sizeof(*to));
	if (to == NULL)
		return false;
	outrider__cache_device__init(to);
	stats->device = to;
	char *name = strdup(service->backend->ops->name);
	char *budget = strdup(service->config.device_budget);
	if (name != NULL)
		to->name = name;
	if (budget != NULL)
		to->budget = budget;
	to->slots = slots->n_slots;
	to->slot_bytes = slots->slot_bytes;
	to->in_use = atomic_load_explicit(&header->in_use, memory_order_relaxed);
	for (uint32_t slot = 0; slot < slots->n_slots; slot++)
		to->pinned += is_pinned(stats_load(&slots->state[slot]), &header->verifier_epoch);
	to->all_pinned = atomic_load_explicit(&header->resident, memory_order_relaxed) == 1;
	to->adopted = device->found.ready;
	to->hits = stats_load(&header->hits);
	to->waits = stats_load(&header->waits);
	to->misses = stats_load(&header->misses);
	to->self_served = stats_load(&header->self_served);
	to->rescued = stats_load(&header->rescued);
	to->wait_ns = stats_load(&header->wait_ns);
	to->loads = stats_load(&header->loads);
	to->prefetched = stats_load(&header->prefetched);
	to->evictions = stats_load(&header->evictions);
	to->bytes_loaded = stats_load(&header->bytes_loaded);
	to->load_ns = stats_load(&header->load_ns);
	to->demanded = stats_load(&header->demanded);
	to->in_flight = atomic_load_explicit(&header->in_flight, memory_order_relaxed);
	to->flight_ns = stats_load(&header->flight_ns);
	to->busy_ns = stats_load(&header->busy_ns);
	to->slot_waits = stats_load(&header->slot_waits);
	struct backend_memory memory;
	service->backend->ops->memory(service->backend, &memory);
	to->memory_bytes = memory.bytes;
	to->free_bytes = memory.free;
	to->verifier_bytes = service->device_share.needs;
	to->kv_bytes = service->device_share.kv;
	to->limit_bytes = service->device_share.limit;
	to->verifier_said = service->device_share.said;
	to->drafter_bytes = live_drafter_bytes(service);
	to->reserve_bytes = service->device_share.reserve;
	to->room_bytes = service->device_share.whole;
	return fill_hybrid(slots, to);
}

static void fill_totals(struct service *service, Outrider__CacheStats *stats)
{
	struct slots_header *header = service->store.slots.header;
	stats->hits = stats_load(&header->demand_hits);
	stats->misses = stats_load(&header->demand_misses);
	stats->loads = stats_load(&header->loads);
	stats->evictions = stats_load(&header->evictions);
	stats->bytes_loaded = stats_load(&header->bytes_loaded);
	stats->hints = stats_load(&header->hints);
	stats->hint_loads = stats_load(&header->hint_loads);
	stats->hints_kept =
		atomic_load_explicit(&service->transfer.hints_kept, memory_order_relaxed);
	stats->self_served = stats_load(&header->self_served);
	stats->activations_lost = ring_dropped(&service->store.slots.activations);
	stats->hints_lost = ring_dropped(&service->store.slots.hints) +
			    ring_dropped(&service->store.slots.gates);
}

/* Fills in one layer's counters and adds them to the totals. */
static void fill_layer(
	const struct slots_counts *counts, Outrider__CacheLayer *layer, Outrider__CacheStats *all)
{
	layer->hits = stats_load(&counts->hits);
	layer->misses = stats_load(&counts->misses);
	layer->loads = stats_load(&counts->loads);
	layer->evictions = stats_load(&counts->evictions);
	layer->bytes_loaded = stats_load(&counts->bytes_loaded);
	layer->self_served = stats_load(&counts->self_served);
	all->wait_ns += layer->wait_ns = stats_load(&counts->wait_ns);
	all->prefetched += layer->prefetched = stats_load(&counts->prefetched);
	all->prefetch_used += layer->prefetch_used = stats_load(&counts->prefetch_used);
	all->prefetch_wasted += layer->prefetch_wasted = stats_load(&counts->prefetch_wasted);
	all->promoted += layer->promoted = stats_load(&counts->promoted);
	all->cancelled += layer->cancelled = stats_load(&counts->cancelled);
}

/* Goes through the layers that have experts; adds them to the reply only when asked for. */
static bool fill_layers(struct service *service, const uint32_t *residents, bool per_layer,
	Outrider__CacheStats *stats)
{
	const struct slots *slots = &service->store.slots;
	stats->layers = calloc(slots->n_layers, sizeof(void *));
	if (stats->layers == NULL)
		return false;
	for (uint32_t l = 0; l < slots->n_layers; l++) {
		Outrider__CacheLayer sums = OUTRIDER__CACHE_LAYER__INIT;
		if (!service->geometry.layers[l].moe)
			continue;
		sums.layer = l;
		sums.resident = residents[l];
		fill_layer(&slots->counts[l], &sums, stats);
		if (!per_layer)
			continue;
		Outrider__CacheLayer *layer = malloc(sizeof(*layer));
		if (layer == NULL)
			return false;
		*layer = sums;
		stats->layers[stats->n_layers++] = layer;
		if (!hint_stats_layer(&service->quality, l, layer))
			return false;
	}
	return true;
}

bool stats_fill(struct service *service, bool per_layer, Outrider__Envelope *reply)
{
	Outrider__CacheStats *stats = malloc(sizeof(*stats));
	if (stats == NULL)
		return false;
	outrider__cache_stats__init(stats);
	reply->body_case = OUTRIDER__ENVELOPE__BODY_CACHE_STATS;
	reply->cache_stats = stats;
	char *policy = strdup(service->config.policy);
	char *budget = strdup(service->config.budget);
	char *link = strdup(service->budget > 0 ? reader_link(service->reader) : "idle");
	if (policy != NULL)
		stats->policy = policy;
	if (budget != NULL)
		stats->budget = budget;
	if (link != NULL)
		stats->link = link;
	if (service->budget == 0)
		return true;
	uint32_t residents[LIMIT_LAYERS] = {0};
	struct census census = stats_census(&service->store.slots, residents);
	stats->resident = census.resident;
	stats->pinned = census.pinned;
	stats->packed = census.packed;
	fill_memory(service, stats);
	fill_link(service, stats);
	fill_totals(service, stats);
	if (!fill_room(service, stats) || !fill_device(service, stats) ||
		!hint_stats_all(&service->quality, stats))
		return false;
	return fill_layers(service, residents, per_layer, stats);
}

struct hot {
	uint64_t uses;
	uint32_t layer, expert;
};

/* By descending uses, then in the model's order. */
static int by_uses(const void *a, const void *b)
{
	const struct hot *left = a, *right = b;
	if (left->uses != right->uses)
		return left->uses > right->uses ? -1 : 1;
	if (left->layer != right->layer)
		return left->layer < right->layer ? -1 : 1;
	return left->expert < right->expert ? -1 : left->expert > right->expert;
}

/* Lists the experts that were used at all; returns their number, and the sum of their uses. */
static uint32_t list_used(const struct slots *slots, struct hot *list, uint64_t *uses)
{
	uint32_t n = 0;
	*uses = 0;
	for (uint32_t layer = 0; layer < slots->n_layers; layer++)
		for (uint32_t expert = 0; expert < slots->n_experts; expert++) {
			uint64_t count = stats_load(slots_uses(slots, layer, expert));
			if (count == 0)
				continue;
			list[n++] = (struct hot){count, layer, expert};
			*uses += count;
		}
	qsort(list, n, sizeof(*list), by_uses);
	return n;
}

static bool add_expert(const struct slots *slots, const struct hot *hot, Outrider__CacheHot *to)
{
	Outrider__CacheExpert *expert = malloc(sizeof(*expert));
	if (expert == NULL)
		return false;
	outrider__cache_expert__init(expert);
	expert->layer = hot->layer;
	expert->expert = hot->expert;
	expert->uses = hot->uses;
	uint32_t word = atomic_load_explicit(
		slots_word(slots, hot->layer, hot->expert), memory_order_relaxed);
	expert->resident = word != 0 && word != SLOTS_REFUSED;
	to->experts[to->n_experts++] = expert;
	return true;
}

bool stats_fill_hot(struct service *service, uint32_t n, Outrider__Envelope *reply)
{
	Outrider__CacheHot *hot = malloc(sizeof(*hot));
	if (hot == NULL)
		return false;
	outrider__cache_hot__init(hot);
	reply->body_case = OUTRIDER__ENVELOPE__BODY_CACHE_HOT;
	reply->cache_hot = hot;
	if (service->budget == 0)
		return true;
	const struct slots *slots = &service->store.slots;
	struct hot *list = malloc((size_t)slots->n_layers * slots->n_experts * sizeof(*list));
	if (list == NULL)
		return false;
	uint32_t found = list_used(slots, list, &hot->uses);
	uint32_t wanted = n > 0 ? n : HOT_DEFAULT;
	if (wanted > found)
		wanted = found;
	hot->experts = calloc(wanted > 0 ? wanted : 1, sizeof(void *));
	bool good = hot->experts != NULL;
	for (uint32_t i = 0; good && i < wanted; i++)
		good = add_expert(slots, &list[i], hot);
	free(list);
	return good;
}
