#include "services/verifier/resources.h"

#include "shared/base/cpus.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/base/units.h"

#include <inttypes.h>

void resources_notice(const struct verifier_config *config, const struct kernels *kernels)
{
	const char *slow = kernels_notice(kernels, kernels_names[config->kernels]);
	struct cpus cpus;
	char text[256];

	if (slow != NULL)
		log_notice("%s", slow);
	cpus_now(&cpus);
	cpus_notice(&cpus, (uint32_t)config->threads, text, sizeof(text));
	if (text[0] != '\0')
		log_notice("%s", text);
}

int resources_memory(const struct verifier_config *config, const struct model *model,
	uint64_t kv_bytes, struct error *err)
{
	uint64_t experts = model->expert_bytes_total;
	uint64_t dense = gguf_bytes(model->gguf) - experts;
	struct memory_limit limit;

	memory_limit_now(&limit);
	/* Shared memory is had when it is touched, and then it is too late to say no. */
	if (kv_bytes > limit.bytes)
		return error_set(err, ENOMEM,
			"the KV cache takes %s (kv_tokens = %lld, sessions_max = %lld), but "
			"%s has %s: set a smaller context, kv_tokens or sessions_max",
			UNITS_SIZE(kv_bytes), (long long)config->kv_tokens,
			(long long)config->sessions_max, limit.where, UNITS_SIZE(limit.bytes));
	/* Weights come from the file again when their pages were taken away: it runs, at the speed of the disk. */
	if (kv_bytes + dense > limit.available)
		log_notice("weights of every token (%s) and KV cache (%s) do not fit in the %s "
			   "that are free of %s: weights "
			   "will be read from the disk again and again; set a smaller context, "
			   "kv_tokens or sessions_max, or give it more",
			UNITS_SIZE(dense), UNITS_SIZE(kv_bytes), UNITS_SIZE(limit.available),
			limit.where);
	else if (experts > 0 && kv_bytes + dense + experts > limit.available)
		log_notice("the model (%s) and KV cache (%s) do not fit in the %s that are free "
			   "of %s: experts will be read from the disk again and "
			   "again unless %soutrider-expert-cache keeps some (its budget = %" PRIu64
			   "M or less)",
			UNITS_SIZE(dense + experts), UNITS_SIZE(kv_bytes),
			UNITS_SIZE(limit.available), limit.where,
			config->experts == VERIFIER_EXPERTS_MAPPED ? "experts is not mapped and "
								   : "",
			(limit.available - kv_bytes - dense) >> 20);
	return 0;
}
