/* Makes the regions of the device's slots, or takes over a predecessor's. */
#include "services/expert-cache/device/device.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static size_t memory_bytes(const struct device_slots *slots)
{
	return (size_t)device_slot_at(slots->slot_bytes, slots->n_slots);
}

/* What identifies a device's memory must reach it, and the back end must reach the flags. Uses a
 * queue of its own, for a moment. */
static int with_queue(struct device *device,
	int (*work)(struct device *, struct queue *, const struct buffer *word, struct error *),
	struct error *err)
{
	const struct queue_limits limits = {0};
	const struct backend_ops *ops = device->backend->ops;
	struct buffer word = {0};
	struct queue *q = NULL;
	int status = ops->alloc(device->backend, DEVICE_FIRST, BUFFER_HOST, &word, err);
	if (status == 0)
		status = ops->queue(device->backend, &limits, &q, err);
	if (status == 0)
		status = work(device, q, &word, err);
	if (q != NULL)
		ops->queue_free(q);
	if (word.backend != NULL)
		ops->free(&word);
	return status;
}

static int check(
	struct device *device, struct queue *q, const struct buffer *word, struct error *err)
{
	return device_check_memory(&device->slots, &device->memory, q, word, err);
}

/* Writes the region's number to the memory, and a flag as a load does, of slot 0, which is EMPTY. */
static int mark(
	struct device *device, struct queue *q, const struct buffer *word, struct error *err)
{
	memcpy(word->host, &device->slots.header->number, sizeof(uint64_t));
	q->ops->copy(
		q, (struct place){&device->memory, 0}, (struct place){word, 0}, sizeof(uint64_t));
	q->ops->write_value(q,
		(struct place){&device->flags, device_flag_at(&device->region, &device->slots, 0)},
		1);
	int status = q->ops->wait(q, q->ops->ticket(q));
	if (status != 0)
		return error_set(err, -status, "the device's memory cannot be written to: %s",
			strerror(-status));
	if (atomic_exchange_explicit(&device->slots.flag[0], 0, memory_order_acquire) != 1)
		return error_set(err, ENOTSUP,
			"device %s: what it writes to memory of this process does not arrive",
			device->backend->ops->name);
	return check(device, q, word, err);
}

static int wrap_flags(struct device *device, struct error *err)
{
	return device->backend->ops->wrap(
		device->backend, device->region.header, device->region.bytes, &device->flags, err);
}

static int adopt_memory(struct device *device, int fd, struct error *err)
{
	device->memory_fd = region_memory_fd(fd);
	if (device->memory_fd < 0)
		return error_set(err, -device->memory_fd, "%s: %s", DEVICE_MEMORY,
			strerror(-device->memory_fd));
	return device->backend->ops->import_fd(device->backend, device->memory_fd,
		memory_bytes(&device->slots), true, &device->memory, err);
}

static int try_adopt(struct device *device, const struct device_options *options,
	const struct device_shape *shape, int fd, int memory_fd, struct error *err)
{
	int status =
		region_adopt(fd, DEVICE_REGION, DEVICE_LAYOUT, REGION_DATA, &device->region, err);
	if (status == 0)
		status = device_map(&device->region, shape, &device->slots, err);
	if (status != 0)
		return status;
	const struct device_header *header = device->slots.header;
	if (header->model_stamps != options->model_stamps ||
		header->model_files != options->model_files)
		return error_set(err, ESTALE, "region %s: the model file was touched or replaced",
			DEVICE_REGION);
	if (strncmp(header->backend, options->backend->ops->name, sizeof(header->backend)) != 0)
		return error_set(
			err, ESTALE, "region %s: it is another kind of device's", DEVICE_REGION);
	status = adopt_memory(device, memory_fd, err);
	if (status == 0)
		status = wrap_flags(device, err);
	if (status == 0)
		status = with_queue(device, check, err);
	if (status == 0)
		status = device_adopt(&device->slots, device->geometry, &device->found, err);
	device->adopted = status == 0;
	return status;
}

static int make_regions(struct device *device, const struct device_options *options,
	const struct device_shape *shape, struct error *err)
{
	const struct backend_ops *ops = device->backend->ops;
	int status = region_create(
		DEVICE_REGION, DEVICE_LAYOUT, device_payload_bytes(shape), 0, &device->region, err);
	if (status != 0)
		return status;
	device_format(&device->region, shape);
	status = device_map(&device->region, shape, &device->slots, err);
	if (status == 0)
		status = ops->alloc(device->backend, memory_bytes(&device->slots), BUFFER_SHARED,
			&device->memory, err);
	if (status != 0)
		return error_prefix(err, status, "device_budget");
	if (device->memory.ends_with_maker)
		log_notice(
			"device %s: its memory cannot be exported as a descriptor, so it is "
			"shared by CUDA's IPC: the experts in it are lost when this process ends",
			ops->name);
	struct device_header *header = device->slots.header;
	header->model_files = options->model_files;
	header->model_stamps = options->model_stamps;
	snprintf(header->backend, sizeof(header->backend), "%s", ops->name);
	device->memory_fd = ops->export_fd(&device->memory, err);
	if (device->memory_fd < 0)
		return device->memory_fd;
	status = wrap_flags(device, err);
	return status == 0 ? with_queue(device, mark, err) : status;
}

int device_policy_create(const struct device *device, const struct cache_policy_ops *policy,
	uint32_t queue_max, const uint64_t *profile, void **state, struct error *err)
{
	const struct slots_geometry *geometry = device->geometry;
	bool moe[LIMIT_LAYERS];
	for (uint32_t l = 0; l < geometry->n_layers; l++)
		moe[l] = geometry->layers[l].moe;
	const struct cache_policy_shape shape = {
		.n_layers = geometry->n_layers,
		.n_experts = geometry->n_experts,
		.n_experts_used = geometry->n_experts_used,
		.n_slots = device->slots.n_slots,
		.queue_max = queue_max,
		.moe = moe,
		.profile = profile,
	};
	return policy->create(&shape, state, err);
}

static int allocate(struct device *device, const struct device_options *options, struct error *err)
{
	uint32_t n = device->slots.n_slots;
	device->free_slots = calloc(n, sizeof(*device->free_slots));
	device->held = calloc(n, sizeof(*device->held));
	device->notes = calloc(n, sizeof(*device->notes));
	device->order = calloc(n, sizeof(*device->order));
	if (device->free_slots == NULL || device->held == NULL || device->notes == NULL ||
		device->order == NULL)
		return error_set(err, ENOMEM, "no memory to keep account of %u device slots", n);
	device->policy = options->policy;
	int status = device_policy_create(device, options->policy, options->queue_max,
		options->profile, &device->policy_state, err);
	if (status != 0)
		return status;
	device_take_stock(device);
	device_tell_policy(device);
	return 0;
}

/* Closes regions and memory that are not used. */
static void drop_regions(struct device *device)
{
	const struct backend_ops *ops = device->backend->ops;
	if (device->flags.backend != NULL)
		ops->free(&device->flags);
	if (device->memory.backend != NULL)
		ops->free(&device->memory);
	if (device->memory_fd >= 0)
		close(device->memory_fd);
	region_close(&device->region);
	device->memory = device->flags = (struct buffer){0};
	device->memory_fd = -1;
}

int device_open(struct device *device, const struct slots_geometry *geometry,
	const struct device_options *options, struct error *err)
{
	*device = (struct device){.backend = options->backend, .geometry = geometry};
	device->region.fd = device->memory_fd = -1;
	const struct device_shape shape = {
		.n_layers = geometry->n_layers,
		.n_experts = geometry->n_experts,
		.n_slots = options->n_slots,
		.slot_bytes = device_slot_bytes(geometry),
		.model_fingerprint = options->model_fingerprint,
	};
	int status = -ENOENT, fd = options->recovered_fd, memory_fd = options->recovered_memory_fd;
	if (fd >= 0 && memory_fd >= 0) {
		status = try_adopt(device, options, &shape, fd, memory_fd, err);
		fd = -1;
		if (status != 0) {
			log_notice(
				"the predecessor's device slots are not taken over: %s", err->text);
			drop_regions(device);
			if (options->abandon != NULL)
				options->abandon(options->arg);
		}
	}
	if (fd >= 0)
		close(fd);
	if (memory_fd >= 0)
		close(memory_fd);
	if (status != 0)
		status = make_regions(device, options, &shape, err);
	if (status == 0)
		status = allocate(device, options, err);
	if (status != 0) {
		device_close(device);
		return status;
	}
	struct device_header *header = device->slots.header;
	snprintf(header->configured, sizeof(header->configured), "%s", options->configured);
	snprintf(header->budget, sizeof(header->budget), "%s", options->budget);
	atomic_store_explicit(&header->starved, 0, memory_order_relaxed);
	atomic_store_explicit(&header->closed, 0, memory_order_relaxed);
	/* A stamp far above any before. */
	device->stamp = clock_ns();
	device->demand = UINT64_MAX;
	return 0;
}

void device_close(struct device *device)
{
	if (device->backend == NULL)
		return;
	if (device->policy_state != NULL)
		device->policy->destroy(device->policy_state);
	free(device->free_slots);
	free(device->held);
	free(device->notes);
	free(device->order);
	drop_regions(device);
	*device = (struct device){.region = {.fd = -1}, .memory_fd = -1};
}
