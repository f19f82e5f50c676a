#include "services/expert-cache/store.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/base/nodes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A killed process leaves reads behind that the device may still complete: the kernel does not wait for them when it
 * closes an io_uring. They go to the pages they were submitted for, so a slot gets new pages (see renew_pages); one
 * that cannot is held back this long: the block layer gives a request up after 30 s. */
#define HELD_NS (35ull * 1000000000ull)

/* No iteration demanded this slot. */
#define DEMAND_NONE UINT64_MAX

static uint8_t *status_of(const struct store *store, uint32_t layer, uint32_t expert)
{
	return &store->status[(size_t)layer * store->slots.n_experts + expert];
}

static uint64_t load_state(const struct store *store, uint32_t slot)
{
	/* The owner reads its own words; pins of the verifier are looked at by slots_evict. */
	return atomic_load_explicit(&store->slots.state[slot], memory_order_relaxed);
}

static void count(_Atomic uint64_t *counter, uint64_t n)
{
	/* The owner is the only writer. */
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
		memory_order_relaxed);
}

static int try_adopt(
	struct store *store, int fd, const struct slots_shape *shape, struct error *err)
{
	int status =
		region_adopt(fd, EXPERTS_REGION, EXPERTS_LAYOUT, REGION_DATA, &store->region, err);
	if (status != 0)
		return status;
	status = slots_map(&store->region, shape, &store->slots, err);
	if (status == 0 &&
		atomic_load_explicit(&store->slots.header->lost, memory_order_relaxed) != 0)
		status = error_set(
			err, ESTALE, "expert region: the model file changed while they were read");
	if (status == 0)
		status = slots_adopt(&store->slots, &store->geometry, &store->found, err);
	if (status != 0) {
		region_close(&store->region);
		return status;
	}
	store->adopted = true;
	return 0;
}

static int make_region(struct store *store, const struct slots_shape *shape, struct error *err)
{
	int status = region_create(EXPERTS_REGION, EXPERTS_LAYOUT, slots_payload_bytes(shape),
		REGION_HUGE | REGION_SPARSE, &store->region, err);
	if (status != 0)
		return status;
	/* The worker fills them, threads of every node read them. */
	nodes_interleave(store->region.header, store->region.bytes);
	slots_format(&store->region, shape);
	return slots_map(&store->region, shape, &store->slots, err);
}

int store_policy_create(const struct store *store, const struct cache_policy_ops *policy,
	uint32_t queue_max, void **state, struct error *err)
{
	bool moe[LIMIT_LAYERS];
	for (uint32_t l = 0; l < store->slots.n_layers; l++)
		moe[l] = store->geometry.layers[l].moe;
	struct cache_policy_shape shape = {
		.n_layers = store->slots.n_layers,
		.n_experts = store->slots.n_experts,
		.n_experts_used = store->geometry.n_experts_used,
		.n_slots = store->slots.n_slots,
		.queue_max = queue_max,
		.moe = moe,
		.profile = store->profile,
	};
	return policy->create(&shape, state, err);
}

static int allocate(struct store *store, uint32_t queue_max, struct error *err)
{
	const struct slots *slots = &store->slots;
	store->free_slots = calloc(slots->n_slots, sizeof(*store->free_slots));
	store->ahead = calloc(slots->n_slots, sizeof(*store->ahead));
	store->held = calloc(slots->n_slots, sizeof(*store->held));
	store->notes = calloc(slots->n_slots, sizeof(*store->notes));
	store->status = calloc((size_t)slots->n_layers * slots->n_experts, 1);
	if (store->free_slots == NULL || store->ahead == NULL || store->held == NULL ||
		store->notes == NULL || store->status == NULL)
		return error_set(
			err, ENOMEM, "no memory to keep account of %u slots", slots->n_slots);
	return store_policy_create(store, store->policy, queue_max, &store->policy_state, err);
}

static off_t place_in_file(const struct store *store, uint32_t slot)
{
	return slots_at(&store->slots, slot) - (unsigned char *)store->region.header;
}

static bool punch(const struct store *store, uint32_t first, uint32_t n)
{
	return fallocate(store->region.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		       place_in_file(store, first), (off_t)(n * store->slots.slot_bytes)) == 0;
}

/* Takes a slot's pages out of the region: a read that is under way keeps the old ones and ends there, and whoever
 * touches the slot next gets new ones. True when that is certain: part of a huge page that a read holds cannot be taken
 * out, which the file shows by still having data there. (The offset of the descriptor is used by nobody.) */
static bool renew_pages(const struct store *store, uint32_t slot)
{
	off_t at = place_in_file(store, slot);
	off_t bytes = (off_t)store->slots.slot_bytes;
	if (!punch(store, slot, 1))
		return false;
	off_t data = lseek(store->region.fd, at, SEEK_DATA);
	return data < 0 ? errno == ENXIO : data >= at + bytes;
}

static bool known(const struct store *store, const struct slot_note *note)
{
	return note->layer < store->slots.n_layers && note->expert < store->slots.n_experts;
}

static int by_use(const void *a, const void *b)
{
	const struct store_resident *left = a, *right = b;
	return left->used < right->used ? -1 : left->used > right->used;
}

/* Tells the policy what is resident, in order of its last use. */
static void tell_policy(struct store *store, struct store_resident *residents, uint32_t n)
{
	qsort(residents, n, sizeof(*residents), by_use);
	for (uint32_t i = 0; i < n; i++) {
		const struct slot_note *note = &store->notes[residents[i].slot];
		store->policy->on_load(store->policy_state, residents[i].slot, note->layer,
			note->expert, LOAD_PRELOAD);
	}
}

static struct store_resident resident_of(const struct store *store, uint32_t slot)
{
	return (struct store_resident){
		atomic_load_explicit(&store->slots.used[slot], memory_order_relaxed), slot};
}

/* Sorts the slots by state. */
static int sort_slots(
	struct store *store, struct store_resident *residents, uint32_t *n, struct error *err)
{
	/* Backwards, so that the lowest free slot is on top. */
	for (uint32_t slot = store->slots.n_slots; slot-- > 0;) {
		uint64_t word = load_state(store, slot);
		store->notes[slot] = (struct slot_note){.demand = DEMAND_NONE,
			.layer = (uint16_t)slot_layer(word),
			.expert = (uint16_t)slot_expert(word)};
		switch (slot_state(word)) {
		case SLOT_READY:
			if (!known(store, &store->notes[slot]))
				return error_set(err, EUCLEAN,
					"expert slot %u changed while it was taken over", slot);
			residents[(*n)++] = resident_of(store, slot);
			break;
		case SLOT_LOADING:
			if (!renew_pages(store, slot)) {
				store->held[store->n_held++] = slot;
				break;
			}
			slots_load_fail(&store->slots, slot);
			store->free_slots[store->n_free++] = slot;
			break;
		default:
			store->free_slots[store->n_free++] = slot;
			break;
		}
	}
	return 0;
}

/* A predecessor that died while it shrank, or between an eviction and a load, has left pages in EMPTY slots. */
static void give_back_all(const struct store *store)
{
	uint32_t n_slots = store->slots.n_slots, first = 0;
	while (first < n_slots) {
		uint32_t end = first;
		while (end < n_slots && slot_state(load_state(store, end)) == SLOT_EMPTY)
			end++;
		if (end > first)
			(void)punch(store, first, end - first);
		first = end + 1;
	}
}

static void publish_in_use(struct store *store)
{
	atomic_store_explicit(
		&store->slots.header->in_use, store_in_use(store), memory_order_relaxed);
}

static int take_stock(struct store *store, struct error *err)
{
	struct store_resident *residents = malloc(store->slots.n_slots * sizeof(*residents));
	uint32_t n = 0;
	if (residents == NULL)
		return error_set(err, ENOMEM, "no memory to adopt %u slots", store->slots.n_slots);
	int status = sort_slots(store, residents, &n, err);
	if (status == 0) {
		tell_policy(store, residents, n);
		give_back_all(store);
		publish_in_use(store);
		/* A stamp far from any before: wrong ones in the region cannot make it wrap. */
		store->stamp = clock_ns();
		store->held_until_ns = clock_ns() + HELD_NS;
	}
	free(residents);
	return status;
}

int store_open(struct store *store, const struct slots_geometry *geometry,
	const struct store_options *options, struct error *err)
{
	*store = (struct store){
		.geometry = *geometry, .policy = options->policy, .profile = options->profile};
	store->region.fd = -1;
	struct slots_shape shape = {
		.n_layers = geometry->n_layers,
		.n_experts = geometry->n_experts,
		.n_experts_used = geometry->n_experts_used,
		.n_slots = geometry->n_total,
		.slot_bytes = geometry->slot_bytes,
		.model_fingerprint = options->model_fingerprint,
	};
	int status = -ENOENT;
	if (options->recovered_fd >= 0) {
		status = try_adopt(store, options->recovered_fd, &shape, err);
		if (status != 0)
			log_notice("not taking over the slots that were left: %s", err->text);
	}
	if (status != 0)
		status = make_region(store, &shape, err);
	if (status == 0)
		status = allocate(store, options->queue_max, err);
	if (status == 0)
		status = take_stock(store, err);
	if (status != 0) {
		store_close(store);
		return status;
	}
	struct slots_header *header = store->slots.header;
	/* A killed predecessor may have left itself counted as asleep. */
	doorbell_take_over(&header->work);
	atomic_store_explicit(&header->starved, 0, memory_order_relaxed);
	store_set_budget(store, options->budget);
	atomic_store_explicit(&header->cache_generation, options->generation, memory_order_release);
	return 0;
}

void store_close(struct store *store)
{
	if (store->slots.header != NULL && store->region.fd >= 0)
		atomic_store_explicit(
			&store->slots.header->cache_generation, 0, memory_order_release);
	if (store->policy_state != NULL)
		store->policy->destroy(store->policy_state);
	free(store->free_slots);
	free(store->ahead);
	free(store->held);
	free(store->notes);
	free(store->status);
	if (store->region.fd >= 0)
		region_close(&store->region);
	*store = (struct store){.region = {.fd = -1}};
}

uint64_t store_bytes(const struct store *store)
{
	struct stat st;
	return fstat(store->region.fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

enum { TABLE_PAGES = 1024 }; /* asked about at once */

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

void store_switch_policy(struct store *store, const struct cache_policy_ops **policy, void **state,
	struct store_resident *scratch)
{
	const struct cache_policy_ops *old = store->policy;
	void *old_state = store->policy_state;
	uint32_t n = 0;
	store->policy = *policy;
	store->policy_state = *state;
	for (uint32_t slot = 0; slot < store->slots.n_slots; slot++)
		if (slot_state(load_state(store, slot)) == SLOT_READY &&
			known(store, &store->notes[slot]))
			scratch[n++] = resident_of(store, slot);
	tell_policy(store, scratch, n);
	*policy = old;
	*state = old_state;
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
	/* A table word that is wrong would keep the expert from ever being loaded. */
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
	/* The verifier waits for it. Once it has pinned it (the epoch is there) and let go, it may give room to the rest of
	 * a layer that is larger than the budget. */
	if (note->demand == store->demand && note->demand != DEMAND_NONE &&
		slot_epoch(load_state(store, slot)) == 0)
		return false;
	/* One hint must not push out what another was for. */
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
		/* A pin since the look wins; the next look passes this slot over. */
		if (!slots_evict(&store->slots, slot))
			continue;
		store->policy->on_evict(store->policy_state, slot);
		count(&store->slots.header->evictions, 1);
		struct slots_counts *counts = &store->slots.counts[store->notes[slot].layer];
		count(&counts->evictions, 1);
		count(&counts->prefetch_wasted, store->notes[slot].unused_prefetch);
		return slot;
	}
}

uint32_t store_shrink(struct store *store, uint64_t now_ns)
{
	static const struct cache_prefetch nothing;
	if (store_in_use(store) <= store->budget)
		return SLOT_NONE;
	return evict_one(store, &nothing, LOAD_DEMAND, now_ns);
}

void store_give_back(struct store *store, uint32_t slot)
{
	(void)punch(store, slot, 1);
	store->free_slots[store->n_free++] = slot;
	publish_in_use(store);
}

/* Those that have pages go first: the others would take the memory beyond the budget. */
static uint32_t take_free(struct store *store)
{
	uint32_t i = store->n_free - 1;
	while (store->n_ahead > 0 && !store->ahead[store->free_slots[i]])
		i--;
	uint32_t slot = store->free_slots[i];
	store->free_slots[i] = store->free_slots[--store->n_free];
	store->n_ahead -= store->ahead[slot];
	store->ahead[slot] = false;
	publish_in_use(store);
	return slot;
}

/* How many free slots the budget has room for. */
static uint32_t room(const struct store *store)
{
	uint32_t in_use = store_in_use(store);
	uint32_t left = store->budget > in_use ? store->budget - in_use : 0;
	return left < store->n_free ? left : store->n_free;
}

uint32_t store_ahead(struct store *store, uint32_t *slots, uint32_t max)
{
	uint32_t n = 0, most = room(store);
	for (uint32_t i = store->n_free; i-- > 0 && n < max && store->n_ahead < most;) {
		uint32_t slot = store->free_slots[i];
		if (store->ahead[slot])
			continue;
		store->ahead[slot] = true;
		store->n_ahead++;
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
		if (!store->ahead[slot])
			continue;
		(void)punch(store, slot, 1);
		store->ahead[slot] = false;
		store->n_ahead--;
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
	store->notes[slot] = (struct slot_note){
		.layer = (uint16_t)layer,
		.expert = (uint16_t)expert,
		.demand = why == LOAD_DEMAND ? store->demand : DEMAND_NONE,
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
	count(&header->loads, 1);
	count(&header->bytes_loaded, bytes);
	count(&counts->loads, 1);
	count(&counts->bytes_loaded, bytes);
	count(&header->hint_loads, why == LOAD_PREFETCH);
	count(&counts->prefetched, why == LOAD_PREFETCH);
	store->policy->on_load(store->policy_state, slot, layer, expert, why);
	atomic_store_explicit(&store->slots.used[slot], ++store->stamp, memory_order_relaxed);
	slots_load_end(&store->slots, slot, layer, expert, layout);
}

void store_failed(struct store *store, uint32_t slot, bool refuse)
{
	const struct slot_note *note = &store->notes[slot];
	*status_of(store, note->layer, note->expert) = EXPERT_ABSENT;
	slots_load_fail(&store->slots, slot);
	if (refuse)
		slots_refuse(&store->slots, note->layer, note->expert);
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
	count(slots_uses(&store->slots, use->layer, use->expert), use->tokens);
	if (use->slot == SLOT_NONE)
		return;
	struct slot_note *note = &store->notes[use->slot];
	count(&store->slots.counts[use->layer].prefetch_used, note->unused_prefetch);
	note->unused_prefetch = false;
	atomic_store_explicit(&store->slots.used[use->slot], ++store->stamp, memory_order_relaxed);
}

void store_measure(struct store *store)
{
	struct slots_header *header = store->slots.header;
	if (store->policy->on_measure == NULL)
		return;
	struct cache_measures measures = {
		.n_slots = store->budget,
		.draft_tokens =
			(uint32_t)atomic_load_explicit(&header->draft_tokens, memory_order_relaxed),
		.load_ns = (double)atomic_load_explicit(&header->load_ns, memory_order_relaxed),
		.draft_layer_ns =
			(double)atomic_load_explicit(&header->draft_layer_ns, memory_order_relaxed),
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
