#include "services/verifier/config.h"

#include "kernels/kernels.h"
#include "kernels/kv_format.h"
#include "services/verifier/tuning.h"
#include "shared/base/cpus.h"
#include "shared/base/file.h"
#include "shared/base/nodes.h"
#include "shared/spec/kv_plan.h"

#include <string.h>

static const char *const pin_names[] = {"auto", "no", "yes", NULL};
static const char *const kv_names[] = {"auto", "f32", "f16", "q8_0", "q16_0", NULL};
static const char *const weights_names[] = {"auto", "packed", "mapped", NULL};
static const char *const gates_names[] = {"auto", "on", "off", "near", NULL};
static const char *const experts_names[] = {"auto", "mapped", "cached", NULL};

#define AT(field) \
	offsetof(struct verifier_config, field), sizeof(((struct verifier_config *)0)->field)
#define SECOND 1e9

static_assert(KV_PLAN_TOKENS_EACH == 2048 && KV_PLAN_TOKENS_MORE == 48,
	"the help of kv_tokens says them");

const struct config_key verifier_config_keys[] = {
	{"", "model", CONFIG_STRING, AT(model), 0, 0, NULL, "", "path",
		"GGUF file of the model that is served.", KNOB_AT_START, KNOB_MODEL},
	{"", "kernels", CONFIG_ENUM, AT(kernels), 0, 0, kernels_names, "auto", NULL,
		"Kernel set: auto, scalar, avx2 or avx512; all give the same bits.", KNOB_AT_START,
		KNOB_GLOBAL},
	{"", "threads", CONFIG_INT, AT(threads), 0, LIMIT_THREADS, NULL, "0", "threads",
		"Threads of a forward pass; 0 takes one per core that this process may use, within "
		"the CPU time its control group allows. More than there are CPUs do not take "
		"part.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "pin", CONFIG_ENUM, AT(pin), 0, 0, pin_names, "auto", NULL,
		"Bind each thread of the pass to a CPU of its own, cores first, spread over the "
		"memory nodes; auto does when there are as many threads as cores, or several "
		"nodes.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "pool_spin", CONFIG_STRING, AT(pool_spin), 0, 0, NULL, "auto", CONFIG_SPIN_RANGE,
		"How long an idle pass thread spins before it sleeps.", KNOB_LIVE, KNOB_GLOBAL},
	{"", "kv_type", CONFIG_ENUM, AT(kv_type), 0, 0, kv_names, "auto", NULL,
		"Number type of the KV cache: auto is f32 for F32 models, else q16_0, which is as "
		"exact as f16, 3 % larger and faster behind long contexts; q8_0 takes about half "
		"and is the fastest.",
		KNOB_AT_START, KNOB_MODEL},
	{"", "context", CONFIG_INT, AT(context), 0, LIMIT_CONTEXT, NULL, "0", "tokens",
		"Prompt and output of one session; 0 takes the model's, at most 8192. A model with "
		"longrope computes with other factors beyond its original context.",
		KNOB_AT_START, KNOB_MODEL},
	{"", "sessions_max", CONFIG_INT, AT(sessions_max), 1, LIMIT_SESSIONS, NULL, "16",
		"sessions",
		"Sessions computed in one batch. With recurrent layers there is room for the "
		"states of as "
		"many.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "queue_max", CONFIG_INT, AT(queue_max), 0, LIMIT_SESSIONS, NULL, "32", "sessions",
		"Sessions that may wait for a place; more are refused.", KNOB_LIVE, KNOB_GLOBAL},
	{"", "client_requests", CONFIG_INT, AT(client_requests), 1, LIMIT_SESSIONS, NULL, "32",
		"requests",
		"Requests of one client process that may run or wait at a time; more are refused.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "kv_tokens", CONFIG_INT, AT(kv_tokens), 0, (double)KV_PAGES_MAX *KV_PAGE_CELLS, NULL,
		"0", "tokens",
		"Tokens the KV cache holds, all sessions together; 0 takes, for each of "
		"sessions_max, the smaller of context and 2048, and 48 for a draft in flight; at "
		"least context and 48.",
		KNOB_AT_START, KNOB_MODEL},
	{"", "prefill_chunk", CONFIG_INT, AT(prefill_chunk), 1, 2048, NULL, "256", "tokens",
		"Prompt tokens computed in one pass, all sessions together.", KNOB_LIVE,
		KNOB_GLOBAL},
	{"", "experts", CONFIG_ENUM, AT(experts), 0, 0, experts_names, "auto", NULL,
		"Where experts come from: mapped (the file), cached or auto (the expert-cache "
		"while it "
		"is there).",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "weights", CONFIG_ENUM, AT(weights), 0, 0, weights_names, "auto", NULL,
		"Where the other weights are, and experts that are mapped: packed (a copy in "
		"memory, "
		"in the "
		"layout that is multiplied fastest), mapped (the file) or auto (packed where "
		"memory has room).",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "expert_spin", CONFIG_STRING, AT(expert_spin), 0, 0, NULL, "auto", CONFIG_SPIN_RANGE,
		"How long to spin for a missing expert before sleeping.", KNOB_LIVE, KNOB_GLOBAL},
	{"", "expert_patience", CONFIG_NS, AT(expert_patience), 0, 60 * SECOND, NULL, "20ms", NULL,
		"How long the expert-cache may take before the file is read here.", KNOB_LIVE,
		KNOB_GLOBAL},
	{"", "gate_hints", CONFIG_ENUM, AT(gate_hints), 0, 0, gates_names, "auto", NULL,
		"Foresee the next layers' experts by their routers: auto as far as the "
		"expert-cache's policy asks for it, near the next layer's alone, on those always "
		"where it lacks room for all experts.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "default_k", CONFIG_INT, AT(default_k), 0, LIMIT_DRAFT, NULL, "0", "tokens",
		"Drafted tokens per iteration while no policy has spoken.", KNOB_LIVE, KNOB_GLOBAL},
	{"", "follow_at_zero", CONFIG_BOOL, AT(follow_at_zero), 0, 0, NULL, "yes", NULL,
		"Keep the drafter up to date while K is 0.", KNOB_LIVE, KNOB_GLOBAL},
	{"", "draft_wait", CONFIG_NS, AT(draft_wait), 0, 10 * SECOND, NULL, "50ms", NULL,
		"How long an iteration waits for its drafts before it goes on without.", KNOB_LIVE,
		KNOB_GLOBAL},
	{"", "draft_spin", CONFIG_STRING, AT(draft_spin), 0, 0, NULL, "auto", CONFIG_SPIN_RANGE,
		"How long to spin for drafts before sleeping.", KNOB_LIVE, KNOB_GLOBAL},
	{"", "stream_interval", CONFIG_NS, AT(stream_interval), 0, SECOND, NULL, "4ms", NULL,
		"Tokens are sent to clients at most this often; first and last ones at once.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "client_timeout", CONFIG_NS, AT(client_timeout), 0.01 * SECOND, 86400 * SECOND, NULL,
		"60s", NULL,
		"A session whose client takes nothing for this long is cancelled. After a second "
		"it "
		"lets others go first.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "linger", CONFIG_NS, AT(linger), 0, 86400 * SECOND, NULL, "60s", NULL,
		"How long a finished session is kept for a client that reconnects.", KNOB_LIVE,
		KNOB_GLOBAL},
	{"", "ahead_max", CONFIG_INT, AT(ahead_max), 0, LIMIT_CONTEXT, NULL, "256", "tokens",
		"Tokens computed beyond what the client has granted.", KNOB_LIVE, KNOB_GLOBAL},
	{0},
};

/* The relations between keys: of the file's values, and of those that are changed while the process runs. */
static int check_relations(const struct verifier_config *config, struct error *err)
{
	struct tuning unused;

	if (config->sessions_max + config->queue_max > LIMIT_SESSIONS)
		return error_set(err, EINVAL,
			"sessions_max %lld and queue_max %lld: together at most %d",
			(long long)config->sessions_max, (long long)config->queue_max,
			LIMIT_SESSIONS);
	return tuning_of(config, &unused, err);
}

int verifier_config_check(const void *changed, struct error *err)
{
	const struct verifier_config *config = changed;

	if (config->sessions_allocated != 0 && config->sessions_max > config->sessions_allocated)
		return error_set(err, EINVAL,
			"sessions_max %lld: there is memory for the %lld of the start; more needs "
			"a "
			"restart (--next-start, then restart outrider-verifier)",
			(long long)config->sessions_max, (long long)config->sessions_allocated);
	if (config->prefill_allocated != 0 && config->prefill_chunk > config->prefill_allocated)
		return error_set(err, EINVAL,
			"prefill_chunk %lld: there is memory for the %lld of the start; more needs "
			"a "
			"restart (--next-start, then restart outrider-verifier)",
			(long long)config->prefill_chunk, (long long)config->prefill_allocated);
	return check_relations(config, err);
}

int verifier_config_resolve(struct verifier_config *config, struct error *err)
{
	struct cpus cpus;

	cpus_now(&cpus);
	config->few_cpus = cpus.n <= 4;
	config->sessions_allocated = config->sessions_max;
	config->prefill_allocated = config->prefill_chunk;

	if (config->model[0] == '\0')
		return error_set(err, EINVAL,
			"model: no file given (--model FILE, or model = FILE in the "
			"configuration)");
	if (config->threads == 0)
		config->threads = cpus.threads;
	/* Unbound threads were seen to share one of two idle CPUs for seconds: half the speed. With fewer threads than
	 * cores the kernel may know better which are free. */
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

/* The oldest session must be able to go on to the end of its context by itself, a full draft in flight: then taking pages from
 * the youngest always makes progress. */
static int check_kv_tokens(int64_t kv_tokens, int64_t context, struct error *err)
{
	int64_t least = kv_plan_tokens_min(context);

	if (kv_tokens >= least)
		return 0;
	return error_set(err, EINVAL,
		"kv_tokens: %lld is too small for one session: context %lld needs %lld",
		(long long)kv_tokens, (long long)context, (long long)least);
}

int verifier_config_fit(
	struct verifier_config *config, const struct model *model, struct error *err)
{
	if (config->context == 0)
		config->context = kv_plan_context(model);
	int rc = check_context(config->context, model, err);
	if (rc < 0)
		return rc;
	if (config->kv_tokens == 0)
		config->kv_tokens = kv_plan_tokens(config->sessions_max, config->context);
	return check_kv_tokens(config->kv_tokens, config->context, err);
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
	/* Where they are as they were, the next start may choose others. */
	if (next->kv_tokens == 0 || next->kv_tokens == now->kv_tokens)
		return 0;
	return check_kv_tokens(next->kv_tokens, context, err);
}

enum kv_type verifier_config_kv_type(
	const struct verifier_config *config, const struct model *model)
{
	return kv_type_of(kv_names[config->kv_type], model);
}
