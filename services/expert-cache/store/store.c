#include "services/expert-cache/store/store_internal.h"

#include "services/expert-cache/store/sums.h"
#include "shared/base/counter.h"
#include "shared/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static uint8_t *status_of(const struct store *store, uint32_t layer, uint32_t expert)
{
	return &store->status[(size_t)layer * store->slots.n_experts + expert];
}

/* Offset of a slot in the region's file. */
static off_t place(const struct store *store, uint32_t slot)
{
	return slots_at(&store->slots, slot) - (unsigned char *)store->region.header;
}

bool store_punch(struct store *store, uint32_t first, uint32_t n)
{
	if (fallocate(store->region.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		    place(store, first), (off_t)(n * store->slots.slot_bytes)) == 0)
		return true;
	if (!store->refused)
		log_error("the kernel does not take back the memory of slots (fallocate: %s): when "
			  "the budget falls, memory stays as it is until all processes have been "
			  "started again. A sandbox has to allow FALLOC_FL_PUNCH_HOLE",
			strerror(errno));
	store->refused = true;
	return false;
}

bool store_has_pages(const struct store *store, uint32_t slot)
{
	off_t at = place(store, slot);
	off_t data = lseek(store->region.fd, at, SEEK_DATA);
	return data < 0 ? errno != ENXIO : data < at + (off_t)store->slots.slot_bytes;
}

static void set_pages(struct store *store, uint32_t slot, enum free_pages pages)
{
	enum free_pages before = store->pages[slot];
	store->n_ahead += (uint32_t)(pages == PAGES_AHEAD) - (uint32_t)(before == PAGES_AHEAD);
	counter_add(
		&store->n_kept, (uint64_t)(pages == PAGES_KEPT) - (uint64_t)(before == PAGES_KEPT));
	store->pages[slot] = (uint8_t)pages;
}

void store_empty(struct store *store, uint32_t first, uint32_t n)
{
	bool taken = store_punch(store, first, n);
	for (uint32_t slot = first; slot < first + n; slot++)
		set_pages(store, slot,
			taken || !store_has_pages(store, slot) ? PAGES_NONE : PAGES_KEPT);
}

uint64_t store_kept_bytes(const struct store *store)
{
	return atomic_load_explicit(&store->n_kept, memory_order_relaxed) * store->slots.slot_bytes;
}

void store_publish_in_use(struct store *store)
{
	atomic_store_explicit(
		&store->slots.header->in_use, store_in_use(store), memory_order_relaxed);
}

uint64_t store_bytes(const struct store *store)
{
	return region_memory(&store->region);
}

enum { TABLE_PAGES = 1024 }; /* that are asked about at once */

uint64_t store_table_bytes(const struct store *store)
{
	unsigned char there[TABLE_PAGES];
	unsigned char *at = (unsigned char *)store->region.header,
		      *end = slots_at(&store->slots, 0);
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint64_t bytes = 0;
	while (at < end) {
		size_t left = (size_t)(end - at),
		       n = left < TABLE_PAGES * page ? left : TABLE_PAGES * page;
		if (mincore(at, n, there) != 0)
			return (uint64_t)(end - (unsigned char *)store->region.header);
		for (size_t i = 0; i < (n + page - 1) / page; i++)
			bytes += there[i] & 1 ? page : 0;
		at += n;
	}
	return bytes;
}

uint64_t store_arena_bytes(const struct store *store)
{
	uint64_t all = store_bytes(store), tables = store_table_bytes(store);
	return all > tables ? all - tables : 0;
}

void store_set_budget(struct store *store, uint32_t n_slots)
{
	store->budget = n_slots;
	atomic_store_explicit(&store->slots.header->budget, n_slots, memory_order_relaxed);
}

uint32_t store_in_use(const struct store *store)
{
	return store->slots.n_slots - store->n_free;
}

uint32_t store_find(const struct store *store, uint32_t layer, uint32_t expert)
{
	uint32_t value = atomic_load_explicit(
		slots_word(&store->slots, layer, expert), memory_order_relaxed);
	/* A wrong table word must not keep the expert from being loaded. */
	return value == 0 || value - 1 >= store->slots.n_slots ||
			       !slots_holds(&store->slots, value - 1, layer, expert)
		       ? SLOT_NONE
		       : value - 1;
}

bool store_loading(const struct store *store, uint32_t layer, uint32_t expert)
{
	return *status_of(store, layer, expert) == EXPERT_LOADING;
}

struct choice {
	const struct store *store;
	enum load_reason why;
	uint64_t now_ns;
};

static bool may_evict(void *arg, uint32_t slot)
{
	const struct choice *choice = arg;
	const struct store *store = choice->store;
	const struct slot_note *note = &store->notes[slot];
	/* The verifier waits for it. Once it has pinned it (which the epoch shows) and released it,
	 * the slot may be used for the rest of a layer that is larger than the budget. */
	if (note->demand == store->demand && note->demand != DEMAND_NONE &&
		slot_epoch(store_state(store, slot)) == 0)
		return false;
	/* A hint must not evict what another hint has loaded. */
	if (choice->why == LOAD_PREFETCH &&
		(note->hint_until_ns > choice->now_ns || note->demand == store->demand))
		return false;
	return slots_evictable(&store->slots, slot);
}

static uint32_t evict_one(struct store *store, const struct cache_prefetch *want,
	enum load_reason why, uint64_t now_ns)
{
	struct choice choice = {.store = store, .why = why, .now_ns = now_ns};
	for (;;) {
		uint32_t slot =
			store->policy->victim(store->policy_state, want, why, may_evict, &choice);
		if (slot == SLOT_NONE)
			return SLOT_NONE;
		/* A pin made since the look wins; the next look skips this slot. */
		if (!slots_evict(&store->slots, slot))
			continue;
		store->policy->on_evict(store->policy_state, slot);
		counter_add(&store->slots.header->evictions, 1);
		struct slots_counts *counts = &store->slots.counts[store->notes[slot].layer];
		counter_add(&counts->evictions, 1);
		counter_add(&counts->prefetch_wasted, store->notes[slot].unused_prefetch);
		return slot;
	}
}

/* [shrink] */
uint32_t store_shrink(struct store *store, uint64_t now_ns)
{
	static const struct cache_prefetch nothing;
	if (store_in_use(store) <= store->budget)
		return SLOT_NONE;
	return evict_one(store, &nothing, LOAD_DEMAND, now_ns);
}

/* [give_back] */
void store_give_back(struct store *store, uint32_t slot)
{
	/* Continuing its checksum would bring its pages back. */
	sums_forget(store, slot);
	store_empty(store, slot, 1);
	store->free_slots[store->n_free++] = slot;
	store_publish_in_use(store);
}

static uint32_t n_kept(const struct store *store)
{
	return (uint32_t)atomic_load_explicit(&store->n_kept, memory_order_relaxed);
}

/* Takes a free slot with pages first: others would take the memory beyond the budget. */
static uint32_t take_free(struct store *store)
{
	uint32_t i = store->n_free - 1;
	bool any = store->n_ahead + n_kept(store) > 0;
	while (any && store->pages[store->free_slots[i]] == PAGES_NONE)
		i--;
	uint32_t slot = store->free_slots[i];
	store->free_slots[i] = store->free_slots[--store->n_free];
	set_pages(store, slot, PAGES_NONE);
	store_publish_in_use(store);
	return slot;
}

/* How many free slots the budget has room for, in addition to those that have kept their pages and
 * are taken first. */
static uint32_t room(const struct store *store)
{
	uint32_t in_use = store_in_use(store), kept = n_kept(store);
	uint32_t left = store->budget > in_use ? store->budget - in_use : 0;
	left = left < store->n_free ? left : store->n_free;
	return left > kept ? left - kept : 0;
}

uint32_t store_ahead(struct store *store, uint32_t *slots, uint32_t max)
{
	uint32_t n = 0, most = room(store);
	for (uint32_t i = store->n_free; i-- > 0 && n < max && store->n_ahead < most;) {
		uint32_t slot = store->free_slots[i];
		if (store->pages[slot] != PAGES_NONE)
			continue;
		set_pages(store, slot, PAGES_AHEAD);
		slots[n++] = slot;
	}
	return n;
}

bool store_too_far_ahead(const struct store *store)
{
	return store->n_ahead > room(store);
}

void store_drop_ahead(struct store *store)
{
	for (uint32_t i = 0; store_too_far_ahead(store) && i < store->n_free; i++) {
		uint32_t slot = store->free_slots[i];
		if (store->pages[slot] == PAGES_AHEAD)
			store_empty(store, slot, 1);
	}
}

uint32_t store_take(struct store *store, const struct cache_prefetch *want, enum load_reason why,
	uint64_t now_ns)
{
	uint32_t layer = want->layer, expert = want->expert;
	uint32_t slot = SLOT_NONE;
	if (store->n_free > 0 && store_in_use(store) < store->budget)
		slot = take_free(store);
	else if (why != LOAD_PRELOAD)
		slot = evict_one(store, want, why, now_ns);
	if (slot == SLOT_NONE)
		return SLOT_NONE;
	*status_of(store, layer, expert) = EXPERT_LOADING;
	sums_forget(store, slot);
	store->notes[slot] = (struct slot_note){
		.layer = (uint16_t)layer,
		.expert = (uint16_t)expert,
		.demand = why == LOAD_DEMAND ? store->demand : DEMAND_NONE,
		.sum_due = store->notes[slot].sum_due,
	};
	slots_load_begin(&store->slots, slot, layer, expert);
	return slot;
}

void store_loaded(struct store *store, uint32_t slot, enum load_reason why, uint64_t hint_until_ns,
	enum matrix_layout layout)
{
	uint32_t layer = store->notes[slot].layer, expert = store->notes[slot].expert;
	const struct slots_part *part = store->geometry.layers[layer].part;
	uint64_t bytes = part[EXPERT_GATE].bytes + part[EXPERT_UP].bytes + part[EXPERT_DOWN].bytes;
	struct slots_header *header = store->slots.header;
	struct slots_counts *counts = &store->slots.counts[layer];
	*status_of(store, layer, expert) = EXPERT_ABSENT;
	store->notes[slot].hint_until_ns = hint_until_ns;
	store->notes[slot].unused_prefetch = why == LOAD_PREFETCH;
	store->notes[slot].tiles = layout == LAYOUT_TILES;
	counter_add(&header->loads, 1);
	counter_add(&header->bytes_loaded, bytes);
	counter_add(&counts->loads, 1);
	counter_add(&counts->bytes_loaded, bytes);
	/* A policy that takes no hints prefetches on its own. */
	bool hinted = why == LOAD_PREFETCH && store->policy->hint_sources != CACHE_HINTS_NONE;
	counter_add(&header->hint_loads, hinted);
	counter_add(&counts->prefetched, why == LOAD_PREFETCH);
	store->policy->on_load(store->policy_state, slot, layer, expert, why);
	atomic_store_explicit(&store->slots.used[slot], ++store->stamp, memory_order_relaxed);
	slots_load_end(&store->slots, slot, layer, expert, layout);
	sums_due(store, slot);
}

void store_failed(struct store *store, uint32_t slot, bool refuse)
{
	const struct slot_note *note = &store->notes[slot];
	*status_of(store, note->layer, note->expert) = EXPERT_ABSENT;
	slots_load_fail(&store->slots, slot);
	if (refuse)
		slots_refuse(&store->slots, note->layer, note->expert);
}

void store_set_aside(struct store *store, uint32_t slot)
{
	set_pages(store, slot, PAGES_AHEAD);
	store->free_slots[store->n_free++] = slot;
	store_publish_in_use(store);
}

bool store_pack_begin(struct store *store, uint32_t slot)
{
	struct slot_note *note = &store->notes[slot];
	if (!slots_pack_begin(&store->slots, slot, note->layer, note->expert))
		return false;
	*status_of(store, note->layer, note->expert) = EXPERT_LOADING;
	sums_forget(store, slot);
	note->packing = true;
	return true;
}

void store_pack_end(struct store *store, uint32_t slot)
{
	struct slot_note *note = &store->notes[slot];
	*status_of(store, note->layer, note->expert) = EXPERT_ABSENT;
	note->packing = false;
	note->tiles = true;
	slots_load_end(&store->slots, slot, note->layer, note->expert, LAYOUT_TILES);
	sums_due(store, slot);
}

uint32_t store_packing(const struct store *store, uint32_t layer, uint32_t expert)
{
	uint32_t slot = atomic_load_explicit(
				slots_word(&store->slots, layer, expert), memory_order_relaxed) -
			1;
	if (slot >= store->slots.n_slots || !store->notes[slot].packing)
		return SLOT_NONE;
	const struct slot_note *note = &store->notes[slot];
	return note->layer == layer && note->expert == expert ? slot : SLOT_NONE;
}

void store_begin_demand(struct store *store, uint64_t iteration)
{
	store->demand = iteration;
}

void store_protect(struct store *store, uint32_t slot)
{
	store->notes[slot].demand = store->demand;
}

void store_use(struct store *store, const struct cache_use *use)
{
	counter_add(slots_uses(&store->slots, use->layer, use->expert), use->tokens);
	if (use->slot == SLOT_NONE)
		return;
	struct slot_note *note = &store->notes[use->slot];
	counter_add(&store->slots.counts[use->layer].prefetch_used, note->unused_prefetch);
	note->unused_prefetch = false;
	atomic_store_explicit(&store->slots.used[use->slot], ++store->stamp, memory_order_relaxed);
}

void store_measure(struct store *store)
{
	const struct slots_header *header = store->slots.header;
	const struct slots_hints *hinted = store->slots.hinted;
	if (store->policy->on_measure == NULL)
		return;
	/* The drafter writes it, and may write anything. */
	uint32_t draft_tokens = atomic_load_explicit(&hinted->draft_tokens, memory_order_relaxed);
	struct cache_measures measures = {
		.n_slots = store->budget,
		.draft_tokens = draft_tokens < LIMIT_DRAFT_NODES ? draft_tokens : LIMIT_DRAFT_NODES,
		.load_ns = (double)atomic_load_explicit(&header->load_ns, memory_order_relaxed),
		.draft_layer_ns =
			(double)atomic_load_explicit(&hinted->draft_layer_ns, memory_order_relaxed),
		.verify_layer_ns = (double)atomic_load_explicit(
			&header->verify_layer_ns, memory_order_relaxed),
	};
	store->policy->on_measure(store->policy_state, &measures);
}

bool store_release_held(struct store *store, uint64_t now_ns)
{
	if (store->n_held == 0 || now_ns < store->held_until_ns)
		return false;
	log_info("%u slots of a dead predecessor's loads are free again", store->n_held);
	while (store->n_held > 0) {
		uint32_t slot = store->held[--store->n_held];
		slots_load_fail(&store->slots, slot);
		store_give_back(store, slot);
	}
	return true;
}
