#include "bench/src/cache_replay_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { QUEUE_MAX = 1024 }; /* the service's default */

/* Smoothing of what is measured, per pass. */
#define SMOOTHING 0.125

uint32_t *replay_slot_of(const struct sim *sim, uint32_t layer, uint32_t expert)
{
	return &sim->slot_of[(size_t)layer * sim->trace->n_experts + expert];
}

uint32_t replay_find(const struct sim *sim, uint32_t layer, uint32_t expert)
{
	uint32_t slot = *replay_slot_of(sim, layer, expert);
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

/* must: somebody waits for it. */
static uint32_t take_slot(
	struct sim *sim, const struct cache_prefetch *want, enum load_reason why, bool must)
{
	if (sim->n_used < sim->options->n_slots)
		return sim->n_used++;
	struct choice choice = {sim, why};
	uint32_t index = sim->ops->victim(sim->state, want, why, may_evict, &choice);
	if (index == SLOT_NONE && must && sim->n_flying == 0) {
		sim->waves = true;
		index = sim->ops->victim(sim->state, want, why, may_evict, &choice);
	}
	if (index == SLOT_NONE)
		return SLOT_NONE;
	struct sim_slot *slot = &sim->slots[index];
	judge(sim, slot, false);
	*replay_slot_of(sim, slot->layer, slot->expert) = 0;
	sim->ops->on_evict(sim->state, index);
	return index;
}

/* Starts a load. False when there is no slot. */
static bool send(
	struct sim *sim, const struct cache_prefetch *want, enum load_reason why, bool must)
{
	uint32_t index = take_slot(sim, want, why, must);
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
	*replay_slot_of(sim, want->layer, want->expert) = index + 1;
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
		if (*replay_slot_of(sim, want.layer, want.expert) != 0)
			continue;
		if (send(sim, &want, LOAD_PREFETCH, false)) {
			if (sim->ops->on_begin != NULL)
				sim->ops->on_begin(sim->state, &want);
			return;
		}
		sim->ops->put_back(sim->state, &want);
		sim->blocked = true;
	}
}

/* Loads what the CPU computed, as if it had been demanded, though nobody waits for it. */
static void send_fill(struct sim *sim)
{
	while (sim->n_fills > 0 && sim->link_free_ns <= sim->now_ns) {
		struct cache_prefetch want = sim->fills[--sim->n_fills];
		if (*replay_slot_of(sim, want.layer, want.expert) == 0 &&
			!send(sim, &want, LOAD_DEMAND, false))
			return;
	}
}

void replay_send_next(struct sim *sim)
{
	if (sim->link_free_ns > sim->now_ns)
		return;
	if (sim->first_wanted == sim->n_wanted) {
		send_prefetch(sim);
		send_fill(sim);
		return;
	}
	struct cache_prefetch want = {
		.layer = sim->layer, .expert = sim->wanted[sim->first_wanted]};
	sim->first_wanted += send(sim, &want, LOAD_DEMAND, true);
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
		if (needed)
			sim->arrived[sim->first_arrived + sim->n_arrived++] = slot->expert;
		sim->ops->on_load(sim->state, index, slot->layer, slot->expert, slot->why);
		if (needed)
			judge(sim, slot, true);
	}
}

/* Advances to the next event, at most to `until`. */
static void step(struct sim *sim, uint64_t until_ns)
{
	replay_send_next(sim);
	uint64_t next_ns = until_ns;
	if (sim->n_flying > 0 && sim->slots[sim->flying[sim->first_flying]].arrives_ns < next_ns)
		next_ns = sim->slots[sim->flying[sim->first_flying]].arrives_ns;
	if (sim->link_free_ns > sim->now_ns && sim->link_free_ns < next_ns)
		next_ns = sim->link_free_ns;
	if (sim->link_free_ns > sim->now_ns)
		sim->totals->link_ns +=
			(next_ns < sim->link_free_ns ? next_ns : sim->link_free_ns) - sim->now_ns;
	sim->now_ns = next_ns;
	land(sim);
}

void replay_advance(struct sim *sim, uint64_t by_ns)
{
	uint64_t until_ns = sim->now_ns + by_ns;
	while (sim->now_ns < until_ns)
		step(sim, until_ns);
	land(sim);
	replay_send_next(sim);
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
	uint32_t where = *replay_slot_of(sim, from->layer, from->expert);
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
			replay_advance(sim, start_ns + at_ns - sim->now_ns);
		tell_hint(sim, pass, from);
	}
	replay_advance(sim, start_ns + span_ns - sim->now_ns);
}

static struct cache_use use_of(const struct sim *sim, const struct trace_pass *pass,
	const struct trace_layer *layer, uint32_t i)
{
	const struct trace_use *use = &sim->trace->uses[layer->first_use + i];
	return (struct cache_use){.layer = layer->layer,
		.expert = use->expert,
		.tokens = use->tokens,
		.slot = replay_find(sim, layer->layer, use->expert),
		.session = pass->session,
		.iteration = sim->iteration};
}

uint32_t replay_ask(struct sim *sim, const struct trace_pass *pass, const struct trace_layer *layer)
{
	uint32_t n_there = 0;
	sim->first_wanted = sim->n_wanted = sim->first_arrived = sim->n_arrived = 0;
	sim->layer = layer->layer;
	sim->waves = false;
	for (uint32_t i = 0; i < layer->n_uses; i++)
		sim->needed[sim->trace->uses[layer->first_use + i].expert] =
			!sim->by_cpu[sim->trace->uses[layer->first_use + i].expert];
	for (uint32_t i = 0; i < layer->n_uses; i++) {
		struct cache_use use = use_of(sim, pass, layer, i);
		uint32_t where = *replay_slot_of(sim, use.layer, use.expert);
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
		if (!sim->by_cpu[use.expert])
			sim->wanted[sim->n_wanted++] = use.expert;
	}
	for (uint32_t i = 0; i < layer->n_uses; i++) {
		struct cache_use use = use_of(sim, pass, layer, i);
		sim->ops->on_activation(sim->state, &use);
	}
	sim->blocked = false;
	return n_there;
}

uint32_t replay_wait(struct sim *sim)
{
	uint64_t before_ns = sim->now_ns;
	while (sim->n_arrived == 0 && !sim->stuck) {
		replay_send_next(sim);
		sim->stuck = sim->n_flying == 0;
		if (!sim->stuck)
			step(sim, UINT64_MAX);
	}
	if (sim->stuck)
		return UINT32_MAX;
	sim->totals->stall_ns += sim->now_ns - before_ns;
	sim->n_arrived--;
	return sim->arrived[sim->first_arrived++];
}

void replay_layer_hints(
	struct sim *sim, const struct trace_pass *pass, const struct trace_layer *layer)
{
	tell_hints(sim, pass, layer->first_hint, layer->n_hints, 0);
}

void replay_end_layer(struct sim *sim, const struct trace_layer *layer)
{
	for (uint32_t i = 0; i < layer->n_uses; i++)
		sim->needed[sim->trace->uses[layer->first_use + i].expert] = false;
	sim->blocked = false;
}

static void run_layer(
	struct sim *sim, const struct trace_pass *pass, const struct trace_layer *layer)
{
	replay_advance(sim, layer->before_ns);
	sim->iteration++;
	uint32_t n_there = replay_ask(sim, pass, layer);
	replay_layer_hints(sim, pass, layer);
	uint64_t each_ns = layer->n_uses > 0 ? layer->after_ns / layer->n_uses : 0;
	replay_advance(sim, n_there * each_ns);
	for (uint32_t left = layer->n_uses - n_there; left > 0 && !sim->stuck; left--)
		if (replay_wait(sim) != UINT32_MAX)
			replay_advance(sim, each_ns);
	if (!sim->stuck)
		replay_end_layer(sim, layer);
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

static void run_pass(struct sim *sim, struct replay_result *out, uint32_t number)
{
	const struct trace_pass *pass = &sim->trace->passes[number];
	uint64_t start_ns = sim->now_ns;
	sim->totals = number < sim->options->warm_passes ? &out->warm
		      : pass->prefill			 ? &out->prefill
							 : &out->decode;
	tell_hints(sim, pass, pass->first_hint, pass->n_hints, pass->draft_ns);
	measure_draft(sim, pass);
	uint64_t verified_ns = sim->now_ns;
	for (uint32_t i = 0; i < pass->n_layers; i++)
		(sim->options->device ? replay_device_layer : run_layer)(
			sim, pass, &sim->trace->layers[pass->first_layer + i]);
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

/* Fills the slots before the time begins, each layer with as many experts. */
static void preload(struct sim *sim)
{
	for (uint32_t e = 0; e < sim->trace->n_experts; e++)
		for (uint32_t l = 0; l < sim->trace->n_layers; l++) {
			if (!sim->trace->moe[l] || sim->n_used == sim->options->n_slots)
				continue;
			uint32_t index = sim->n_used++;
			sim->slots[index] =
				(struct sim_slot){.use = RESIDENT, .layer = l, .expert = e};
			*replay_slot_of(sim, l, e) = index + 1;
			sim->ops->on_load(sim->state, index, l, e, LOAD_PRELOAD);
		}
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
	sim->by_cpu = calloc(sim->trace->n_experts, sizeof(*sim->by_cpu));
	if (!(sim->slots && sim->flying && sim->slot_of && sim->needed && sim->by_cpu))
		return error_set(err, ENOMEM, "no memory to replay with %u slots", n_slots);
	sim->load_ns = (uint64_t)llround(
		(double)sim->trace->expert_bytes * 1e9 / options->link.bytes_per_s);
	sim->load_ns += sim->load_ns == 0;
	sim->measures =
		(struct cache_measures){.n_slots = n_slots, .load_ns = (double)sim->load_ns};
	int rc = create_policy(sim, err);
	if (rc == 0 && options->device && options->device->rule == BALANCE_SPAC)
		rc = utility_init(&sim->utility, sim->trace->n_layers * sim->trace->n_experts,
			sim->trace->k > 0 ? sim->trace->k : 1, err);
	if (rc == 0)
		tell_measures(sim);
	if (rc == 0 && options->preload)
		preload(sim);
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
		run_pass(&sim, out, i);
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
	free(sim.by_cpu);
	utility_exit(&sim.utility);
	return rc;
}
