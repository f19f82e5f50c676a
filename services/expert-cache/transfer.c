#include "services/expert-cache/transfer.h"

#include "kernels/tiles.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* With reads in flight the worker sleeps on them, and looks at the rings this often: a new demand waits no longer. */
#define POLL_NS 100000ull
/* Asleep on the doorbell it still gives a sign of life and drains the activation ring. */
#define IDLE_NS 50000000ull
/* A demand that waits for an unpin is rung for; this is for the ring that a race or a death swallows. */
#define STARVED_NS 5000000ull
/* A verifier that has not unpinned for so long has died; its demands are void. */
#define WANTED_NS 2000000000ull

static bool in_model(const struct transfer *transfer, uint32_t layer, uint32_t expert)
{
	const struct slots_geometry *geometry = &transfer->store->geometry;
	return layer < geometry->n_layers && expert < geometry->n_experts &&
	       geometry->layers[layer].moe;
}

/* ---- Loads. ---- */

static struct load *find_load(struct transfer *transfer, uint32_t layer, uint32_t expert)
{
	for (uint32_t i = 0; i < transfer->n_loads; i++) {
		struct load *load = &transfer->loads[i];
		if (load->parts_left > 0 && load->layer == layer && load->expert == expert)
			return load;
	}
	return NULL;
}

static enum read_priority priority_of(enum load_reason why)
{
	return why == LOAD_DEMAND     ? READ_DEMAND
	       : why == LOAD_PREFETCH ? READ_PREFETCH
				      : READ_PRELOAD;
}

static void submit_reads(struct transfer *transfer, struct load *load)
{
	const struct store *store = transfer->store;
	unsigned char *slot = slots_at(&store->slots, load->slot);
	struct slots_read reads[EXPERT_PARTS];
	load->parts_left = slots_reads(&store->geometry.layers[load->layer], load->expert, reads);
	for (unsigned i = 0; i < load->parts_left; i++) {
		load->part[i] = (struct read_request){
			.offset = reads[i].offset,
			.need = reads[i].need,
			.bytes = reads[i].bytes,
			.to = slot + reads[i].at,
			.owner = load,
			.priority = priority_of(load->why),
		};
		reader_submit(transfer->reader, &load->part[i]);
	}
}

/* What of a load is not in the kernel yet overtakes all prefetches. */
static void promote(struct transfer *transfer, struct load *load)
{
	if (load->why != LOAD_DEMAND)
		transfer->n_prefetching--;
	load->why = LOAD_DEMAND;
	for (unsigned i = 0; i < EXPERT_PARTS; i++)
		reader_promote(transfer->reader, &load->part[i], READ_DEMAND);
}

/* False when there is no slot for it. The caller has seen that a load is idle. */
static bool start_load(struct transfer *transfer, const struct cache_prefetch *want,
	enum load_reason why, uint64_t now_ns)
{
	uint32_t slot = store_take(transfer->store, want, why, now_ns);
	if (slot == SLOT_NONE)
		return false;
	struct load *load = &transfer->loads[transfer->idle[--transfer->n_idle]];
	*load = (struct load){.slot = slot,
		.layer = want->layer,
		.expert = want->expert,
		.why = why,
		.hint_until_ns = want->needed_by_ns};
	if (why != LOAD_DEMAND)
		transfer->n_prefetching++;
	submit_reads(transfer, load);
	return true;
}

/* The matrices of a slot that nobody but this thread may look into yet. */
static void pack(struct transfer *transfer, const struct load *load)
{
	const struct store *store = transfer->store;
	unsigned char *slot = slots_at(&store->slots, load->slot);
	if (store->geometry.layers[load->layer].packed)
		return;
	for (int p = 0; p < EXPERT_PARTS; p++) {
		const struct slots_part *part = &store->geometry.layers[load->layer].part[p];
		if (tiles_possible(&part->matrix))
			tiles_pack_in_place(&part->matrix,
				slot + slots_part_place(part, load->expert), transfer->scratch);
	}
}

void transfer_lose(struct transfer *transfer, const struct error *why)
{
	if (atomic_exchange_explicit(&transfer->lost, true, memory_order_relaxed))
		return;
	log_error("%s; the model is lost until the service is started again", why->text);
	slots_lose(&transfer->store->slots, transfer->options.generation);
	doorbell_ring(&transfer->store->slots.header->work);
}

static bool is_lost(const struct transfer *transfer)
{
	return atomic_load_explicit(&transfer->lost, memory_order_relaxed);
}

/* Whether what was read is what it should be. */
static bool is_sound(struct transfer *transfer, const struct load *load)
{
	const struct store *store = transfer->store;
	struct error err;
	if (load->status == 0 &&
		integrity_check(&transfer->integrity, &store->geometry, load->layer, load->expert,
			slots_at(&store->slots, load->slot), &err) != 0)
		transfer_lose(transfer, &err);
	if (load->status == -ESTALE && reader_check(transfer->reader, &err) == -ESTALE)
		transfer_lose(transfer, &err);
	return load->status == 0 && !is_lost(transfer);
}

static void end_load(struct transfer *transfer, struct load *load)
{
	if (load->why != LOAD_DEMAND)
		transfer->n_prefetching--;
	if (is_sound(transfer, load)) {
		if (transfer->scratch)
			pack(transfer, load);
		store_loaded(transfer->store, load->slot, load->why, load->hint_until_ns);
	} else {
		store_failed(transfer->store, load->slot, load->why == LOAD_DEMAND);
		atomic_fetch_add_explicit(&transfer->failures, 1, memory_order_relaxed);
	}
	transfer->idle[transfer->n_idle++] = (uint32_t)(load - transfer->loads);
}

static void collect(struct transfer *transfer, uint64_t timeout_ns)
{
	struct read_request *finished[16];
	unsigned n;
	do {
		n = reader_wait(transfer->reader, timeout_ns, finished, 16);
		for (unsigned i = 0; i < n; i++) {
			struct load *load = finished[i]->owner;
			if (finished[i]->status != 0)
				load->status = finished[i]->status;
			if (--load->parts_left == 0)
				end_load(transfer, load);
		}
		timeout_ns = 0;
	} while (n == 16);
}

/* ---- What peers say. Indices are theirs: each is checked. ---- */

static void take_demand(struct transfer *transfer, const struct slot_demand *demand)
{
	struct store *store = transfer->store;
	uint32_t layer = demand->layer, expert = demand->expert;
	if (!in_model(transfer, layer, expert))
		return;
	if (demand->iteration != store->demand) {
		/* The verifier has gone on: it waits for none of the earlier ones any more. */
		store_begin_demand(store, demand->iteration);
		transfer->n_wanted = 0;
	}
	uint32_t slot = store_find(store, layer, expert);
	struct cache_use use = {.layer = layer,
		.expert = expert,
		.tokens = demand->tokens,
		.slot = slot,
		.iteration = demand->iteration};
	store->policy->on_demand(store->policy_state, &use);
	if (slot != SLOT_NONE) {
		store_protect(store, slot);
		return;
	}
	if (store_loading(store, layer, expert)) {
		struct load *load = find_load(transfer, layer, expert);
		promote(transfer, load);
		store_protect(store, load->slot);
		return;
	}
	if (transfer->n_wanted == 0)
		transfer->wanted_since_ns = clock_ns();
	if (transfer->n_wanted < LIMIT_EXPERTS)
		transfer->wanted[transfer->n_wanted++] =
			(struct wanted){demand->layer, demand->expert};
}

static void take_activation(struct transfer *transfer, const struct slot_activation *activation)
{
	struct store *store = transfer->store;
	uint32_t n = activation->n;
	if (n > SLOT_ACTIVATION_PAIRS)
		return;
	for (uint32_t i = 0; i < n; i++) {
		struct cache_use use = {.layer = activation->layer,
			.expert = activation->expert_tokens[2 * i],
			.tokens = activation->expert_tokens[2 * i + 1],
			.session = activation->session,
			.iteration = activation->iteration};
		if (!in_model(transfer, use.layer, use.expert))
			continue;
		use.slot = store_find(store, use.layer, use.expert);
		store->policy->on_activation(store->policy_state, &use);
		if (use.slot != SLOT_NONE)
			store_touch(store, use.slot);
	}
}

static void take_hint(struct transfer *transfer, const struct slot_hint *hint)
{
	struct store *store = transfer->store;
	if (!in_model(transfer, hint->layer, hint->expert))
		return;
	if (!isfinite(hint->score) || hint->source >= HINT_SOURCES)
		return;
	uint32_t slot = store_find(store, hint->layer, hint->expert);
	if (slot == SLOT_NONE && store_loading(store, hint->layer, hint->expert))
		return;
	struct cache_hint entry = {.layer = hint->layer,
		.expert = hint->expert,
		.source = (enum hint_source)hint->source,
		.score = hint->score,
		.session = hint->session,
		.needed_by_ns = hint->needed_by_ns};
	store->policy->on_hint(store->policy_state, &entry, slot);
}

/* A ring whose counters somebody has overwritten would read as empty for good. */
static void mend(struct ring *ring, const char *name)
{
	if (ring_mend_consumer(ring))
		log_limited(LOG_LEVEL_NOTICE, "the ring of %s was corrupt; it begins again", name);
}

/* Demands before activations: the verifier pushes them in the other order, so every demand that is seen has its
 * layer's activations with it, and choosing a victim knows them. At most one ring's worth of each. */
static void drain(struct transfer *transfer)
{
	struct slots *slots = &transfer->store->slots;
	mend(&slots->demands, "demands");
	mend(&slots->activations, "activations");
	mend(&slots->hints, "hints");
	struct slot_demand demand;
	for (int i = 0; i < SLOTS_DEMAND_RING && ring_get(&slots->demands, &demand, sizeof(demand));
		i++)
		take_demand(transfer, &demand);
	struct slot_activation activation;
	for (int i = 0; i < SLOTS_ACTIVATION_RING &&
			ring_get(&slots->activations, &activation, sizeof(activation));
		i++)
		take_activation(transfer, &activation);
	struct slot_hint hint;
	for (int i = 0; i < SLOTS_HINT_RING && ring_get(&slots->hints, &hint, sizeof(hint)); i++)
		take_hint(transfer, &hint);
}

/* ---- What to load next. ---- */

static bool here_or_coming(const struct transfer *transfer, const struct cache_prefetch *want)
{
	return store_find(transfer->store, want->layer, want->expert) != SLOT_NONE ||
	       store_loading(transfer->store, want->layer, want->expert);
}

static bool start_wanted(struct transfer *transfer, uint64_t now_ns)
{
	uint32_t n = 0;
	while (n < transfer->n_wanted && transfer->n_idle > 0) {
		struct cache_prefetch wanted = {
			.layer = transfer->wanted[n].layer, .expert = transfer->wanted[n].expert};
		/* A demand of the same iteration may have come twice. */
		if (!here_or_coming(transfer, &wanted) &&
			!start_load(transfer, &wanted, LOAD_DEMAND, now_ns))
			break;
		n++;
	}
	transfer->n_wanted -= n;
	memmove(transfer->wanted, transfer->wanted + n,
		transfer->n_wanted * sizeof(*transfer->wanted));
	if (n > 0)
		transfer->wanted_since_ns = now_ns;
	/* Loads to spare and still wanted: there was no slot. */
	return transfer->n_wanted > 0 && transfer->n_idle > 0;
}

/* Every slot is held back: no unpin and no eviction will make one free soon. */
static void refuse_wanted(struct transfer *transfer)
{
	for (uint32_t i = 0; i < transfer->n_wanted; i++)
		slots_refuse(&transfer->store->slots, transfer->wanted[i].layer,
			transfer->wanted[i].expert);
	transfer->n_wanted = 0;
}

static void start_demanded(struct transfer *transfer, uint64_t now_ns)
{
	_Atomic uint32_t *starved = &transfer->store->slots.header->starved;
	if (is_lost(transfer))
		refuse_wanted(transfer);
	bool short_of_slots = start_wanted(transfer, now_ns);
	if (short_of_slots && atomic_load_explicit(starved, memory_order_relaxed) == 0) {
		/* Sequentially consistent, then look again: see slots_evictable. */
		atomic_store_explicit(starved, 1, memory_order_seq_cst);
		short_of_slots = start_wanted(transfer, now_ns);
	}
	if (short_of_slots && transfer->store->n_held == transfer->store->slots.n_slots) {
		refuse_wanted(transfer);
		short_of_slots = false;
	}
	if (short_of_slots && now_ns - transfer->wanted_since_ns > WANTED_NS) {
		transfer->n_wanted = 0;
		short_of_slots = false;
	}
	if (!short_of_slots && atomic_load_explicit(starved, memory_order_relaxed) != 0)
		atomic_store_explicit(starved, 0, memory_order_relaxed);
}

static bool may_prefetch(const struct transfer *transfer)
{
	uint32_t most = transfer->n_loads / 4;
	return transfer->n_wanted == 0 && transfer->n_idle > 0 && !is_lost(transfer) &&
	       transfer->n_prefetching < (most > 0 ? most : 1);
}

static void start_prefetches(struct transfer *transfer, uint64_t now_ns)
{
	const struct cache_policy_ops *policy = transfer->store->policy;
	void *state = transfer->store->policy_state;
	struct cache_prefetch prefetch;
	while (may_prefetch(transfer) && policy->next(state, now_ns, &prefetch)) {
		if (here_or_coming(transfer, &prefetch))
			continue;
		if (!start_load(transfer, &prefetch, LOAD_PREFETCH, now_ns)) {
			/* Every slot is pinned, hinted for or worth more: this one, the best of those that wait, as well
			 * as the rest, is for later. */
			policy->put_back(state, &prefetch);
			return;
		}
	}
}

/* One pass over all experts, in the order they have in the file, while there are free slots. */
static void start_preload(struct transfer *transfer, uint64_t now_ns)
{
	const struct slots_geometry *geometry = &transfer->store->geometry;
	while (may_prefetch(transfer) && transfer->preload_layer < geometry->n_layers) {
		uint32_t layer = transfer->preload_layer, expert = transfer->preload_expert;
		if (!geometry->layers[layer].moe || expert == geometry->n_experts) {
			transfer->preload_layer++;
			transfer->preload_expert = 0;
			continue;
		}
		struct cache_prefetch want = {.layer = layer, .expert = expert};
		if (!here_or_coming(transfer, &want) &&
			!start_load(transfer, &want, LOAD_PRELOAD, now_ns)) {
			/* What a dead predecessor was loading comes free later. */
			if (transfer->store->n_held == 0)
				transfer->preload_layer = geometry->n_layers;
			return;
		}
		transfer->preload_expert++;
	}
}

static void work(struct transfer *transfer)
{
	struct slots_header *header = transfer->store->slots.header;
	const struct cache_policy_ops *policy = transfer->store->policy;
	/* Read before draining: what is pushed after the drain changes it and ends the wait. */
	uint32_t seen = doorbell_read(&header->work);
	drain(transfer);
	uint64_t now_ns = clock_ns();
	store_release_held(transfer->store, now_ns);
	start_demanded(transfer, now_ns);
	start_prefetches(transfer, now_ns);
	bool preloading = transfer->options.preload &&
			  transfer->preload_layer < transfer->store->geometry.n_layers;
	if (preloading)
		start_preload(transfer, now_ns);
	unsigned busy = transfer->n_loads - transfer->n_idle;
	atomic_store_explicit(&transfer->preloading, preloading, memory_order_relaxed);
	atomic_store_explicit(&transfer->queue,
		transfer->n_wanted + policy->queued(transfer->store->policy_state) + busy,
		memory_order_relaxed);
	atomic_store_explicit(&transfer->beat_ns, now_ns, memory_order_relaxed);
	if (busy > 0)
		collect(transfer, POLL_NS);
	else
		doorbell_wait(&header->work, seen, transfer->options.spin_ns,
			transfer->n_wanted > 0 ? STARVED_NS : IDLE_NS);
}

static void *transfer_thread(void *arg)
{
	struct transfer *transfer = arg;
	while (!atomic_load_explicit(&transfer->stop, memory_order_acquire))
		work(transfer);
	/* The reads in flight write to slots: they end before the slots are anybody else's. */
	while (transfer->n_idle < transfer->n_loads)
		collect(transfer, 100000000);
	return NULL;
}

static void free_all(struct transfer *transfer)
{
	free(transfer->loads);
	free(transfer->idle);
	free(transfer->wanted);
	free(transfer->scratch);
	integrity_exit(&transfer->integrity);
}

/* For a tile of the longest rows. */
static int allocate_scratch(struct transfer *transfer, struct error *err)
{
	const struct slots_geometry *geometry = &transfer->store->geometry;
	size_t most = 0;
	for (uint32_t l = 0; l < geometry->n_layers; l++)
		for (int p = 0; geometry->layers[l].moe && p < EXPERT_PARTS; p++) {
			size_t row = geometry->layers[l].part[p].matrix.row_bytes;
			most = row > most ? row : most;
		}
	transfer->scratch = malloc(TILE_LANES * most);
	return transfer->scratch ? 0
				 : error_set(err, ENOMEM, "no memory for %d rows of %zu bytes",
					   TILE_LANES, most);
}

static int allocate(struct transfer *transfer, struct error *err)
{
	transfer->n_loads = TRANSFER_LOADS;
	transfer->loads = calloc(transfer->n_loads, sizeof(*transfer->loads));
	transfer->idle = calloc(transfer->n_loads, sizeof(*transfer->idle));
	transfer->wanted = calloc(LIMIT_EXPERTS, sizeof(*transfer->wanted));
	if (transfer->loads == NULL || transfer->idle == NULL || transfer->wanted == NULL)
		return error_set(err, ENOMEM, "no memory for %u loads", transfer->n_loads);
	int status = integrity_init(&transfer->integrity, &transfer->store->geometry, err);
	if (status != 0)
		return status;
	while (transfer->n_idle < transfer->n_loads) {
		transfer->idle[transfer->n_idle] = transfer->n_idle;
		transfer->n_idle++;
	}
	return transfer->store->slots.layout == LAYOUT_TILES ? allocate_scratch(transfer, err) : 0;
}

int transfer_start(struct transfer *transfer, struct store *store, struct reader *reader,
	const struct transfer_options *options, struct error *err)
{
	memset(transfer, 0, sizeof(*transfer));
	transfer->store = store;
	transfer->reader = reader;
	transfer->options = *options;
	atomic_store_explicit(&transfer->beat_ns, clock_ns(), memory_order_relaxed);
	int status = allocate(transfer, err);
	if (status == 0) {
		int code = pthread_create(&transfer->thread, NULL, transfer_thread, transfer);
		if (code != 0)
			status = error_thread(err, code, "the transfer thread cannot be started");
	}
	if (status != 0) {
		free_all(transfer);
		return status;
	}
	transfer->running = true;
	return 0;
}

void transfer_stop(struct transfer *transfer)
{
	if (!transfer->running)
		return;
	atomic_store_explicit(&transfer->stop, true, memory_order_release);
	doorbell_ring(&transfer->store->slots.header->work);
	pthread_join(transfer->thread, NULL);
	free_all(transfer);
	transfer->running = false;
}
