#include "services/verifier/state/resources.h"

#include "kernels/cpu/steps/backend_cpu.h"
#include "kernels/kernels.h"
#include "services/verifier/state/device.h"
#include "services/verifier/state/journal.h"
#include "services/verifier/state/pass_limits.h"
#include "shared/base/cpus.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/base/units.h"
#include "shared/ipc/peers.h"
#include "shared/model/pass/forward.h"
#include "shared/model/arch/place.h"
#include "shared/model/arch/router_copies.h"
#include "shared/spec/device_spare.h"
#include "shared/spec/draft.h"
#include "shared/spec/kv_plan.h"
#include "shared/spec/session.h"
#include "shared/spec/slots.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB ((uint64_t)1 << 20)
/* Allowances for what is not counted one by one: stacks, sockets and tables of all four processes,
 * and what the other three allocate (16 MiB in all with n-grams). To this is added 1 / OTHERS_PART
 * of the experts' memory, for the page tables of the three processes that map it (8 bytes for each
 * page of 4096). */
#define OWN_BYTES_MORE (2 * MIB)
#define OTHERS_BYTES (14 * MIB)
#define OTHERS_PART 64
/* The process's own memory differs by a page or two from start to start. With this allowance the
 * least that is named now is enough at the next start. */
#define LEAST_BYTES_MORE (4 * MIB)

static uint64_t own_bytes(void)
{
	uint64_t kib = memory_info("/proc/self/status", "RssAnon");

	return kib < UINT64_MAX >> 10 ? kib << 10 : 0;
}

static void experts_needs(const struct verifier_config *config, const struct model *model,
	struct resources_needs *out)
{
	struct slots_geometry geometry;

	if (model->config.n_experts == 0 || config->experts == VERIFIER_EXPERTS_MAPPED)
		return;
	slots_geometry_init(&geometry, model);
	out->experts = slots_min(&geometry) * geometry.slot_bytes;
	out->experts_all = geometry.n_total * geometry.slot_bytes;
}

/* Buffers of passes with this many sessions. */
static uint64_t buffers(const struct verifier_config *config, const struct model *model,
	const struct adapter *adapter, struct backend *backend, int64_t sessions)
{
	struct forward_limits limits = pass_limits(sessions, config->prefill_chunk, config->context,
		config->budget_oracle, config->fast);

	limits.adapter = adapter;
	return own_bytes() + OWN_BYTES_MORE + router_copies_bytes(model) +
	       forward_bytes(model, backend, &limits);
}

void resources_needs(const struct verifier_config *config, const struct model *model,
	const struct adapter *adapter, struct backend *backend, uint64_t kv_bytes,
	struct resources_needs *out)
{
	uint32_t places = verifier_config_places(config);
	uint64_t sessions = sessions_bytes(places, (uint32_t)config->context);
	uint64_t own_page = journal_page_bytes((uint32_t)config->context);
	double one = (double)kv_plan_tokens_min(config->context) / (double)config->kv_allocated;

	*out = (struct resources_needs){
		.kv = kv_bytes,
		.rest = sessions + draft_bytes() + SUPPORTS_BYTES,
		.buffers = places * own_page +
			   buffers(config, model, adapter, backend, config->sessions_max),
		.kv_one = (uint64_t)((double)kv_bytes * (one < 1 ? one : 1)),
		.there = own_bytes(),
		.buffers_one = sessions / places + own_page + draft_bytes() +
			       buffers(config, model, adapter, backend, 1),
	};
	experts_needs(config, model, out);
	if (getenv(PEERS_TOGETHER) != NULL)
		out->others = OTHERS_BYTES + out->experts / OTHERS_PART;
}

uint64_t resources_device(const struct verifier_config *config, const struct model *model,
	const struct adapter *adapter, struct backend *backend)
{
	struct forward_limits limits = pass_limits(config->sessions_max, config->prefill_chunk,
		config->context, config->budget_oracle, config->fast);
	struct slots_geometry geometry;

	if (backend->device == NULL)
		return 0;
	limits.adapter = adapter;
	uint64_t bytes = model_place_bytes(model) + forward_bytes(model, backend, &limits) +
			 device_kv_bytes(config, model, backend);
	if (adapter != NULL)
		bytes += adapter_place_bytes(adapter, model);
	if (model->config.n_experts == 0)
		return bytes;
	slots_geometry_init(&geometry, model);
	return bytes + (config->experts == VERIFIER_EXPERTS_MAPPED ? model->expert_bytes_total
								   : device_spare_bytes(&geometry));
}

/* What the other processes take where the expert cache shares the limit, its least number of
 * experts included. */
static uint64_t beside(const struct resources_needs *needs)
{
	return needs->others > 0 ? needs->others + needs->experts : 0;
}

uint64_t resources_least(const struct resources_needs *needs)
{
	uint64_t one = needs->kv_one + needs->buffers_one + beside(needs);

	/* A KV cache that could never be filled is a mistake in any case. */
	return one > needs->kv ? one : needs->kv;
}

static uint64_t most(const struct resources_needs *needs)
{
	return needs->kv + needs->rest + needs->buffers + beside(needs);
}

/* Writes the part of a message that is about the other processes. */
static void describe_others(const struct resources_needs *needs, char *out, size_t out_bytes)
{
	out[0] = '\0';
	if (needs->others > 0 && needs->experts > 0)
		snprintf(out, out_bytes,
			", the fewest experts that one layer may need %s, the other processes %s",
			UNITS_SIZE(needs->experts), UNITS_SIZE(needs->others));
	else if (needs->others > 0)
		snprintf(out, out_bytes, ", the other processes %s", UNITS_SIZE(needs->others));
}

int resources_check(const struct verifier_config *config, const struct resources_needs *needs,
	struct error *err)
{
	uint64_t least = resources_least(needs);
	struct memory_limit limit;
	char others[160];

	memory_limit_now(&limit);
	if (least <= limit.bytes)
		return 0;
	describe_others(needs, others, sizeof(others));
	return error_set(err, ENOMEM,
		"memory: at least %" PRIu64 " MiB are needed, but %s has %s: give it more, set a "
		"smaller context, kv_tokens or sessions_max, or serve a smaller model (the KV "
		"cache takes %s, kv_tokens = %lld, sessions_max = %lld; one session %s of it, its "
		"page and buffers %s%s)",
		(least + LEAST_BYTES_MORE + MIB - 1) / MIB, limit.where, UNITS_SIZE(limit.bytes),
		UNITS_SIZE(needs->kv), (long long)config->kv_allocated,
		(long long)config->sessions_max, UNITS_SIZE(needs->kv_one),
		UNITS_SIZE(needs->buffers_one), others);
}

void resources_notice(const struct verifier_config *config, const struct backend *backend)
{
	const char *slow = NULL;
	struct cpus cpus;
	char text[256];

	if (backend->device == NULL)
		slow = kernels_notice(backend_cpu_kernels(backend), kernels_names[config->kernels]);
	if (slow != NULL)
		log_notice("%s", slow);
	cpus_now(&cpus);
	cpus_notice(&cpus, (uint32_t)config->threads, text, sizeof(text));
	if (text[0] != '\0')
		log_notice("%s", text);
}

int resources_memory(const struct verifier_config *config, const struct model *model,
	const struct resources_needs *needs, struct error *err)
{
	uint64_t experts = model->expert_bytes_total, kv_bytes = needs->kv;
	uint64_t dense = gguf_bytes(model->gguf) - experts;
	uint64_t kv_more = kv_bytes - needs->kv_there;
	struct memory_limit limit;

	/* Shared memory is allocated when it is touched, and then it is too late to refuse. */
	int rc = resources_check(config, needs, err);
	if (rc != 0)
		return rc;
	memory_limit_now(&limit);
	if (most(needs) > limit.bytes)
		log_notice(
			"with all of its sessions at work it may need %s (KV cache %s, kv_tokens = "
			"%lld, sessions_max = %lld), but %s has %s: the kernel would end "
			"processes; set a smaller context, kv_tokens or sessions_max, or give it "
			"more",
			UNITS_SIZE(most(needs)), UNITS_SIZE(kv_bytes),
			(long long)config->kv_allocated, (long long)config->sessions_max,
			limit.where, UNITS_SIZE(limit.bytes));
	/* Weights whose pages were reclaimed are read from the file again: it runs, but at the
	 * speed of the disk. */
	if (kv_more + dense > limit.available)
		log_notice("weights of every token (%s) and KV cache (%s) do not fit in the free "
			   "%s of %s: weights will be read from the disk again and again; set a "
			   "smaller context, kv_tokens or sessions_max, or give it more",
			UNITS_SIZE(dense), UNITS_SIZE(kv_bytes), UNITS_SIZE(limit.available),
			limit.where);
	else if (experts > 0 && kv_more + dense + experts > limit.available)
		log_notice("the model (%s) and KV cache (%s) do not fit in the free %s of %s: "
			   "experts will be read from the disk again and again unless "
			   "%soutrider-expert-cache keeps some (its budget = %" PRIu64 "M or less)",
			UNITS_SIZE(dense + experts), UNITS_SIZE(kv_bytes),
			UNITS_SIZE(limit.available), limit.where,
			config->experts == VERIFIER_EXPERTS_MAPPED
				? "experts is not set to mapped and "
				: "",
			(limit.available - kv_more - dense) >> 20);
	return 0;
}
