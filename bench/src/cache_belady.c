/*
 * Belady (A study of replacement algorithms for a virtual-storage computer, IBM Systems Journal 5,
 * 1966): the fewest loads that a cache filled on demand can need, when the future is known. Runs of
 * layers are counted in the order of the trace.
 *
 * With a bounded look-ahead it knows what the next runs use. It expects every other expert after as
 * many further runs of its layer as its long-run frequency says (expectation.h, without hints). The
 * difference to the full bound shows how much a policy gains by looking further ahead.
 *
 * With shares it knows how many of an answer's decoding runs use each expert, but not their order.
 * It expects each expert as if runs drew it with that share, at the next run of its layer in the
 * cycle. The result is the least that the best set, fixed for each answer, would read.
 */
#include "bench/src/cache_replay.h"
#include "services/expert-cache/policies/expectation.h"
#include "services/expert-cache/policies/heap.h"
#include "services/expert-cache/policies/residents.h"

#include <math.h>
#include <stdlib.h>

#define NEVER 1e18
/* So that an expectation is a time before that. */
#define LEAST_CHANCE 1e-6

struct belady {
	const struct cache_trace *trace;
	bool bounded, shares;
	/* bounded: runs of layers that are known; n_moe: layers with experts */
	uint32_t ahead, n_moe;
	uint32_t *ordinal; /* [n_layers] among the layers that have experts */
	double *share; /* [n_layers][n_experts] for shares: in the answer that runs */
	uint64_t session;
	struct expectation expectation; /* for bounded: of use beyond the known runs */
	struct residents residents;
	struct heap latest; /* slots, the one that is used again last first */
	/* [n_uses] for all experts, one after the other: the runs of layers that use it, rising */
	uint32_t *run;
	/* [n_layers][n_experts] indices in run: the next use of each expert, and the end of its
	 * uses */
	uint32_t *next, *end;
	uint32_t runs; /* begun so far */
	bool running;
	uint32_t layer;
	uint64_t iteration;
};

static void belady_destroy(void *policy)
{
	struct belady *belady = policy;
	expectation_exit(&belady->expectation);
	residents_exit(&belady->residents);
	heap_exit(&belady->latest);
	free(belady->ordinal);
	free(belady->share);
	free(belady->run);
	free(belady->next);
	free(belady->end);
	free(belady);
}

/* Counts, then places: the lists of all experts are one after the other. */
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

static int allocate(
	struct belady *belady, const struct cache_policy_shape *shape, struct error *err)
{
	size_t n_ids = (size_t)shape->n_layers * shape->n_experts;
	belady->ordinal = calloc(shape->n_layers, sizeof(*belady->ordinal));
	belady->share = calloc(n_ids, sizeof(*belady->share));
	belady->run = calloc(belady->trace->n_uses + 1, sizeof(*belady->run));
	belady->next = calloc(n_ids, sizeof(*belady->next));
	belady->end = calloc(n_ids, sizeof(*belady->end));
	if (!(belady->ordinal && belady->share && belady->run && belady->next && belady->end))
		return error_set(err, ENOMEM, "no memory for %u uses", belady->trace->n_uses);
	int rc = residents_init(&belady->residents, shape, err);
	if (rc == 0)
		rc = heap_init(&belady->latest, shape->n_slots, err);
	if (rc == 0 && belady->bounded)
		rc = expectation_init(&belady->expectation, shape, err);
	return rc;
}

int replay_belady_create(const struct cache_trace *trace, const struct replay_options *options,
	void **out, struct error *err)
{
	struct cache_policy_shape shape = {.n_layers = trace->n_layers,
		.n_experts = trace->n_experts,
		.n_experts_used = trace->n_experts_used,
		.n_slots = options->n_slots};
	struct belady *belady = calloc(1, sizeof(*belady));
	if (belady == NULL)
		return error_set(err, ENOMEM, "no memory to replay");
	belady->trace = trace;
	belady->shares = options->shares;
	belady->bounded = !options->shares && options->ahead > 0;
	int rc = allocate(belady, &shape, err);
	if (rc < 0) {
		belady_destroy(belady);
		return rc;
	}
	for (uint32_t l = 0; l < trace->n_layers; l++) {
		belady->ordinal[l] = belady->n_moe;
		belady->n_moe += trace->moe[l];
	}
	belady->ahead = options->ahead * belady->n_moe;
	list_uses(belady, trace);
	*out = belady;
	return 0;
}

/* ---- Of shares. ---- */

static void count_answer(struct belady *belady, uint64_t session)
{
	const struct cache_trace *trace = belady->trace;
	uint32_t n_ids = trace->n_layers * trace->n_experts, passes = 0;
	belady->session = session;
	for (uint32_t id = 0; id < n_ids; id++)
		belady->share[id] = 0;
	for (uint32_t p = 0; p < trace->n_passes; p++) {
		const struct trace_pass *pass = &trace->passes[p];
		if (pass->session != session || pass->prefill)
			continue;
		passes++;
		for (uint32_t l = 0; l < pass->n_layers; l++) {
			const struct trace_layer *layer = &trace->layers[pass->first_layer + l];
			for (uint32_t u = 0; u < layer->n_uses; u++)
				belady->share[layer->layer * trace->n_experts +
					      trace->uses[layer->first_use + u].expert]++;
		}
	}
	for (uint32_t id = 0; passes > 0 && id < n_ids; id++)
		belady->share[id] /= passes;
}

/* The expected next use, in runs of layers after the present one, whose own uses are over. */
static double expected_use(const struct belady *belady, uint32_t id)
{
	double p = fmax(belady->share[id], LEAST_CHANCE);
	uint32_t at = belady->ordinal[id / belady->trace->n_experts];
	uint32_t now = belady->ordinal[belady->layer];
	return (at > now ? at - now : at + belady->n_moe - now) + belady->n_moe * (1 - p) / p;
}

/* ---- When what is used again. ---- */

/* Runs before the present one are over. */
static double next_use(struct belady *belady, uint32_t id)
{
	if (belady->shares)
		return belady->runs + expected_use(belady, id);
	uint32_t *next = &belady->next[id], now = belady->runs;
	while (*next < belady->end[id] && belady->run[*next] < now)
		++*next;
	bool again = *next < belady->end[id];
	if (!belady->bounded)
		return again ? belady->run[*next] : NEVER;
	/* `now` is the first run to come. */
	if (again && belady->run[*next] - now < belady->ahead)
		return belady->run[*next];
	double p = fmax(expectation_later(&belady->expectation, id), LEAST_CHANCE);
	return now + belady->ahead + belady->n_moe * (1 - p) / p;
}

static void rank(struct belady *belady, uint32_t id)
{
	uint32_t slot = residents_slot(&belady->residents, id);
	if (slot != SLOT_NONE)
		heap_set(&belady->latest, slot, -next_use(belady, id));
}

/* Learns from the last run about its layer, and adds the run that is now within the look-ahead. */
static void look_ahead(struct belady *belady, const struct cache_use *use)
{
	const struct cache_trace *trace = belady->trace;
	if (belady->running) {
		expectation_end(&belady->expectation, belady->layer, belady->iteration, false);
		for (uint32_t e = 0; e < trace->n_experts; e++)
			rank(belady, residents_id(&belady->residents, belady->layer, e));
	}
	expectation_session(&belady->expectation, use->session);
	uint64_t sight = (uint64_t)belady->runs + belady->ahead - 1;
	if (sight >= trace->n_layer_runs)
		return;
	const struct trace_layer *seen = &trace->layers[sight];
	for (uint32_t u = 0; u < seen->n_uses; u++)
		rank(belady, residents_id(&belady->residents, seen->layer,
				     trace->uses[seen->first_use + u].expert));
}

static void begin(struct belady *belady, const struct cache_use *use)
{
	if (belady->running && belady->iteration == use->iteration)
		return;
	bool answer = !belady->running || use->session != belady->session;
	belady->runs++;
	if (belady->bounded)
		look_ahead(belady, use);
	uint32_t over = belady->layer;
	belady->running = true;
	belady->layer = use->layer;
	belady->iteration = use->iteration;
	if (!belady->shares)
		return;
	if (answer)
		count_answer(belady, use->session);
	/* The layer that ran comes again in a cycle from now; for a new answer, all shares change.
	 */
	for (uint32_t l = 0; l < belady->trace->n_layers; l++)
		for (uint32_t e = 0; (answer || l == over) && e < belady->trace->n_experts; e++)
			rank(belady, residents_id(&belady->residents, l, e));
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
	if (belady->bounded)
		expectation_use(&belady->expectation, use);
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
