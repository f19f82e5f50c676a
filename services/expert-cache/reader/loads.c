#include "services/expert-cache/reader/loads.h"

#include "services/expert-cache/reader/packer.h"
#include "shared/base/clock.h"
#include "shared/base/counter.h"
#include "shared/base/timeline.h"
#include "shared/base/log.h"

#include <stdlib.h>
#include <string.h>

static struct slots_counts *counts_of(const struct loads *loads, const struct load *load)
{
	return &loads->store->slots.counts[load->want.layer];
}

int loads_init(struct loads *loads, struct store *store, struct reader *reader, uint64_t generation,
	struct error *err)
{
	memset(loads, 0, sizeof(*loads));
	loads->generation = generation;
	loads->store = store;
	loads->reader = reader;
	loads->load = calloc(LOADS_MAX, sizeof(*loads->load));
	loads->scratch = malloc(packer_scratch_bytes(&store->geometry));
	if (loads->load == NULL || loads->scratch == NULL) {
		loads_exit(loads);
		return error_set(err, ENOMEM, "no memory for %d loads", LOADS_MAX);
	}
	int status = integrity_init(&loads->integrity, &store->geometry, err);
	if (status != 0) {
		loads_exit(loads);
		return status;
	}
	while (loads->n_idle < LOADS_MAX) {
		loads->idle[loads->n_idle] = loads->n_idle;
		loads->n_idle++;
	}
	return 0;
}

void loads_exit(struct loads *loads)
{
	free(loads->load);
	free(loads->scratch);
	integrity_exit(&loads->integrity);
	loads->load = NULL;
	loads->scratch = NULL;
}

static enum read_priority priority_of(enum load_reason why)
{
	return why == LOAD_DEMAND     ? READ_DEMAND
	       : why == LOAD_PREFETCH ? READ_PREFETCH
				      : READ_PRELOAD;
}

static void submit(struct loads *loads, struct load *load)
{
	const struct store *store = loads->store;
	unsigned char *slot = slots_at(&store->slots, load->slot);
	struct slots_read reads[EXPERT_PARTS];
	load->parts_left =
		slots_reads(&store->geometry.layers[load->want.layer], load->want.expert, reads);
	for (unsigned i = 0; i < load->parts_left; i++) {
		load->part[i] = (struct read_request){
			.offset = reads[i].offset,
			.need = reads[i].need,
			.bytes = reads[i].bytes,
			.to = slot + reads[i].at,
			.owner = load,
			.priority = priority_of(load->why),
		};
		reader_submit(loads->reader, &load->part[i]);
	}
}

bool loads_start(struct loads *loads, const struct cache_prefetch *want, enum load_reason why,
	uint64_t now_ns)
{
	uint32_t slot = store_take(loads->store, want, why, now_ns);
	if (slot == SLOT_NONE)
		return false;
	struct load *load = &loads->load[loads->idle[--loads->n_idle]];
	*load = (struct load){.slot = slot,
		.want = *want,
		.why = why,
		.pass = loads->pass[want->layer],
		.start_ns = now_ns};
	const struct store *store = loads->store;
	if (why == LOAD_PREFETCH && store->policy->on_begin != NULL)
		store->policy->on_begin(store->policy_state, want);
	submit(loads, load);
	return true;
}

/* True while it is being read. */
static bool reading(const struct load *load)
{
	return load->parts_left > 0;
}

static struct load *find(struct loads *loads, uint32_t layer, uint32_t expert)
{
	for (uint32_t i = 0; i < LOADS_MAX; i++) {
		struct load *load = &loads->load[i];
		if (reading(load) && load->want.layer == layer && load->want.expert == expert)
			return load;
	}
	for (uint32_t i = 0; i < loads->n_packing; i++) {
		struct load *load = &loads->load[loads->packing[i]];
		if (load->want.layer == layer && load->want.expert == expert)
			return load;
	}
	return NULL;
}

/* [promote] */
void loads_demand(struct loads *loads, uint32_t layer, uint32_t expert)
{
	struct load *load = find(loads, layer, expert);
	if (load == NULL)
		return;
	store_protect(loads->store, load->slot);
	if (load->why == LOAD_DEMAND)
		return;
	load->why = LOAD_DEMAND;
	counter_add(&counts_of(loads, load)->promoted, 1);
	for (unsigned i = 0; reading(load) && i < EXPERT_PARTS; i++)
		reader_promote(loads->reader, &load->part[i], READ_DEMAND);
}

static void drop(struct loads *loads, struct load *load)
{
	/* Before the verifier is told, so that it finds the load counted. */
	if (load->status == -ECANCELED)
		counter_add(&counts_of(loads, load)->cancelled, 1);
	else
		counter_add(&loads->failures, 1);
	const struct store *store = loads->store;
	if (store->policy->on_dropped != NULL)
		store->policy->on_dropped(store->policy_state, load->want.layer, load->want.expert);
	store_failed(loads->store, load->slot, load->why == LOAD_DEMAND);
	reader_forget_slot(loads->reader, load->slot);
	store_set_aside(loads->store, load->slot);
}

/* For `outriderctl trace`. */
static void draw(const struct loads *loads, const struct load *load)
{
	static const enum timeline_kind kinds[] = {
		[LOAD_DEMAND] = TIMELINE_LOAD_DEMAND,
		[LOAD_PREFETCH] = TIMELINE_LOAD_PREFETCH,
		[LOAD_PRELOAD] = TIMELINE_LOAD_PRELOAD,
	};
	timeline_add(&(struct timeline_span){.start_ns = load->start_ns,
		.end_ns = clock_ns(),
		.kind = kinds[load->why],
		.lane = (uint32_t)(load - loads->load),
		.value = {load->want.layer, load->want.expert}});
}

static void end(struct loads *loads, struct load *load, enum matrix_layout layout)
{
	if (timeline_on())
		draw(loads, load);
	if (load->status == 0)
		store_loaded(loads->store, load->slot, load->why, load->want.needed_by_ns, layout);
	else
		drop(loads, load);
	loads->idle[loads->n_idle++] = (uint32_t)(load - loads->load);
}

void loads_lose(struct loads *loads, const struct error *why)
{
	if (atomic_exchange_explicit(&loads->lost, true, memory_order_relaxed))
		return;
	log_error("%s", why->text);
	slots_lose(&loads->store->slots, loads->generation);
	doorbell_ring(&loads->store->slots.hinted->work);
}

bool loads_lost(const struct loads *loads)
{
	return atomic_load_explicit(&loads->lost, memory_order_relaxed);
}

/* If what was read is wrong, the file has changed. */
static void check(struct loads *loads, struct load *load)
{
	const struct store *store = loads->store;
	struct error err;
	if (load->status == 0 &&
		integrity_check(&loads->integrity, &store->geometry, load->want.layer,
			load->want.expert, slots_at(&store->slots, load->slot), &err) != 0) {
		/* Or somebody wrote to the slot and the file is intact, so it is read once more. */
		if (!load->again) {
			load->again = true;
			submit(loads, load);
			return;
		}
		loads_lose(loads, &err);
	}
	if (load->status == -ESTALE && reader_check(loads->reader, &err) == -ESTALE)
		loads_lose(loads, &err);
	if (load->status == 0 && loads_lost(loads))
		load->status = -ESTALE;
}

static void arrived(struct loads *loads, struct load *load)
{
	check(loads, load);
	if (reading(load))
		return;
	if (loads->store->geometry.layers[load->want.layer].packed)
		end(loads, load, LAYOUT_TILES);
	else if (load->status == 0 && loads->packs)
		loads->packing[loads->n_packing++] = (uint32_t)(load - loads->load);
	else
		end(loads, load, LAYOUT_ROWS);
}

void loads_layer(struct loads *loads, uint32_t layer)
{
	if (layer == loads->running)
		return;
	loads->pass[loads->running]++;
	loads->running = layer;
}

/* The time by which it was needed does not count: it is an estimate, and a layer that waits for its
 * experts takes longer than estimated. */
static bool obsolete(const struct loads *loads, const struct load *load, uint64_t now_ns)
{
	const struct store *store = loads->store;
	if (load->pass != loads->pass[load->want.layer])
		return true;
	return store->policy->obsolete != NULL &&
	       store->policy->obsolete(store->policy_state, &load->want, now_ns);
}

static void cancel(struct loads *loads, struct load *load)
{
	unsigned taken_back = 0;
	for (unsigned i = 0; i < EXPERT_PARTS; i++)
		taken_back += reader_cancel(loads->reader, &load->part[i]);
	if (taken_back == 0)
		return;
	load->status = -ECANCELED;
	load->parts_left -= taken_back;
	if (!reading(load))
		end(loads, load, LAYOUT_ROWS);
}

void loads_cancel_obsolete(struct loads *loads, uint64_t now_ns)
{
	if (reader_held(loads->reader) == 0)
		return;
	for (uint32_t i = 0; i < LOADS_MAX; i++) {
		struct load *load = &loads->load[i];
		if (reading(load) && load->why == LOAD_PREFETCH && load->status == 0 &&
			obsolete(loads, load, now_ns))
			cancel(loads, load);
	}
}

void loads_collect(struct loads *loads, const struct doorbell_seen *seen, uint64_t timeout_ns)
{
	struct read_request *finished[16];
	unsigned n;
	do {
		n = reader_wait_or_ring(loads->reader, seen, timeout_ns, finished, 16);
		for (unsigned i = 0; i < n; i++) {
			struct load *load = finished[i]->owner;
			if (finished[i]->status != 0)
				load->status = finished[i]->status;
			if (--load->parts_left == 0)
				arrived(loads, load);
		}
		timeout_ns = 0;
	} while (n == 16);
}

void loads_pack_one(struct loads *loads)
{
	const struct store *store = loads->store;
	uint32_t at = 0;
	if (loads->n_packing == 0)
		return;
	for (uint32_t i = loads->n_packing; i-- > 0;)
		if (loads->load[loads->packing[i]].why == LOAD_DEMAND)
			at = i;
	struct load *load = &loads->load[loads->packing[at]];
	memmove(loads->packing + at, loads->packing + at + 1,
		(--loads->n_packing - at) * sizeof(*loads->packing));
	/* Only this thread may look into the slot yet. */
	packer_pack(&store->geometry.layers[load->want.layer], load->want.expert,
		slots_at(&store->slots, load->slot), loads->scratch);
	end(loads, load, LAYOUT_TILES);
}
