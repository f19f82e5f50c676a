#include "services/verifier/state/device.h"

#include "kernels/cpu/steps/backend_cpu.h"
#include "kernels/gpu/backend.h"
#include "kernels/gpu/choice.h"
#include "kernels/kernels.h"
#include "services/verifier/state/pass_limits.h"
#include "shared/base/log.h"
#include "shared/base/units.h"
#include "shared/model/arch/place.h"
#include "shared/model/pass/forward.h"

#include <errno.h>
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

/* Memory of the device for passes of `sessions` sessions. Tables that the host has are counted in. */
static uint64_t pass_bytes(const struct verifier_config *config, const struct model *model,
	struct backend *backend, int64_t sessions, int64_t chunk)
{
	const struct forward_limits limits =
		pass_limits(sessions, chunk, config->context, config->budget_oracle);

	return forward_bytes(model, backend, &limits);
}

/* Says what would fit: fewer sessions, then shorter chunks of prompts. */
static void say_what_fits(const struct verifier_config *config, const struct model *model,
	struct backend *backend, uint64_t room, char *out, size_t out_bytes)
{
	int64_t sessions = config->sessions_max, chunk = config->prefill_chunk;

	while (pass_bytes(config, model, backend, sessions, chunk) > room) {
		if (sessions > 1)
			sessions /= 2;
		else if (chunk > 16)
			chunk /= 2;
		else
			break;
	}
	if (pass_bytes(config, model, backend, sessions, chunk) <= room)
		snprintf(out, out_bytes, "sessions_max = %lld and prefill_chunk = %lld would fit",
			(long long)sessions, (long long)chunk);
	else
		snprintf(out, out_bytes, "not even one session fits: set device = cpu");
}

/* Whether the device has memory for the weights and the largest pass. */
static int check_memory(const struct verifier_config *config, const struct model *model,
	struct backend *backend, struct error *err)
{
	uint64_t weights = model_place_bytes(model), experts = model->expert_bytes_total;
	uint64_t pass =
		pass_bytes(config, model, backend, config->sessions_max, config->prefill_chunk);
	struct backend_memory memory;
	char fits[96];

	/* With an expert-cache its own setting decides how many experts the device keeps. */
	if (config->experts != VERIFIER_EXPERTS_MAPPED)
		experts = 0;
	backend->ops->memory(backend, &memory);
	if (weights + experts + pass <= memory.free)
		return 0;
	if (weights + experts >= memory.free)
		snprintf(fits, sizeof(fits), "the weights alone do not fit: set device = cpu");
	else
		say_what_fits(config, model, backend, memory.free - weights - experts, fits,
			sizeof(fits));
	return error_set(err, ENOMEM,
		"%s has %s free of %s%s, but the model needs %s: weights %s, experts %s, buffers "
		"for "
		"sessions_max = %lld and prefill_chunk = %lld %s; %s",
		backend->device->name, UNITS_SIZE(memory.free), UNITS_SIZE(memory.bytes),
		memory.free < memory.bytes - memory.bytes / OWN_PART
			? " (other programs have the rest)"
			: "",
		UNITS_SIZE(weights + experts + pass), UNITS_SIZE(weights), UNITS_SIZE(experts),
		(long long)config->sessions_max, (long long)config->prefill_chunk, UNITS_SIZE(pass),
		fits);
}

static int open_gpu(const struct verifier_config *config, const struct model *model,
	enum gpu_choice choice, const char *device, struct backend **out, struct error *err)
{
	const struct backend_gpu_options options = {.device = device};
	struct backend *backend = NULL;
	int rc = choice == GPU_CHOICE_SIMT ? backend_simt_create(&options, &backend, err)
					   : backend_cuda_create(&options, &backend, err);

	if (rc == 0)
		rc = check_memory(config, model, backend, err);
	if (rc != 0 && backend != NULL)
		backend->ops->destroy(backend);
	if (rc == 0)
		*out = backend;
	return rc;
}

int device_open(const struct verifier_config *config, const struct model *model,
	struct backend **out, struct error *err)
{
	const char *lost = getenv(LOST), *device;
	enum gpu_choice choice;
	struct error why = {.text = ""};

	int rc = gpu_choice_read(config->device, &choice, &device, err);
	if (rc != 0)
		return rc;
	if (choice == GPU_CHOICE_CPU)
		return open_cpu(config, out, err);
	if (lost != NULL) {
		log_notice("the CPU computes, because %s; a restart uses the GPU again", lost);
		return open_cpu(config, out, err);
	}
	rc = open_gpu(config, model, choice, device, out, &why);
	if (rc != 0 && choice == GPU_CHOICE_AUTO) {
		log_notice("device = auto: the CPU computes, because %s", why.text);
		return open_cpu(config, out, err);
	}
	return rc == 0 ? 0 : error_set(err, -rc, "device = %s: %s", config->device, why.text);
}

int device_open_host(const struct verifier_config *config, const struct backend *device,
	struct backend **out, struct error *err)
{
	*out = NULL;
	return device->device != NULL ? open_cpu(config, out, err) : 0;
}

int device_restart_on_cpu(const char *why, char **argv)
{
	if (setenv(LOST, why, 1) != 0)
		return -errno;
	/* What the driver has open keeps memory of the device; not every descriptor of its is closed
	 * by an exec. */
	(void)close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
	execv("/proc/self/exe", argv);
	return -errno;
}
