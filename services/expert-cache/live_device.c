#include "services/expert-cache/live_device.h"

#include "services/expert-cache/live.h"
#include "services/expert-cache/live_drafter.h"
#include "shared/base/log.h"
#include "shared/base/saturate.h"
#include "shared/base/units.h"
#include "shared/model/arch/place.h"
#include "shared/model/pass/forward.h"
#include "shared/spec/device_spare.h"
#include "shared/spec/kv_plan.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An automatic budget grows by at least this part: all experts are copied again. */
#define WORTH_PART 8

/* The verifier's memory of the device with its default settings. */
static uint64_t default_needs(const struct service *service)
{
	const struct model *model = service->model;
	uint32_t rows = kv_plan_rows(KV_PLAN_SESSIONS, 0);
	const struct forward_limits limits = {
		.n_batch = kv_plan_rows(KV_PLAN_SESSIONS, KV_PLAN_PREFILL),
		.n_logits = rows < LIMIT_KEPT_LOGITS ? rows : LIMIT_KEPT_LOGITS,
		.n_picks = rows,
		.n_drafts = rows,
		.n_context = kv_plan_context(model),
		.n_budgets = KV_PLAN_SESSIONS,
	};
	const struct kv_plan plan = kv_plan_default(model);
	const struct kv_layout kv = kv_plan_layout(&plan, model);
	return model_place_bytes(model) + forward_bytes(model, service->backend, &limits) +
	       kv_store_bytes(&kv) + device_spare_bytes(&service->geometry);
}

/* What there is of the device's memory for experts. */
static void find_share(
	const struct service *service, uint64_t drafter, uint64_t had, struct device_share *out)
{
	const struct slots_needs *needs = &service->needs.of;
	bool said = service->needs.said && needs->device > 0;
	struct backend_memory memory;
	uint64_t there = said && !service->verifier_left ? needs->device_there : 0;
	service->backend->ops->memory(service->backend, &memory);
	device_share_find(service->backend, &memory, said ? needs->device : default_needs(service),
		drafter, saturate_add(there, service->drafter.there), had, out);
	device_share_limit(out, said ? needs->device_most : 0);
	out->kv = said ? needs->device_kv : 0;
	out->said = said;
}

int live_device_slots(const struct service *service, const char *text, uint64_t had,
	uint32_t *n_slots, struct device_share *share, struct error *err)
{
	static struct slots_geometry geometry;
	struct budget budget;
	uint64_t room = UINT64_MAX;
	*n_slots = 0;
	if (service->backend != NULL) {
		find_share(service, live_drafter_bytes(service), had, share);
		room = share->bytes;
	}
	device_geometry(&service->geometry, &geometry);
	int status = budget_slots(text, &geometry, room, &budget, err);
	if (status != 0)
		return error_prefix(err, status, "device_budget");
	*n_slots = budget.n_slots;
	if (service->backend == NULL)
		return 0;
	uint64_t bytes = budget.asked_bytes < budget.bytes ? budget.bytes : budget.asked_bytes;
	return device_share_check(share, budget_is_auto(text) ? budget.bytes : bytes,
		budget_automatic(&geometry, share->bytes), err);
}

static struct device_options options_of(
	const struct service *service, const struct cache_config *config, uint32_t n_slots)
{
	return (struct device_options){
		.backend = service->backend,
		.n_slots = n_slots,
		.configured = service->configured.device_budget,
		.budget = config->device_budget,
		.model_fingerprint = service->model->file_fingerprint,
		.model_files = gguf_files(service->model->gguf),
		.model_stamps = gguf_stamps(service->model->gguf),
		.policy = cache_policy_find(config->policy),
		.queue_max = (uint32_t)config->hint_queue_max,
		.profile = service->profile,
		.recovered_fd = -1,
		.recovered_memory_fd = -1,
	};
}

uint64_t live_device_bytes(const struct service *service)
{
	return service->device != NULL
		       ? service->device->slots.n_slots * service->device->slots.slot_bytes
		       : 0;
}

static int make(const struct service *service, const struct device_options *options,
	struct device **out, struct error *err)
{
	struct device *device = malloc(sizeof(*device));
	int status = -ENOMEM;
	if (device != NULL)
		status = device_open(device, &service->geometry, options, err);
	else
		(void)error_set(err, ENOMEM, "no memory for the device's slots");
	if (status == 0)
		*out = device;
	else
		free(device);
	return status;
}

/* Whether so many slots fit once those in use are given back. */
static bool fit_instead(const struct service *service, uint32_t n_slots)
{
	struct backend_memory memory;
	service->backend->ops->memory(service->backend, &memory);
	return n_slots * service->device->slots.slot_bytes <=
	       memory.free + live_device_bytes(service);
}

int live_device_make(const struct service *service, const struct cache_config *next,
	struct device **out, struct error *err)
{
	uint32_t n_meant = 0, least = slots_min(&service->geometry);
	struct device_share share;
	int status = live_device_slots(
		service, next->device_budget, live_device_bytes(service), &n_meant, &share, err);
	if (status != 0)
		return status;
	struct device_options options = options_of(service, next, n_meant);
	status = make(service, &options, out, err);
	/* They are made beside those in use. Without room for both, the fewest come in between. */
	bool instead = status == -ENOMEM && n_meant > least && fit_instead(service, n_meant);
	if (instead) {
		options.n_slots = least;
		status = make(service, &options, out, err);
	}
	if (status == 0)
		(*out)->n_meant = n_meant;
	if (status == -ENOMEM && instead) {
		const struct error why = *err;
		(void)error_set(err, ENOMEM,
			"%.300s; while the budget changes, slots of the former size are there too",
			why.text);
	}
	return status;
}

/* Continues with the budget that a predecessor with these settings was changed to. An automatic one
 * has its slots, if the device can hold them: what is free now tells little. Returns the slots; 0:
 * nothing to continue with. */
static uint32_t recall(struct service *service, int fd)
{
	struct region region;
	struct device_share share;
	struct error err;
	int own = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
	if (own < 0 ||
		region_attach(own, DEVICE_REGION, DEVICE_LAYOUT,
			REGION_DATA + sizeof(struct device_header), false, &region, &err) != 0)
		return 0;
	struct device_header *header = region_payload(&region);
	char configured[LIMIT_NAME], budget[LIMIT_NAME];
	uint32_t n_slots, had = header->n_slots;
	uint64_t slot_bytes = device_slot_bytes(&service->geometry);
	snprintf(configured, sizeof(configured), "%.*s", LIMIT_NAME - 1, header->configured);
	snprintf(budget, sizeof(budget), "%.*s", LIMIT_NAME - 1, header->budget);
	region_close(&region);
	if (strcmp(configured, service->config.device_budget) != 0 ||
		strlen(budget) >= sizeof(service->config.device_budget) ||
		live_device_slots(service, budget, had * slot_bytes, &n_slots, &share, &err) != 0)
		return 0;
	if (strcmp(budget, configured) != 0) {
		snprintf(service->config.device_budget, sizeof(service->config.device_budget), "%s",
			budget);
		log_notice(
			"keeping device_budget %s, to which the predecessor was changed", budget);
	}
	return budget_is_auto(budget) && had >= slots_min(&service->geometry) &&
			       had <= service->geometry.n_total && had * slot_bytes <= share.whole
		       ? had
		       : 0;
}

static void abandon(void *arg)
{
	struct service *service = arg;
	broker_abandon(service->broker, DEVICE_REGION);
	broker_abandon(service->broker, DEVICE_MEMORY);
}

void live_device_recover(struct service *service)
{
	if (strcmp(service->config.device, "cpu") == 0)
		return;
	if (broker_recover(service->daemon, DEVICE_REGION, &service->device_fd) != 0)
		service->device_fd = -1;
	if (broker_recover(service->daemon, DEVICE_MEMORY, &service->device_memory_fd) != 0)
		service->device_memory_fd = -1;
}

int live_device_open(struct service *service, struct error *err)
{
	uint32_t n_slots, before = recall(service, service->device_fd);
	int status = live_device_slots(
		service, service->config.device_budget, 0, &n_slots, &service->device_share, err);
	if (status != 0)
		return status;
	/* Before the verifier has told what it takes, nobody knows what is left. */
	if (budget_is_auto(service->config.device_budget) && !service->device_share.said)
		n_slots = slots_min(&service->geometry);
	/* The predecessor may have ended while it had the fewest for a moment. */
	uint32_t n_meant =
		before > slots_min(&service->geometry) && before < n_slots ? before : n_slots;
	n_slots = before > 0 ? before : n_slots;
	struct device_options options = options_of(service, &service->config, n_slots);
	options.recovered_fd = service->device_fd;
	options.recovered_memory_fd = service->device_memory_fd;
	service->device_fd = service->device_memory_fd = -1;
	options.abandon = abandon;
	options.arg = service;
	status = make(service, &options, &service->device, err);
	if (status != 0)
		return status;
	service->device->n_meant = n_meant;
	const struct device *device = service->device;
	uint32_t n_experts = service->geometry.n_total -
			     service->geometry.n_drafting * service->geometry.n_experts;
	uint64_t bytes = n_slots * device->slots.slot_bytes;
	if (service->device_share.said)
		log_notice("device %s: %u of %u experts fit (%s), beside %s for weights, passes "
			   "and KV cache of the verifier",
			service->backend->ops->name, n_slots, n_experts, UNITS_SIZE(bytes),
			UNITS_SIZE(service->device_share.needs));
	else
		log_notice("device %s: %u of %u experts for now (%s); the verifier has not said "
			   "yet what it needs",
			service->backend->ops->name, n_slots, n_experts, UNITS_SIZE(bytes));
	if (device->adopted)
		log_notice("took over %u experts on the device; given up: %u loads that were cut "
			   "off, %u without their seal",
			device->found.ready, device->found.loading, device->found.wrong);
	return 0;
}

void live_device_use(struct service *service, struct device *device)
{
	log_notice("device_budget: %u slots, were %u%s", device->slots.n_slots,
		service->device->slots.n_slots,
		device->slots.n_slots < device->n_meant
			? ", until those are given back and there is room for more"
			: "");
	/* Before those that were in use are closed: the broker lends from them. */
	service->device = device;
	live_device_offer(service);
}

/* Makes the slots that the budget means now, and has the worker use them. */
static int change(struct service *service, const struct cache_config *config, struct error *err)
{
	struct transfer_change change = {.budget = service->budget};
	change.options = live_options(service, config, service->budget);
	int status = live_device_make(service, config, &change.device, err);
	if (status != 0)
		return status;
	struct device *device = change.device;
	status = transfer_apply(&service->transfer, &change, err);
	if (status == 0)
		live_device_use(service, device);
	live_device_free(&change.device);
	return status;
}

void live_device_more(struct service *service, const struct cache_config *config)
{
	struct backend_memory memory;
	struct error err;
	const struct device *device = service->device;
	if (device == NULL || device->slots.n_slots >= device->n_meant ||
		service->backend->ops->failure(service->backend, &err) != 0)
		return;
	/* The verifier may not have let go of the former slots yet. */
	service->backend->ops->memory(service->backend, &memory);
	if (device->n_meant * device->slots.slot_bytes > memory.free)
		return;
	if (change(service, config, &err) != 0)
		log_limited(LOG_LEVEL_ERROR, "%s", err.text);
}

/* True when the slots of auto have to be others now: fewer if there is too little memory, more if it
 * is worth the copies. */
static bool worth_it(const struct service *service, uint32_t n_slots)
{
	uint32_t now = service->device->slots.n_slots;
	return n_slots < now || n_slots > now + now / WORTH_PART;
}

void live_device_follow(struct service *service)
{
	const struct cache_config *config = &service->config;
	const struct device_share *before = &service->device_share;
	struct device_share share;
	struct error err;
	uint32_t n_slots;
	live_device_more(service, config);
	if (service->device == NULL || !service->needs.said || service->needs.of.device == 0 ||
		(before->said && before->needs == service->needs.of.device &&
			before->said_most == service->needs.of.device_most &&
			before->drafter == live_drafter_bytes(service)))
		return;
	int status = live_device_slots(
		service, config->device_budget, live_device_bytes(service), &n_slots, &share, &err);
	service->device_share = share;
	if (status == 0 && budget_is_auto(config->device_budget) && worth_it(service, n_slots)) {
		status = change(service, config, &err);
		live_device_more(service, config);
	}
	if (status != 0)
		log_error("%s", err.text);
}

void live_device_share(const struct service *service, uint64_t drafter, struct device_share *out)
{
	find_share(service, drafter, live_device_bytes(service), out);
	/* A verifier that computes elsewhere needs nothing. */
	if (service->needs.said && service->needs.of.device == 0) {
		struct backend_memory memory;
		service->backend->ops->memory(service->backend, &memory);
		device_share_find(service->backend, &memory, 0, drafter, service->drafter.there,
			live_device_bytes(service), out);
		out->said = true;
	}
}

uint64_t live_device_least(const struct service *service)
{
	return budget_is_auto(service->config.device_budget)
		       ? slots_min(&service->geometry) * device_slot_bytes(&service->geometry)
		       : live_device_bytes(service);
}

/* Set in the environment of a process that runs anew: the generation of the verifier for which it does. */
#define AGAIN "OUTRIDER_DEVICE_AGAIN"

void live_device_again(struct service *service)
{
	const char *before = getenv(AGAIN);
	uint64_t generation = service->verifier_generation;
	char now[24];
	bool lost = service->device == NULL || service->device->failed;
	if (!lost || generation == 0 || service->verifier_left || service->needs.of.device == 0 ||
		strcmp(service->config.device, "cpu") == 0)
		return;
	snprintf(now, sizeof(now), "%llu", (unsigned long long)generation);
	if (before != NULL && strcmp(before, now) == 0)
		return;
	log_notice("the verifier computes on the device, which this process has lost or could not "
		   "use: it starts anew");
	int status = daemon_run_anew(service->daemon, AGAIN, now, service->argv);
	log_error("the program cannot be run anew: %s", strerror(-status));
}

void live_device_offer(struct service *service)
{
	if (service->device == NULL)
		return;
	/* In this order: a new table has no experts yet, and an old one must not describe other
	 * memory. */
	broker_offer(service->broker, &service->device->region);
	broker_offer_fd(service->broker, DEVICE_MEMORY, service->device->memory_fd);
}

void live_device_free(struct device **device)
{
	if (*device == NULL)
		return;
	device_close(*device);
	free(*device);
	*device = NULL;
}

void live_device_close(struct service *service)
{
	live_device_free(&service->device);
	if (service->device_fd >= 0)
		close(service->device_fd);
	if (service->device_memory_fd >= 0)
		close(service->device_memory_fd);
	if (service->backend != NULL)
		service->backend->ops->destroy(service->backend);
	service->backend = NULL;
	if (service->device_claim >= 0)
		close(service->device_claim);
	service->device_claim = -1;
}

void live_device_stays(struct service *service, const struct cache_config *config)
{
	if (service->device == NULL)
		return;
	struct device_header *header = service->device->slots.header;
	snprintf(header->budget, sizeof(header->budget), "%s", config->device_budget);
}
