#include "services/expert-cache/transfer_rings.h"

#include "services/expert-cache/store/sums.h"
#include "shared/base/clock.h"
#include "shared/base/counter.h"
#include "shared/base/log.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* When asleep, on the doorbell and on reads in flight, the worker still gives a sign of life and
 * drains the activation ring this often. */
#define IDLE_NS 50000000ull
/* An unpin rings for a demand that waits for it; this is for a ring that is lost in a race or a
 * death. */
#define STARVED_NS 5000000ull
/* How often slots that are to be packed, but are pinned, are checked again. */
#define UNPACKED_NS 2000000ull
/* While copies to the device are in flight: nobody rings when one has ended, and what it changes is
 * only that its slot may be evicted. */
#define COPIES_NS 500000ull
/* A verifier that has not unpinned for this long has died; its demands are void. */
#define WANTED_NS 2000000000ull
/* How often the policy is told the measurements. */
#define MEASURE_NS 100000000ull
/* A lower budget is reached in steps: slots that are given up in one round of the worker. */
#define SHRINK_SLOTS 8
/* Prefetches that the reader holds back: the next ones for the disk, and no more, because a later
 * choice is a better one. */
#define HELD_READS (2 * EXPERT_PARTS)
/* The shortest time slice that the kernel accepts. */
#define SLICE_NS 100000ull
#define NICE_BETTER 10
#define NICE_LEAST (-20)
/* A worker that has not finished a round for this long hangs. */
#define CHANGE_NS 5000000000ull

/* Hints are worth making only while something has to be loaded. */
static void want_hints(struct transfer *transfer)
{
	const struct store *store = transfer->store;
	uint32_t wanted = cache_policy_wants(store->policy, store->policy_state);
	const struct device *device = transfer->device;
	/* What all lies on a device is wanted nowhere else. */
	uint32_t fits = device != NULL ? device->slots.n_slots : store->budget;
	if (fits >= store->geometry.n_total)
		wanted = 0;
	atomic_store_explicit(&store->slots.header->hint_sources, wanted, memory_order_relaxed);
}

/* ---- What to load next. ---- */

static bool here_or_coming(const struct transfer *transfer, const struct cache_prefetch *want)
{
	return store_find(transfer->store, want->layer, want->expert) != SLOT_NONE ||
	       store_loading(transfer->store, want->layer, want->expert);
}

/* Records the time from the ring to here: what the verifier waits beyond the disk's own time. */
static void note_submit(struct transfer *transfer, uint64_t since_ns, uint64_t now_ns)
{
	struct slots_header *header = transfer->store->slots.header;
	/* Written by the peer, so it may be wrong. */
	if (since_ns > now_ns || now_ns - since_ns > WANTED_NS)
		return;
	uint64_t took = now_ns - since_ns;
	counter_add(&header->submits, 1);
	counter_add(&header->submit_ns, took);
	if (took > atomic_load_explicit(&header->submit_ns_max, memory_order_relaxed))
		atomic_store_explicit(&header->submit_ns_max, took, memory_order_relaxed);
}

static bool start_wanted(struct transfer *transfer, uint64_t now_ns)
{
	struct loads *loads = &transfer->loads;
	uint32_t n = 0;
	while (n < transfer->n_wanted && loads->n_idle > 0) {
		struct cache_prefetch wanted = {
			.layer = transfer->wanted[n].layer, .expert = transfer->wanted[n].expert};
		/* An iteration may demand an expert twice. */
		if (!here_or_coming(transfer, &wanted)) {
			if (!loads_start(loads, &wanted, LOAD_DEMAND, now_ns))
				break;
			note_submit(transfer, transfer->wanted[n].since_ns, now_ns);
		}
		n++;
	}
	transfer->n_wanted -= n;
	memmove(transfer->wanted, transfer->wanted + n,
		transfer->n_wanted * sizeof(*transfer->wanted));
	if (n > 0)
		transfer->wanted_since_ns = now_ns;
	/* Loads are free and experts still wanted: there was no slot. */
	return transfer->n_wanted > 0 && loads->n_idle > 0;
}

/* [refuse_wanted] Every slot is held back: no unpin and no eviction will free one soon. */
static void refuse_wanted(struct transfer *transfer)
{
	for (uint32_t i = 0; i < transfer->n_wanted; i++)
		slots_refuse(&transfer->store->slots, transfer->wanted[i].layer,
			transfer->wanted[i].expert);
	transfer->n_wanted = 0;
}

/* [starve] */
static void start_demanded(struct transfer *transfer, uint64_t now_ns)
{
	_Atomic uint32_t *starved = &transfer->store->slots.header->starved;
	if (loads_lost(&transfer->loads))
		refuse_wanted(transfer);
	bool short_of_slots = start_wanted(transfer, now_ns);
	if (short_of_slots && atomic_load_explicit(starved, memory_order_relaxed) == 0) {
		/* Sequentially consistent, then look again: see slots_evictable. */
		atomic_store_explicit(starved, 1, memory_order_seq_cst);
		short_of_slots = start_wanted(transfer, now_ns);
	}
	if (short_of_slots && transfer->store->n_held == store_in_use(transfer->store)) {
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
	return transfer->n_wanted == 0 && transfer->loads.n_idle > 0 &&
	       !loads_lost(&transfer->loads) && reader_held(transfer->reader) < HELD_READS;
}

static void start_prefetches(struct transfer *transfer, uint64_t now_ns)
{
	const struct cache_policy_ops *policy = transfer->store->policy;
	void *state = transfer->store->policy_state;
	struct cache_prefetch prefetch;
	while (may_prefetch(transfer) && policy->next(state, now_ns, &prefetch)) {
		if (here_or_coming(transfer, &prefetch))
			continue;
		if (!loads_start(&transfer->loads, &prefetch, LOAD_PREFETCH, now_ns)) {
			/* Every slot is pinned, hinted for, or worth more. This prefetch, the best
			 * of those that wait, must wait, and so must the rest. */
			policy->put_back(state, &prefetch);
			return;
		}
	}
}

/* Loads what the drafter's head lacked, behind what the verifier waits for. What finds no slot is
 * forgotten: the head names it again when it needs it again. */
static void start_missed(struct transfer *transfer, uint64_t now_ns)
{
	uint32_t n = 0;
	for (; n < transfer->n_missed && may_prefetch(transfer); n++)
		if (!here_or_coming(transfer, &transfer->missed[n]) &&
			!loads_start(&transfer->loads, &transfer->missed[n], LOAD_PREFETCH, now_ns))
			break;
	if (n < transfer->n_missed && !may_prefetch(transfer) && transfer->n_wanted == 0)
		memmove(transfer->missed, transfer->missed + n,
			(transfer->n_missed - n) * sizeof(*transfer->missed));
	else
		n = transfer->n_missed;
	transfer->n_missed -= n;
}

/* Preloads all experts once, in the order of the file, while there are free slots. */
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
			!loads_start(&transfer->loads, &want, LOAD_PRELOAD, now_ns)) {
			/* Slots that a dead predecessor was loading become free later. */
			if (transfer->store->n_held == 0)
				transfer->preload_layer = geometry->n_layers;
			return;
		}
		transfer->preload_expert++;
	}
}

/* ---- Changes while it runs. ---- */

static void choose_packing(struct transfer *transfer)
{
	transfer->loads.packs = transfer->options.packs;
	transfer->packer.wanted = transfer->options.packs_later;
}

/* Without queues there are no slots: the verifier takes its experts itself. */
static void begin_device(struct transfer *transfer)
{
	struct error err;
	if (transfer->device == NULL || device_begin(transfer->device, &err) == 0)
		return;
	log_error("the device's slots are not used: %s", err.text);
	device_retire(transfer->device);
	transfer->device->failed = true;
	transfer->device = NULL;
}

static void change_device(struct transfer *transfer, struct transfer_change *change)
{
	struct device *before = transfer->device;
	if (before != NULL) {
		device_end(before);
		device_retire(before);
	}
	transfer->device = change->device;
	change->device = before;
	begin_device(transfer);
}

static void take_change(struct transfer *transfer)
{
	/* Acquire pairs with the release in transfer_apply: the change is completely written. */
	struct transfer_change *change =
		atomic_exchange_explicit(&transfer->change, NULL, memory_order_acquire);
	struct store *store = transfer->store;
	if (change == NULL)
		return;
	const struct cache_policy_ops *policy = change->policy;
	if (change->device != NULL)
		change_device(transfer, change);
	else if (policy != NULL && transfer->device != NULL)
		device_switch_policy(transfer->device, &policy, &change->device_state);
	if (change->policy != NULL)
		store_switch_policy(store, &change->policy, &change->policy_state, change->scratch);
	store_set_budget(store, change->budget);
	transfer->options = change->options;
	choose_packing(transfer);
	/* There may now be room for experts that found none. */
	transfer->preload_layer = transfer->preload_expert = 0;
	transfer->measured_ns = 0;
	/* Release pairs with the acquire in transfer_apply: the old policy's state is no longer
	 * used. */
	atomic_fetch_add_explicit(&transfer->n_changed, 1, memory_order_release);
	doorbell_ring(&transfer->changed);
}

/* Gives pages to free slots ahead of their use, or takes them back. False: some must be returned,
 * and cannot be yet. */
static bool keep_ahead(struct transfer *transfer)
{
	struct store *store = transfer->store;
	struct pages_ahead *pages = &transfer->pages;
	bool less = store_too_far_ahead(store) || store_in_use(store) > store->budget;
	if (!pages_ahead_idle(pages)) {
		if (less)
			pages_ahead_cancel(pages);
		return !less;
	}
	store_drop_ahead(store);
	if (less || !pages_ahead_works(pages))
		return true;
	uint32_t n = store_ahead(store, pages->slot, PAGES_AHEAD_MAX);
	if (n > 0)
		pages_ahead_give(pages, n);
	return true;
}

/* True when there is more to give up, and that is possible. Not while pages are being allocated:
 * that thread rings when it has finished. */
static bool shrink(struct transfer *transfer, uint64_t now_ns)
{
	if (!keep_ahead(transfer))
		return false;
	for (int i = 0; i < SHRINK_SLOTS; i++) {
		uint32_t slot = store_shrink(transfer->store, now_ns);
		if (slot == SLOT_NONE)
			return false;
		reader_forget_slot(transfer->reader, slot);
		store_give_back(transfer->store, slot);
	}
	return true;
}

static void measure(struct transfer *transfer, uint64_t now_ns)
{
	const struct store *store = transfer->store;
	if (now_ns - transfer->measured_ns < MEASURE_NS)
		return;
	transfer->measured_ns = now_ns;
	reader_tell(transfer->reader, now_ns);
	double rate = reader_rate(transfer->reader);
	if (rate > 0)
		atomic_store_explicit(&store->slots.header->load_ns,
			(uint64_t)((double)store->slots.slot_bytes * 1e9 / rate),
			memory_order_relaxed);
	store_measure(transfer->store);
	if (transfer->device != NULL)
		device_measure(transfer->device, store);
}

/* ---- The thread. ---- */

static void publish(struct transfer *transfer, uint64_t now_ns)
{
	const struct store *store = transfer->store;
	atomic_store_explicit(&transfer->queue, transfer->n_wanted + loads_busy(&transfer->loads),
		memory_order_relaxed);
	atomic_store_explicit(&transfer->hints_kept, store->policy->queued(store->policy_state),
		memory_order_relaxed);
	atomic_store_explicit(&transfer->beat_ns, now_ns, memory_order_relaxed);
	atomic_store_explicit(&store->slots.header->beat_ns, now_ns, memory_order_relaxed);
}

static void work(struct transfer *transfer)
{
	struct store *store = transfer->store;
	struct doorbell *bell = &store->slots.hinted->work;
	/* Read before draining: an entry pushed after the drain changes it and ends the wait. */
	struct doorbell_seen seen = {bell, doorbell_read(bell)};
	take_change(transfer);
	want_hints(transfer);
	transfer_drain(transfer);
	uint64_t now_ns = clock_ns();
	store_release_held(store, now_ns);
	start_demanded(transfer, now_ns);
	if (transfer->device != NULL)
		device_work(transfer->device, &transfer->loads, now_ns);
	bool shrinking = shrink(transfer, now_ns);
	loads_cancel_obsolete(&transfer->loads, now_ns);
	start_prefetches(transfer, now_ns);
	start_missed(transfer, now_ns);
	if (transfer->options.preload)
		start_preload(transfer, now_ns);
	bool unpacked = packer_work(&transfer->packer, now_ns);
	measure(transfer, now_ns);
	publish(transfer, now_ns);
	bool wanted = transfer->n_wanted > 0 ||
		      (transfer->device != NULL && transfer->device->n_wanted > 0);
	uint64_t timeout_ns = wanted ? STARVED_NS : unpacked ? UNPACKED_NS : IDLE_NS;
	if (transfer->device != NULL && device_busy(transfer->device))
		timeout_ns = COPIES_NS;
	if (shrinking || transfer->loads.n_packing > 0) {
		loads_collect(&transfer->loads, NULL, 0);
		loads_pack_one(&transfer->loads);
	} else if (doorbell_read(bell) == seen.sequence && sums_work(store)) {
		loads_collect(&transfer->loads, NULL, 0);
	} else if (reader_busy(transfer->reader) > 0) {
		loads_collect(&transfer->loads, &seen, timeout_ns);
	} else {
		doorbell_wait(seen.bell, seen.sequence, transfer->options.spin_ns, timeout_ns);
	}
}

/* The worker runs for microseconds while all CPUs compute, and others wait for what it is woken
 * for. So it asks to run soon rather than for long. Anybody may ask for a short slice (Linux 6.12;
 * ignored before). A better nice value needs a privilege; without it the worker does without. */
static void ask_to_run_soon(void)
{
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t slice_ns, deadline_ns, period_ns;
	} attributes = {
		.size = sizeof(attributes),
		.policy = SCHED_OTHER,
		.nice = getpriority(PRIO_PROCESS, 0) - NICE_BETTER,
		.slice_ns = SLICE_NS,
	};
	if (attributes.nice < NICE_LEAST)
		attributes.nice = NICE_LEAST;
	if (syscall(SYS_sched_setattr, 0, &attributes, 0) == 0)
		return;
	attributes.nice = getpriority(PRIO_PROCESS, 0);
	(void)syscall(SYS_sched_setattr, 0, &attributes, 0);
}

static void *transfer_thread(void *arg)
{
	struct transfer *transfer = arg;
	ask_to_run_soon();
	begin_device(transfer);
	while (!atomic_load_explicit(&transfer->stop, memory_order_acquire))
		work(transfer);
	/* Reads in flight write to slots, so they must end before the slots are given to others. */
	while (reader_busy(transfer->reader) > 0)
		loads_collect(&transfer->loads, NULL, 100000000);
	while (transfer->loads.n_packing > 0)
		loads_pack_one(&transfer->loads);
	if (transfer->device != NULL)
		device_end(transfer->device);
	/* For the successor. */
	while (sums_work(transfer->store))
		continue;
	return NULL;
}

int transfer_apply(struct transfer *transfer, struct transfer_change *change, struct error *err)
{
	struct transfer_change *mine = change;
	uint32_t before = atomic_load_explicit(&transfer->n_changed, memory_order_relaxed);
	uint64_t end_ns = clock_ns() + CHANGE_NS;
	atomic_store_explicit(&transfer->change, change, memory_order_release);
	doorbell_ring(&transfer->store->slots.hinted->work);
	for (;;) {
		uint32_t seen = doorbell_read(&transfer->changed);
		if (atomic_load_explicit(&transfer->n_changed, memory_order_acquire) != before)
			return 0;
		/* The worker has taken the change and will soon have put it in force. */
		if (clock_ns() > end_ns &&
			atomic_compare_exchange_strong_explicit(&transfer->change, &mine, NULL,
				memory_order_relaxed, memory_order_relaxed))
			return error_set(err, ETIMEDOUT,
				"the transfer worker has not responded for %llu s; nothing was "
				"changed",
				CHANGE_NS / 1000000000);
		mine = change;
		doorbell_wait(&transfer->changed, seen, 0, CHANGE_NS);
	}
}

static void free_all(struct transfer *transfer)
{
	pages_ahead_stop(&transfer->pages);
	packer_stop(&transfer->packer);
	loads_exit(&transfer->loads);
	free(transfer->wanted);
}

static int allocate(struct transfer *transfer, struct error *err)
{
	transfer->wanted = calloc(LIMIT_EXPERTS, sizeof(*transfer->wanted));
	if (transfer->wanted == NULL)
		return error_set(err, ENOMEM, "no memory for %d demands", LIMIT_EXPERTS);
	int status = loads_init(&transfer->loads, transfer->store, transfer->reader,
		transfer->options.generation, err);
	return status == 0 ? packer_start(&transfer->packer, transfer->store, err) : status;
}

int transfer_start(struct transfer *transfer, struct store *store, struct reader *reader,
	struct device *device, const struct transfer_options *options, struct error *err)
{
	memset(transfer, 0, sizeof(*transfer));
	transfer->device = device;
	transfer->store = store;
	transfer->reader = reader;
	transfer->options = *options;
	/* The predecessor has logged these, or they were lost while there was none. */
	transfer->lost = (struct transfer_lost){.demands = ring_dropped(&store->slots.demands),
		.heads = ring_dropped(&store->slots.heads),
		.activations = ring_dropped(&store->slots.activations),
		.hints = ring_dropped(&store->slots.hints),
		.gates = ring_dropped(&store->slots.gates)};
	atomic_store_explicit(&transfer->beat_ns, clock_ns(), memory_order_relaxed);
	int status = allocate(transfer, err);
	choose_packing(transfer);
	if (status == 0 && options->pages_ahead)
		status = pages_ahead_start(&transfer->pages, &store->slots, err);
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
	doorbell_ring(&transfer->store->slots.hinted->work);
	pthread_join(transfer->thread, NULL);
	free_all(transfer);
	transfer->running = false;
}
