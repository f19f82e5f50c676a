#include "client/cli/doctor/plan.h"

#include "services/expert-cache/budget.h"
#include "services/verifier/prefixes/prefix_disk.h"
#include "shared/model/kv/kv_content.h"

/* The defaults first; then what makes room. Below the third step the service is a different one, so
 * it is only used when nothing else runs. */
static const struct {
	int64_t sessions;
	uint32_t context;
} steps[] = {{KV_PLAN_SESSIONS, KV_PLAN_CONTEXT}, {8, KV_PLAN_CONTEXT}, {4, KV_PLAN_CONTEXT},
	{2, 4096}, {1, 2048}};

enum { STEPS = sizeof(steps) / sizeof(steps[0]), STEPS_FOR_EXPERTS = 3, CONTEXT_STEP = 1024 };

/* What a plan is for. */
struct wants {
	const struct facts *facts;
	const struct memory_limit *limit;
	bool to_disk;
};

/* As the verifier counts them. */
static uint64_t disk_bytes(const struct kv_plan *kv, const struct model *model)
{
	const struct kv_layout layout = kv_plan_layout(kv, model);
	size_t content = kv_content_bytes_of(&layout);

	return content > 0 ? prefix_disk_memory(content) : 0;
}

static void try_out(const struct wants *wants, int64_t sessions, uint32_t context, struct plan *out)
{
	const struct facts *facts = wants->facts;
	const struct memory_limit *limit = wants->limit;
	const struct slots_geometry *geometry = facts->geometry;
	struct kv_plan kv = kv_plan_default(facts->model);
	struct room_needs needs;

	kv.sessions = sessions;
	kv.tokens = kv_plan_tokens(sessions, context);
	room_needs_planned(facts->model, &kv, context, &needs);
	out->disk_bytes = wants->to_disk ? disk_bytes(&kv, facts->model) : 0;
	needs.of.rest += out->disk_bytes;
	room_find(limit, &needs, 0, &out->room);
	uint64_t least = geometry->n_total > 0 ? slots_min(geometry) * geometry->slot_bytes : 0;
	out->sessions = sessions;
	out->context = context;
	out->kv_bytes = needs.of.kv;
	out->all_bytes = (uint64_t)geometry->n_total * geometry->slot_bytes;
	out->budget_bytes = geometry->n_total > 0 ? budget_automatic(geometry, out->room.bytes) : 0;
	out->share = out->all_bytes > 0 ? (double)out->budget_bytes / (double)out->all_bytes : 1;
	out->least_bytes = room_limit_least(&needs, least);
	out->runs = limit->bytes >= out->least_bytes;
	out->all = out->runs && out->room.bytes > 0 && out->room.bytes >= out->all_bytes;
}

static uint32_t at_most(uint32_t context, uint32_t most)
{
	return context < most ? context : most;
}

/* In steps of CONTEXT_STEP, or all of the model's context. */
static uint32_t longest_context(const struct wants *wants, const struct plan *plan)
{
	uint32_t whole = wants->facts->model->config.n_context;
	uint32_t low = plan->context / CONTEXT_STEP, high = whole / CONTEXT_STEP;
	struct plan trial;

	try_out(wants, plan->sessions, whole, &trial);
	if (trial.all)
		return whole;
	while (low + 1 < high) {
		uint32_t middle = (low + high) / 2;

		try_out(wants, plan->sessions, middle * CONTEXT_STEP, &trial);
		if (trial.all)
			low = middle;
		else
			high = middle;
	}
	return low * CONTEXT_STEP > plan->context ? low * CONTEXT_STEP : plan->context;
}

void plan_make(
	const struct facts *facts, const struct memory_limit *limit, bool to_disk, struct plan *out)
{
	const struct wants wants = {facts, limit, to_disk};
	uint32_t most = facts->model->config.n_context;
	struct plan trial;
	int chosen = -1;

	*out = (struct plan){0};
	for (int i = 0; i < STEPS && chosen < 0; i++) {
		try_out(&wants, steps[i].sessions, at_most(steps[i].context, most), &trial);
		if (trial.all && i < STEPS_FOR_EXPERTS)
			chosen = i;
	}
	/* Not all experts fit. First choice: a plan that runs with the weights of every token in
	 * memory; otherwise one that runs at all. */
	for (int i = 0; i < STEPS && chosen < 0; i++) {
		try_out(&wants, steps[i].sessions, at_most(steps[i].context, most), &trial);
		if (trial.runs && trial.room.bytes >= trial.budget_bytes)
			chosen = i;
	}
	if (chosen < 0)
		chosen = STEPS - 1;
	try_out(&wants, steps[chosen].sessions, at_most(steps[chosen].context, most), out);
	out->smaller = chosen > 0;
	if (out->all)
		out->context_most = longest_context(&wants, out);
}
