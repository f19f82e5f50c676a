#include "services/expert-cache/live.h"
#include "services/expert-cache/live_device.h"
#include "services/expert-cache/live_drafter.h"
#include "services/expert-cache/stats.h"

#include "kernels/kernels.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/ipc/daemon_knobs.h"
#include "shared/ipc/peers.h"
#include "shared/ipc/registry.h"
#include "shared/model/gguf/gguf_guard.h"
#include "shared/spec/balance.h"
#include "shared/spec/file_digest.h"

#include <stdlib.h>
#include <string.h>

#define FILE_CHECK_NS 200000000ull
#define STATE_NS 200000000ull
/* The worker checks everything at least every 50 ms. */
#define STALL_NS 10000000000ull

static int on_admin(void *arg, const Outrider__Envelope *request, Outrider__Envelope *reply)
{
	struct service *service = arg;
	switch (request->body_case) {
	case OUTRIDER__ENVELOPE__BODY_CACHE_STATS_REQUEST:
		return stats_fill(service, request->cache_stats_request->per_layer, reply)
			       ? 0
			       : -ENOMEM;
	case OUTRIDER__ENVELOPE__BODY_CACHE_HOT_REQUEST:
		return stats_fill_hot(service, request->cache_hot_request->n, reply) ? 0 : -ENOMEM;
	default:
		return -EOPNOTSUPP;
	}
}

static void on_detail(void *arg, struct daemon_details *to)
{
	struct service *service = arg;
	daemon_detail_file(to, "model", service->config.model);
	daemon_detail(
		to, "digested_bytes", "%llu", (unsigned long long)model_file_digested(service));
	daemon_detail(to, "slots", "%u", service->budget);
	if (service->budget == 0)
		return;
	struct slots_header *header = service->store.slots.header;
	struct census census = stats_census(&service->store.slots, NULL);
	uint64_t hits = stats_load(&header->demand_hits),
		 misses = stats_load(&header->demand_misses);
	daemon_detail(to, "resident", "%u", census.resident);
	daemon_detail(to, "experts", "%u", service->geometry.n_total);
	unsigned long long budget_bytes = service->budget * service->geometry.slot_bytes;
	daemon_detail(to, "budget_bytes", "%llu", budget_bytes);
	daemon_detail(to, "room_bytes", "%llu", (unsigned long long)service->settled.room.bytes);
	daemon_detail(to, "kv_bytes", "%llu", (unsigned long long)service->needs.of.kv);
	daemon_detail(to, "kv_from", "%s", service->needs.said ? "verifier" : "estimate");
	daemon_detail(
		to, "arena_bytes", "%llu", (unsigned long long)store_arena_bytes(&service->store));
	daemon_detail(
		to, "table_bytes", "%llu", (unsigned long long)store_table_bytes(&service->store));
	daemon_detail(
		to, "kept_bytes", "%llu", (unsigned long long)store_kept_bytes(&service->store));
	daemon_detail(to, "policy", "%s", service->config.policy);
	daemon_detail(to, "link", "%s", reader_link(service->reader));
	daemon_detail(to, "link_bytes_per_second", "%.0f", reader_rate(service->reader));
	daemon_detail(to, "hits", "%llu", (unsigned long long)hits);
	daemon_detail(to, "misses", "%llu", (unsigned long long)misses);
	daemon_detail(to, "adopted", "%u", service->store.found.ready);
	if (service->device_refused[0] != '\0')
		daemon_detail(to, "device_refused", "%s", service->device_refused);
	if (service->device != NULL) {
		struct device_header *device = service->device->slots.header;
		daemon_detail(to, "device", "%s", service->backend->ops->name);
		if (service->device->memory.ends_with_maker)
			daemon_detail(to, "device_memory_shared",
				"by CUDA's IPC: when the expert-cache ends, its experts are copied "
				"again");
		daemon_detail(to, "device_memory_bytes", "%llu",
			(unsigned long long)service->device_share.memory);
		daemon_detail(to, "device_verifier_bytes", "%llu",
			(unsigned long long)service->device_share.needs);
		daemon_detail(to, "device_limit_bytes", "%llu",
			(unsigned long long)service->device_share.limit);
		daemon_detail(to, "device_verifier_from", "%s",
			service->device_share.said ? "verifier" : "estimate");
		daemon_detail(to, "device_drafter_bytes", "%llu",
			(unsigned long long)live_drafter_bytes(service));
		daemon_detail(to, "device_slots", "%u", service->device->slots.n_slots);
		daemon_detail(to, "device_in_use", "%u", atomic_load(&device->in_use));
		daemon_detail(
			to, "device_hits", "%llu", (unsigned long long)stats_load(&device->hits));
		daemon_detail(to, "device_misses", "%llu",
			(unsigned long long)stats_load(&device->misses));
		daemon_detail(to, "device_bytes_loaded", "%llu",
			(unsigned long long)stats_load(&device->bytes_loaded));
		daemon_detail(to, "device_busy_ns", "%llu",
			(unsigned long long)stats_load(&device->busy_ns));
		daemon_detail(to, "device_wait_ns", "%llu",
			(unsigned long long)stats_load(&device->wait_ns));
		uint32_t rule = atomic_load(&device->hybrid);
		daemon_detail(to, "device_hybrid", "%s",
			balance_rule_names[rule < BALANCE_RULES ? rule : BALANCE_OFF]);
		daemon_detail(to, "device_by_cpu", "%llu",
			(unsigned long long)stats_load(&device->by_cpu));
	}
	daemon_detail(to, "load_failures", "%llu",
		(unsigned long long)stats_load(&service->transfer.loads.failures));
}

static bool worker_alive(void *arg)
{
	struct service *service = arg;
	return service->budget == 0 ||
	       clock_ns() - stats_load(&service->transfer.beat_ns) < STALL_NS;
}

static void on_state(void *arg)
{
	struct service *service = arg;
	/* This waits for the worker. */
	if (!worker_alive(service))
		return;
	live_follow(service);
	live_drafter_follow(service);
	live_drafter_tell(service);
	live_device_follow(service);
	live_device_again(service);
}

static int open_knobs(struct service *service, const struct options *options, struct error *err)
{
	const struct daemon_knobs knobs = {
		.keys = cache_config_keys,
		.config = &service->config,
		.config_bytes = sizeof(service->config),
		.check = live_check,
		.fits = live_fits,
		.rehearse = live_rehearse,
		.apply = live_apply,
		.stays = live_stays,
		.means = live_means,
		.idle = live_idle,
		.started = service->budget > 0 ? &service->configured : NULL,
		.arg = service,
		.config_path = options->config_path,
		.on_command_line = options->on_command_line,
	};
	return daemon_knobs_open(service->daemon, &knobs, err);
}

/* The verifier's numbers stay in the region: a successor begins with them before the verifier has
 * registered again. */
static void on_peer(void *arg, const struct peer *peer)
{
	struct service *service = arg;
	const struct peer_needs *told = &peer->card.settings.needs;
	if (peer->standing == PEER_REGISTERED && strcmp(peer->name, PEER_DRAFTER) == 0 &&
		peer->card.settings.has_needs)
		live_drafter_asks(service, told);
	if (service->budget == 0 || peer->standing != PEER_REGISTERED ||
		strcmp(peer->name, PEER_VERIFIER) != 0 || !peer->card.settings.has_needs)
		return;
	const struct slots_needs needs = {.weights = told->weights,
		.kv = told->kv,
		.rest = told->rest,
		.there = told->there,
		.files = told->files,
		.device = told->device,
		.device_there = told->device_there,
		.device_kv = told->device_kv,
		.device_most = told->device_most};
	slots_say_needs(service->store.slots.header, &needs);
}

static void describe(struct service *service)
{
	static const struct peer_layout layouts[] = {{EXPERTS_REGION, EXPERTS_LAYOUT},
		{HINTS_REGION, HINTS_LAYOUT}, {DIGEST_REGION, DIGEST_LAYOUT},
		{DEVICE_REGION, DEVICE_LAYOUT}};
	const struct peer_self self = {.arithmetic = KERNELS_ARITHMETIC,
		.model = service->model->file_fingerprint,
		.layouts = layouts,
		.n_layouts = sizeof(layouts) / sizeof(layouts[0])};
	registry_describe(service->daemon, &self);
	registry_on_change(service->daemon, on_peer, service);
}

int handlers_open(struct service *service, const struct options *options, struct error *err)
{
	struct daemon *daemon = service->daemon;
	/* From here on, a file that cannot be read means a lost model. */
	gguf_guard_survive();
	int status = open_knobs(service, options, err);
	if (status != 0)
		return status;
	daemon_on_detail(daemon, on_detail, service);
	daemon_on_alive(daemon, worker_alive, service);
	if (daemon_add_timer(daemon, FILE_CHECK_NS, model_file_check, service) < 0 ||
		(service->budget > 0 && daemon_add_timer(daemon, STATE_NS, on_state, service) < 0))
		return error_set(err, ENOSPC, "too many timers");
	describe(service);
	return daemon_admin_open(daemon, on_admin, service, err);
}
