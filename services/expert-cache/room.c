#include "services/expert-cache/room.h"

#include "shared/base/saturate.h"
#include "shared/spec/draft.h"
#include "shared/spec/session.h"

void room_needs_planned(const struct model *model, const struct kv_plan *plan, uint32_t context,
	struct room_needs *out)
{
	const struct kv_layout layout = kv_plan_layout(plan, model);
	*out = (struct room_needs){
		.of.weights = slots_needs_weights(model),
		.of.kv = kv_bytes(&layout),
		.of.rest = sessions_bytes(SESSIONS_USED, context) + draft_bytes() + SUPPORTS_BYTES,
	};
}

void room_needs_of(const struct model *model, struct room_needs *out)
{
	const struct kv_plan plan = kv_plan_default(model);
	room_needs_planned(model, &plan, kv_plan_context(model), out);
}

uint64_t room_needs_held(const struct room_needs *needs)
{
	return saturate_add(needs->of.kv, needs->of.rest);
}

static uint64_t all_of(const struct room_needs *needs)
{
	return saturate_add(needs->of.weights, room_needs_held(needs));
}

bool room_needs_equal(const struct room_needs *a, const struct room_needs *b)
{
	return a->of.weights == b->of.weights && a->of.kv == b->of.kv && a->of.rest == b->of.rest;
}

static uint64_t reserve_of(uint64_t memory)
{
	uint64_t part = memory / ROOM_RESERVE_PART;
	return part > ROOM_RESERVE_BYTES_MIN ? part : ROOM_RESERVE_BYTES_MIN;
}

uint64_t room_limit_least(const struct room_needs *needs, uint64_t bytes)
{
	uint64_t all = saturate_add(room_needs_held(needs), bytes);
	/* The smallest memory whose reserve leaves this much. */
	uint64_t part = all / (ROOM_RESERVE_PART - 1) + 1;
	return saturate_add(all, part > ROOM_RESERVE_BYTES_MIN ? part : ROOM_RESERVE_BYTES_MIN);
}

static struct room share_out(
	uint64_t memory, bool free_of_it, const struct room_needs *needs, uint64_t reserve)
{
	return (struct room){.memory = memory,
		.free_of_it = free_of_it,
		.needs = *needs,
		.reserve = reserve,
		.bytes = saturate_sub(memory, saturate_add(all_of(needs), reserve))};
}

void room_find(const struct memory_limit *limit, const struct room_needs *needs, uint64_t had,
	struct room *out)
{
	uint64_t reserve = reserve_of(limit->bytes), all = all_of(needs);
	uint64_t there = needs->of.there < all ? needs->of.there : all;
	/* Memory in use by others may be freed, or grow; the total is the bound that stays. */
	struct room whole = share_out(limit->bytes, false, needs, reserve);
	struct room now = share_out(
		saturate_add(saturate_add(limit->available, had), there), true, needs, reserve);
	*out = now.bytes < whole.bytes ? now : whole;
}
