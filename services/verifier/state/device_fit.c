#include "services/verifier/state/device_fit.h"

#include "services/verifier/state/kv_memory.h"
#include "services/verifier/state/pass_limits.h"
#include "shared/model/pass/forward.h"
#include "shared/spec/kv_plan.h"

#include <stdio.h>

/* No prompt is cut into shorter chunks to save memory, and no context is made shorter. */
enum { CHUNK_MIN = 16, CONTEXT_MIN = 256 };

struct device_extent device_extent_of(const struct verifier_config *config)
{
	return (struct device_extent){
		config->sessions_max, config->prefill_chunk, config->context, config->kv_allocated};
}

uint64_t device_pass_bytes(const struct verifier_config *config, const struct model *model,
	struct backend *backend, const struct device_extent *extent)
{
	const struct forward_limits limits = pass_limits(extent->sessions, extent->chunk,
		extent->context, config->budget_oracle, config->fast);

	return forward_bytes(model, backend, &limits);
}

uint64_t device_cells_bytes(const struct verifier_config *config, const struct model *model,
	const struct backend *backend, const struct device_extent *extent)
{
	const struct kv_plan plan = {
		.type = verifier_config_kv_type(config, model),
		.sessions = extent->sessions,
		.prefill = extent->chunk,
		.tokens = extent->kv_tokens,
	};
	const struct kv_layout layout = kv_plan_layout(&plan, model);

	return kv_memory_device(config, backend) != 0 ? kv_memory_bytes(kv_store_bytes(&layout))
						      : 0;
}

/* A step to what takes less. False: there is none. */
static bool lessen(struct device_extent *extent, int64_t chunk_min)
{
	if (extent->sessions > 1)
		extent->sessions /= 2;
	else if (extent->chunk > chunk_min)
		extent->chunk = extent->chunk / 2 > chunk_min ? extent->chunk / 2 : chunk_min;
	else if (extent->context > CONTEXT_MIN)
		extent->context /= 2;
	else
		return false;
	int64_t tokens = kv_plan_tokens(extent->sessions, extent->context);
	extent->kv_tokens = tokens < extent->kv_tokens ? tokens : extent->kv_tokens;
	return true;
}

bool device_fit(const struct verifier_config *config, const struct model *model,
	struct backend *backend, uint64_t room, struct device_extent *out)
{
	int64_t chunk_min = config->fast ? FORWARD_FAST_CHUNK : CHUNK_MIN;

	*out = device_extent_of(config);
	while (device_pass_bytes(config, model, backend, out) +
			device_cells_bytes(config, model, backend, out) >
		room)
		if (!lessen(out, chunk_min))
			return false;
	return true;
}

const char *device_fit_text(const struct device_extent *extent, char *out)
{
	snprintf(out, DEVICE_FIT_TEXT,
		"sessions_max = %lld, prefill_chunk = %lld, context = %lld and kv_tokens = %lld",
		(long long)extent->sessions, (long long)extent->chunk, (long long)extent->context,
		(long long)extent->kv_tokens);
	return out;
}
