#include "services/expert-cache/live_device.h"

#include "shared/base/log.h"
#include "shared/base/units.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The experts that passes of the verifier use, as they lie on the device. */
static void device_geometry(const struct slots_geometry *from, struct slots_geometry *out)
{
	*out = *from;
	out->slot_bytes = device_slot_bytes(from);
	if (from->drafting)
		out->n_total -= from->n_experts;
}

int live_device_slots(
	const struct service *service, const char *text, uint32_t *n_slots, struct error *err)
{
	static struct slots_geometry geometry;
	struct budget budget;
	if (budget_is_auto(text))
		return error_set(err, ENOEXEC,
			"device_budget: auto is not allowed; it takes all, min, a share of the "
			"experts such as 30%%, or bytes such as 8G");
	device_geometry(&service->geometry, &geometry);
	int status = budget_slots(text, &geometry, UINT64_MAX, &budget, err);
	if (status != 0)
		return error_prefix(err, status, "device_budget");
	*n_slots = budget.n_slots;
	return 0;
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

static int make(const struct service *service, const struct device_options *options,
	struct device **out, struct error *err)
{
	struct device *device = malloc(sizeof(*device));
	if (device == NULL)
		return error_set(err, ENOMEM, "no memory for the device's slots");
	int status = device_open(device, &service->geometry, options, err);
	if (status != 0)
		free(device);
	else
		*out = device;
	return status;
}

int live_device_make(const struct service *service, const struct cache_config *next,
	struct device **out, struct error *err)
{
	uint32_t n_slots;
	int status = live_device_slots(service, next->device_budget, &n_slots, err);
	if (status != 0)
		return status;
	const struct device_options options = options_of(service, next, n_slots);
	return make(service, &options, out, err);
}

/* Continues with the budget that a predecessor with these settings was changed to. */
static void recall(struct service *service, int fd)
{
	struct region region;
	struct error err;
	int own = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
	if (own < 0 ||
		region_attach(own, DEVICE_REGION, DEVICE_LAYOUT,
			REGION_DATA + sizeof(struct device_header), false, &region, &err) != 0)
		return;
	struct device_header *header = region_payload(&region);
	char configured[LIMIT_NAME], budget[LIMIT_NAME];
	uint32_t n_slots;
	snprintf(configured, sizeof(configured), "%.*s", LIMIT_NAME - 1, header->configured);
	snprintf(budget, sizeof(budget), "%.*s", LIMIT_NAME - 1, header->budget);
	region_close(&region);
	if (strcmp(configured, service->config.device_budget) != 0 ||
		strcmp(budget, configured) == 0 ||
		strlen(budget) >= sizeof(service->config.device_budget) ||
		live_device_slots(service, budget, &n_slots, &err) != 0)
		return;
	snprintf(
		service->config.device_budget, sizeof(service->config.device_budget), "%s", budget);
	log_notice("keeping device_budget %s, to which the predecessor was changed", budget);
}

static void abandon(void *arg)
{
	struct service *service = arg;
	broker_abandon(service->broker, DEVICE_REGION);
	broker_abandon(service->broker, DEVICE_MEMORY);
}

void live_device_recover(struct service *service)
{
	if (service->config.device == CACHE_DEVICE_CPU)
		return;
	if (broker_recover(service->daemon, DEVICE_REGION, &service->device_fd) != 0)
		service->device_fd = -1;
	if (broker_recover(service->daemon, DEVICE_MEMORY, &service->device_memory_fd) != 0)
		service->device_memory_fd = -1;
}

int live_device_open(struct service *service, struct error *err)
{
	uint32_t n_slots;
	recall(service, service->device_fd);
	int status = live_device_slots(service, service->config.device_budget, &n_slots, err);
	if (status != 0)
		return status;
	struct device_options options = options_of(service, &service->config, n_slots);
	options.recovered_fd = service->device_fd;
	options.recovered_memory_fd = service->device_memory_fd;
	service->device_fd = service->device_memory_fd = -1;
	options.abandon = abandon;
	options.arg = service;
	status = make(service, &options, &service->device, err);
	if (status != 0)
		return status;
	const struct device *device = service->device;
	log_notice("device %s: %u of %u experts fit (%s)", service->backend->ops->name, n_slots,
		service->geometry.n_total -
			(service->geometry.drafting ? service->geometry.n_experts : 0),
		UNITS_SIZE(n_slots * device->slots.slot_bytes));
	if (device->adopted)
		log_notice("took over %u experts on the device; given up: %u loads that were cut "
			   "off, %u without their seal",
			device->found.ready, device->found.loading, device->found.wrong);
	return 0;
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
}

void live_device_stays(struct service *service, const struct cache_config *config)
{
	if (service->device == NULL)
		return;
	struct device_header *header = service->device->slots.header;
	snprintf(header->budget, sizeof(header->budget), "%s", config->device_budget);
}
