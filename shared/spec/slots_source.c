/*
 * The verifier's side: a source of experts in the slots. A layer goes through these steps. `begin`
 * pins resident experts and demands the rest. `ready` gives out the pinned ones, then those that
 * arrive. An expert that does not arrive is given out as a view into the mapping of the model file.
 * Nothing here allocates or makes a system call while everything is resident.
 */
#include "shared/base/clock.h"
#include "shared/base/counter.h"
#include "shared/model/gguf/gguf_watch.h"
#include "shared/spec/slots_source_private.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct experts_cached *cached_of(struct expert_source *source)
{
	return (struct experts_cached *)source;
}

void slots_hold(struct experts_cached *cached, enum held_kind kind, uint32_t slot, uint32_t expert)
{
	cached->held[cached->n_held++] = (struct held_view){
		.slot = slot, .layer = cached->layer, .expert = expert, .kind = kind};
}

/* The device cannot read where the bytes are: they go to a spare slot, which must be free. */
static void view_spare(struct experts_cached *cached, uint32_t i,
	const void *const from[EXPERT_PARTS], enum matrix_layout layout, struct expert_view *view)
{
	*view = (struct expert_view){.index = i};
	uint32_t spare = device_spare_take(&cached->spare, cached->q,
		&cached->geometry.layers[cached->layer], from, layout, view);
	slots_hold(cached, HELD_SPARE, spare, cached->experts[i]);
}

static struct place slot_place(const struct experts_cached *cached, uint32_t slot,
	const struct slots_part *part, uint32_t expert, enum matrix_layout layout)
{
	return (struct place){&cached->arena,
		(size_t)(slot * cached->slots.slot_bytes) + slots_part_at(part, expert, layout)};
}

void slots_view_in_memory(struct experts_cached *cached, uint32_t i, struct expert_view *view)
{
	uint32_t expert = cached->experts[i], slot = cached->slot[i];
	const struct slots_part *part = cached->geometry.layers[cached->layer].part;
	/* It is pinned: nobody changes its content or its layout. */
	uint64_t word = atomic_load_explicit(&cached->slots.state[slot], memory_order_relaxed);
	enum matrix_layout layout = slot_layout(word);
	*view = (struct expert_view){
		.index = i,
		.slot = slot,
		.gate = slot_place(cached, slot, &part[EXPERT_GATE], expert, layout),
		.up = slot_place(cached, slot, &part[EXPERT_UP], expert, layout),
		.down = slot_place(cached, slot, &part[EXPERT_DOWN], expert, layout),
		.layout = layout,
	};
	slots_hold(cached, HELD_SLOT, slot, expert);
}

static void view_slot(struct experts_cached *cached, uint32_t i, struct expert_view *view)
{
	uint32_t expert = cached->experts[i];
	const struct slots_part *part = cached->geometry.layers[cached->layer].part;
	uint32_t slot = cached->slot[i];
	/* It is pinned: nobody changes its content or its layout. */
	uint64_t word = atomic_load_explicit(&cached->slots.state[slot], memory_order_relaxed);
	enum matrix_layout layout = slot_layout(word);
	if (cached->spare.n > 0) {
		const unsigned char *at = slots_at(&cached->slots, slot);
		const void *from[EXPERT_PARTS];
		for (int p = 0; p < EXPERT_PARTS; p++)
			from[p] = at + slots_part_at(&part[p], expert, layout);
		view_spare(cached, i, from, layout, view);
		/* The bytes have been read. */
		cached->damaged |=
			!slots_unpin(&cached->slots, slot, cached->epoch, cached->layer, expert);
		return;
	}
	slots_view_in_memory(cached, i, view);
}

static void view_file(struct experts_cached *cached, uint32_t i, struct expert_view *view)
{
	const struct layer *layer = &cached->source.model->layers[cached->layer];
	uint32_t expert = cached->experts[i];
	*view = (struct expert_view){.index = i};
	if (cached->spare.n > 0) {
		const void *from[EXPERT_PARTS] = {model_expert_data(&layer->gate, expert),
			model_expert_data(&layer->up, expert),
			model_expert_data(&layer->down, expert)};
		view_spare(cached, i, from, cached->source.model->expert_layout, view);
	} else {
		experts_file_view(cached->source.model, &cached->file, cached->layer, expert, view);
	}
	cached->source.stats.bytes_loaded +=
		layer->gate.expert_bytes + layer->up.expert_bytes + layer->down.expert_bytes;
	if (cached->region.fd < 0)
		return;
	if (cached->spare.n == 0)
		slots_hold(cached, HELD_FILE, SLOT_NONE, expert);
	counter_add(&cached->slots.header->self_served, 1);
	counter_add(&cached->slots.counts[cached->layer].self_served, 1);
}

/* Pushes the layer's activation counts, for the cache's policy; those that find no room are dropped
 * and counted. They come before the demands, so that the owner, which reads demands first, has them
 * when it chooses victims. They wake the owner only for every half of their ring. */
void slots_push_activations(struct experts_cached *cached, const uint16_t *tokens)
{
	struct ring *ring = &cached->slots.activations;
	/* For judging hints. */
	bool hints = atomic_load_explicit(
			     &cached->slots.header->hint_sources, memory_order_relaxed) != 0;
	uint64_t now_ns = hints ? clock_ns() : 0;
	bool half = false;
	for (uint32_t i = 0; i < cached->n;) {
		struct slot_activation *entry = ring_reserve(ring);
		if (entry == NULL) {
			ring_drop(ring);
			return;
		}
		uint32_t n = cached->n - i;
		if (n > SLOT_ACTIVATION_PAIRS)
			n = SLOT_ACTIVATION_PAIRS;
		entry->iteration = cached->iteration;
		entry->session = cached->session;
		entry->begun_ns = now_ns;
		entry->layer = (uint16_t)cached->layer;
		entry->n = (uint16_t)n;
		for (uint32_t j = 0; j < n; j++, i++) {
			entry->expert_tokens[2 * j] = cached->experts[i];
			entry->expert_tokens[2 * j + 1] = tokens[i];
		}
		ring_publish_quietly(ring);
		half |= ring_half_written(ring);
	}
	if (half)
		doorbell_ring(&cached->slots.hinted->work);
	/* Without it, everything that a layer of a small model stores after its activations waits:
	 * 0.4 % of a token. */
	ring_prefetch(ring);
}

bool slots_push_demand(struct experts_cached *cached, uint32_t expert, uint16_t tokens)
{
	struct slots *slots = &cached->slots;
	/* A refusal belongs to an earlier demand. If the owner puts a slot there meanwhile, that
	 * stays. */
	uint32_t refused = SLOTS_REFUSED;
	atomic_compare_exchange_strong_explicit(slots_word(slots, cached->layer, expert), &refused,
		0, memory_order_relaxed, memory_order_relaxed);
	struct slot_demand *demand = ring_reserve(&slots->demands);
	if (demand == NULL) {
		ring_drop(&slots->demands);
		return false;
	}
	*demand = (struct slot_demand){
		.layer = (uint16_t)cached->layer,
		.expert = (uint16_t)expert,
		.tokens = tokens,
		.device = device_tier_used(cached),
		.iteration = cached->iteration,
		.time_ns = cached->progress_ns,
	};
	ring_publish_quietly(&slots->demands);
	return true;
}

static void begin_without_cache(struct experts_cached *cached)
{
	for (uint32_t i = 0; i < cached->n; i++)
		cached->unserved[cached->n_unserved++] = (uint16_t)i;
}

/* Prefetches all cache lines that pinning writes at once; otherwise one locked instruction after
 * the other would wait for its own. */
static void prefetch_states(const struct experts_cached *cached)
{
	const struct slots *slots = &cached->slots;
	__builtin_prefetch(&slots->counts[cached->layer], 1);
	for (uint32_t i = 0; i < cached->n; i++) {
		uint32_t slot =
			atomic_load_explicit(slots_word(slots, cached->layer, cached->experts[i]),
				memory_order_relaxed) -
			1;
		if (slot < slots->n_slots)
			__builtin_prefetch(&slots->state[slot], 1);
	}
}

static void begin_with_cache(struct experts_cached *cached, const uint16_t *tokens)
{
	struct slots *slots = &cached->slots;
	prefetch_states(cached);
	for (uint32_t i = 0; i < cached->n; i++) {
		uint32_t slot = slots_pin(slots, cached->epoch, cached->layer, cached->experts[i]);
		cached->slot[i] = slot;
		if (slot != SLOT_NONE)
			cached->pinned[cached->n_pinned++] = (uint16_t)i;
		else
			cached->missing[cached->n_missing++] = (uint16_t)i;
	}
	slots_push_activations(cached, tokens);
	struct slots_counts *counts = &slots->counts[cached->layer];
	counter_add(&counts->hits, cached->n_pinned);
	counter_add(&slots->header->demand_hits, cached->n_pinned);
	if (cached->n_missing == 0)
		return;
	counter_add(&counts->misses, cached->n_missing);
	counter_add(&slots->header->demand_misses, cached->n_missing);
	bool alive = slots_cache_alive(cached) && slots_worker_alive(cached);
	uint32_t n = cached->n_missing;
	cached->progress_ns = clock_ns();
	cached->n_missing = 0;
	for (uint32_t m = 0; m < n; m++) {
		uint16_t i = cached->missing[m];
		if (alive && slots_push_demand(cached, cached->experts[i], tokens[i]))
			cached->missing[cached->n_missing++] = i;
		else
			cached->unserved[cached->n_unserved++] = i;
	}
	if (cached->n_missing > 0)
		doorbell_ring(&slots->hinted->work);
}

/* Advises the kernel about an expert's bytes in the mapping of the file. */
static void advise_file(
	const struct experts_cached *cached, uint32_t index, uint32_t expert, bool wanted)
{
	const struct model *model = cached->source.model;
	const struct layer *layer = &model->layers[index];
	const struct expert_tensor *parts[EXPERT_PARTS] = {&layer->gate, &layer->up, &layer->down};
	for (int p = 0; p < EXPERT_PARTS; p++)
		gguf_advise(model->gguf, model_expert_data(parts[p], expert),
			parts[p]->expert_bytes, wanted);
}

/* [release] While there is a cache, its slots are the memory for experts, and pages of the file
 * that were read here are dropped. Without one, the page cache is all there is. */
static void release(struct experts_cached *cached, const struct held_view *view, bool drop)
{
	switch (view->kind) {
	case HELD_SLOT:
		cached->damaged |= !slots_unpin(
			&cached->slots, view->slot, cached->epoch, view->layer, view->expert);
		break;
	case HELD_FILE:
		if (drop)
			advise_file(cached, view->layer, view->expert, false);
		break;
	case HELD_SPARE:
		device_spare_put(&cached->spare, view->slot);
		break;
	case HELD_DEVICE:
	case HELD_RESIDENT:
		device_tier_release(cached, view);
		break;
	}
}

bool slots_owner_starves(const struct experts_cached *cached)
{
	return atomic_load_explicit(&cached->slots.header->starved, memory_order_seq_cst) != 0 ||
	       (device_tier_used(cached) &&
		       atomic_load_explicit(
			       &cached->device.slots.header->starved, memory_order_seq_cst) != 0);
}

/* Releases the first n held views. */
static void release_first(struct experts_cached *cached, uint32_t n)
{
	bool pinned = false, filed = false;
	for (uint32_t i = 0; i < n; i++) {
		pinned |= cached->held[i].kind == HELD_SLOT || cached->held[i].kind == HELD_DEVICE;
		filed |= cached->held[i].kind == HELD_FILE;
	}
	bool drop = filed && slots_cache_alive(cached);
	for (uint32_t i = 0; i < n; i++)
		release(cached, &cached->held[i], drop);
	cached->n_held -= n;
	memmove(cached->held, cached->held + n, cached->n_held * sizeof(*cached->held));
	/* Sequentially consistent, like the unpins, with the owner's store of `starved` and its
	 * later look at the pins: either it sees the unpin, or we see that it starves. Otherwise
	 * both could sleep. */
	if (pinned && slots_owner_starves(cached))
		doorbell_ring(&cached->slots.hinted->work);
}

/* Releases views whose tickets are reached, in order. */
void slots_release_held(struct experts_cached *cached)
{
	uint32_t n = 0;
	while (n < cached->n_held &&
		(cached->held[n].until == 0 ||
			cached->q->ops->reached(cached->q, cached->held[n].until)))
		n++;
	if (n > 0)
		release_first(cached, n);
}

/* Experts wait for slots, or views for a place among the held ones: waits for everything that was
 * queued. */
void slots_release_all(struct experts_cached *cached)
{
	if (cached->n_held > 0)
		(void)cached->q->ops->wait(cached->q, cached->held[cached->n_held - 1].until);
	slots_release_held(cached);
}

/* How many views can be given out: spare slots are few. */
static uint32_t room_for_views(struct experts_cached *cached)
{
	if (cached->spare.n == 0)
		return UINT32_MAX;
	slots_release_held(cached);
	for (uint32_t i = 0; i < cached->n_held && cached->spare.n_free == 0;) {
		bool spare = cached->held[i].kind == HELD_SPARE;
		if (spare)
			(void)cached->q->ops->wait(cached->q, cached->held[i].until);
		i = spare ? 0 : i + 1;
		if (spare)
			slots_release_held(cached);
	}
	return cached->spare.n_free;
}

/* The layer that is the present one from now on. */
static void set_layer(
	struct experts_cached *cached, uint32_t layer, const uint16_t *experts, uint32_t n)
{
	cached->layer = layer;
	cached->n = n;
	memcpy(cached->experts, experts, n * sizeof(*experts));
	cached->n_pinned = cached->n_coming = cached->n_missing = cached->n_unserved = 0;
	cached->hybrid.n = 0;
	cached->source.n_by_cpu = 0;
	cached->iteration++;
}

static void cached_begin(struct expert_source *source, uint32_t layer, const uint16_t *experts,
	const uint16_t *tokens, uint32_t n)
{
	struct experts_cached *cached = cached_of(source);
	if (n > sizeof(cached->held) / sizeof(*cached->held) - cached->n_held)
		slots_release_all(cached);
	set_layer(cached, layer, experts, n);
	if (device_tier_used(cached))
		device_tier_begin(cached, tokens);
	else if (cached->region.fd >= 0)
		begin_with_cache(cached, tokens);
	else
		begin_without_cache(cached);
	source->stats.lookups += n;
	source->stats.hits += cached->n_pinned + cached->n_coming;
	source->stats.misses += n - cached->n_pinned - cached->n_coming;
}

static uint32_t view_pinned(struct experts_cached *cached, struct expert_view *views)
{
	uint32_t n = 0, room = room_for_views(cached);
	while (cached->n_pinned > 0 && n < room)
		view_slot(cached, cached->pinned[--cached->n_pinned], &views[n++]);
	return n;
}

/* Gives out the experts that have arrived, pinned; refused ones become unserved. */
static uint32_t view_arrived(struct experts_cached *cached, struct expert_view *views)
{
	struct slots *slots = &cached->slots;
	const struct slots_part *part = cached->geometry.layers[cached->layer].part;
	uint64_t bytes = part[EXPERT_GATE].bytes + part[EXPERT_UP].bytes + part[EXPERT_DOWN].bytes;
	uint32_t n = 0, kept = 0, room = room_for_views(cached);
	for (uint32_t m = 0; m < cached->n_missing; m++) {
		uint16_t i = cached->missing[m];
		uint32_t expert = cached->experts[i];
		uint32_t slot = n < room ? slots_pin(slots, cached->epoch, cached->layer, expert)
					 : SLOT_NONE;
		if (slot != SLOT_NONE) {
			cached->slot[i] = slot;
			view_slot(cached, i, &views[n++]);
			cached->source.stats.bytes_loaded += bytes;
		} else if (atomic_load_explicit(slots_word(slots, cached->layer, expert),
				   memory_order_relaxed) == SLOTS_REFUSED) {
			cached->unserved[cached->n_unserved++] = i;
		} else {
			cached->missing[kept++] = i;
		}
	}
	cached->n_missing = kept;
	return n;
}

/* Gives out everything that must be read from the file. */
uint32_t slots_view_unserved(struct experts_cached *cached, struct expert_view *views)
{
	uint32_t n = 0, room = room_for_views(cached);
	/* All reads are started before the first page is awaited. */
	for (uint32_t i = 0; cached->region.fd >= 0 && i < cached->n_unserved; i++)
		advise_file(cached, cached->layer, cached->experts[cached->unserved[i]], true);
	while (cached->n_unserved > 0 && n < room) {
		uint16_t i = cached->unserved[--cached->n_unserved];
		/* It may be in memory, and only not on the device. */
		cached->slot[i] = device_tier_used(cached)
					  ? slots_pin(&cached->slots, cached->epoch, cached->layer,
						    cached->experts[i])
					  : SLOT_NONE;
		if (cached->slot[i] != SLOT_NONE)
			view_slot(cached, i, &views[n++]);
		else
			view_file(cached, i, &views[n++]);
	}
	return n;
}

/* True when the cache has found the file changed. Checked before anything is used that it may have
 * put into slots. */
bool slots_is_lost(struct experts_cached *cached)
{
	if (cached->region.fd < 0 || !slots_lost(&cached->slots))
		return false;
	/* What this process finds itself says more. */
	struct error err;
	if (gguf_watch(cached->source.model->gguf, &err) == 0)
		gguf_lose(cached->source.model->gguf, GGUF_REPORTED, 0);
	return true;
}

static int cached_ready(struct expert_source *source, struct expert_view *views)
{
	struct experts_cached *cached = cached_of(source);
	slots_release_held(cached);
	if (slots_is_lost(cached))
		return -EIO;
	if (cached->damaged)
		return -EUCLEAN;
	if (device_tier_used(cached))
		return device_tier_ready(cached, views);
	if (cached->n_pinned > 0)
		return (int)view_pinned(cached, views);
	if (cached->n_missing > 0)
		slots_release_all(cached);
	while (cached->n_missing > 0) {
		/* Read before the look: a load that ends after the look changes it and ends the
		 * wait. */
		uint32_t seen = doorbell_read(&cached->slots.header->arrivals);
		uint32_t n = view_arrived(cached, views);
		if (n > 0) {
			cached->progress_ns = clock_ns();
			return (int)n;
		}
		if (slots_is_lost(cached))
			return -EIO;
		if (cached->n_unserved > 0)
			break;
		if (cached->meanwhile != NULL && cached->meanwhile(cached->meanwhile_arg))
			continue;
		slots_wait_or_give_up(cached, seen);
	}
	return (int)slots_view_unserved(cached, views);
}

static void cached_used(struct expert_source *source, struct queue *q, ticket t)
{
	struct experts_cached *cached = cached_of(source);
	cached->q = q;
	for (uint32_t i = cached->n_held; i-- > 0 && cached->held[i].until == 0;)
		cached->held[i].until = t;
}

static void cached_end(struct expert_source *source)
{
	struct experts_cached *cached = cached_of(source);
	/* A pass that stops half-way leaves pins that were never given out. */
	if (device_tier_used(cached))
		device_tier_end(cached);
	for (uint32_t i = 0; i < cached->n_pinned; i++)
		slots_hold(cached, HELD_SLOT, cached->slot[cached->pinned[i]],
			cached->experts[cached->pinned[i]]);
	cached->n_pinned = cached->n_coming = cached->n_missing = cached->n_unserved = 0;
	slots_release_held(cached);
	cached->n = 0;
}

/* A pass that finds something wrong goes the other way, and says what. */
static uint64_t cached_settled(struct expert_source *source)
{
	struct experts_cached *cached = cached_of(source);
	if (!device_tier_used(cached) || cached->damaged || slots_is_lost(cached))
		return 0;
	return device_tier_settled(cached);
}

static void cached_place(
	struct expert_source *source, uint32_t layer, uint16_t expert, struct expert_view *view)
{
	device_tier_place(cached_of(source), layer, expert, view);
}

static void cached_chose(struct expert_source *source, uint32_t layer, const uint16_t *experts,
	const uint16_t *tokens, uint32_t n)
{
	struct experts_cached *cached = cached_of(source);
	set_layer(cached, layer, experts, n);
	device_tier_chose(cached, tokens);
	source->stats.lookups += n;
	source->stats.hits += n;
}

static const struct expert_source_ops cached_ops = {
	.name = "cached",
	.begin = cached_begin,
	.ready = cached_ready,
	.used = cached_used,
	.end = cached_end,
	.settled = cached_settled,
	.place = cached_place,
	.chose = cached_chose,
};

int experts_cached_create(const struct model *model, const struct experts_cached_options *options,
	struct experts_cached **out, struct error *err)
{
	struct experts_cached *cached = calloc(1, sizeof(*cached));
	if (cached == NULL)
		return error_set(err, ENOMEM, "no memory for the expert source");
	cached->source.ops = &cached_ops;
	cached->source.model = model;
	cached->options = *options;
	cached->region.fd = cached->hints.fd = cached->device.region.fd = -1;
	cached->iteration = options->generation;
	slots_geometry_init(&cached->geometry, model);
	int rc = options->backend->ops->behind
			 ? device_spare_init(
				   &cached->spare, options->backend, &cached->geometry, err)
			 : experts_file(model, options->backend, &cached->file, err);
	if (rc == 0)
		rc = device_hybrid_init(cached, err);
	if (rc < 0) {
		experts_cached_destroy(&cached);
		return rc;
	}
	*out = cached;
	return 0;
}

static void detach(struct experts_cached *cached)
{
	if (cached->arena.backend)
		cached->arena.backend->ops->free(&cached->arena);
	region_close(&cached->region);
	region_close(&cached->hints);
}

void experts_cached_destroy(struct experts_cached **cached)
{
	if (*cached == NULL)
		return;
	device_tier_detach(*cached);
	device_hybrid_exit(*cached);
	detach(*cached);
	device_spare_exit(&(*cached)->spare);
	if ((*cached)->file.backend)
		(*cached)->file.backend->ops->free(&(*cached)->file);
	free(*cached);
	*cached = NULL;
}

void experts_cached_tune(struct experts_cached *cached, uint64_t spin_ns, uint64_t patience_ns)
{
	cached->options.spin_ns = spin_ns;
	cached->options.patience_ns = patience_ns;
}

void experts_cached_queue(struct experts_cached *cached, struct queue *q)
{
	if (cached->q != NULL && cached->q != q)
		slots_release_held(cached);
	cached->q = q;
}

struct expert_source *experts_cached_source(struct experts_cached *cached)
{
	return &cached->source;
}

void experts_cached_session(struct experts_cached *cached, uint64_t session)
{
	cached->session = session;
}

void experts_cached_meanwhile(struct experts_cached *cached, bool (*work)(void *arg), void *arg)
{
	cached->meanwhile = work;
	cached->meanwhile_arg = arg;
}

uint64_t experts_cached_attachment(const struct experts_cached *cached)
{
	return cached->n_attached;
}

bool experts_cached_damaged(struct experts_cached *cached)
{
	bool damaged = cached->damaged;
	cached->damaged = false;
	return damaged;
}

uint32_t experts_cached_missing(const struct experts_cached *cached)
{
	return cached->n_missing;
}

struct slots *experts_cached_slots(struct experts_cached *cached)
{
	return cached->region.fd >= 0 ? &cached->slots : NULL;
}

bool experts_cached_places(const struct experts_cached *cached, struct experts_places *out)
{
	const struct device_slots *device = &cached->device.slots;
	const struct slots *slots = &cached->slots;

	*out = (struct experts_places){0};
	if (device_tier_used(cached))
		*out = (struct experts_places){
			device->state, device->n_slots, device->n_layers, device->n_experts};
	else if (cached->region.fd >= 0)
		*out = (struct experts_places){
			slots->state, slots->n_slots, slots->n_layers, slots->n_experts};
	return out->state != NULL;
}

uint64_t experts_cached_iteration(const struct experts_cached *cached)
{
	return cached->iteration;
}

static bool is_attached(const struct experts_cached *cached, const struct region *region,
	const struct region *hints)
{
	return cached->region.fd >= 0 && cached->region.header->uid == region->header->uid &&
	       cached->hints.header->uid == hints->header->uid;
}

/* Maps the region again, for this process's own use. */
int slots_map_again(const struct region *region, const char *name, uint32_t layout,
	struct region *out, struct error *err)
{
	int fd = fcntl(region->fd, F_DUPFD_CLOEXEC, 3);
	if (fd < 0)
		return error_set(err, errno, "region %s: cannot keep its descriptor: %s", name,
			strerror(errno));
	return region_attach(fd, name, layout, REGION_DATA, true, out, err);
}

/* Maps the slots, and checks that they are intact and of this model. */
static int map_slots(const struct experts_cached *cached, const struct region *region,
	const struct region *hints, struct slots *slots, struct error *err)
{
	struct slots_shape expected = {
		.n_layers = cached->geometry.n_layers,
		.n_experts = cached->geometry.n_experts,
		.slot_bytes = cached->geometry.slot_bytes,
		.model_fingerprint = cached->source.model->file_fingerprint,
	};
	int status = slots_map(region, &expected, slots, err);
	/* The owner may have opened the same file later: then it is our file that has changed. */
	const struct gguf *gguf = cached->source.model->gguf;
	if (status == -ESTALE && gguf_lost(gguf, NULL) == 0)
		(void)gguf_look_again(gguf, err);
	/* A fingerprint covers only part of the bytes: two different files may have the same. */
	if (status == 0 && slots->header->model_files != gguf_files(gguf))
		status = error_set(err, ESTALE,
			"expert region: the expert-cache has another file open than this process, "
			"which reads experts itself until both are started on the same file");
	/* Found changed before this model was opened: our file may be intact. */
	if (status == 0 && slots_lost(slots))
		status = error_set(err, ESTALE,
			"expert region: the expert-cache found its model file changed; start it "
			"again");
	/* This process writes pins and rings, but not the bytes of experts. */
	if (status == 0 &&
		mprotect(slots->arena, (size_t)(slots->n_slots * slots->slot_bytes), PROT_READ) < 0)
		status = error_set(
			err, errno, "expert region: cannot be protected: %s", strerror(errno));
	return status == 0 ? slots_map_hints(hints, slots, err) : status;
}

int experts_cached_attach(struct experts_cached *cached, const struct region *region,
	const struct region *hints, struct error *err)
{
	if (region == NULL) {
		detach(cached);
		return 0;
	}
	if (is_attached(cached, region, hints))
		return 0;
	/* The owner of the old region may have found the file changed, and been restarted, before
	 * we looked. */
	(void)slots_is_lost(cached);
	struct region own = {.fd = -1}, own_hints = {.fd = -1};
	struct slots slots = {0};
	/* Who computes in memory: the pass's back end, or the CPU's beside a device. */
	struct backend *backend =
		cached->spare.n == 0 ? cached->options.backend : cached->options.host;
	struct buffer arena = {0};
	int status = slots_map_again(region, EXPERTS_REGION, EXPERTS_LAYOUT, &own, err);
	if (status == 0)
		status = slots_map_again(hints, HINTS_REGION, HINTS_LAYOUT, &own_hints, err);
	if (status == 0)
		status = map_slots(cached, &own, &own_hints, &slots, err);
	if (status == 0 && backend != NULL)
		status = backend->ops->wrap(backend, slots.arena,
			(size_t)(slots.n_slots * slots.slot_bytes), &arena, err);
	if (status != 0) {
		region_close(&own);
		region_close(&own_hints);
		return status;
	}
	detach(cached);
	cached->region = own;
	cached->hints = own_hints;
	cached->slots = slots;
	cached->arena = arena;
	cached->n_attached++;
	cached->hung_beat_ns = 0;
	cached->epoch = slots_verifier_enter(&cached->slots);
	return 0;
}
