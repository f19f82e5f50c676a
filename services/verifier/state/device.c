#include "services/verifier/state/device.h"

#include "kernels/arithmetic.h"
#include "kernels/cpu/steps/backend_cpu.h"
#include "kernels/gpu/backend.h"
#include "kernels/gpu/choice.h"
#include "kernels/kernels.h"
#include "services/knobs/of_device.h"
#include "services/verifier/state/device_fit.h"
#include "services/verifier/state/kv_size.h"
#include "services/verifier/state/pass_limits.h"
#include "shared/base/log.h"
#include "shared/base/saturate.h"
#include "shared/base/units.h"
#include "shared/ipc/daemon.h"
#include "shared/ipc/device_claim.h"
#include "shared/ipc/peers.h"
#include "shared/model/arch/place.h"
#include "shared/model/pass/forward.h"
#include "shared/spec/device_spare.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Set in the environment of a process that follows one whose device was lost: why. */
#define LOST "OUTRIDER_DEVICE_LOST"
/* Up to this part of a device's memory is the driver's own; what is missing beyond it, others have. */
#define OWN_PART 16

static int open_cpu(const struct verifier_config *config, struct backend **out, struct error *err)
{
	const struct backend_cpu_options options = {
		.kernels = kernels_select(kernels_names[config->kernels], err),
		.threads = (uint32_t)config->threads,
		.pin = config->pin == VERIFIER_PIN_YES,
	};

	return options.kernels == NULL ? -EINVAL : backend_cpu_create(&options, out, err);
}

uint64_t device_kv_bytes(const struct verifier_config *config, const struct model *model,
	const struct backend *backend)
{
	const struct device_extent extent = device_extent_of(config);

	return device_cells_bytes(config, model, backend, &extent);
}

static void say_what_fits(const struct verifier_config *config, const struct model *model,
	struct backend *backend, uint64_t room, char *out, size_t out_bytes)
{
	struct device_extent extent;
	char text[DEVICE_FIT_TEXT];

	if (device_fit(config, model, backend, room, &extent))
		snprintf(out, out_bytes, "these settings of the verifier would fit: %s",
			device_fit_text(&extent, text));
	else
		snprintf(out, out_bytes, "not even one session fits: set device = cpu");
}

/* What the verifier may take of the device's memory, experts included that count against it. */
struct room {
	uint64_t bytes, experts;
	uint64_t others; /* the fewest experts of the expert-cache, if they do not count */
	bool limited; /* by device_memory */
};

/* The slots that the verifier has for itself, and the fewest of the expert-cache. */
static uint64_t fewest_experts(const struct model *model)
{
	struct slots_geometry geometry;

	if (model->config.n_experts == 0)
		return 0;
	slots_geometry_init(&geometry, model);
	return slots_min(&geometry) * device_slot_bytes(&geometry) + device_spare_bytes(&geometry);
}

/* What is free of the device's memory, and what a predecessor's KV cache has of it: that is taken
 * over, or given up before another is made. At most what device_memory allows: that has to hold the
 * expert-cache's experts too, of which the free memory may already lack some. */
static struct room room_of(const struct verifier_config *config, const struct model *model,
	const struct backend *backend, uint64_t kv_there)
{
	bool mapped = config->experts == VERIFIER_EXPERTS_MAPPED;
	uint64_t own = mapped ? model->expert_bytes_total : 0;
	uint64_t others = mapped ? 0 : fewest_experts(model);
	struct backend_memory memory;
	uint64_t limit = kv_size_limit(config, backend);

	backend->ops->memory(backend, &memory);
	uint64_t taken = memory.bytes - memory.free;
	uint64_t room = memory.free + (kv_there < taken ? kv_there : taken);
	if (limit != 0 && saturate_sub(limit, others) < room)
		return (struct room){.bytes = limit, .experts = own + others, .limited = true};
	return (struct room){.bytes = room, .experts = own, .others = others};
}

/* What there is to do if so much of the room is taken before there is a session. */
static void say_what_to_do(const struct verifier_config *config, const struct model *model,
	struct backend *backend, const struct room *room, uint64_t taken, char *out,
	size_t out_bytes)
{
	struct backend_memory memory;
	uint64_t bytes = room->bytes;

	backend->ops->memory(backend, &memory);
	/* The expert-cache leaves a part of the memory free. */
	if (room->others > 0 && bytes > memory.bytes - memory.bytes / OWN_PART)
		bytes = memory.bytes - memory.bytes / OWN_PART;
	if (taken >= room->bytes)
		snprintf(out, out_bytes, "the weights%s alone do not fit: set %sdevice = cpu",
			room->experts > 0 ? " and these experts" : "",
			room->limited ? "a larger device_memory, or " : "");
	else
		say_what_fits(config, model, backend, saturate_sub(bytes, taken + room->others),
			out, out_bytes);
}

/* Whether the device has memory for the weights, the KV cache and the largest pass. */
static int check_memory(const struct verifier_config *config, const struct model *model,
	struct backend *backend, uint64_t kv_there, struct error *err)
{
	const struct device_extent extent = device_extent_of(config);
	const struct room room = room_of(config, model, backend, kv_there);
	uint64_t weights = model_place_bytes(model), experts = room.experts;
	uint64_t pass = device_pass_bytes(config, model, backend, &extent);
	uint64_t kv = device_cells_bytes(config, model, backend, &extent);
	struct backend_memory memory;
	char fits[DEVICE_FIT_TEXT + 48], of_experts[64] = "";

	if (weights + experts + kv + pass <= room.bytes)
		return 0;
	backend->ops->memory(backend, &memory);
	if (experts > 0)
		snprintf(of_experts, sizeof(of_experts), ", %s %s",
			config->experts == VERIFIER_EXPERTS_MAPPED ? "experts"
								   : "the fewest experts",
			UNITS_SIZE(experts));
	say_what_to_do(config, model, backend, &room, weights + experts, fits, sizeof(fits));
	return error_set(err, ENOMEM,
		"%s has %s free of %s%s, but the model needs %s: weights %s%s, KV cache "
		"(kv_tokens = %lld) %s, buffers for sessions_max = %lld and prefill_chunk = %lld "
		"%s; "
		"%s",
		backend->device->name, UNITS_SIZE(room.bytes), UNITS_SIZE(memory.bytes),
		room.limited ? " (device_memory)"
		: room.bytes < memory.bytes - memory.bytes / OWN_PART
			? " (other programs have the rest)"
			: "",
		UNITS_SIZE(weights + experts + kv + pass), UNITS_SIZE(weights), of_experts,
		(long long)config->kv_allocated, UNITS_SIZE(kv), (long long)config->sessions_max,
		(long long)config->prefill_chunk, UNITS_SIZE(pass), fits);
}

int device_check_adapter(const struct verifier_config *config, const struct model *model,
	const struct adapter *adapter, uint64_t kv_there, struct backend *backend,
	struct error *err)
{
	struct forward_limits limits = pass_limits(config->sessions_max, config->prefill_chunk,
		config->context, config->budget_oracle, config->fast);

	if (backend->device == NULL)
		return 0;
	uint64_t pass = forward_bytes(model, backend, &limits);
	const struct room room = room_of(config, model, backend, kv_there);
	uint64_t without = model_place_bytes(model) + pass +
			   device_kv_bytes(config, model, backend) + room.experts;
	limits.adapter = adapter;
	uint64_t more =
		adapter_place_bytes(adapter, model) + forward_bytes(model, backend, &limits) - pass;
	if (without + more <= room.bytes)
		return 0;
	return error_set(err, ENOMEM,
		"%s: the adapter needs %s beside the model's %s, but %s has %s free",
		config->adapter, UNITS_SIZE(more), UNITS_SIZE(without), backend->device->name,
		UNITS_SIZE(room.bytes));
}

static int open_gpu(struct verifier_config *config, const struct model *model,
	enum gpu_choice choice, const char *device, uint64_t kv_there, const char *runtime_dir,
	struct device_opened *out, struct error *err)
{
	const struct backend_gpu_options options = {.device = device};
	struct backend *backend = NULL;
	int rc = choice == GPU_CHOICE_SIMT ? backend_simt_create(&options, &backend, err)
					   : backend_cuda_create(&options, &backend, err);

	/* Before its memory is looked at, of which another service may have a part. */
	if (rc == 0 && runtime_dir != NULL)
		rc = device_claim(backend->device->uuid, backend->device->name, runtime_dir,
			PEER_VERIFIER, config->device_shared, &out->claim, err);
	if (rc == 0)
		rc = kv_size_tokens(config, model, backend, &config->kv_allocated, err);
	if (rc == 0)
		rc = check_memory(config, model, backend, kv_there, err);
	if (rc == 0) {
		out->backend = backend;
		return 0;
	}
	if (backend != NULL)
		backend->ops->destroy(backend);
	if (out->claim >= 0)
		close(out->claim);
	out->claim = -1;
	return rc;
}

int device_open(struct verifier_config *config, const struct model *model, uint64_t kv_there,
	const char *runtime_dir, struct device_opened *out, struct error *err)
{
	const char *lost = getenv(LOST), *device;
	enum gpu_choice choice;
	struct error why = {.text = ""};

	*out = (struct device_opened){.claim = -1};
	int rc = gpu_choice_read(config->device, &choice, &device, err);
	if (rc != 0)
		return rc;
	if (choice == GPU_CHOICE_CPU) {
		of_device_say_idle(verifier_config_keys, config, config->device);
		return open_cpu(config, &out->backend, err);
	}
	if (lost != NULL) {
		log_notice("the CPU computes, because %s; a restart uses the GPU again", lost);
		snprintf(out->refused, sizeof(out->refused), "%.255s", lost);
		return open_cpu(config, &out->backend, err);
	}
	rc = open_gpu(config, model, choice, device, kv_there, runtime_dir, out, &why);
	if (rc != 0 && choice == GPU_CHOICE_AUTO) {
		log_notice("device = auto: the CPU computes, because %s", why.text);
		of_device_say_idle(verifier_config_keys, config, config->device);
		snprintf(out->refused, sizeof(out->refused), "%.255s", why.text);
		return open_cpu(config, &out->backend, err);
	}
	return rc == 0 ? 0 : error_set(err, -rc, "device = %s: %s", config->device, why.text);
}

int device_open_fast(struct verifier_config *config, const struct model *model,
	struct backend *backend, struct error *err)
{
	char name[BACKEND_FAST_NAME], text[ARITHMETIC_TEXT];

	if (config->arithmetic != VERIFIER_ARITHMETIC_FAST)
		return 0;
	if (!forward_can_be_fast(model)) {
		log_notice(
			"arithmetic = fast changes nothing for this model: it has no F16 or BF16 "
			"weights that every token uses, and its answers are those of exact");
		return 0;
	}
	if (backend->device == NULL) {
		config->fast = false;
		log_notice(
			"arithmetic = fast: the CPU computes, and has the exact arithmetic alone; "
			"answers that were begun fast do not go on");
		return 0;
	}
	int rc = backend->ops->fast(backend, name, err);
	if (rc != 0)
		return error_prefix(err, rc, "arithmetic = fast");
	config->fast_number = arithmetic_fast(name);
	log_notice("arithmetic %s: prompts are multiplied by %s, in chunks of %d tokens",
		arithmetic_text(config->fast_number, text), name, FORWARD_FAST_CHUNK);
	return 0;
}

int device_open_host(const struct verifier_config *config, const struct backend *device,
	struct backend **out, struct error *err)
{
	*out = NULL;
	return device->device != NULL ? open_cpu(config, out, err) : 0;
}

int device_restart_on_cpu(struct daemon *daemon, const char *why, char **argv)
{
	return daemon_run_anew(daemon, LOST, why, argv);
}

int device_start_failed(const struct verifier_config *config, struct backend *backend,
	struct daemon *daemon, char **argv, int rc, struct error *err)
{
	struct error why;

	if (backend == NULL || backend->ops->failure(backend, &why) == 0)
		return rc;
	if (config->device_lost == VERIFIER_DEVICE_LOST_END)
		return error_set(err, EREMOTEIO,
			"%s; the verifier cannot start on it, and with device_lost = end it does "
			"not start on the CPU: set device_lost = cpu, or device = cpu, or use "
			"another GPU",
			why.text);
	log_error("%s", why.text);
	rc = device_restart_on_cpu(daemon, why.text, argv);
	return error_set(
		err, -rc, "%s; the program cannot be run anew: %s", why.text, strerror(-rc));
}
