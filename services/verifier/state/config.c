#include "services/verifier/state/config.h"

#include "kernels/gpu/choice.h"
#include "kernels/kv_format.h"
#include "kernels/kernels.h"
#include "services/verifier/state/kv_size.h"
#include "services/verifier/state/tuning.h"
#include "shared/base/cpus.h"
#include "shared/base/file.h"
#include "shared/base/nodes.h"
#include "shared/model/pass/forward.h"
#include "shared/spec/kv_plan.h"
#include "shared/spec/session.h"

#include <string.h>

/* Whether sessions get an expert budget if they say nothing. */
static bool has_budget(const struct verifier_config *config)
{
	return strcmp(config->budget_experts, "0") != 0 &&
	       strcmp(config->budget_experts, "all") != 0;
}

/* Checks the relations between keys, for the values at the start and for those that are changed
 * while the process runs. */
static int check_relations(const struct verifier_config *config, struct error *err)
{
	struct tuning unused;

	if (config->sessions_max + config->queue_max > LIMIT_SESSIONS)
		return error_set(err, EINVAL,
			"sessions_max %lld and queue_max %lld: together at most %d",
			(long long)config->sessions_max, (long long)config->queue_max,
			LIMIT_SESSIONS);
	/* A chunk that is smaller would be computed again and again, and never end. */
	if (config->arithmetic == VERIFIER_ARITHMETIC_FAST &&
		config->prefill_chunk < FORWARD_FAST_CHUNK)
		return error_set(err, EINVAL,
			"prefill_chunk %lld: arithmetic = fast needs %d or more",
			(long long)config->prefill_chunk, FORWARD_FAST_CHUNK);
	int rc = has_budget(config)
			 ? layer_limits_form("budget_experts", config->budget_experts, err)
			 : 0;
	if (rc == 0)
		rc = kv_size_check(config, err);
	return rc < 0 ? rc : tuning_of(config, &unused, err);
}

uint32_t verifier_config_places(const struct verifier_config *config)
{
	int64_t n = config->sessions_max + config->queue_max;

	n = n < SESSIONS_USED ? SESSIONS_USED : 2 * n - SESSIONS_USED;
	return n < LIMIT_SESSIONS ? (uint32_t)n : LIMIT_SESSIONS;
}

int verifier_config_check(const void *changed, struct error *err)
{
	const struct verifier_config *config = changed;

	if (config->sessions_allocated != 0 && config->sessions_max > config->sessions_allocated)
		return error_set(err, EINVAL,
			"sessions_max %lld: memory was reserved for the %lld of the start; more "
			"needs a restart (--next-start, then restart outrider-verifier)",
			(long long)config->sessions_max, (long long)config->sessions_allocated);
	if (config->prefill_allocated != 0 && config->prefill_chunk > config->prefill_allocated)
		return error_set(err, EINVAL,
			"prefill_chunk %lld: memory was reserved for the %lld of the start; more "
			"needs a restart (--next-start, then restart outrider-verifier)",
			(long long)config->prefill_chunk, (long long)config->prefill_allocated);
	return check_relations(config, err);
}

int verifier_config_resolve(struct verifier_config *config, struct error *err)
{
	enum gpu_choice choice;
	const char *device;
	struct cpus cpus;

	cpus_now(&cpus);
	config->few_cpus = cpus.n <= 4;
	config->sessions_allocated = config->sessions_max;
	config->prefill_allocated = config->prefill_chunk;

	if (config->model[0] == '\0')
		return error_set(err, EINVAL,
			"model: no file given (--model FILE, or model = FILE in the "
			"configuration)");
	int rc = gpu_choice_read(config->device, &choice, &device, err);
	if (rc != 0)
		return rc;
	if (choice == GPU_CHOICE_CPU && config->arithmetic == VERIFIER_ARITHMETIC_FAST)
		return error_set(err, EINVAL,
			"arithmetic = fast needs a GPU (device), and device is cpu, which computes "
			"in the exact arithmetic alone");
	if (config->threads == 0)
		config->threads = cpus.threads;
	/* Two unbound threads were seen to share one of two idle CPUs for seconds, at half the
	 * speed. With fewer threads than cores the kernel may know better which cores are free. */
	if (config->pin == VERIFIER_PIN_AUTO)
		config->pin = config->threads == cpus.cores || nodes_count() > 1 ? VERIFIER_PIN_YES
										 : VERIFIER_PIN_NO;
	return check_relations(config, err);
}

static int check_context(int64_t context, const struct model *model, struct error *err)
{
	int64_t model_context = model->config.n_context;

	if (context > model_context)
		return error_set(err, EINVAL, "context: %lld is more than the model's %lld",
			(long long)context, (long long)model_context);
	if (context < 2)
		return error_set(err, EINVAL,
			"context: %lld has no room for a prompt and an answer", (long long)context);
	return 0;
}

/* The oldest session must be able to go on to the end of its context when it is alone, with a full
 * draft in flight. Then taking pages from the youngest session always makes progress. */
static int check_kv_tokens(int64_t kv_tokens, int64_t context, struct error *err)
{
	int64_t least = kv_plan_tokens_min(context);

	if (kv_tokens >= least)
		return 0;
	return error_set(err, EINVAL,
		"kv_tokens: %lld is too small for one session: context %lld needs %lld",
		(long long)kv_tokens, (long long)context, (long long)least);
}

struct budget_means verifier_config_budget(
	const struct verifier_config *config, const struct model *model)
{
	return (struct budget_means){
		.n_layers = model->config.n_layers,
		.n_experts = model->config.n_experts,
		.profile = config->budget_profile[0] != '\0',
		.oracle = config->budget_oracle,
	};
}

int verifier_config_read_budget(const struct verifier_config *config, const struct model *model,
	uint16_t *experts, struct error *err)
{
	const struct budget_means means = verifier_config_budget(config, model);

	memset(experts, 0, LIMIT_LAYERS * sizeof(*experts));
	if (!has_budget(config))
		return 0;
	return budget_read(config->budget_experts, (uint32_t)config->budget_ranking,
		(uint32_t)config->budget_coverage, &means, experts, err);
}

int verifier_config_check_budget(
	const struct verifier_config *config, const struct model *model, struct error *err)
{
	uint16_t experts[LIMIT_LAYERS];

	return verifier_config_read_budget(config, model, experts, err);
}

int verifier_config_fit(
	struct verifier_config *config, const struct model *model, struct error *err)
{
	if (config->context == 0)
		config->context = kv_plan_context(model);
	int rc = check_context(config->context, model, err);
	if (rc < 0)
		return rc;
	config->fast = config->arithmetic == VERIFIER_ARITHMETIC_FAST && forward_can_be_fast(model);
	if (config->kv_tokens == 0)
		config->kv_tokens = kv_plan_tokens(config->sessions_max, config->context);
	config->kv_allocated = config->kv_tokens;
	rc = verifier_config_check_budget(config, model, err);
	return rc < 0 ? rc : check_kv_tokens(config->kv_tokens, config->context, err);
}

int verifier_config_fits(const struct verifier_config *next, const struct verifier_config *now,
	const struct model *model, struct error *err)
{
	int64_t context = next->context != 0 ? next->context : kv_plan_context(model);

	if (strcmp(next->model, now->model) != 0)
		return file_check("model", next->model, err);
	if (next->context != now->context) {
		int rc = check_context(context, model, err);
		if (rc < 0)
			return rc;
	}
	int budget = verifier_config_check_budget(next, model, err);
	if (budget < 0)
		return budget;
	if (strcmp(next->budget_profile, now->budget_profile) != 0 &&
		next->budget_profile[0] != '\0') {
		budget = file_check("budget_profile", next->budget_profile, err);
		if (budget < 0)
			return budget;
	}
	/* Where both are unchanged, the next start may choose others. */
	if (next->kv_tokens == 0 || next->kv_tokens == now->kv_tokens)
		return 0;
	return check_kv_tokens(next->kv_tokens, context, err);
}

uint32_t verifier_config_arithmetic(const struct verifier_config *config)
{
	return config->fast_number != 0 ? config->fast_number : KERNELS_ARITHMETIC;
}

enum kv_type verifier_config_kv_type(
	const struct verifier_config *config, const struct model *model)
{
	return kv_type_of(verifier_kv_names[config->kv_type], model);
}
