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

static uint32_t least(uint64_t a, uint64_t b, uint64_t c)
{
	uint64_t n = a < b ? a : b;

	return (uint32_t)(n < c ? n : c);
}

static uint32_t snapshots(const struct kv_plan *plan, const struct kv_layout *layout)
{
	size_t bytes = recurrent_state_bytes(&layout->states);

	return bytes > 0 ? least(plan->states_bytes / bytes, KV_PLAN_STATES_MAX, layout->n_pages)
			 : 0;
}

/* Layers with a window are stored apart, with room for the windows of snapshots. */
static void plan_windows(
	const struct kv_plan *plan, const struct model *model, struct kv_layout *layout)
{
	uint32_t n_cells = layout->n_pages * KV_PAGE_CELLS, n_seqs = (uint32_t)plan->sessions;
	struct kv_windows_layout *w = &layout->windows;

	*w = kv_windows_of(model, n_seqs, kv_plan_rows(plan->sessions, plan->prefill), n_cells);
	if (w->n_layers == 0)
		return;
	uint64_t page_bytes = kv_windows_page_bytes(layout);
	uint32_t pages =
		least(plan->states_bytes / page_bytes, layout->n_pages / 4, KV_PLAN_STATES_MAX);
	/* Each takes a slot, however much of its window others have too. */
	layout->states.n_snapshots = pages;
	kv_windows_spare(w, n_seqs, pages, n_cells);
	if (w->n_layers == 0)
		layout->states.n_snapshots = 0;
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
	plan_windows(plan, model, &layout);
	return layout;
}
