/*
 * MoE-Infinity (arXiv 2401.14361): predicts which experts a sequence will use from earlier
 * sequences with similar activations (traces.h).
 *
 * - Prefetching: when layer c of a sequence runs, its matrix so far is matched against the kept
 *   ones. An expert of a later layer l is prefetched with the priority (ratio + epsilon) (1 - (l -
 *   c) / n_layers); ratio is its share of the tokens of its layer in the match.
 * - Eviction: the resident expert with the least (ratio + epsilon) (1 - l / n_layers); ratio is its
 *   share in the sequence's own matrix. Early layers of the model are kept, because nothing can be
 *   prefetched for them in time.
 *
 * Where the paper is silent, or means another setting: a prefetch replaces an expert that the match
 * (or, without one, the sequence) rates lower; only the TRACES_TOP likeliest experts of each layer
 * are prefetched; the collection starts with the profile if there is one, and fills as sequences
 * end, instead of in an offline run; passes of several sessions count as a sequence of their own
 * (session 0). Takes no hints.
 */
#include "services/expert-cache/policies/heap.h"
#include "services/expert-cache/policies/prefetch_queue.h"
#include "services/expert-cache/policies/residents.h"
#include "services/expert-cache/policies/published/traces.h"

#include <stdlib.h>

#define EPSILON 1e-3 /* orders experts that their layer has never used */

struct lfu_trace {
	struct traces traces;
	struct residents residents;
	struct prefetch_queue queue;
	/* [n_layers] resident experts, by their count in the present sequence */
	struct heap *layers;
	struct trace_live *now; /* the present sequence */
	uint32_t n_layers, n_experts, layer;
	uint64_t iteration;
};

static void lfu_destroy(void *policy)
{
	struct lfu_trace *lfu = policy;
	traces_exit(&lfu->traces);
	residents_exit(&lfu->residents);
	prefetch_queue_exit(&lfu->queue);
	for (uint32_t l = 0; lfu->layers != NULL && l < lfu->n_layers; l++)
		heap_exit(&lfu->layers[l]);
	free(lfu->layers);
	free(lfu);
}

static int allocate(
	struct lfu_trace *lfu, const struct cache_policy_shape *shape, struct error *err)
{
	lfu->layers = calloc(shape->n_layers, sizeof(*lfu->layers));
	if (lfu->layers == NULL)
		return error_set(err, ENOMEM, "no memory for %u layers", shape->n_layers);
	int status = traces_init(&lfu->traces, shape, err);
	if (status == 0)
		status = residents_init(&lfu->residents, shape, err);
	if (status == 0)
		status = prefetch_queue_init(
			&lfu->queue, shape->n_layers, shape->n_experts, shape->queue_max, err);
	for (uint32_t l = 0; status == 0 && l < shape->n_layers; l++)
		status = heap_init(&lfu->layers[l], shape->n_experts, err);
	return status;
}

static int lfu_create(const struct cache_policy_shape *shape, void **out, struct error *err)
{
	struct lfu_trace *lfu = calloc(1, sizeof(*lfu));
	if (lfu == NULL)
		return error_set(err, ENOMEM, "no memory for a cache policy");
	lfu->n_layers = shape->n_layers;
	lfu->n_experts = shape->n_experts;
	int status = allocate(lfu, shape, err);
	if (status != 0) {
		lfu_destroy(lfu);
		return status;
	}
	*out = lfu;
	return 0;
}

static double count_of(const struct lfu_trace *lfu, uint32_t layer, uint32_t expert)
{
	return lfu->now == NULL ? 0
				: lfu->now->matrix.count[(size_t)layer * lfu->n_experts + expert];
}

/* Another sequence runs: residents now count as much as in its matrix. */
static void switch_to(struct lfu_trace *lfu, struct trace_live *live)
{
	lfu->now = live;
	for (uint32_t slot = 0; slot < lfu->residents.n_slots; slot++) {
		if (!residents_holds(&lfu->residents, slot))
			continue;
		uint32_t id = residents_at(&lfu->residents, slot);
		uint32_t layer = id / lfu->n_experts, expert = id % lfu->n_experts;
		heap_set(&lfu->layers[layer], expert, count_of(lfu, layer, expert));
	}
}

static double ratio(const struct trace_matrix *matrix, uint32_t layer, double count)
{
	return matrix->total[layer] > 0 ? count / (double)matrix->total[layer] : 0;
}

/* Asks for what the coming layers will use, according to the best match. */
static void predict(struct lfu_trace *lfu)
{
	const struct traces *traces = &lfu->traces;
	const struct trace_kept *match = traces_match(traces, lfu->now);
	for (uint32_t l = lfu->layer + 1; match != NULL && l < lfu->n_layers; l++) {
		double nearness = 1 - (double)(l - lfu->layer) / lfu->n_layers;
		for (uint32_t i = 0; i < traces->n_top; i++) {
			uint32_t expert = match->top[l][i];
			uint32_t id = residents_id(&lfu->residents, l, expert);
			uint32_t count = match->matrix.count[id];
			if (count == 0)
				break;
			if (residents_slot(&lfu->residents, id) != SLOT_NONE)
				continue;
			double share = ratio(&match->matrix, l, count);
			struct cache_prefetch prefetch = {.layer = l,
				.expert = expert,
				.score = (float)((share + EPSILON) * nearness)};
			prefetch_queue_remove(&lfu->queue, l, expert);
			prefetch_queue_add(&lfu->queue, &prefetch);
		}
	}
}

/* A layer has begun: finds its sequence, and what that predicts for the layers after it. */
static void begin_layer(struct lfu_trace *lfu, const struct cache_use *use)
{
	struct trace_live *live = traces_of(&lfu->traces, use->session, use->iteration);
	bool other = live != lfu->now || live->matrix.total[use->layer] == 0;
	if (!other && use->iteration == lfu->iteration)
		return;
	lfu->iteration = use->iteration;
	lfu->layer = use->layer;
	if (other)
		switch_to(lfu, live);
	prefetch_queue_passed(&lfu->queue, use->layer);
	predict(lfu);
}

static void lfu_demand(void *policy, const struct cache_use *use)
{
	struct lfu_trace *lfu = policy;
	prefetch_queue_remove(&lfu->queue, use->layer, use->expert);
}

static void lfu_use(void *policy, const struct cache_use *use)
{
	struct lfu_trace *lfu = policy;
	begin_layer(lfu, use);
	traces_count(&lfu->traces, lfu->now, use->layer, use->expert, use->tokens);
	prefetch_queue_remove(&lfu->queue, use->layer, use->expert);
	if (heap_has(&lfu->layers[use->layer], use->expert))
		heap_set(&lfu->layers[use->layer], use->expert,
			count_of(lfu, use->layer, use->expert));
}

static void lfu_load(
	void *policy, uint32_t slot, uint32_t layer, uint32_t expert, enum load_reason why)
{
	struct lfu_trace *lfu = policy;
	(void)why;
	if (!residents_add(&lfu->residents, slot, layer, expert))
		return;
	heap_set(&lfu->layers[layer], expert, count_of(lfu, layer, expert));
	prefetch_queue_remove(&lfu->queue, layer, expert);
}

static void lfu_evict(void *policy, uint32_t slot)
{
	struct lfu_trace *lfu = policy;
	uint32_t id = slot < lfu->residents.n_slots ? lfu->residents.expert[slot] : 0;
	if (residents_remove(&lfu->residents, slot))
		heap_remove(&lfu->layers[(id - 1) / lfu->n_experts], (id - 1) % lfu->n_experts);
}

static bool lfu_next(void *policy, uint64_t now_ns, struct cache_prefetch *out)
{
	struct lfu_trace *lfu = policy;
	return prefetch_queue_take(&lfu->queue, now_ns, out);
}

static void lfu_put_back(void *policy, const struct cache_prefetch *prefetch)
{
	struct lfu_trace *lfu = policy;
	prefetch_queue_add(&lfu->queue, prefetch);
}

static uint32_t lfu_queued(const void *policy)
{
	const struct lfu_trace *lfu = policy;
	return lfu->queue.n;
}

static uint32_t lfu_victim(void *policy, const struct cache_prefetch *want, enum load_reason why,
	bool (*may)(void *arg, uint32_t slot), void *arg)
{
	struct lfu_trace *lfu = policy;
	struct residents_question question = {.residents = &lfu->residents, .may = may, .arg = arg};
	double least = why == LOAD_DEMAND ? (double)UINT64_MAX : (double)want->score;
	uint32_t victim = SLOT_NONE;
	for (uint32_t l = 0; l < lfu->n_layers; l++) {
		double weight = 1 - (double)l / lfu->n_layers;
		double total = lfu->now == NULL ? 0 : (double)lfu->now->matrix.total[l];
		/* (count / total + epsilon) weight < least */
		double bound = total > 0 ? (least / weight - EPSILON) * total
					 : (double)(EPSILON * weight < least);
		question.layer = l;
		uint32_t expert = heap_least(&lfu->layers[l], bound, residents_may, &question);
		if (expert == HEAP_NONE)
			continue;
		double share = total > 0 ? lfu->layers[l].key[expert] / total : 0;
		least = (share + EPSILON) * weight;
		victim = residents_slot(&lfu->residents, residents_id(&lfu->residents, l, expert));
	}
	return victim;
}

const struct cache_policy_ops policy_lfu_trace = {
	.name = "lfu-trace",
	.help = "activations of similar sequences (MoE-Infinity)",
	.hint_sources = CACHE_HINTS_NONE,
	.create = lfu_create,
	.destroy = lfu_destroy,
	.on_load = lfu_load,
	.on_evict = lfu_evict,
	.on_demand = lfu_demand,
	.on_activation = lfu_use,
	.on_hint = cache_policy_ignore_hint,
	.next = lfu_next,
	.put_back = lfu_put_back,
	.queued = lfu_queued,
	.victim = lfu_victim,
};
