#include "services/expert-cache/live.h"

#include "proto/envelope.pb-c.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/ipc/daemon_knobs.h"

#include <stdlib.h>
#include <string.h>

#define FILE_CHECK_NS 500000000ull
#define STATE_NS 200000000ull
/* The worker looks at the world every 50 ms at least. */
#define STALL_NS 10000000000ull

static uint64_t load(_Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

/* What the slots hold now; residents per layer into layers[] (may be NULL). Words change meanwhile: a picture. */
struct census {
	uint32_t resident, pinned;
};

static struct census take_census(const struct slots *slots, uint32_t *layers)
{
	struct census census = {0};
	for (uint32_t slot = 0; slot < slots->n_slots; slot++) {
		uint64_t word = load(&slots->state[slot]);
		if (slot_state(word) != SLOT_READY)
			continue;
		census.resident++;
		census.pinned += slot_pins(word) > 0;
		if (layers != NULL && slot_layer(word) < slots->n_layers)
			layers[slot_layer(word)]++;
	}
	return census;
}

static void fill_totals(struct service *service, Outrider__CacheStats *stats)
{
	struct slots_header *header = service->store.slots.header;
	stats->slots = service->budget;
	stats->slot_bytes = service->geometry.slot_bytes;
	stats->budget_bytes = service->budget * service->geometry.slot_bytes;
	stats->budget_min_bytes = slots_min(&service->geometry) * service->geometry.slot_bytes;
	stats->hits = load(&header->demand_hits);
	stats->misses = load(&header->demand_misses);
	stats->loads = load(&header->loads);
	stats->evictions = load(&header->evictions);
	stats->bytes_loaded = load(&header->bytes_loaded);
	stats->hints = load(&header->hints);
	stats->hint_loads = load(&header->hint_loads);
	stats->self_served = load(&header->self_served);
	stats->queue_depth = atomic_load_explicit(&service->transfer.queue, memory_order_relaxed);
}

/* Of the layers that have experts. */
static bool fill_layers(
	struct service *service, const uint32_t *residents, Outrider__CacheStats *stats)
{
	const struct slots *slots = &service->store.slots;
	stats->layers = calloc(slots->n_layers, sizeof(void *));
	if (stats->layers == NULL)
		return false;
	for (uint32_t l = 0; l < slots->n_layers; l++) {
		if (!service->geometry.layers[l].moe)
			continue;
		Outrider__CacheLayer *layer = malloc(sizeof(*layer));
		if (layer == NULL)
			return false;
		outrider__cache_layer__init(layer);
		layer->layer = l;
		layer->hits = load(&slots->counts[l].hits);
		layer->misses = load(&slots->counts[l].misses);
		layer->loads = load(&slots->counts[l].loads);
		layer->evictions = load(&slots->counts[l].evictions);
		layer->resident = residents[l];
		stats->layers[stats->n_layers++] = layer;
		if (!hint_stats_layer(&service->quality, l, layer))
			return false;
	}
	return true;
}

/* All of it from malloc: the reply is freed by protobuf-c, half filled ones too. */
static bool fill_stats(struct service *service, bool per_layer, Outrider__Envelope *reply)
{
	Outrider__CacheStats *stats = malloc(sizeof(*stats));
	if (stats == NULL)
		return false;
	outrider__cache_stats__init(stats);
	reply->body_case = OUTRIDER__ENVELOPE__BODY_CACHE_STATS;
	reply->cache_stats = stats;
	char *policy = strdup(service->config.policy);
	char *link = strdup(service->budget > 0 ? reader_link(service->reader) : "idle");
	if (policy != NULL)
		stats->policy = policy;
	if (link != NULL)
		stats->link = link;
	if (service->budget == 0)
		return true;
	uint32_t residents[LIMIT_LAYERS] = {0};
	struct census census = take_census(&service->store.slots, residents);
	stats->resident = census.resident;
	stats->pinned = census.pinned;
	fill_totals(service, stats);
	if (!hint_stats_all(&service->quality, stats))
		return false;
	return !per_layer || fill_layers(service, residents, stats);
}

static bool on_admin(void *arg, const Outrider__Envelope *request, Outrider__Envelope *reply)
{
	struct service *service = arg;
	switch (request->body_case) {
	case OUTRIDER__ENVELOPE__BODY_CACHE_STATS_REQUEST:
		return fill_stats(service, request->cache_stats_request->per_layer, reply);
	default:
		return false;
	}
}

static void on_detail(void *arg, struct daemon_details *to)
{
	struct service *service = arg;
	daemon_detail(to, "model", "%s", service->config.model);
	daemon_detail(to, "slots", "%u", service->budget);
	if (service->budget == 0)
		return;
	struct slots_header *header = service->store.slots.header;
	struct census census = take_census(&service->store.slots, NULL);
	uint64_t hits = load(&header->demand_hits), misses = load(&header->demand_misses);
	daemon_detail(to, "resident", "%u", census.resident);
	daemon_detail(to, "experts", "%u", service->geometry.n_total);
	unsigned long long budget_bytes = service->budget * service->geometry.slot_bytes;
	daemon_detail(to, "budget_bytes", "%llu", budget_bytes);
	daemon_detail(to, "policy", "%s", service->config.policy);
	daemon_detail(to, "link", "%s", reader_link(service->reader));
	daemon_detail(to, "link_bytes_per_second", "%.0f", reader_rate(service->reader));
	daemon_detail(to, "hits", "%llu", (unsigned long long)hits);
	daemon_detail(to, "misses", "%llu", (unsigned long long)misses);
	daemon_detail(to, "adopted", "%u", service->store.found.ready);
	daemon_detail(to, "load_failures", "%llu",
		(unsigned long long)load(&service->transfer.loads.failures));
}

static bool worker_alive(void *arg)
{
	struct service *service = arg;
	return service->budget == 0 || clock_ns() - load(&service->transfer.beat_ns) < STALL_NS;
}

static void on_state(void *arg)
{
	struct service *service = arg;
	if (service->file_changed)
		daemon_set_state(
			service->daemon, "degraded: the model file changed: nothing is loaded");
	else
		daemon_set_state(service->daemon, "ready");
}

static void on_file_check(void *arg)
{
	struct service *service = arg;
	struct error err;
	bool changed = reader_check(service->reader, &err) != 0;
	if (changed && !service->file_changed)
		loads_lose(&service->transfer.loads, &err);
	service->file_changed = changed;
}

static int open_knobs(struct service *service, const struct options *options, struct error *err)
{
	const struct daemon_knobs knobs = {
		.keys = cache_config_keys,
		.config = &service->config,
		.config_bytes = sizeof(service->config),
		.check = live_check,
		.apply = live_apply,
		.arg = service,
		.config_path = options->config_path,
		.on_command_line = options->on_command_line,
	};
	return daemon_knobs_open(service->daemon, &knobs, err);
}

int handlers_open(struct service *service, const struct options *options, struct error *err)
{
	struct daemon *daemon = service->daemon;
	int status = open_knobs(service, options, err);
	if (status != 0)
		return status;
	daemon_on_detail(daemon, on_detail, service);
	daemon_on_alive(daemon, worker_alive, service);
	if (service->budget > 0 &&
		(daemon_add_timer(daemon, FILE_CHECK_NS, on_file_check, service) < 0 ||
			daemon_add_timer(daemon, STATE_NS, on_state, service) < 0))
		return error_set(err, ENOSPC, "too many timers");
	return daemon_admin_open(daemon, on_admin, service, err);
}
