/*
 * A fixed set of hot experts: those that some earlier run used most (cache_policy_shape.profile)
 * or, without a profile, those of the first LEARN_PASSES passes over the model. The hottest n_slots
 * experts are fetched in the order of their heat. Other experts that are demanded go through the
 * slots of the coldest; an expert of the hot set that had to give way comes back only when it is
 * demanded. Takes no hints.
 *
 * This is what systems do that place experts once by popularity (Fiddler, arXiv 2402.07033), or
 * that refresh a resident set rarely (SwapMoE, arXiv 2308.15030). A policy that claims to adapt
 * must beat it.
 */
#include "services/expert-cache/policies/heap.h"
#include "services/expert-cache/policies/residents.h"

#include <stdlib.h>

/* Enough for the ranks of the hottest third to settle on the demo model's mixed workload. */
enum { LEARN_PASSES = 256 };

struct hot_set {
	struct residents residents;
	struct heap cold; /* slots, the coldest first */
	struct heap queue; /* experts to fetch, the hottest first */
	uint32_t n_experts, n_ids, n_slots;
	bool learning, running;
	uint32_t passes, layer;
	uint64_t iteration;
	uint64_t *heat; /* [n_layers][n_experts] uses */
};

static double heat_of(const struct hot_set *hot, uint32_t id)
{
	return (double)hot->heat[id];
}

/* Queues the hottest n_slots experts that are not resident. */
static void plan(struct hot_set *hot)
{
	struct heap *queue = &hot->queue;
	while (queue->n > 0)
		heap_remove(queue, heap_top(queue));
	/* Keeps the n_slots hottest: the heap's top is the coldest of them. */
	for (uint32_t id = 0; id < hot->n_ids; id++) {
		if (hot->heat[id] == 0)
			continue;
		heap_set(queue, id, heat_of(hot, id));
		if (queue->n > hot->n_slots)
			heap_remove(queue, heap_top(queue));
	}
	for (uint32_t id = 0; id < hot->n_ids; id++) {
		if (!heap_has(queue, id))
			continue;
		if (residents_slot(&hot->residents, id) != SLOT_NONE)
			heap_remove(queue, id);
		else
			heap_set(queue, id, -heat_of(hot, id));
	}
}

static void static_destroy(void *policy)
{
	struct hot_set *hot = policy;
	residents_exit(&hot->residents);
	heap_exit(&hot->cold);
	heap_exit(&hot->queue);
	free(hot->heat);
	free(hot);
}

static int allocate(struct hot_set *hot, const struct cache_policy_shape *shape, struct error *err)
{
	hot->heat = calloc(hot->n_ids, sizeof(*hot->heat));
	if (hot->heat == NULL)
		return error_set(err, ENOMEM, "no memory for %u experts", hot->n_ids);
	int status = residents_init(&hot->residents, shape, err);
	if (status == 0)
		status = heap_init(&hot->cold, shape->n_slots, err);
	if (status == 0)
		status = heap_init(&hot->queue, hot->n_ids, err);
	return status;
}

static int static_create(const struct cache_policy_shape *shape, void **out, struct error *err)
{
	struct hot_set *hot = calloc(1, sizeof(*hot));
	if (hot == NULL)
		return error_set(err, ENOMEM, "no memory for a cache policy");
	hot->n_experts = shape->n_experts;
	hot->n_ids = shape->n_layers * shape->n_experts;
	hot->n_slots = shape->n_slots;
	int status = allocate(hot, shape, err);
	if (status != 0) {
		static_destroy(hot);
		return status;
	}
	hot->learning = true;
	for (uint32_t id = 0; shape->profile != NULL && id < hot->n_ids; id++) {
		hot->heat[id] = shape->moe[id / hot->n_experts] ? shape->profile[id] : 0;
		hot->learning = hot->learning && hot->heat[id] == 0;
	}
	if (!hot->learning)
		plan(hot);
	*out = hot;
	return 0;
}

static void static_measure(void *policy, const struct cache_measures *measures)
{
	struct hot_set *hot = policy;
	if (measures->n_slots == 0 || measures->n_slots == hot->n_slots)
		return;
	hot->n_slots = measures->n_slots;
	if (!hot->learning)
		plan(hot);
}

static void static_load(
	void *policy, uint32_t slot, uint32_t layer, uint32_t expert, enum load_reason why)
{
	struct hot_set *hot = policy;
	(void)why;
	if (!residents_add(&hot->residents, slot, layer, expert))
		return;
	uint32_t id = residents_id(&hot->residents, layer, expert);
	heap_set(&hot->cold, slot, heat_of(hot, id));
	heap_remove(&hot->queue, id);
}

static void static_evict(void *policy, uint32_t slot)
{
	struct hot_set *hot = policy;
	if (residents_remove(&hot->residents, slot))
		heap_remove(&hot->cold, slot);
}

static void static_demand(void *policy, const struct cache_use *use)
{
	struct hot_set *hot = policy;
	heap_remove(&hot->queue, residents_id(&hot->residents, use->layer, use->expert));
}

static void static_use(void *policy, const struct cache_use *use)
{
	struct hot_set *hot = policy;
	if (!hot->learning)
		return;
	if (!hot->running || use->iteration != hot->iteration) {
		hot->passes += hot->running && use->layer <= hot->layer;
		hot->running = true;
		hot->iteration = use->iteration;
		hot->layer = use->layer;
		if (hot->passes == LEARN_PASSES) {
			hot->learning = false;
			plan(hot);
			return;
		}
	}
	uint32_t id = residents_id(&hot->residents, use->layer, use->expert);
	uint32_t slot = residents_slot(&hot->residents, id);
	hot->heat[id]++;
	if (slot != SLOT_NONE)
		heap_set(&hot->cold, slot, heat_of(hot, id));
}

static bool static_next(void *policy, uint64_t now_ns, struct cache_prefetch *out)
{
	struct hot_set *hot = policy;
	uint32_t id = heap_top(&hot->queue);
	(void)now_ns;
	if (id == HEAP_NONE)
		return false;
	heap_remove(&hot->queue, id);
	*out = (struct cache_prefetch){.layer = id / hot->n_experts,
		.expert = id % hot->n_experts,
		.score = (float)hot->heat[id]};
	return true;
}

static void static_put_back(void *policy, const struct cache_prefetch *prefetch)
{
	struct hot_set *hot = policy;
	uint32_t id = residents_id(&hot->residents, prefetch->layer, prefetch->expert);
	heap_set(&hot->queue, id, -heat_of(hot, id));
}

static uint32_t static_queued(const void *policy)
{
	const struct hot_set *hot = policy;
	return hot->queue.n;
}

static uint32_t static_victim(void *policy, const struct cache_prefetch *want, enum load_reason why,
	bool (*may)(void *arg, uint32_t slot), void *arg)
{
	const struct hot_set *hot = policy;
	uint32_t id = residents_id(&hot->residents, want->layer, want->expert);
	double bound = why == LOAD_DEMAND ? (double)UINT64_MAX : heat_of(hot, id);
	uint32_t slot = heap_least(&hot->cold, bound, may, arg);
	return slot == HEAP_NONE ? SLOT_NONE : slot;
}

const struct cache_policy_ops policy_static_set = {
	.name = "static",
	.help = "keeps the hottest experts of a profile, or of the first passes",
	.hint_sources = CACHE_HINTS_NONE,
	.create = static_create,
	.destroy = static_destroy,
	.on_load = static_load,
	.on_evict = static_evict,
	.on_demand = static_demand,
	.on_activation = static_use,
	.on_hint = cache_policy_ignore_hint,
	.on_measure = static_measure,
	.next = static_next,
	.put_back = static_put_back,
	.queued = static_queued,
	.victim = static_victim,
};
