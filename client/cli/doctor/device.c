#include "client/cli/doctor/device.h"

#include "kernels/gpu/backend.h"
#include "kernels/gpu/choice.h"
#include "services/expert-cache/budget.h"
#include "services/expert-cache/device/share.h"
#include "services/verifier/state/kv_size.h"
#include "services/verifier/state/resources.h"
#include "shared/base/saturate.h"
#include "shared/model/arch/place.h"
#include "shared/spec/device_slots.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static int open_device(const char *text, struct backend **out, struct error *err)
{
	struct backend_gpu_options options = {0};
	enum gpu_choice choice;
	int rc = gpu_choice_read(text, &choice, &options.device, err);

	*out = NULL;
	if (rc != 0 || choice == GPU_CHOICE_CPU)
		return rc;
	rc = choice == GPU_CHOICE_SIMT ? backend_simt_create(&options, out, err)
				       : backend_cuda_create(&options, out, err);
	return choice == GPU_CHOICE_AUTO ? 0 : rc;
}

/* The verifier's settings as it has them once it has opened the device. */
static int settings(const struct device_wants *wants, const struct model *model,
	const struct backend *backend, struct verifier_config *out, struct error *err)
{
	config_defaults(verifier_config_keys, out);
	snprintf(out->model, sizeof(out->model), "%.1023s", gguf_path(model->gguf));
	snprintf(out->device, sizeof(out->device), "%.63s", wants->device);
	snprintf(out->device_memory, sizeof(out->device_memory), "%.31s", wants->memory);
	out->sessions_max = wants->sessions;
	out->context = wants->context;
	int rc = verifier_config_resolve(out, err);
	if (rc == 0)
		rc = verifier_config_fit(out, model, err);
	if (rc == 0)
		rc = kv_size_tokens(out, model, backend, &out->kv_allocated, err);
	return rc;
}

/* The experts that fit, and the room for all else if there are the fewest of them. */
static uint64_t plan_experts(
	const struct facts *facts, const struct device_share *share, struct device_plan *out)
{
	struct slots_geometry geometry;
	uint64_t room = share->limit;

	device_geometry(facts->geometry, &geometry);
	out->experts = geometry.n_total;
	out->least = slots_min(&geometry);
	out->fit_bytes = budget_automatic(&geometry, share->bytes);
	out->fit = (uint32_t)(out->fit_bytes / geometry.slot_bytes);
	room = share->free < room ? share->free : room;
	return saturate_sub(room, out->least * geometry.slot_bytes);
}

static void find(const struct facts *facts, const struct verifier_config *config,
	struct backend *backend, struct device_plan *out)
{
	const struct model *model = facts->model;
	uint64_t needs = resources_device(config, model, NULL, backend);
	uint64_t limit = kv_size_limit(config, backend);
	struct backend_memory memory;
	struct device_share share;

	backend->ops->memory(backend, &memory);
	device_share_find(backend, &memory, needs, 0, 0, 0, &share);
	device_share_limit(&share, limit);
	out->bytes = memory.bytes;
	out->free = memory.free;
	out->limit = share.limit;
	out->limited = limit != 0;
	snprintf(out->name, sizeof(out->name), "%.95s", share.name);
	out->extent = device_extent_of(config);
	out->weights = model_place_bytes(model);
	out->passes = device_pass_bytes(config, model, backend, &out->extent);
	out->kv = device_cells_bytes(config, model, backend, &out->extent);
	out->spare = needs - out->weights - out->passes - out->kv;
	uint64_t dense = limit != 0 && limit < memory.free ? limit : memory.free;
	uint64_t room = facts->experts > 0 ? plan_experts(facts, &share, out) : dense;
	out->runs = needs <= room;
	out->less_runs =
		!out->runs && device_fit(config, model, backend,
				      saturate_sub(room, out->weights + out->spare), &out->less);
}

int device_plan_make(const struct device_wants *wants, const struct facts *facts,
	struct device_plan *out, struct error *err)
{
	struct verifier_config *config = calloc(1, sizeof(*config));
	struct backend *backend = NULL;
	int rc = config ? open_device(wants->device, &backend, err)
			: error_set(err, ENOMEM, "no memory for settings");

	*out = (struct device_plan){0};
	if (rc == 0 && backend != NULL)
		rc = settings(wants, facts->model, backend, config, err);
	if (rc == 0 && backend != NULL) {
		find(facts, config, backend, out);
		rc = 1;
	}
	if (backend != NULL)
		backend->ops->destroy(backend);
	free(config);
	return rc;
}
