/*
 * MoE-SpAc (arXiv 2603.09983). One integer utility per expert (algorithm 1: utility.h) decides what
 * is prefetched and what is evicted. The threshold tau from the balancer (section 3.3: balancer.h)
 * decides which experts are hot.
 *
 * - Prefetching (section 3.4, appendix D): when a layer has run, each of its experts is pushed into
 *   the queue of its utility, whether it was used or not. Queues are first in, first out. They are
 *   served from K_u down to tau.
 * - Eviction (section 3.4): residents form an ordered set by score. A prefetch replaces only an
 *   expert with a score below tau; a demand replaces the expert with the lowest score.
 * - An expert in use is frozen at K_u + 1 (appendix D), above all others. After use most are set to
 *   0, "thus quickly recycled".
 *
 * Takes no hints: the paper uses what verifications chose.
 *
 * Our choices where the paper is silent, or means experts that the host computes:
 *
 * - After use, experts that are not hot are the "most" that go to 0. A hot one (utility >= tau)
 *   keeps its utility as its score, as section 3.4 says of all residents. If all went to 0, the hot
 *   ones would be read anew for each verification (bench/results/cache-policies.md).
 * - A resident expert waits in no queue. When it is evicted it enters the queue of its utility at
 *   once. If it were pushed only after its layer has run, that run would miss it.
 * - A queue has a greatest length. When it is full, an expert of a lower utility makes room, the
 *   last one that was pushed.
 * - Among experts with the same score, the one that was tagged first is evicted first.
 * - The paper's gamma is a constant; here K changes from step to step. So gamma is the rounded mean
 *   length of the last drafts (GAMMA_SMOOTHING): it follows K, and a single draft that was cut
 *   short does not move it. f is scaled to gamma + 1 tokens. Algorithm 1 begins anew with the first
 *   draft; after that, scores are kept when gamma changes. Before the first draft a step counts as
 *   one token, and gamma has its least value, 1. A score refers to the last step of the expert's
 *   layer.
 * - An expert that is not resident is always loaded on demand, because there is no host to compute
 *   it: balancer.h.
 */
#include "services/expert-cache/policies/published/balancer.h"
#include "services/expert-cache/policies/id_lists.h"
#include "services/expert-cache/policies/residents.h"

#include <stdlib.h>
#include <string.h>

enum { FROZEN = UTILITY_BOUND + 1, POOLS };

/* Weight of a layer's step in the running means that the balancer works with. */
#define SMOOTHING (1. / 32)
/* gamma until a draft was measured. K_u <= gamma, so a score then only tells whether the last step
 * used the expert. */
#define GAMMA_FIRST 1
/* Weight of one step's draft in their mean length. */
#define GAMMA_SMOOTHING (1. / 8)
/* The distance of the mean from gamma at which gamma changes. It is more than rounding accounts
 * for, so that a mean near one half does not change gamma at every step. */
#define GAMMA_CHANGE 0.75

struct spac {
	struct residents residents;
	struct utility utility;
	struct id_lists pool; /* slots by score: the ordered set, of POOLS values */
	struct id_lists queue; /* waiting prefetches: experts by utility */
	uint32_t n_layers, n_moe, n_experts, n_experts_used, queue_max;
	uint32_t threshold; /* tau */
	uint32_t gamma;
	double draft_mean; /* drafted tokens of a step; 0 until a draft was measured */
	struct cache_measures measures;
	double used[UTILITY_BOUND +
		    1]; /* mean number of distinct experts of a layer and step, by utility */
	/* The layer that runs. */
	bool running;
	uint32_t layer;
	uint64_t iteration;
	uint32_t tokens; /* times that an expert was chosen, over all tokens */
	uint16_t *frequency; /* [n_experts] */
};

static int allocate(struct spac *spac, const struct cache_policy_shape *shape, struct error *err)
{
	uint32_t n_ids = shape->n_layers * shape->n_experts;
	spac->frequency = calloc(shape->n_experts, sizeof(*spac->frequency));
	if (spac->frequency == NULL)
		return error_set(err, ENOMEM, "no memory for %u experts", shape->n_experts);
	int status = residents_init(&spac->residents, shape, err);
	if (status == 0)
		status = utility_init(&spac->utility, n_ids, spac->gamma, err);
	if (status == 0)
		status = id_lists_init(&spac->pool, shape->n_slots, POOLS, err);
	if (status == 0)
		status = id_lists_init(&spac->queue, n_ids, UTILITY_BOUND + 1, err);
	return status;
}

static void spac_destroy(void *policy)
{
	struct spac *spac = policy;
	residents_exit(&spac->residents);
	utility_exit(&spac->utility);
	id_lists_exit(&spac->pool);
	id_lists_exit(&spac->queue);
	free(spac->frequency);
	free(spac);
}

static int spac_create(const struct cache_policy_shape *shape, void **out, struct error *err)
{
	struct spac *spac = calloc(1, sizeof(*spac));
	if (spac == NULL)
		return error_set(err, ENOMEM, "no memory for a cache policy");
	spac->n_layers = shape->n_layers;
	spac->n_experts = shape->n_experts;
	spac->n_experts_used = shape->n_experts_used;
	spac->queue_max = shape->queue_max;
	spac->measures.n_slots = shape->n_slots;
	spac->gamma = GAMMA_FIRST;
	spac->threshold = 1;
	for (uint32_t l = 0; l < shape->n_layers; l++)
		spac->n_moe += shape->moe[l];
	int status = allocate(spac, shape, err);
	if (status != 0) {
		spac_destroy(spac);
		return status;
	}
	*out = spac;
	return 0;
}

/* Algorithm 1 needs gamma from its start. What was counted before gamma was known, mostly during a
 * prompt, is forgotten. */
static void begin_anew(struct spac *spac, uint32_t gamma)
{
	spac->gamma = gamma;
	utility_begin(&spac->utility, gamma);
	spac->threshold = 1;
	memset(spac->used, 0, sizeof(spac->used));
	for (uint32_t s = 0; s <= UTILITY_BOUND; s++)
		for (uint32_t id; (id = id_lists_first(&spac->queue, s)) != ID_NONE;)
			id_lists_remove(&spac->queue, id);
	for (uint32_t s = 1; s <= UTILITY_BOUND; s++)
		for (uint32_t slot; (slot = id_lists_first(&spac->pool, s)) != ID_NONE;)
			id_lists_append(&spac->pool, 0, slot);
}

/* When the bound (K_u) falls, everything that was counted, waits or is tagged above it moves to it.
 */
static void follow_gamma(struct spac *spac, uint32_t gamma)
{
	utility_follow(&spac->utility, spac->gamma, gamma);
	spac->gamma = gamma;
	uint32_t bound = spac->utility.bound;
	if (spac->threshold > bound)
		spac->threshold = bound;
	for (uint32_t s = bound + 1; s <= UTILITY_BOUND; s++) {
		for (uint32_t id; (id = id_lists_first(&spac->queue, s)) != ID_NONE;)
			id_lists_append(&spac->queue, bound, id);
		for (uint32_t slot; (slot = id_lists_first(&spac->pool, s)) != ID_NONE;)
			id_lists_append(&spac->pool, bound, slot);
		spac->used[bound] += spac->used[s];
		spac->used[s] = 0;
	}
}

/* Call once per step, for the draft that it verifies or, with K = 0, for the last draft. */
static void follow_drafts(struct spac *spac)
{
	double change;
	if (spac->measures.draft_tokens == 0 || spac->draft_mean == 0)
		return;
	spac->draft_mean += GAMMA_SMOOTHING * (spac->measures.draft_tokens - spac->draft_mean);
	change = spac->draft_mean - spac->gamma;
	if (change > GAMMA_CHANGE || change < -GAMMA_CHANGE)
		follow_gamma(spac, (uint32_t)(spac->draft_mean + 0.5));
}

static void spac_measure(void *policy, const struct cache_measures *measures)
{
	struct spac *spac = policy;
	spac->measures = *measures;
	if (spac->draft_mean > 0 || measures->draft_tokens == 0)
		return;
	spac->draft_mean = measures->draft_tokens;
	if (measures->draft_tokens != spac->gamma)
		begin_anew(spac, measures->draft_tokens);
}

static uint8_t score_of(const struct spac *spac, uint32_t id)
{
	return spac->utility.of[id].score;
}

/* Tags a resident expert with its score. */
static void tag(struct spac *spac, uint32_t id, uint32_t score)
{
	uint32_t slot = residents_slot(&spac->residents, id);
	if (slot != SLOT_NONE)
		id_lists_append(&spac->pool, score, slot);
}

static uint32_t waiting(const struct spac *spac)
{
	uint32_t n = 0;
	for (uint32_t s = 0; s <= UTILITY_BOUND; s++)
		n += spac->queue.n[s];
	return n;
}

/* Makes room in the queues for one more expert of this utility; removes the last one of a lower
 * utility if need be. False: there is no room. */
static bool make_room(struct spac *spac, uint32_t score)
{
	if (waiting(spac) < spac->queue_max)
		return true;
	for (uint32_t s = 1; s < score; s++) {
		uint32_t id = id_lists_last(&spac->queue, s);
		if (id == ID_NONE)
			continue;
		id_lists_remove(&spac->queue, id);
		return true;
	}
	return false;
}

/* Puts an expert at the end of the queue of its utility. Scores of 0 are never prefetched, because
 * tau is at least 1. */
static void enqueue(struct spac *spac, uint32_t id)
{
	uint32_t score = score_of(spac, id);
	id_lists_remove(&spac->queue, id);
	if (score > 0 && residents_slot(&spac->residents, id) == SLOT_NONE &&
		make_room(spac, score))
		id_lists_append(&spac->queue, score, id);
}

static void balance(struct spac *spac)
{
	const struct cache_measures *m = &spac->measures;
	struct balancer_inputs inputs = {.bound = spac->utility.bound,
		.load_ns = m->load_ns,
		.window_ns = m->draft_tokens * m->draft_layer_ns};
	double distinct = 0, left = spac->measures.n_slots > spac->residents.n
					    ? spac->measures.n_slots - spac->residents.n
					    : 0;
	for (uint32_t s = 0; s <= UTILITY_BOUND; s++) {
		inputs.used[s] = spac->used[s];
		inputs.wanted[s] = (double)spac->queue.n[s] / spac->n_moe;
		inputs.slots_left[s] = left / spac->n_moe;
		left += spac->pool.n[s];
		distinct += spac->used[s];
	}
	inputs.compute_ns = distinct > 0 ? m->verify_layer_ns / distinct : 0;
	spac->threshold = balancer_threshold(&inputs);
}

/* f, scaled to gamma + 1 tokens. A token chooses n_experts_used experts. */
static uint32_t scaled(const struct spac *spac, uint32_t expert)
{
	uint32_t tokens = spac->tokens / spac->n_experts_used;
	uint32_t frequency = spac->frequency[expert];
	if (tokens == 0)
		return frequency;
	uint64_t scaled = utility_scale(frequency, tokens, spac->gamma + 1);
	return scaled < UINT32_MAX ? (uint32_t)scaled : UINT32_MAX;
}

/* Runs algorithm 1 for each expert of the layer that has run, and what appendix D does with the
 * result: tags the experts that were used, and queues those that are not resident, used or not. */
static void end_layer(struct spac *spac)
{
	uint32_t distinct[UTILITY_BOUND + 1] = {0};
	for (uint32_t e = 0; e < spac->n_experts; e++) {
		uint32_t id = residents_id(&spac->residents, spac->layer, e);
		bool used = spac->frequency[e] > 0;
		distinct[score_of(spac, id)] += used;
		/* If it was used neither before nor now, D is 0, which changes nothing. */
		if (used || spac->utility.of[id].frequency > 0) {
			uint32_t score = utility_step(&spac->utility, id, scaled(spac, e));
			tag(spac, id, used && score < spac->threshold ? 0 : score);
		}
		enqueue(spac, id);
	}
	for (uint32_t s = 0; s <= UTILITY_BOUND; s++)
		spac->used[s] += SMOOTHING * (distinct[s] - spac->used[s]);
	memset(spac->frequency, 0, spac->n_experts * sizeof(*spac->frequency));
	spac->tokens = 0;
	balance(spac);
}

static void begin_layer(struct spac *spac, const struct cache_use *use)
{
	if (spac->running && use->iteration == spac->iteration)
		return;
	if (spac->running)
		end_layer(spac);
	/* Layers run in order, so this one begins a step. */
	if (spac->running && use->layer <= spac->layer)
		follow_drafts(spac);
	spac->running = true;
	spac->iteration = use->iteration;
	spac->layer = use->layer;
}

static void freeze(struct spac *spac, const struct cache_use *use)
{
	uint32_t id = residents_id(&spac->residents, use->layer, use->expert);
	id_lists_remove(&spac->queue, id);
	if (use->layer == spac->layer)
		tag(spac, id, FROZEN);
}

static void spac_demand(void *policy, const struct cache_use *use)
{
	struct spac *spac = policy;
	id_lists_remove(&spac->queue, residents_id(&spac->residents, use->layer, use->expert));
}

static void spac_use(void *policy, const struct cache_use *use)
{
	struct spac *spac = policy;
	begin_layer(spac, use);
	freeze(spac, use);
	uint32_t frequency = spac->frequency[use->expert] + use->tokens;
	if (use->layer != spac->layer || frequency > UINT16_MAX)
		return;
	spac->frequency[use->expert] = (uint16_t)frequency;
	spac->tokens += use->tokens;
}

static void spac_load(
	void *policy, uint32_t slot, uint32_t layer, uint32_t expert, enum load_reason why)
{
	struct spac *spac = policy;
	if (!residents_add(&spac->residents, slot, layer, expert))
		return;
	uint32_t id = residents_id(&spac->residents, layer, expert);
	id_lists_remove(&spac->queue, id);
	bool now = why == LOAD_DEMAND && spac->running && layer == spac->layer;
	tag(spac, id, now ? FROZEN : score_of(spac, id));
}

static void spac_evict(void *policy, uint32_t slot)
{
	struct spac *spac = policy;
	if (slot >= spac->residents.n_slots || !residents_holds(&spac->residents, slot))
		return;
	uint32_t id = residents_at(&spac->residents, slot);
	residents_remove(&spac->residents, slot);
	id_lists_remove(&spac->pool, slot);
	enqueue(spac, id);
}

static bool spac_next(void *policy, uint64_t now_ns, struct cache_prefetch *out)
{
	struct spac *spac = policy;
	(void)now_ns;
	for (uint32_t s = UTILITY_BOUND; s >= spac->threshold; s--) {
		uint32_t id = id_lists_first(&spac->queue, s);
		if (id == ID_NONE)
			continue;
		id_lists_remove(&spac->queue, id);
		*out = (struct cache_prefetch){.layer = id / spac->n_experts,
			.expert = id % spac->n_experts,
			.score = (float)s};
		return true;
	}
	return false;
}

static void spac_put_back(void *policy, const struct cache_prefetch *prefetch)
{
	struct spac *spac = policy;
	uint32_t id = residents_id(&spac->residents, prefetch->layer, prefetch->expert);
	enqueue(spac, id);
	/* It was the first of its queue. */
	if (id_lists_list(&spac->queue, id) != ID_NONE)
		id_lists_prepend(&spac->queue, score_of(spac, id), id);
}

static uint32_t spac_queued(const void *policy)
{
	return waiting(policy);
}

static uint32_t spac_victim(void *policy, const struct cache_prefetch *want, enum load_reason why,
	bool (*may)(void *arg, uint32_t slot), void *arg)
{
	const struct spac *spac = policy;
	(void)want;
	uint32_t n = why == LOAD_DEMAND ? POOLS : spac->threshold;
	for (uint32_t s = 0; s < n; s++)
		for (uint32_t slot = id_lists_first(&spac->pool, s); slot != ID_NONE;
			slot = id_lists_next(&spac->pool, slot))
			if (may(arg, slot))
				return slot;
	return SLOT_NONE;
}

const struct cache_policy_ops policy_spac = {
	.name = "spac",
	.help = "integer utility with inertia, above a balanced threshold (MoE-SpAc)",
	.hint_sources = CACHE_HINTS_NONE,
	.create = spac_create,
	.destroy = spac_destroy,
	.on_load = spac_load,
	.on_evict = spac_evict,
	.on_demand = spac_demand,
	.on_activation = spac_use,
	.on_hint = cache_policy_ignore_hint,
	.on_measure = spac_measure,
	.next = spac_next,
	.put_back = spac_put_back,
	.queued = spac_queued,
	.victim = spac_victim,
};
