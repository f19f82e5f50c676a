#include "services/verifier/state/tuning.h"

#include "shared/model/kv/kv.h"

#include <stdlib.h>

int tuning_of(const struct verifier_config *config, struct tuning *out, struct error *err)
{
	/* With few CPUs, the process for which we wait needs the CPU on which we would spin. */
	bool few = config->few_cpus;

	*out = (struct tuning){
		.draft_wait = (uint64_t)config->draft_wait,
		.expert_patience = (uint64_t)config->expert_patience,
		.stream_interval = (uint64_t)config->stream_interval,
		.sessions_max = (uint32_t)config->sessions_max,
		.prefill_chunk = (uint32_t)config->prefill_chunk,
		.ahead_max = (uint32_t)config->ahead_max,
		.prefix_pages = config->prefix_tokens < 0
					? KV_PAGES_MAX
					: (uint32_t)(config->prefix_tokens / KV_PAGE_CELLS),
		.default_k = (uint32_t)config->default_k,
		.draft_width = (uint32_t)config->draft_width,
		.draft_nodes = (uint32_t)config->draft_nodes,
		.follow_at_zero = config->follow_at_zero,
		.ageing = (uint64_t)config->ageing,
		.hybrid = config->hybrid,
		.sleep_after = (uint64_t)config->sleep_after,
	};
	/* Between two parts of a pass a thread waits for some microseconds; when it spins for less
	 * than that, each wait costs a futex call. */
	int rc = config_spin(
		"pool_spin", config->pool_spin, few ? 50000 : 100000, &out->pool_spin, err);
	if (rc == 0)
		rc = config_spin("draft_spin", config->draft_spin, few ? 2000 : 50000,
			&out->draft_spin, err);
	if (rc == 0)
		rc = config_spin("expert_spin", config->expert_spin, few ? 0 : 20000,
			&out->expert_spin, err);
	if (rc == 0)
		rc = classes_read(config->classes, &out->classes, err);
	return rc;
}

int tuning_create(const struct verifier_config *config, struct tuning **out, struct error *err)
{
	*out = malloc(sizeof(**out));
	if (*out == NULL)
		return error_set(err, ENOMEM, "no memory for the engine's settings");
	int rc = tuning_of(config, *out, err);
	if (rc != 0) {
		free(*out);
		*out = NULL;
	}
	return rc;
}
