/*
 * outrider, our policy: keeps and fetches the experts that are expected to be used, as far as that
 * pays.
 *
 * Taken from others: hints from drafting (SP-MoE) and from the gate (AdapMoE, Fate), which both use
 * them as they come; the session's own activations (MoE-Infinity); one measure for prefetching and
 * eviction, and the number of tokens that chose an expert (MoE-SpAc); the long-run frequency, which
 * starts from a profile if there is one (a profiled hot set); recency (LRU).
 *
 * New:
 *
 * - One probability for each expert, of its use the next time its layer runs, from all of these at
 *   once. The worth of each is learnt at run time, that of a hint from how often hints of its
 *   source, layer and score were right (expectation.h).
 * - Layers run in a circle, so the time of an expert's next possible use is known: d layers from
 *   now with probability p, or one or more circles later, each with the probability without hints,
 *   because hints apply only to one run. A saved load is worth less the later it is, because by
 *   then the expert would have been evicted anyway. The victim is the expert with the least
 *   discounted value of its next use (Markov decision processes; LHD, Beckmann et al., NSDI 2018,
 *   and hyperbolic caching, Blankstein et al., ATC 2017, estimate such an index from ages and
 *   counts; here the times are known). With certain hints this is Belady's rule. With none it is
 *   least frequently used, and among equals those just used go first, which are the last to be used
 *   again. LRU fails on a circle that is larger than the cache; this does not.
 * - A prefetch has a price. It saves waiting with probability p. A wrong one costs a load behind
 *   which somebody may wait, and perhaps the load of the victim. The victim may also be missed
 *   itself: for certain before the prefetch is of use if it is used no later; otherwise it may be
 *   brought back in time. A prefetch is begun when p - c p_victim > (1 - p) (1 + p_victim), with c
 *   = 1 if d_victim <= d, else 1/4, and for nothing that is worth less than its victim. Measured on
 *   the demo model's traces over links of 0.1 to 5 GB/s: a price that falls when the link is idle
 *   saves up to 5 % of the waiting where the link is fast, and reads up to twice the bytes for it;
 *   a higher one saves bytes, and waits longer on every link but the slowest.
 * - Hints for layers beyond the next (HINT_GATE_FAR) are followed if they alone make an expert
 *   likely enough, after nearer ones. A prefetch that no longer qualifies when the nearer hints
 *   come is cancelled, unless it is being read. The source is asked for as long as experts that
 *   were read for its sake alone are used more often than not (hint_worth.h).
 *
 * Cost: per run of a layer O(experts of a layer); per pass O(all experts); a hint, a load, an
 * eviction O(log n); a victim or a prefetch O(layers + log n).
 */
#include "services/expert-cache/policies/expectation.h"
#include "services/expert-cache/policies/heap.h"
#include "services/expert-cache/hints/hint_worth.h"
#include "services/expert-cache/policies/residents.h"

#include <math.h>
#include <stdlib.h>

/* A less likely expert never waits as a prefetch: it would not pay even with the best victim. */
#define LEAST_WANTED 0.5

/* The worth of a load saved one circle later, relative to one saved now. On the demo model's traces
 * over a link of 2 GB/s, from 0.5 to 0.9 bytes fall by 6 % and waiting grows by 8 %; over slower
 * links both fall. */
#define CIRCLE 0.8

struct outrider {
	struct expectation expectation;
	struct residents residents;
	struct heap *kept; /* [n_layers] resident experts, the least likely first */
	/* [n_layers] experts that are not resident, the most likely first: keys are -p */
	struct heap *wanted;
	uint32_t n_layers, n_experts, n_moe;
	uint32_t *ordinal; /* [n_layers] index among the layers with experts */
	/* [n_layers + 1] CIRCLE^(d / n_moe), for a load saved d layers from now */
	double *discount;
	uint32_t n_wanted, queue_max;
	/* The layer that runs: */
	bool running;
	bool over; /* its uses have been learnt from already */
	uint32_t layer;
	uint64_t iteration;
	uint32_t hinted_layer[HINT_SOURCES]; /* layer of each source's last hint */
	struct hint_worth far_worth;
	bool far_wanted;
	uint8_t *far_load; /* [n_layers][n_experts] enum far_load */
};

/* State of a prefetch that exists only because of HINT_GATE_FAR. */
enum far_load {
	FAR_NONE, /* there is none, or it has been judged */
	FAR_COMING,
	FAR_HERE,
	FAR_LATE, /* loading, and the run that it was for is over */
};

static void outrider_destroy(void *policy)
{
	struct outrider *o = policy;
	expectation_exit(&o->expectation);
	residents_exit(&o->residents);
	for (uint32_t l = 0; o->kept != NULL && l < o->n_layers; l++)
		heap_exit(&o->kept[l]);
	for (uint32_t l = 0; o->wanted != NULL && l < o->n_layers; l++)
		heap_exit(&o->wanted[l]);
	free(o->kept);
	free(o->wanted);
	free(o->ordinal);
	free(o->discount);
	free(o->far_load);
	free(o);
}

static int allocate(struct outrider *o, const struct cache_policy_shape *shape, struct error *err)
{
	o->kept = calloc(o->n_layers, sizeof(*o->kept));
	o->wanted = calloc(o->n_layers, sizeof(*o->wanted));
	o->ordinal = calloc(o->n_layers, sizeof(*o->ordinal));
	o->discount = calloc(o->n_layers + 1, sizeof(*o->discount));
	o->far_load = calloc((size_t)o->n_layers * o->n_experts, sizeof(*o->far_load));
	o->far_wanted = true;
	if (!(o->kept && o->wanted && o->ordinal && o->discount && o->far_load))
		return error_set(err, ENOMEM, "no memory for %u layers", o->n_layers);
	int status = expectation_init(&o->expectation, shape, err);
	if (status == 0)
		status = residents_init(&o->residents, shape, err);
	for (uint32_t l = 0; status == 0 && l < o->n_layers; l++) {
		o->ordinal[l] = o->n_moe;
		o->n_moe += shape->moe[l];
		status = heap_init(&o->kept[l], o->n_experts, err);
		if (status == 0)
			status = heap_init(&o->wanted[l], o->n_experts, err);
	}
	for (uint32_t d = 0; d <= o->n_moe; d++)
		o->discount[d] = pow(CIRCLE, (double)d / fmax(o->n_moe, 1));
	return status;
}

static int outrider_create(const struct cache_policy_shape *shape, void **out, struct error *err)
{
	struct outrider *o = calloc(1, sizeof(*o));
	if (o == NULL)
		return error_set(err, ENOMEM, "no memory for a cache policy");
	o->n_layers = shape->n_layers;
	o->n_experts = shape->n_experts;
	o->queue_max = shape->queue_max;
	int status = allocate(o, shape, err);
	if (status != 0) {
		outrider_destroy(o);
		return status;
	}
	*out = o;
	return 0;
}

/* ---- What an expert is worth. ---- */

/* Layers with experts until this one runs again: 1..n_moe. */
static uint32_t distance(const struct outrider *o, uint32_t layer)
{
	uint32_t at = o->ordinal[layer], now = o->ordinal[o->layer];
	return at > now ? at - now : at + o->n_moe - now;
}

/* The worth of a load saved then, relative to one saved now. */
static double discount(const struct outrider *o, uint32_t layer)
{
	return o->discount[distance(o, layer)];
}

static double expected(const struct outrider *o, uint32_t layer, uint32_t expert)
{
	return expectation_of(&o->expectation, layer * o->n_experts + expert);
}

/* The worth of the next use if that is not in the next run: sum over runs of CIRCLE^run later (1 -
 * later)^(run - 1). */
static double worth_later(double later)
{
	return CIRCLE * later / (1 - (1 - later) * CIRCLE);
}

/* Factor for a victim's chance of use, when that use is later than the one of its replacement. */
#define LATER 0.25

static bool pays(double p, double victim, bool sooner)
{
	return p - (sooner ? 1 : LATER) * victim > (1 - p) * (1 + victim);
}

/* Puts an expert into the heap that it belongs to, with its present estimate. */
static void place(struct outrider *o, uint32_t layer, uint32_t expert)
{
	uint32_t id = residents_id(&o->residents, layer, expert);
	double p = expectation_of(&o->expectation, id);
	struct heap *wanted = &o->wanted[layer];
	o->n_wanted -= heap_has(wanted, expert);
	if (residents_slot(&o->residents, id) != SLOT_NONE) {
		double later = expectation_later(&o->expectation, id);
		heap_set(&o->kept[layer], expert, p + (1 - p) * worth_later(later));
		heap_remove(wanted, expert);
		return;
	}
	heap_remove(&o->kept[layer], expert);
	if (p < LEAST_WANTED || o->n_wanted >= o->queue_max)
		heap_remove(wanted, expert);
	else
		heap_set(wanted, expert, -p);
	o->n_wanted += heap_has(wanted, expert);
}

static void unwant(struct outrider *o, uint32_t layer, uint32_t expert)
{
	o->n_wanted -= heap_has(&o->wanted[layer], expert);
	heap_remove(&o->wanted[layer], expert);
}

static void place_layer(struct outrider *o, uint32_t layer)
{
	for (uint32_t e = 0; e < o->n_experts; e++)
		place(o, layer, e);
}

/* When all are resident, nothing is evicted and nothing is fetched. */
static bool all_resident(const struct outrider *o)
{
	return o->residents.n == o->n_moe * o->n_experts;
}

/* ---- What happens. ---- */

/* True when the layer that runs uses the expert, as far as that was reported. */
static bool in_use(const struct outrider *o, uint32_t layer, uint32_t expert)
{
	return o->running && layer == o->layer && o->expectation.tokens[expert] > 0;
}

/* Judges a load that was made for far hints alone: it has been used now, or never will be. */
static void judge_far(struct outrider *o, uint32_t id, bool used)
{
	hint_worth_read(&o->far_worth, used);
	o->far_load[id] = FAR_NONE;
}

/* The layer has run. What is still loading may be cancelled, which costs nothing. */
static void judge_far_layer(struct outrider *o, uint32_t layer)
{
	for (uint32_t e = 0; e < o->n_experts; e++) {
		uint32_t id = residents_id(&o->residents, layer, e);
		if (o->far_load[id] == FAR_HERE)
			judge_far(o, id, in_use(o, layer, e));
		else if (o->far_load[id] == FAR_COMING)
			o->far_load[id] = FAR_LATE;
	}
}

/* The drafter's hints for the pass are complete: experts that they leave out are less likely. */
static void begin_pass(struct outrider *o)
{
	o->far_wanted = hint_worth_pass(&o->far_worth);
	for (uint32_t l = 0; l < o->n_layers; l++) {
		const bool *hinted = o->expectation.layer[l].hinted;
		if (!hinted[HINT_DRAFT] && !hinted[HINT_HISTORY])
			continue;
		expectation_refresh(&o->expectation, l);
		place_layer(o, l);
	}
}

/* All uses of the layer that runs have been reported. */
static void end_layer(struct outrider *o)
{
	if (!o->running || o->over)
		return;
	o->over = true;
	judge_far_layer(o, o->layer);
	if (expectation_end(&o->expectation, o->layer, o->iteration, all_resident(o)))
		place_layer(o, o->layer);
}

static void begin_layer(struct outrider *o, const struct cache_use *use)
{
	if (o->running && use->iteration == o->iteration)
		return;
	bool pass = !o->running || use->layer <= o->layer;
	end_layer(o);
	expectation_session(&o->expectation, use->session);
	o->running = true;
	o->over = false;
	o->iteration = use->iteration;
	o->layer = use->layer;
	if (pass)
		begin_pass(o);
	/* From now on what it needs is demanded. */
	while (o->wanted[use->layer].n > 0)
		unwant(o, use->layer, heap_top(&o->wanted[use->layer]));
}

static void outrider_demand(void *policy, const struct cache_use *use)
{
	unwant(policy, use->layer, use->expert);
}

static void outrider_use(void *policy, const struct cache_use *use)
{
	struct outrider *o = policy;
	begin_layer(o, use);
	if (use->layer == o->layer && !o->over)
		expectation_use(&o->expectation, use);
}

static void outrider_load(
	void *policy, uint32_t slot, uint32_t layer, uint32_t expert, enum load_reason why)
{
	struct outrider *o = policy;
	uint32_t id = residents_id(&o->residents, layer, expert);
	(void)why;
	if (o->far_load[id] == FAR_COMING)
		o->far_load[id] = FAR_HERE;
	else if (o->far_load[id] == FAR_LATE)
		judge_far(o, id, false);
	if (residents_add(&o->residents, slot, layer, expert))
		place(o, layer, expert);
}

static void outrider_evict(void *policy, uint32_t slot)
{
	struct outrider *o = policy;
	if (slot >= o->residents.n_slots || !residents_holds(&o->residents, slot))
		return;
	uint32_t id = residents_at(&o->residents, slot);
	residents_remove(&o->residents, slot);
	if (o->far_load[id] == FAR_HERE)
		judge_far(o, id, in_use(o, id / o->n_experts, id % o->n_experts));
	heap_remove(&o->kept[id / o->n_experts], id % o->n_experts);
}

static void refresh(struct outrider *o, uint32_t layer)
{
	expectation_refresh(&o->expectation, layer);
	place_layer(o, layer);
}

/* A source hints layer by layer. With its first hint for another layer, those for the last one are
 * complete, as far as the drafted token is concerned. */
static void outrider_hint(void *policy, const struct cache_hint *hint, uint32_t slot)
{
	struct outrider *o = policy;
	(void)slot;
	uint32_t *last = &o->hinted_layer[hint->source];
	/* Before the next pass begins, hints for it arrive while the last layer of the present pass
	 * runs; and the drafter runs ahead of a pass. A run is not judged by hints for the one
	 * after it. */
	if (o->running && hint->layer == o->layer && hint->iteration > o->iteration)
		end_layer(o);
	if (o->running && hint->iteration > o->iteration + distance(o, hint->layer)) {
		expectation_hint_later(&o->expectation, hint);
		return;
	}
	bool first = !o->expectation.layer[hint->layer].hinted[hint->source];
	const uint16_t *superseded;
	uint32_t n = expectation_supersede(&o->expectation, hint, &superseded);
	for (uint32_t i = 0; i < n; i++)
		place(o, hint->layer, superseded[i]);
	expectation_hint(&o->expectation, hint);
	place(o, hint->layer, hint->expert);
	/* The gate's hints are complete at once, as far as this thread sees. The ring is read
	 * without waiting. If that happens between two of them, the rest seem less likely until it
	 * is read again; at worst a read that has not begun is cancelled and asked for again. Far
	 * hints no longer count, even if they named more or more certain experts, because they come
	 * from a hidden state farther from the layer's own. */
	if (first && hint->source == HINT_GATE)
		refresh(o, hint->layer);
	else if (hint->source != HINT_GATE_FAR && *last != hint->layer &&
		 o->expectation.layer[*last].hinted[hint->source])
		refresh(o, *last);
	*last = hint->layer;
}

static bool outrider_next(void *policy, uint64_t now_ns, struct cache_prefetch *out)
{
	struct outrider *o = policy;
	double best = 0;
	(void)now_ns;
	for (uint32_t l = 0; l < o->n_layers; l++) {
		uint32_t expert = heap_top(&o->wanted[l]);
		if (expert == HEAP_NONE)
			continue;
		double p = -o->wanted[l].key[expert], worth = p / distance(o, l);
		if (worth <= best || !pays(p, 0, false))
			continue;
		best = worth;
		*out = (struct cache_prefetch){.layer = l, .expert = expert, .score = (float)worth};
	}
	if (best == 0)
		return false;
	unwant(o, out->layer, out->expert);
	return true;
}

/* Marks loads that would not happen without far hints. */
static void outrider_begin(void *policy, const struct cache_prefetch *prefetch)
{
	struct outrider *o = policy;
	uint32_t layer = prefetch->layer, expert = prefetch->expert;
	bool far = expectation_is_far(&o->expectation, layer, expert) &&
		   !pays(expectation_without_far(&o->expectation, layer, expert), 0, false);
	o->far_load[residents_id(&o->residents, layer, expert)] = far ? FAR_COMING : FAR_NONE;
}

static void outrider_dropped(void *policy, uint32_t layer, uint32_t expert)
{
	struct outrider *o = policy;
	o->far_load[residents_id(&o->residents, layer, expert)] = FAR_NONE;
}

static bool outrider_obsolete(void *policy, const struct cache_prefetch *prefetch, uint64_t now_ns)
{
	const struct outrider *o = policy;
	(void)now_ns;
	return expected(o, prefetch->layer, prefetch->expert) < LEAST_WANTED;
}

/* All hints, except far ones while they do not pay. */
static unsigned outrider_wants(const void *policy)
{
	const struct outrider *o = policy;
	return o->far_wanted ? UINT32_MAX : ~(1u << HINT_GATE_FAR);
}

static void outrider_put_back(void *policy, const struct cache_prefetch *prefetch)
{
	place(policy, prefetch->layer, prefetch->expert);
}

static uint32_t outrider_queued(const void *policy)
{
	const struct outrider *o = policy;
	return o->n_wanted;
}

static uint32_t outrider_victim(void *policy, const struct cache_prefetch *want,
	enum load_reason why, bool (*may)(void *arg, uint32_t slot), void *arg)
{
	struct outrider *o = policy;
	struct residents_question question = {.residents = &o->residents, .may = may, .arg = arg};
	double p = expected(o, want->layer, want->expert), victim_p = 0;
	double least = why == LOAD_PREFETCH ? p * discount(o, want->layer) : INFINITY;
	uint32_t victim = SLOT_NONE, victim_layer = 0;
	for (uint32_t l = 0; l < o->n_layers; l++) {
		question.layer = l;
		uint32_t expert =
			heap_least(&o->kept[l], least / discount(o, l), residents_may, &question);
		if (expert == HEAP_NONE)
			continue;
		victim_p = o->kept[l].key[expert];
		victim_layer = l;
		least = victim_p * discount(o, l);
		victim = residents_slot(&o->residents, residents_id(&o->residents, l, expert));
	}
	if (why == LOAD_PREFETCH && victim != SLOT_NONE &&
		!pays(p, victim_p, distance(o, victim_layer) <= distance(o, want->layer)))
		return SLOT_NONE;
	return victim;
}

const struct cache_policy_ops policy_outrider = {
	.name = "outrider",
	.help = "expected use per slot and time; each kind of evidence counts by how often it was "
		"right",
	.create = outrider_create,
	.destroy = outrider_destroy,
	.on_load = outrider_load,
	.on_evict = outrider_evict,
	.on_demand = outrider_demand,
	.on_activation = outrider_use,
	.on_hint = outrider_hint,
	.next = outrider_next,
	.put_back = outrider_put_back,
	.on_begin = outrider_begin,
	.on_dropped = outrider_dropped,
	.obsolete = outrider_obsolete,
	.wants = outrider_wants,
	.queued = outrider_queued,
	.victim = outrider_victim,
};
