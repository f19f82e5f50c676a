#include "shared/spec/kv_plan.h"

static int64_t with_draft(int64_t tokens)
{
	return tokens + KV_PLAN_TOKENS_MORE;
}

int64_t kv_plan_tokens_min(int64_t context)
{
	return with_draft(context);
}

int64_t kv_plan_tokens(int64_t sessions, int64_t context)
{
	int64_t tokens = sessions *
			 with_draft(context < KV_PLAN_TOKENS_EACH ? context : KV_PLAN_TOKENS_EACH);
	int64_t least = kv_plan_tokens_min(context);
	return tokens < least ? least : tokens;
}

uint32_t kv_plan_rows(int64_t sessions, int64_t prefill)
{
	return (uint32_t)(sessions * (LIMIT_DRAFT_SHARE + 1) + prefill);
}

uint32_t kv_plan_context(const struct model *model)
{
	uint32_t context = model->config.n_context;
	return context < KV_PLAN_CONTEXT ? context : KV_PLAN_CONTEXT;
}

struct kv_plan kv_plan_default(const struct model *model)
{
	return (struct kv_plan){
		.type = kv_type_auto(model),
		.sessions = KV_PLAN_SESSIONS,
		.prefill = KV_PLAN_PREFILL,
		.tokens = kv_plan_tokens(KV_PLAN_SESSIONS, kv_plan_context(model)),
		.states_bytes = KV_PLAN_STATES_BYTES,
	};
}

static uint32_t snapshots(const struct kv_plan *plan, const struct kv_layout *layout)
{
	size_t bytes = recurrent_state_bytes(&layout->states);
	uint64_t n = bytes > 0 ? plan->states_bytes / bytes : 0;

	if (n > KV_PLAN_STATES_MAX)
		n = KV_PLAN_STATES_MAX;
	return n < layout->n_pages ? (uint32_t)n : layout->n_pages;
}

struct kv_layout kv_plan_layout(const struct kv_plan *plan, const struct model *model)
{
	struct kv_layout layout = kv_layout_of(
		model, plan->type, (uint32_t)((plan->tokens + KV_PAGE_CELLS - 1) / KV_PAGE_CELLS));
	layout.states.n_slots = (uint32_t)plan->sessions;
	layout.states.n_snapshots = snapshots(plan, &layout);
	layout.n_records = LIMIT_SESSIONS;
	if (plan->windows_whole)
		return layout;
	layout.windows = kv_windows_of(model, (uint32_t)plan->sessions,
		kv_plan_rows(plan->sessions, plan->prefill), layout.n_pages * KV_PAGE_CELLS);
	return layout;
}
