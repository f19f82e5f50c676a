#include "bench/src/cache_replay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { QUEUE_MAX = 1024 }; /* the service's default */

/* Smoothing of what is measured, per pass. */
#define SMOOTHING 0.125

enum slot_use { UNUSED, FLYING, RESIDENT };

struct sim_slot {
	enum slot_use use;
	uint32_t layer, expert;
	bool prefetched; /* and not used so far */
	enum load_reason why;
	uint64_t arrives_ns;
	uint64_t until_ns; /* not evicted for a prefetch before this time */
};

struct sim {
	const struct cache_trace *trace;
	const struct replay_options *options;
	const struct cache_policy_ops *ops;
	void *state;
	struct replay_totals *totals; /* of the pass that runs */
	uint64_t now_ns, link_free_ns, load_ns;
	struct sim_slot *slots; /* [n_slots] */
	uint32_t *slot_of; /* [n_layers][n_experts] slot + 1 */
	uint32_t n_used; /* slots from here on were never used */
	/* Slots of loads in progress, in the order of arrival. */
	uint32_t *flying, first_flying, n_flying;
	/* Demanded experts of the present layer without a load so far. */
	uint32_t wanted[LIMIT_EXPERTS], first_wanted, n_wanted;
	bool blocked; /* there is no slot for the best prefetch until something happens */
	/* The layer that runs. */
	uint32_t layer;
	bool *needed; /* [n_experts] used by it */
	/* experts of the layer that have arrived since it began and are not computed yet */
	uint32_t n_arrived;
	/* its resident experts are computed and may be evicted, because the layer is larger than
	 * the cache */
	bool waves;
	uint64_t iteration;
	bool stuck; /* the policy gave no slot for a demand */
	struct cache_measures measures;
	double wall_layer_ns; /* of a verification, with waits */
};

static uint32_t *slot_of(const struct sim *sim, uint32_t layer, uint32_t expert)
{
	return &sim->slot_of[(size_t)layer * sim->trace->n_experts + expert];
}

/* The slot of an expert, if it is resident. */
static uint32_t find(const struct sim *sim, uint32_t layer, uint32_t expert)
{
	uint32_t slot = *slot_of(sim, layer, expert);
	return slot > 0 && sim->slots[slot - 1].use == RESIDENT ? slot - 1 : SLOT_NONE;
}

/* ---- The link. ---- */

struct choice {
	const struct sim *sim;
	enum load_reason why;
};

static bool may_evict(void *arg, uint32_t index)
{
	const struct choice *choice = arg;
	const struct sim *sim = choice->sim;
	const struct sim_slot *slot = &sim->slots[index];
	if (slot->use != RESIDENT)
		return false;
	if (choice->why == LOAD_PREFETCH && slot->until_ns > sim->now_ns)
		return false;
	return sim->waves || slot->layer != sim->layer || !sim->needed[slot->expert];
}

/* Counts a prefetched expert that was used, or evicted without use. */
static void judge(struct sim *sim, struct sim_slot *slot, bool used)
{
	if (!slot->prefetched)
		return;
	slot->prefetched = false;
	sim->totals->prefetches_judged++;
	sim->totals->prefetches_used += used;
}

static uint32_t take_slot(struct sim *sim, const struct cache_prefetch *want, enum load_reason why)
{
	if (sim->n_used < sim->options->n_slots)
		return sim->n_used++;
	struct choice choice = {sim, why};
	uint32_t index = sim->ops->victim(sim->state, want, why, may_evict, &choice);
	if (index == SLOT_NONE && why == LOAD_DEMAND && sim->n_flying == 0) {
		sim->waves = true;
		index = sim->ops->victim(sim->state, want, why, may_evict, &choice);
	}
	if (index == SLOT_NONE)
		return SLOT_NONE;
	struct sim_slot *slot = &sim->slots[index];
	judge(sim, slot, false);
	*slot_of(sim, slot->layer, slot->expert) = 0;
	sim->ops->on_evict(sim->state, index);
	return index;
}

/* Starts a load. False when there is no slot. */
static bool send(struct sim *sim, const struct cache_prefetch *want, enum load_reason why)
{
	uint32_t index = take_slot(sim, want, why);
	if (index == SLOT_NONE)
		return false;
	sim->link_free_ns = sim->now_ns + sim->load_ns;
	sim->slots[index] = (struct sim_slot){.use = FLYING,
		.layer = want->layer,
		.expert = want->expert,
		.prefetched = why == LOAD_PREFETCH,
		.why = why,
		.arrives_ns = sim->link_free_ns + sim->options->link.latency_ns,
		.until_ns = want->needed_by_ns};
	*slot_of(sim, want->layer, want->expert) = index + 1;
	sim->flying[(sim->first_flying + sim->n_flying++) % sim->options->n_slots] = index;
	sim->totals->loads++;
	sim->totals->prefetches += why == LOAD_PREFETCH;
	return true;
}

static void send_prefetch(struct sim *sim)
{
	struct cache_prefetch want;
	if (sim->options->demand_only)
		return;
	while (!sim->blocked && sim->ops->next(sim->state, sim->now_ns, &want)) {
		if (*slot_of(sim, want.layer, want.expert) != 0)
			continue;
		if (send(sim, &want, LOAD_PREFETCH)) {
			if (sim->ops->on_begin != NULL)
				sim->ops->on_begin(sim->state, &want);
			return;
		}
		sim->ops->put_back(sim->state, &want);
		sim->blocked = true;
	}
}

/* Starts the next load when the link is free. */
static void send_next(struct sim *sim)
{
	if (sim->link_free_ns > sim->now_ns)
		return;
	if (sim->first_wanted == sim->n_wanted) {
		send_prefetch(sim);
		return;
	}
	struct cache_prefetch want = {
		.layer = sim->layer, .expert = sim->wanted[sim->first_wanted]};
	sim->first_wanted += send(sim, &want, LOAD_DEMAND);
}

static void land(struct sim *sim)
{
	while (sim->n_flying > 0) {
		uint32_t index = sim->flying[sim->first_flying];
		struct sim_slot *slot = &sim->slots[index];
		if (slot->arrives_ns > sim->now_ns)
			return;
		sim->first_flying = (sim->first_flying + 1) % sim->options->n_slots;
		sim->n_flying--;
		slot->use = RESIDENT;
		sim->blocked = false;
		bool needed = slot->layer == sim->layer && sim->needed[slot->expert];
		sim->n_arrived += needed;
		sim->ops->on_load(sim->state, index, slot->layer, slot->expert, slot->why);
		if (needed)
			judge(sim, slot, true);
	}
}

/* Advances to the next event, at most to `until`. */
static void step(struct sim *sim, uint64_t until_ns)
{
	send_next(sim);
	uint64_t next_ns = until_ns;
	if (sim->n_flying > 0 && sim->slots[sim->flying[sim->first_flying]].arrives_ns < next_ns)
		next_ns = sim->slots[sim->flying[sim->first_flying]].arrives_ns;
	if (sim->link_free_ns > sim->now_ns && sim->link_free_ns < next_ns)
		next_ns = sim->link_free_ns;
	sim->now_ns = next_ns;
	land(sim);
}

static void advance(struct sim *sim, uint64_t by_ns)
{
	uint64_t until_ns = sim->now_ns + by_ns;
	while (sim->now_ns < until_ns)
		step(sim, until_ns);
	land(sim);
	send_next(sim);
}

/* ---- Layers and passes. ---- */

/* The iteration of the layer's next run; 0: there is none. Iterations are counted from 1 through
 * the whole trace. */
static uint64_t next_iteration(const struct sim *sim, uint32_t layer)
{
	const struct cache_trace *trace = sim->trace;
	for (uint64_t run = sim->iteration; run < trace->n_layer_runs; run++)
		if (trace->layers[run].layer == layer)
			return run + 1;
	return 0;
}

/* When the expert is needed, in the estimate of the process that makes such hints: the drafter, or
 * the verifier in the layer that runs. */
static uint64_t needed_by(const struct sim *sim, const struct trace_hint *from, uint64_t iteration)
{
	double layers = (from->layer + 1) * 1.5;
	if (from->source == HINT_GATE || from->source == HINT_GATE_FAR)
		layers = 3 + (double)(iteration - sim->iteration);
	return sim->now_ns + (uint64_t)(layers * sim->wall_layer_ns);
}

static void tell_hint(struct sim *sim, const struct trace_pass *pass, const struct trace_hint *from)
{
	uint32_t where = *slot_of(sim, from->layer, from->expert);
	bool coming = where != 0 && sim->slots[where - 1].use == FLYING;
	struct cache_hint hint = {.layer = from->layer,
		.expert = from->expert,
		.source = (enum hint_source)from->source,
		.score = from->score,
		.coming = coming,
		.session = pass->session,
		.made_ns = sim->now_ns,
		.iteration = next_iteration(sim, from->layer)};
	/* For a layer that never runs again. */
	if (hint.iteration == 0)
		return;
	hint.needed_by_ns = needed_by(sim, from, hint.iteration);
	sim->blocked = false;
	sim->ops->on_hint(sim->state, &hint, where == 0 || coming ? SLOT_NONE : where - 1);
}

static void tell_hints(struct sim *sim, const struct trace_pass *pass, uint32_t first, uint32_t n,
	uint64_t span_ns)
{
	uint64_t start_ns = sim->now_ns;
	for (uint32_t i = 0; i < n; i++) {
		const struct trace_hint *from = &sim->trace->hints[first + i];
		/* In the service, no hints are made that the cache does not want. */
		if (!(cache_policy_wants(sim->ops, sim->state) >> from->source & 1))
			continue;
		uint64_t at_ns = from->at_ns < span_ns ? from->at_ns : span_ns;
		if (start_ns + at_ns > sim->now_ns)
			advance(sim, start_ns + at_ns - sim->now_ns);
		tell_hint(sim, pass, from);
	}
	advance(sim, start_ns + span_ns - sim->now_ns);
}

static struct cache_use use_of(const struct sim *sim, const struct trace_pass *pass,
	const struct trace_layer *layer, uint32_t i)
{
	const struct trace_use *use = &sim->trace->uses[layer->first_use + i];
	return (struct cache_use){.layer = layer->layer,
		.expert = use->expert,
		.tokens = use->tokens,
		.slot = find(sim, layer->layer, use->expert),
		.session = pass->session,
		.iteration = sim->iteration};
}

/* Demands the layer's experts that are not resident, and reports all of them as activations.
 * Returns how many are resident. */
static uint32_t ask(struct sim *sim, const struct trace_pass *pass, const struct trace_layer *layer)
{
	uint32_t n_there = 0;
	sim->first_wanted = sim->n_wanted = sim->n_arrived = 0;
	sim->layer = layer->layer;
	sim->waves = false;
	for (uint32_t i = 0; i < layer->n_uses; i++)
		sim->needed[sim->trace->uses[layer->first_use + i].expert] = true;
	for (uint32_t i = 0; i < layer->n_uses; i++) {
		struct cache_use use = use_of(sim, pass, layer, i);
		uint32_t where = *slot_of(sim, use.layer, use.expert);
		sim->totals->uses++;
		if (use.slot != SLOT_NONE) {
			sim->totals->hits++;
			judge(sim, &sim->slots[use.slot], true);
			n_there++;
			continue;
		}
		sim->ops->on_demand(sim->state, &use);
		if (where != 0) {
			sim->totals->late++;
			sim->slots[where - 1].why = LOAD_DEMAND;
			continue;
		}
		sim->totals->misses++;
		sim->wanted[sim->n_wanted++] = use.expert;
	}
	for (uint32_t i = 0; i < layer->n_uses; i++) {
		struct cache_use use = use_of(sim, pass, layer, i);
		sim->ops->on_activation(sim->state, &use);
	}
	sim->blocked = false;
	return n_there;
}

static void run_layer(
	struct sim *sim, const struct trace_pass *pass, const struct trace_layer *layer)
{
	advance(sim, layer->before_ns);
	sim->iteration++;
	uint32_t n_there = ask(sim, pass, layer), left = layer->n_uses - n_there;
	tell_hints(sim, pass, layer->first_hint, layer->n_hints, 0);
	uint64_t each_ns = layer->n_uses > 0 ? layer->after_ns / layer->n_uses : 0;
	advance(sim, n_there * each_ns);
	while (left > 0) {
		uint64_t before_ns = sim->now_ns;
		while (sim->n_arrived == 0 && !sim->stuck) {
			send_next(sim);
			sim->stuck = sim->n_flying == 0;
			if (!sim->stuck)
				step(sim, UINT64_MAX);
		}
		if (sim->stuck)
			return;
		sim->totals->stall_ns += sim->now_ns - before_ns;
		sim->n_arrived--;
		left--;
		advance(sim, each_ns);
	}
	for (uint32_t i = 0; i < layer->n_uses; i++)
		sim->needed[sim->trace->uses[layer->first_use + i].expert] = false;
	sim->blocked = false;
}

static void tell_measures(struct sim *sim)
{
	if (sim->ops->on_measure)
		sim->ops->on_measure(sim->state, &sim->measures);
}

/* Call when drafting is over: in the service the drafter reports it before the verification. */
static void measure_draft(struct sim *sim, const struct trace_pass *pass)
{
	struct cache_measures *m = &sim->measures;
	/* No drafts are made before the end of a prompt. */
	if (pass->prefill)
		return;
	m->draft_tokens = pass->drafted;
	if (pass->drafted > 0) {
		double draft_ns = (double)pass->draft_ns / pass->drafted / sim->trace->n_layers;
		m->draft_layer_ns += m->draft_layer_ns > 0
					     ? SMOOTHING * (draft_ns - m->draft_layer_ns)
					     : draft_ns;
	}
	tell_measures(sim);
}

/* start_ns: when the verification began. */
static void measure_verification(struct sim *sim, const struct trace_pass *pass, uint64_t start_ns)
{
	struct cache_measures *m = &sim->measures;
	double verify_ns = 0;
	for (uint32_t i = 0; i < pass->n_layers; i++) {
		const struct trace_layer *layer = &sim->trace->layers[pass->first_layer + i];
		verify_ns += (double)layer->before_ns + layer->after_ns;
	}
	if (pass->prefill || pass->n_layers == 0)
		return;
	double wall_ns = (double)(sim->now_ns - start_ns) / pass->n_layers;
	sim->wall_layer_ns +=
		sim->wall_layer_ns > 0 ? SMOOTHING * (wall_ns - sim->wall_layer_ns) : wall_ns;
	verify_ns /= pass->n_layers;
	m->verify_layer_ns +=
		m->verify_layer_ns > 0 ? SMOOTHING * (verify_ns - m->verify_layer_ns) : verify_ns;
	tell_measures(sim);
}

static void run_pass(struct sim *sim, struct replay_result *out, const struct trace_pass *pass)
{
	uint64_t start_ns = sim->now_ns;
	sim->totals = pass->prefill ? &out->prefill : &out->decode;
	tell_hints(sim, pass, pass->first_hint, pass->n_hints, pass->draft_ns);
	measure_draft(sim, pass);
	uint64_t verified_ns = sim->now_ns;
	for (uint32_t i = 0; i < pass->n_layers; i++)
		run_layer(sim, pass, &sim->trace->layers[pass->first_layer + i]);
	sim->totals->passes++;
	sim->totals->tokens += pass->emitted;
	sim->totals->time_ns += sim->now_ns - start_ns;
	measure_verification(sim, pass, verified_ns);
}

/* ---- The call. ---- */

uint32_t cache_replay_slots_min(const struct cache_trace *trace)
{
	uint32_t most = 1;
	for (uint32_t i = 0; i < trace->n_layer_runs; i++)
		if (trace->layers[i].n_uses > most)
			most = trace->layers[i].n_uses;
	return most;
}

uint32_t cache_trace_experts(const struct cache_trace *trace)
{
	uint32_t n = 0;
	for (uint32_t l = 0; l < trace->n_layers; l++)
		n += trace->moe[l] ? trace->n_experts : 0;
	return n;
}

static int create_policy(struct sim *sim, struct error *err)
{
	const struct cache_trace *trace = sim->trace;
	struct cache_policy_shape shape = {.n_layers = trace->n_layers,
		.n_experts = trace->n_experts,
		.n_experts_used = trace->n_experts_used,
		.n_slots = sim->options->n_slots,
		.queue_max = QUEUE_MAX,
		.moe = trace->moe,
		.profile = sim->options->profile};
	if (sim->ops == &replay_belady)
		return replay_belady_create(trace, sim->options, &sim->state, err);
	return sim->ops->create(&shape, &sim->state, err);
}

static int sim_init(struct sim *sim, struct error *err)
{
	const struct replay_options *options = sim->options;
	uint32_t n_slots = options->n_slots;
	sim->slots = calloc(n_slots, sizeof(*sim->slots));
	sim->flying = calloc(n_slots, sizeof(*sim->flying));
	sim->slot_of =
		calloc((size_t)sim->trace->n_layers * sim->trace->n_experts, sizeof(*sim->slot_of));
	sim->needed = calloc(sim->trace->n_experts, sizeof(*sim->needed));
	if (!(sim->slots && sim->flying && sim->slot_of && sim->needed))
		return error_set(err, ENOMEM, "no memory to replay with %u slots", n_slots);
	sim->load_ns = (uint64_t)llround(
		(double)sim->trace->expert_bytes * 1e9 / options->link.bytes_per_s);
	sim->load_ns += sim->load_ns == 0;
	sim->measures =
		(struct cache_measures){.n_slots = n_slots, .load_ns = (double)sim->load_ns};
	int rc = create_policy(sim, err);
	if (rc == 0)
		tell_measures(sim);
	return rc;
}

int cache_replay(const struct cache_trace *trace, const struct replay_options *options,
	struct replay_result *out, struct error *err)
{
	memset(out, 0, sizeof(*out));
	if (options->n_slots < cache_replay_slots_min(trace))
		return error_set(err, EINVAL,
			"%u slots, but a layer of the trace uses %u experts at once",
			options->n_slots, cache_replay_slots_min(trace));
	struct sim sim = {.trace = trace, .options = options, .ops = options->policy};
	int rc = sim_init(&sim, err);
	for (uint32_t i = 0; rc == 0 && i < trace->n_passes; i++) {
		run_pass(&sim, out, &trace->passes[i]);
		if (sim.stuck)
			rc = error_set(err, EIO, "policy %s gives no slot for a demand in pass %u",
				sim.ops->name, i);
	}
	if (sim.state)
		sim.ops->destroy(sim.state);
	free(sim.slots);
	free(sim.flying);
	free(sim.slot_of);
	free(sim.needed);
	return rc;
}
