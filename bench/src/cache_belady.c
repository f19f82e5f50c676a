/*
 * Belady (A study of replacement algorithms for a virtual-storage computer, IBM Systems Journal 5, 1966): the fewest loads
 * that a cache filled on demand can do, with the future known. It counts the runs of layers in the trace as they come.
 */
#include "bench/src/cache_replay.h"
#include "services/expert-cache/heap.h"
#include "services/expert-cache/residents.h"

#include <assert.h>
#include <stdlib.h>

#define NEVER 1e18

struct belady {
	struct residents residents;
	struct heap latest; /* slots by falling next use */
	uint32_t *
		run; /* [n_uses] of all experts, expert by expert, rising: runs of layers that use it */
	uint32_t *next,
		*end; /* [n_layers][n_experts] into run: the next use of each, behind its last */
	uint32_t runs; /* begun so far */
	bool running;
	uint64_t iteration;
};

static void belady_destroy(void *policy)
{
	struct belady *belady = policy;
	residents_exit(&belady->residents);
	heap_exit(&belady->latest);
	free(belady->run);
	free(belady->next);
	free(belady->end);
	free(belady);
}

/* Counts, then places: the lists of all experts lie one behind the other. */
static void list_uses(struct belady *belady, const struct cache_trace *trace)
{
	uint32_t n_ids = trace->n_layers * trace->n_experts, at = 0;
	for (int round = 0; round < 2; round++) {
		for (uint32_t r = 0; r < trace->n_layer_runs; r++) {
			const struct trace_layer *layer = &trace->layers[r];
			for (uint32_t u = 0; u < layer->n_uses; u++) {
				uint32_t id = layer->layer * trace->n_experts +
					      trace->uses[layer->first_use + u].expert;
				if (round == 1)
					belady->run[belady->end[id]] = r;
				belady->end[id]++;
			}
		}
		for (uint32_t id = 0; round == 0 && id < n_ids; id++) {
			uint32_t n = belady->end[id];
			belady->next[id] = belady->end[id] = at;
			at += n;
		}
	}
}

int replay_belady_create(
	const struct cache_trace *trace, uint32_t n_slots, void **out, struct error *err)
{
	struct belady *belady = calloc(1, sizeof(*belady));
	if (belady == NULL)
		return error_set(err, ENOMEM, "no memory to replay");
	size_t n_ids = (size_t)trace->n_layers * trace->n_experts;
	belady->run = calloc(trace->n_uses + 1, sizeof(*belady->run));
	belady->next = calloc(n_ids, sizeof(*belady->next));
	belady->end = calloc(n_ids, sizeof(*belady->end));
	struct cache_policy_shape shape = {
		.n_layers = trace->n_layers, .n_experts = trace->n_experts, .n_slots = n_slots};
	int rc = residents_init(&belady->residents, &shape, err);
	if (rc == 0)
		rc = heap_init(&belady->latest, n_slots, err);
	if (rc == 0 && !(belady->run && belady->next && belady->end))
		rc = error_set(err, ENOMEM, "no memory for %u uses", trace->n_uses);
	if (rc < 0) {
		belady_destroy(belady);
		return rc;
	}
	assert(belady->run && belady->next && belady->end); /* else rc is -ENOMEM */
	list_uses(belady, trace);
	*out = belady;
	return 0;
}

/* Runs before the one that runs now are over. */
static double next_use(struct belady *belady, uint32_t id)
{
	uint32_t *next = &belady->next[id];
	while (*next < belady->end[id] && belady->run[*next] < belady->runs)
		++*next;
	return *next < belady->end[id] ? belady->run[*next] : NEVER;
}

static void rank(struct belady *belady, uint32_t id)
{
	uint32_t slot = residents_slot(&belady->residents, id);
	if (slot != SLOT_NONE)
		heap_set(&belady->latest, slot, -next_use(belady, id));
}

static void begin(struct belady *belady, const struct cache_use *use)
{
	belady->runs += !belady->running || belady->iteration != use->iteration;
	belady->running = true;
	belady->iteration = use->iteration;
}

static void belady_load(
	void *policy, uint32_t slot, uint32_t layer, uint32_t expert, enum load_reason why)
{
	struct belady *belady = policy;
	(void)why;
	if (residents_add(&belady->residents, slot, layer, expert))
		rank(belady, residents_id(&belady->residents, layer, expert));
}

static void belady_evict(void *policy, uint32_t slot)
{
	struct belady *belady = policy;
	if (residents_remove(&belady->residents, slot))
		heap_remove(&belady->latest, slot);
}

static void belady_demand(void *policy, const struct cache_use *use)
{
	begin(policy, use);
}

static void belady_use(void *policy, const struct cache_use *use)
{
	struct belady *belady = policy;
	begin(belady, use);
	rank(belady, residents_id(&belady->residents, use->layer, use->expert));
}

static bool belady_next(void *policy, uint64_t now_ns, struct cache_prefetch *out)
{
	(void)policy;
	(void)now_ns;
	(void)out;
	return false;
}

static void belady_put_back(void *policy, const struct cache_prefetch *prefetch)
{
	(void)policy;
	(void)prefetch;
}

static uint32_t belady_queued(const void *policy)
{
	(void)policy;
	return 0;
}

static uint32_t belady_victim(void *policy, const struct cache_prefetch *want, enum load_reason why,
	bool (*may)(void *arg, uint32_t slot), void *arg)
{
	struct belady *belady = policy;
	(void)want;
	(void)why;
	uint32_t slot = heap_least(&belady->latest, 1, may, arg);
	return slot == HEAP_NONE ? SLOT_NONE : slot;
}

const struct cache_policy_ops replay_belady = {
	.name = "belady",
	.help = "the bound: the future is known",
	.destroy = belady_destroy,
	.on_load = belady_load,
	.on_evict = belady_evict,
	.on_demand = belady_demand,
	.on_activation = belady_use,
	.on_hint = cache_policy_ignore_hint,
	.next = belady_next,
	.put_back = belady_put_back,
	.queued = belady_queued,
	.victim = belady_victim,
};
