/* Opens a store: a new region, or a predecessor's that is taken over; and tells the policy what is
 * there. */
#include "services/expert-cache/store/store_internal.h"

#include "services/expert-cache/store/sums.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"

#include <stdlib.h>
#include <unistd.h>

/* A killed process leaves reads that the device may still complete: the kernel does not wait for
 * them when it closes an io_uring. They go to the pages for which they were submitted, so a slot
 * gets new pages (see renew_pages). A slot that cannot get new pages is held back this long: the
 * block layer gives a request up after 30 s. */
#define HELD_NS (35ull * 1000000000ull)
enum { GIVE_UP_MS = 100 };

/* Gives up a slot whose bytes cannot be trusted, once a verifier that computes with them has
 * released it. */
static bool give_up(struct store *store, uint32_t slot)
{
	for (int i = 0; i < GIVE_UP_MS; i++) {
		if (slots_evict(&store->slots, slot))
			return true;
		usleep(1000);
	}
	return false;
}

/* Makes READY slots EMPTY whose checksum is not that of what was loaded. */
static int drop_wrong(struct store *store, struct error *err)
{
	bool *wrong = calloc(store->slots.n_slots, sizeof(*wrong));
	if (wrong == NULL)
		return error_set(err, ENOMEM, "no memory to check %u slots", store->slots.n_slots);
	sums_check(store, wrong);
	int status = 0;
	for (uint32_t slot = 0; slot < store->slots.n_slots && status == 0; slot++) {
		if (!wrong[slot])
			continue;
		if (!give_up(store, slot))
			status = error_set(err, EUCLEAN,
				"expert slot %u differs from what was loaded, and is in use", slot);
		store->found.ready--;
		store->found.wrong++;
	}
	free(wrong);
	return status;
}

static int try_adopt(struct store *store, const struct store_options *options,
	const struct slots_shape *shape, struct error *err)
{
	int status = region_adopt(options->recovered_fd, EXPERTS_REGION, EXPERTS_LAYOUT,
		REGION_DATA, &store->region, err);
	if (status != 0)
		return status;
	status = slots_map(&store->region, shape, &store->slots, err);
	if (status == 0 && slots_lost(&store->slots))
		status = error_set(err, ESTALE,
			"expert region: the model file changed while its experts were read");
	/* A fingerprint covers only part of the bytes. */
	if (status == 0 && store->slots.header->model_stamps != options->model_stamps)
		status = error_set(err, ESTALE,
			"expert region: the model file was touched or replaced since its experts "
			"were read, and its bytes were not compared");
	if (status == 0 && store->slots.header->model_files != options->model_files)
		status = error_set(err, ESTALE, "expert region: it holds experts of another file");
	if (status == 0)
		status = slots_adopt(&store->slots, &store->geometry, &store->found, err);
	if (status == 0)
		status = drop_wrong(store, err);
	if (status != 0) {
		region_close(&store->region);
		return status;
	}
	store->adopted = true;
	return 0;
}

static int make_region(struct store *store, const struct store_options *options,
	const struct slots_shape *shape, struct error *err)
{
	int status = region_create(EXPERTS_REGION, EXPERTS_LAYOUT, slots_payload_bytes(shape),
		REGION_HUGE | REGION_SPARSE, &store->region, err);
	if (status != 0)
		return status;
	slots_format(&store->region, shape);
	status = slots_map(&store->region, shape, &store->slots, err);
	if (status == 0) {
		store->slots.header->model_files = options->model_files;
		store->slots.header->model_stamps = options->model_stamps;
	}
	return status;
}

/* Opens the predecessor's region, with the hints that are on their way, or a new one. */
static int open_hints(struct store *store, int recovered_fd, struct error *err)
{
	int status = -ENOENT;
	if (recovered_fd >= 0) {
		status = region_adopt(recovered_fd, HINTS_REGION, HINTS_LAYOUT,
			REGION_DATA + slots_hints_bytes(), &store->hints, err);
		if (status == 0)
			status = slots_map_hints(&store->hints, &store->slots, err);
		if (status == 0)
			return 0;
		log_notice("the predecessor's region of hints is not taken over: %s", err->text);
		region_close(&store->hints);
	}
	status = region_create(
		HINTS_REGION, HINTS_LAYOUT, slots_hints_bytes(), 0, &store->hints, err);
	if (status != 0)
		return status;
	slots_hints_format(&store->hints);
	return slots_map_hints(&store->hints, &store->slots, err);
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
	store->pages = calloc(slots->n_slots, sizeof(*store->pages));
	store->held = calloc(slots->n_slots, sizeof(*store->held));
	store->notes = calloc(slots->n_slots, sizeof(*store->notes));
	store->status = calloc((size_t)slots->n_layers * slots->n_experts, 1);
	if (store->free_slots == NULL || store->pages == NULL || store->held == NULL ||
		store->notes == NULL || store->status == NULL)
		return error_set(
			err, ENOMEM, "no memory to keep account of %u slots", slots->n_slots);
	int status = sums_init(store, err);
	return status == 0 ? store_policy_create(
				     store, store->policy, queue_max, &store->policy_state, err)
			   : status;
}

/* Takes a slot's pages out of the region. A read in progress keeps the old pages and ends there,
 * and whoever touches the slot next gets new ones. True when that is certain: a part of a huge page
 * that a read holds cannot be taken out, and the file then still has data there. */
static bool renew_pages(struct store *store, uint32_t slot)
{
	return store_punch(store, slot, 1) && !store_has_pages(store, slot);
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

/* Tells the policy what is resident, in order of last use. */
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

/* Sorts the slots by their state. */
static int sort_slots(
	struct store *store, struct store_resident *residents, uint32_t *n, struct error *err)
{
	/* Backwards, so that the lowest free slot is on top. */
	for (uint32_t slot = store->slots.n_slots; slot-- > 0;) {
		uint64_t word = store_state(store, slot);
		store->notes[slot] = (struct slot_note){.demand = DEMAND_NONE,
			.layer = (uint16_t)slot_layer(word),
			.expert = (uint16_t)slot_expert(word),
			.tiles = slot_layout(word) == LAYOUT_TILES};
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

/* A predecessor that died while it shrank, or between an eviction and a load, has left pages in
 * EMPTY slots. Returns them. */
static void give_back_all(struct store *store)
{
	uint32_t n_slots = store->slots.n_slots, first = 0;
	while (first < n_slots) {
		uint32_t end = first;
		while (end < n_slots && slot_state(store_state(store, end)) == SLOT_EMPTY)
			end++;
		if (end > first)
			store_empty(store, first, end - first);
		first = end + 1;
	}
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
		store_publish_in_use(store);
		/* A stamp far above any before, so that wrong ones in the region cannot make it
		 * wrap. */
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
	store->region.fd = store->hints.fd = -1;
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
		status = try_adopt(store, options, &shape, err);
		if (status != 0)
			log_notice(
				"the predecessor's expert slots are not taken over: %s", err->text);
	}
	if (status != 0)
		status = make_region(store, options, &shape, err);
	/* After a failure the other descriptor was not used, and must be closed. */
	if (status == 0)
		status = open_hints(store, options->recovered_hints_fd, err);
	else if (options->recovered_hints_fd >= 0)
		close(options->recovered_hints_fd);
	if (status == 0)
		status = allocate(store, options->queue_max, err);
	if (status == 0)
		status = take_stock(store, err);
	if (status != 0) {
		store_close(store);
		return status;
	}
	struct slots_header *header = store->slots.header;
	/* A killed predecessor may still be counted as asleep. */
	doorbell_take_over(&store->slots.hinted->work);
	atomic_store_explicit(&header->starved, 0, memory_order_relaxed);
	store_set_budget(store, options->budget);
	return 0;
}

void store_close(struct store *store)
{
	if (store->policy_state != NULL)
		store->policy->destroy(store->policy_state);
	free(store->free_slots);
	free(store->pages);
	free(store->held);
	free(store->notes);
	free(store->status);
	sums_exit(store);
	region_close(&store->region);
	region_close(&store->hints);
	*store = (struct store){.region = {.fd = -1}, .hints = {.fd = -1}};
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
		if ((slot_state(store_state(store, slot)) == SLOT_READY ||
			    store->notes[slot].packing) &&
			known(store, &store->notes[slot]))
			scratch[n++] = resident_of(store, slot);
	tell_policy(store, scratch, n);
	*policy = old;
	*state = old_state;
}
