#include "services/expert-cache/room.h"

#include "shared/spec/kv_plan.h"

void room_needs_of(const struct model *model, struct room_needs *out)
{
	const struct kv_plan plan = kv_plan_default(model);
	const struct kv_layout layout = kv_plan_layout(&plan, model);
	out->weights = gguf_bytes(model->gguf) - model->expert_bytes_total;
	out->kv = kv_bytes(&layout);
}

static uint64_t less(uint64_t bytes, uint64_t by)
{
	return bytes > by ? bytes - by : 0;
}

static uint64_t sum(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t reserve_of(uint64_t memory)
{
	uint64_t part = memory / ROOM_RESERVE_PART;
	return part > ROOM_RESERVE_BYTES_MIN ? part : ROOM_RESERVE_BYTES_MIN;
}

static struct room share_out(
	uint64_t memory, bool free_of_it, uint64_t weights, uint64_t kv, uint64_t reserve)
{
	struct room room = {.memory = memory,
		.free_of_it = free_of_it,
		.weights = weights,
		.kv = kv,
		.reserve = reserve};
	room.bytes = less(less(less(memory, weights), kv), reserve);
	return room;
}

void room_find(const struct memory_limit *limit, const struct room_needs *needs, uint64_t had,
	bool running, struct room *out)
{
	uint64_t reserve = reserve_of(limit->bytes);
	/* What others use may be given back or grow; what there is at all is the bound that stays. */
	struct room whole = share_out(limit->bytes, false, needs->weights, needs->kv, reserve);
	struct room now = share_out(
		sum(limit->available, had), true, running ? 0 : needs->weights, needs->kv, reserve);
	*out = now.bytes < whole.bytes ? now : whole;
}
