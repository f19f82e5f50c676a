/* Store, transfer worker and the verifier's expert source together, on the demo model, in one process. */
#include "tests/expert-cache/transfer_rig.h"

#include "shared/base/huge_pages.h"
#include "shared/base/log.h"
#include "shared/model/gguf/gguf_watch.h"

#include <sys/stat.h>

#include <sys/uio.h>

/* Waits until so many slots are in use. */
static void expect_in_use(const struct rig *rig, uint32_t n)
{
	_Atomic uint32_t *in_use = &rig->store.slots.header->in_use;
	UNTIL(atomic_load(in_use) == n);
}

static void a_slot_lies_as_the_file_does(void **state)
{
	(void)state;
	need_model();
	assert_int_equal(geometry.n_total, geometry.n_layers * geometry.n_experts);
	for (uint32_t l = 0; l < geometry.n_layers; l++) {
		const struct slots_part *part = geometry.layers[l].part;
		for (uint32_t e = 0; e < geometry.n_experts; e++) {
			uint64_t end = 0;
			for (int p = 0; p < EXPERT_PARTS; p++) {
				uint64_t place = slots_part_place(&part[p], e);
				assert_int_equal(place % SLOTS_PAGE,
					slots_part_offset(&part[p], e) % SLOTS_PAGE);
				assert_int_equal(part[p].area % SLOTS_PAGE, 0);
				assert_true(part[p].area >= end);
				/* Whole pages are read. */
				end = (place + part[p].bytes + SLOTS_PAGE - 1) / SLOTS_PAGE *
				      SLOTS_PAGE;
			}
			assert_true(end <= geometry.slot_bytes);
		}
	}
}

static void preloaded_experts_are_all_hits(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = geometry.n_total, .preload = true});
	assert_true(wait_for(&rig.store.slots.header->loads, geometry.n_total));
	for (uint32_t l = 0; l < geometry.n_layers; l++)
		assert_int_equal(run_layer(&rig, l, 0, geometry.n_experts), geometry.n_experts);
	assert_int_equal(rig.source->stats.hits, geometry.n_total);
	assert_int_equal(rig.source->stats.misses, 0);
	assert_int_equal(counter(&rig.store.slots.header->evictions), 0);
	rig_stop(&rig);
}

/* The file has them at 32 bytes from a cache line, a slot far from each other. */
static void packed_experts_lie_together_from_a_cache_line_on(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig,
		&(struct rig_options){.budget = geometry.n_total, .preload = true, .packs = true});
	assert_true(wait_for(&rig.store.slots.header->loads, geometry.n_total));
	const struct slots_part *part = geometry.layers[0].part;
	assert_int_equal(slots_part_place(&part[EXPERT_GATE], 0) % CACHE_LINE, 32);
	for (int p = 1; p < EXPERT_PARTS; p++)
		assert_true(
			part[p].tiles_at < part[p - 1].tiles_at + part[p - 1].bytes + CACHE_LINE);
	for (uint32_t l = 0; l < geometry.n_layers; l++)
		assert_int_equal(run_layer(&rig, l, 0, geometry.n_experts), geometry.n_experts);
	for (uint32_t slot = 0; slot < geometry.n_total; slot++)
		assert_int_equal(
			slot_layout(atomic_load(&rig.store.slots.state[slot])), LAYOUT_TILES);
	rig_stop(&rig);
}

/* Layers over and over with few slots: everything comes through the slots, whole layers in waves. */
static void run_small(enum io_choice io, uint32_t n_slots)
{
	struct rig rig;
	uint32_t from_slots = 0, wanted = 0;
	rig_start(&rig, &(struct rig_options){.budget = n_slots, .io = io});
	for (uint32_t pass = 0; pass < 6; pass++) {
		for (uint32_t l = 0; l < geometry.n_layers; l++) {
			uint32_t first = pass * 3 % 8;
			uint32_t n = pass == 5 ? geometry.n_experts : 12;
			first = pass == 5 ? 0 : first;
			from_slots += run_layer(&rig, l, first, n);
			wanted += n;
		}
	}
	struct slots_header *header = rig.store.slots.header;
	assert_int_equal(from_slots, wanted);
	assert_int_equal(counter(&header->self_served), 0);
	assert_true(counter(&header->evictions) > 0);
	assert_int_equal(counter(&header->demand_hits) + counter(&header->demand_misses), wanted);
	assert_int_equal(counter(&header->demand_misses), rig.source->stats.misses);
	/* Nothing stays pinned. */
	for (uint32_t slot = 0; slot < n_slots; slot++)
		assert_int_equal(slot_pins(atomic_load(&rig.store.slots.state[slot])), 0);
	rig_stop(&rig);
}

static void the_smallest_budget_serves_everything(void **state)
{
	(void)state;
	need_model();
	run_small(IO_AUTO, slots_min(&geometry));
}

static void a_layer_larger_than_the_budget_goes_in_waves(void **state)
{
	(void)state;
	need_model();
	run_small(IO_AUTO, 5);
	run_small(IO_AUTO, 1);
}

static void threads_instead_of_io_uring_serve_the_same(void **state)
{
	(void)state;
	need_model();
	run_small(IO_PREAD, 16);
}

static void a_cache_that_is_gone_costs_no_wait(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = 32, .no_worker = true});
	rig.alive = false;
	assert_int_equal(run_layer(&rig, 0, 0, 8), 0);
	assert_int_equal(counter(&rig.store.slots.header->self_served), 8);
	assert_int_equal(rig.source->stats.wait_ns, 0);
	/* And no region at all. */
	struct error err;
	assert_int_equal(experts_cached_attach(rig.cached, NULL, NULL, &err), 0);
	assert_int_equal(run_layer(&rig, 1, 0, 8), 0);
	rig_stop(&rig);
}

static void activations_wake_the_worker_for_every_half_of_their_ring(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = 32, .no_worker = true});
	rig.alive = false;
	struct slots *slots = &rig.store.slots;
	struct doorbell *work = &slots->hinted->work;
	uint32_t before = doorbell_read(work), half = SLOTS_ACTIVATION_RING / 2;
	for (uint32_t i = 0; i < half - 1; i++)
		run_layer(&rig, i % geometry.n_layers, 0, 1);
	assert_int_equal(doorbell_read(work), before);
	run_layer(&rig, 0, 0, 1);
	assert_int_equal(doorbell_read(work), before + 1);
	/* Without anybody who reads them they fill the ring; the rest is counted as lost. */
	for (uint32_t i = 0; i < half + 3; i++)
		run_layer(&rig, 0, 0, 1);
	assert_int_equal(doorbell_read(work), before + 2);
	assert_int_equal(ring_dropped(&slots->activations), 3);
	rig_stop(&rig);
}

static uint64_t uses_in_all(const struct rig *rig)
{
	uint64_t uses = 0;
	for (uint32_t l = 0; l < geometry.n_layers; l++)
		for (uint32_t e = 0; e < geometry.n_experts; e++)
			uses += counter(slots_uses(&rig->store.slots, l, e));
	return uses;
}

/* Nothing is missing, and nobody wakes the worker before it looks by itself. */
static void uses_of_what_is_resident_are_all_counted(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = geometry.n_total, .preload = true});
	assert_true(wait_for(&rig.store.slots.header->loads, geometry.n_total));
	enum { RUNS = 300, USED = 2 };
	for (uint32_t i = 0; i < RUNS; i++)
		for (uint32_t l = 0; l < geometry.n_layers; l++)
			assert_int_equal(run_layer(&rig, l, i % 8, USED), USED);
	uint64_t all = (uint64_t)RUNS * USED * geometry.n_layers;
	UNTIL(uses_in_all(&rig) >= all);
	assert_int_equal(uses_in_all(&rig), all);
	assert_int_equal(ring_dropped(&rig.store.slots.activations), 0);
	rig_stop(&rig);
}

static void a_cache_that_hangs_costs_the_patience(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig,
		&(struct rig_options){.budget = 32, .no_worker = true, .patience_ns = 30000000});
	uint64_t start = clock_ns();
	assert_int_equal(run_layer(&rig, 0, 4, 8), 0);
	assert_true(clock_ns() - start >= 30000000);
	assert_int_equal(counter(&rig.store.slots.header->self_served), 8);
	rig_stop(&rig);
}

static void a_full_demand_ring_is_served_from_the_file(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = 32, .no_worker = true, .patience_ns = 1});
	for (uint32_t i = 0; i < SLOTS_DEMAND_RING / 8 + 2; i++)
		assert_int_equal(run_layer(&rig, 0, 0, 8), 0);
	assert_true(ring_dropped(&rig.store.slots.demands) > 0);
	rig_stop(&rig);
}

static void what_cannot_be_read_is_refused_at_once_and_the_verifier_reads_it(void **state)
{
	(void)state;
	need_model();
	char path[] = "/var/tmp/outrider-short-XXXXXX";
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, 4096), 0);
	close(fd);
	struct rig rig;
	/* Who waited would wait for hours. */
	rig_start(&rig, &(struct rig_options){
				.budget = 32, .path = path, .patience_ns = 10000000000000ull});
	assert_int_equal(run_layer(&rig, 2, 0, 8), 0);
	assert_int_equal(counter(&rig.transfer.loads.failures), 8);
	assert_int_equal(counter(&rig.store.slots.header->self_served), 8);
	/* And again: a refusal is not for ever. */
	assert_int_equal(run_layer(&rig, 2, 0, 8), 0);
	assert_int_equal(counter(&rig.transfer.loads.failures), 16);
	rig_stop(&rig);
	unlink(path);
}

/* Bytes that pass by the page cache and say something else than when they were loaded first. */
static void an_expert_that_changed_on_the_disk_makes_the_model_lost(void **state)
{
	(void)state;
	need_model();
	char path[] = "/var/tmp/outrider-changed-XXXXXX", command[256];
	close(mkstemp(path));
	snprintf(command, sizeof(command), "cp " MODEL " %s", path);
	assert_int_equal(system(command), 0);
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = 8, .path = path});
	struct slots_header *header = rig.store.slots.header;
	assert_int_equal(run_layer(&rig, 1, 0, 8), 8);
	assert_int_equal(run_layer(&rig, 2, 0, 8), 8); /* pushes the others out */
	assert_int_equal(counter(&header->lost), 0);
	uint64_t offset = slots_part_offset(&geometry.layers[1].part[EXPERT_UP], 3);
	int fd = open(path, O_WRONLY);
	assert_int_equal(pwrite(fd, "something", 9, (off_t)offset), 9);
	close(fd);
	static struct expert_view views[LIMIT_EXPERTS];
	uint16_t experts[8] = {0, 1, 2, 3, 4, 5, 6, 7}, tokens[8] = {1, 1, 1, 1, 1, 1, 1, 1};
	struct expert_source *source = rig.source;
	int n;
	source->ops->begin(source, 1, experts, tokens, 8);
	while ((n = source->ops->ready(source, views)) > 0)
		for (int i = 0; i < n; i++)
			assert_int_not_equal(experts[views[i].index], 3);
	source->ops->end(source);
	assert_int_equal(n, -EIO);
	assert_int_equal(counter(&header->lost), rig.transfer.options.generation);
	assert_int_equal(store_find(&rig.store, 1, 3), SLOT_NONE);
	/* And nothing is loaded any more. */
	uint64_t loads = counter(&header->loads);
	source->ops->begin(source, 4, experts, tokens, 8);
	assert_int_equal(source->ops->ready(source, views), -EIO);
	source->ops->end(source);
	usleep(50000);
	assert_int_equal(counter(&header->loads), loads);
	rig_stop(&rig);
	unlink(path);
}

static void a_lost_region_is_not_used_by_who_comes_later(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	struct error err;
	rig_start(&rig, &(struct rig_options){.budget = 32});
	assert_int_equal(experts_cached_attach(rig.cached, NULL, NULL, &err), 0);
	slots_lose(&rig.store.slots, 7);
	assert_int_equal(
		experts_cached_attach(rig.cached, &rig.store.region, &rig.store.hints, &err),
		-ESTALE);
	assert_non_null(strstr(err.text, "changed"));
	assert_int_equal(run_layer(&rig, 0, 0, 8), 0);
	/* Nor is it taken over. */
	struct store_options options = {
		.budget = 32,
		.model_fingerprint = model->fingerprint,
		.policy = cache_policy_find("lru"),
		.queue_max = 64,
		.recovered_fd = dup(rig.store.region.fd),
		.recovered_hints_fd = -1,
	};
	struct store store;
	assert_int_equal(store_open(&store, &geometry, &options, &err), 0);
	assert_false(store.adopted);
	assert_int_equal(counter(&store.slots.header->lost), 0);
	store_close(&store);
	rig_stop(&rig);
}

static void hinted_experts_are_there_when_asked_for(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	struct error err;
	rig_start(&rig, &(struct rig_options){.budget = 40});
	struct slots_hinter hinter;
	assert_int_equal(
		slots_hinter_attach(&hinter, &rig.store.region, &rig.store.hints, &err), 0);
	struct slot_hint late = {.layer = 3, .expert = 31, .score = 9, .needed_by_ns = 1};
	assert_true(slots_hint(&hinter, &late));
	for (uint16_t e = 0; e < 10; e++) {
		struct slot_hint hint = {.layer = 3, .expert = e, .score = (float)e};
		assert_true(slots_hint(&hinter, &hint));
	}
	/* Out of the model: ignored. */
	struct slot_hint *raw = ring_reserve(&hinter.hints);
	*raw = (struct slot_hint){.layer = 60000, .expert = 60000, .score = 1};
	ring_publish(&hinter.hints);
	doorbell_ring(&hinter.slots.hinted->work);
	assert_true(wait_for(&rig.store.slots.header->hint_loads, 10));
	assert_int_equal(run_layer(&rig, 3, 0, 10), 10);
	assert_int_equal(rig.source->stats.misses, 0);
	assert_false(slots_resident(&hinter, 3, 31));
	rig_stop(&rig);
}

/* Some policies take no hints and prefetch all the same. */
static void only_loads_of_a_policy_that_takes_hints_are_counted_as_hinted(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = 16, .no_worker = true});
	const struct cache_policy_ops *lru = rig.store.policy;
	struct cache_policy_ops deaf = *lru;
	deaf.hint_sources = CACHE_HINTS_NONE;
	for (uint32_t e = 0; e < 4; e++) {
		struct cache_prefetch want = {.layer = 1, .expert = e};
		rig.store.policy = e < 3 ? &deaf : lru;
		uint32_t slot = store_take(&rig.store, &want, LOAD_PREFETCH, 0);
		assert_int_not_equal(slot, SLOT_NONE);
		store_loaded(&rig.store, slot, LOAD_PREFETCH, 0, LAYOUT_ROWS);
		assert_int_equal(counter(&rig.store.slots.header->hint_loads), e == 3);
		assert_int_equal(counter(&rig.store.slots.counts[1].prefetched), e + 1);
	}
	rig_stop(&rig);
}

static void hints_that_say_they_are_for_ever_hold_their_slots_for_seconds(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	struct error err;
	struct slots_hinter hinter;
	rig_start(&rig, &(struct rig_options){.budget = 16});
	assert_int_equal(
		slots_hinter_attach(&hinter, &rig.store.region, &rig.store.hints, &err), 0);
	for (uint16_t e = 0; e < 16; e++) {
		struct slot_hint hint = {
			.layer = 3, .expert = e, .score = 1, .needed_by_ns = UINT64_MAX};
		assert_true(slots_hint(&hinter, &hint));
	}
	assert_true(wait_for(&rig.store.slots.header->hint_loads, 16));
	for (uint16_t e = 0; e < 4; e++) {
		struct slot_hint hint = {.layer = 2, .expert = e, .score = 1};
		assert_true(slots_hint(&hinter, &hint));
	}
	assert_true(wait_for(&rig.store.slots.header->hint_loads, 20));
	rig_stop(&rig);
}

static void demands_out_of_range_are_ignored(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	struct error err;
	rig_start(&rig, &(struct rig_options){.budget = 32});
	struct slots hostile;
	assert_int_equal(slots_map(&rig.store.region, NULL, &hostile, &err), 0);
	struct slot_demand demand = {.layer = 255, .expert = 1023, .iteration = UINT64_MAX};
	assert_true(ring_put(&hostile.demands, &demand, sizeof(demand)));
	demand = (struct slot_demand){.layer = 0, .expert = 65535};
	assert_true(ring_put(&hostile.demands, &demand, sizeof(demand)));
	struct slot_activation activation = {.layer = 65535, .n = SLOT_ACTIVATION_PAIRS};
	assert_true(ring_put(&hostile.activations, &activation, sizeof(activation)));
	activation = (struct slot_activation){.layer = 0, .n = 65535};
	assert_true(ring_put(&hostile.activations, &activation, sizeof(activation)));
	doorbell_ring(&rig.store.slots.hinted->work);
	assert_int_equal(run_layer(&rig, 0, 0, 8), 8);
	rig_stop(&rig);
}

/* Words of state that name experts beyond the model, table words beyond the slots, ring counters from nowhere: the cache
 * neither follows them nor stops. (What READY slots hold is the writers' word; the views are not compared here.) */
static void rubbish_in_the_words_and_counters_stops_nobody(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	struct error err;
	struct expert_view views[LIMIT_EXPERTS];
	uint64_t seed = 3;
	rig_start(&rig, &(struct rig_options){.budget = 33, .patience_ns = 2000000});
	struct slots hostile;
	assert_int_equal(slots_map(&rig.store.region, NULL, &hostile, &err), 0);
	for (uint32_t round = 0; round < 300; round++) {
		uint16_t experts[8], tokens[8];
		for (uint32_t i = 0; i < 4; i++) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			atomic_store(&hostile.state[(seed >> 33) % hostile.n_slots],
				round % 2 ? seed : SLOT_READY | ~(uint64_t)0 << 38);
			atomic_store(slots_word(&hostile, (uint32_t)(seed >> 20) % hostile.n_layers,
					     (uint32_t)(seed >> 40) % hostile.n_experts),
				(uint32_t)(seed >> 7) % 64);
		}
		if (round % 16 == 0)
			atomic_store(&hostile.demands.shared->head, seed);
		if (round % 16 == 8)
			atomic_store(&hostile.activations.shared->tail, seed);
		for (uint32_t i = 0; i < 8; i++) {
			experts[i] = (uint16_t)(4 * i + round % 4);
			tokens[i] = 1;
		}
		struct expert_source *source = rig.source;
		source->ops->begin(source, round % hostile.n_layers, experts, tokens, 8);
		uint32_t returned = 0;
		for (int n; (n = source->ops->ready(source, views)) > 0;)
			returned += (uint32_t)n;
		source->ops->end(source);
		assert_int_equal(returned, 8);
	}
	uint64_t beat = atomic_load(&rig.transfer.beat_ns);
	UNTIL(atomic_load(&rig.transfer.beat_ns) > beat);
	rig_stop(&rig);
}

static void a_successor_keeps_what_is_resident_and_its_order(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = 32});
	run_layer(&rig, 0, 0, 16);
	run_layer(&rig, 1, 0, 16);
	run_layer(&rig, 0, 0, 8); /* layer 0's 8..15 are now the oldest */
	int fd = fcntl(rig.store.region.fd, F_DUPFD_CLOEXEC, 3);
	uint64_t generation = atomic_load(&rig.store.region.header->generation);
	rig_stop(&rig);

	rig_start(&rig, &(struct rig_options){.budget = 32, .recovered_fd = fd});
	assert_true(rig.store.adopted);
	assert_int_equal(rig.store.found.ready, 32);
	assert_int_equal(atomic_load(&rig.store.region.header->generation), generation + 1);
	run_layer(&rig, 2, 0, 8);
	assert_int_equal(rig.source->stats.misses, 8);
	run_layer(&rig, 0, 0, 8);
	run_layer(&rig, 1, 0, 16);
	assert_int_equal(rig.source->stats.misses, 8);
	rig_stop(&rig);
}

/* One byte somewhere in the gate, up or down matrix of an expert, as it lies in its slot. */
static void spoil_expert(struct store *store, uint32_t slot, uint64_t random)
{
	uint64_t word = atomic_load(&store->slots.state[slot]);
	uint32_t layer = slot_layer(word), expert = slot_expert(word);
	const struct slots_part *part = &store->geometry.layers[layer].part[random % EXPERT_PARTS];
	unsigned char *at =
		slots_at(&store->slots, slot) + slots_part_at(part, expert, slot_layout(word));
	at[random / EXPERT_PARTS % part->bytes] ^= (unsigned char)(1 << random % 8);
}

/* Experts that somebody wrote to are loaded again, as are those whose sum nobody had made; the others are taken over. In either
 * layout. */
static void a_successor_takes_over_what_was_loaded_and_not_what_was_written(void **state)
{
	(void)state;
	need_model();
	for (int packs = 0; packs < 2; packs++) {
		struct rig rig;
		uint64_t seed = 3;
		rig_start(&rig, &(struct rig_options){.budget = 32, .packs = packs});
		run_layer(&rig, 0, 0, 16);
		run_layer(&rig, 1, 0, 16);
		int fd = fcntl(rig.store.region.fd, F_DUPFD_CLOEXEC, 3);
		struct region shared;
		struct error err;
		/* Ended in order, it has summed all. */
		rig_stop(&rig);
		assert_int_equal(region_attach(dup(fd), EXPERTS_REGION, EXPERTS_LAYOUT, REGION_DATA,
					 true, &shared, &err),
			0);
		struct store left = {.geometry = geometry};
		assert_int_equal(slots_map(&shared, NULL, &left.slots, &err), 0);
		uint32_t spoilt = 0;
		for (uint32_t slot = 0; slot < geometry.n_total; slot++) {
			if (slot_state(atomic_load(&left.slots.state[slot])) != SLOT_READY)
				continue;
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			if (slot % 4 == 0)
				spoil_expert(&left, slot, seed >> 20);
			else if (slot % 4 == 1)
				atomic_store(&left.slots.sums[slot], 0);
			spoilt += slot % 4 < 2;
		}
		region_close(&shared);
		rig_start(&rig,
			&(struct rig_options){.budget = 32, .recovered_fd = fd, .packs = packs});
		assert_true(rig.store.adopted && spoilt > 0);
		assert_int_equal(rig.store.found.wrong, spoilt);
		assert_int_equal(rig.store.found.ready, 32 - spoilt);
		/* The bytes are compared with the file's. */
		run_layer(&rig, 0, 0, 16);
		run_layer(&rig, 1, 0, 16);
		assert_int_equal(rig.source->stats.misses, spoilt);
		rig_stop(&rig);
	}
}

/* Nobody but the owner knows the sum of a loss: another word there loses nothing. */
static void a_word_that_says_lost_and_is_not_the_owners_is_not_believed(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = 32});
	run_layer(&rig, 0, 0, 8);
	for (uint64_t word = 1; word != 0; word <<= 7) {
		atomic_store(&rig.store.slots.header->lost, word);
		assert_false(slots_lost(&rig.store.slots));
		run_layer(&rig, 0, 0, 8);
	}
	slots_lose(&rig.store.slots, 12345);
	assert_true(slots_lost(&rig.store.slots));
	rig_stop(&rig);
}

static void reads_of_a_dead_process_cannot_land_in_its_successors_slots(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = 32, .no_worker = true});
	slots_load_begin(&rig.store.slots, 30, 0, 0);
	slots_load_begin(&rig.store.slots, 31, 0, 1);
	/* A read under way holds the slot's pages as they are, as this pipe does once they are spliced into it. */
	unsigned char *slot = slots_at(&rig.store.slots, 30);
	memset(slot, 0x55, SLOTS_PAGE);
	int pipe_fds[2];
	assert_int_equal(pipe(pipe_fds), 0);
	struct iovec page = {.iov_base = slot, .iov_len = SLOTS_PAGE};
	assert_int_equal(vmsplice(pipe_fds[1], &page, 1, 0), SLOTS_PAGE);
	int fd = fcntl(rig.store.region.fd, F_DUPFD_CLOEXEC, 3);
	rig_stop(&rig);

	rig_start(&rig, &(struct rig_options){.budget = 32, .recovered_fd = fd, .no_worker = true});
	assert_true(rig.store.adopted);
	assert_int_equal(rig.store.found.loading, 2);
	assert_int_equal(rig.store.n_free, geometry.n_total);
	assert_int_equal(rig.store.n_held, 0);
	/* Other pages: what is written to the slot now and what the read holds are not the same memory. */
	memset(slots_at(&rig.store.slots, 30), 0xaa, SLOTS_PAGE);
	unsigned char bytes[SLOTS_PAGE];
	assert_int_equal(read(pipe_fds[0], bytes, sizeof(bytes)), SLOTS_PAGE);
	for (size_t i = 0; i < sizeof(bytes); i++)
		assert_int_equal(bytes[i], 0x55);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
	/* Each free slot once. */
	bool *seen = calloc(geometry.n_total, sizeof(*seen));
	assert_non_null(seen);
	for (uint32_t i = 0; i < geometry.n_total; i++) {
		assert_false(seen[rig.store.free_slots[i]]);
		seen[rig.store.free_slots[i]] = true;
	}
	free(seen);
	rig_stop(&rig);
}

static void slots_that_are_held_back_come_free_and_meanwhile_nobody_waits(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	struct error err;
	rig_start(&rig, &(struct rig_options){.budget = 2, .no_worker = true});
	/* As after an adoption whose pages could not be renewed. */
	for (uint32_t slot = 0; slot < 2; slot++) {
		slots_load_begin(&rig.store.slots, slot, 5, slot);
		rig.store.held[rig.store.n_held++] = slot;
	}
	rig.store.n_free -= 2;
	rig.store.held_until_ns = UINT64_MAX;
	struct transfer_options options = {.preload = false};
	assert_int_equal(
		transfer_start(&rig.transfer, &rig.store, rig.reader, NULL, &options, &err), 0);
	/* Who waited for them would wait for ever. */
	assert_int_equal(run_layer(&rig, 0, 0, 8), 0);
	assert_int_equal(counter(&rig.store.slots.header->self_served), 8);
	transfer_stop(&rig.transfer);
	rig.store.held_until_ns = clock_ns() + 100000000;
	assert_int_equal(
		transfer_start(&rig.transfer, &rig.store, rig.reader, NULL, &options, &err), 0);
	UNTIL(run_layer(&rig, 0, 0, 8) != 0);
	assert_int_equal(run_layer(&rig, 1, 0, 8), 8);
	rig_stop(&rig);
}

static void a_successor_with_a_smaller_budget_keeps_what_was_used_last(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = 48});
	run_layer(&rig, 0, 0, 16);
	run_layer(&rig, 1, 0, 16);
	run_layer(&rig, 2, 0, 16);
	int fd = fcntl(rig.store.region.fd, F_DUPFD_CLOEXEC, 3);
	uint64_t uid = rig.store.region.header->uid;
	rig_stop(&rig);
	rig_start(&rig, &(struct rig_options){.budget = 32, .recovered_fd = fd});
	assert_true(rig.store.adopted);
	assert_true(rig.store.region.header->uid == uid);
	expect_in_use(&rig, 32);
	assert_int_equal(run_layer(&rig, 1, 0, 16), 16);
	assert_int_equal(run_layer(&rig, 2, 0, 16), 16);
	assert_int_equal(rig.source->stats.misses, 0);
	rig_stop(&rig);
}

static void another_model_gets_a_new_region(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	struct error err;
	rig_start(&rig, &(struct rig_options){.budget = 33});
	struct slots_header *header = rig.store.slots.header;
	struct experts_cached *other;
	struct experts_cached_options options = {
		.backend = test_backend(), .patience_ns = 1, .generation = 9};
	assert_int_equal(experts_cached_create(model, &options, &other, &err), 0);
	header->model_fingerprint++;
	/* A verifier of another model is told so. */
	assert_int_equal(
		experts_cached_attach(other, &rig.store.region, &rig.store.hints, &err), -ESTALE);
	assert_non_null(strstr(err.text, "another model"));
	int fd = fcntl(rig.store.region.fd, F_DUPFD_CLOEXEC, 3);
	uint64_t uid = rig.store.region.header->uid;
	experts_cached_destroy(&other);
	rig_stop(&rig);
	rig_start(&rig, &(struct rig_options){.budget = 33, .recovered_fd = fd});
	assert_false(rig.store.adopted);
	assert_true(rig.store.region.header->uid != uid);
	rig_stop(&rig);
}

/* Other weights all over a file, behind its size and st_mtim. */
static void write_other_weights(const char *path)
{
	struct stat status;
	int fd = open(path, O_RDWR);
	assert_int_equal(fstat(fd, &status), 0);
	size_t bytes = (size_t)status.st_size / 2;
	unsigned char *all = malloc(bytes);
	assert_int_equal(pread(fd, all, bytes, status.st_size / 4), bytes);
	for (size_t i = 0; i < bytes; i++)
		all[i] ^= 1;
	assert_int_equal(pwrite(fd, all, bytes, status.st_size / 4), bytes);
	free(all);
	const struct timespec times[2] = {status.st_atim, status.st_mtim};
	assert_int_equal(futimens(fd, times), 0);
	close(fd);
}

/* A cache that was started after the file had changed has another model, and its verifier, which has the file mapped, has none. */
static void who_is_refused_for_his_own_file_has_lost_his_model(void **state)
{
	(void)state;
	need_model();
	char path[] = "/var/tmp/outrider-refused-XXXXXX", command[256];
	close(mkstemp(path));
	snprintf(command, sizeof(command), "cp " MODEL " %s", path);
	assert_int_equal(system(command), 0);
	struct error err = {.text = ""};
	struct model *ours;
	struct experts_cached *cached;
	struct experts_cached_options options = {
		.backend = test_backend(), .patience_ns = 1, .generation = 9};
	assert_int_equal(model_load(path, &ours, &err), 0);
	assert_int_equal(experts_cached_create(ours, &options, &cached, &err), 0);
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = 33});
	/* Two files that no sample tells apart may differ elsewhere. */
	assert_int_equal(
		experts_cached_attach(cached, &rig.store.region, &rig.store.hints, &err), -ESTALE);
	assert_non_null(strstr(err.text, "another file open"));
	rig.store.slots.header->model_files = gguf_files(ours->gguf);
	assert_int_equal(
		experts_cached_attach(cached, &rig.store.region, &rig.store.hints, &err), 0);
	assert_int_equal(experts_cached_attach(cached, NULL, NULL, &err), 0);
	/* It is the cache that has another file. */
	rig.store.slots.header->model_fingerprint++;
	assert_int_equal(
		experts_cached_attach(cached, &rig.store.region, &rig.store.hints, &err), -ESTALE);
	assert_non_null(strstr(err.text, "another model"));
	assert_int_equal(gguf_lost(ours->gguf, &err), 0);
	write_other_weights(path);
	assert_int_equal(gguf_lost(ours->gguf, &err), 0);
	assert_int_equal(
		experts_cached_attach(cached, &rig.store.region, &rig.store.hints, &err), -ESTALE);
	assert_non_null(strstr(err.text, "was written to"));
	assert_int_equal(gguf_lost(ours->gguf, &err), -ESTALE);
	rig_stop(&rig);
	experts_cached_destroy(&cached);
	model_free(&ours);
	unlink(path);
}

/* The region of a predecessor that spoil has worked on is not taken over. */
static void expect_new_region(void (*spoil)(struct region *region))
{
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = 33});
	spoil(&rig.store.region);
	int fd = fcntl(rig.store.region.fd, F_DUPFD_CLOEXEC, 3);
	uint64_t uid = rig.store.region.header->uid;
	rig_stop(&rig);
	rig_start(&rig, &(struct rig_options){.budget = 33, .recovered_fd = fd});
	assert_false(rig.store.adopted);
	assert_true(rig.store.region.header->uid != uid);
	rig_stop(&rig);
}

/* Where the fingerprint does not look. */
static void spoil_stamps(struct region *region)
{
	((struct slots_header *)region_payload(region))->model_stamps++;
}

static void spoil_layout(struct region *region)
{
	region->header->layout = EXPERTS_LAYOUT - 1;
}

static void a_model_that_was_written_to_gets_a_new_region(void **state)
{
	(void)state;
	need_model();
	expect_new_region(spoil_stamps);
}

static void a_region_of_another_version_is_replaced(void **state)
{
	(void)state;
	need_model();
	expect_new_region(spoil_layout);
}

/* ---- Changes while it runs. ---- */

static void change_budget(struct rig *rig, uint32_t budget)
{
	struct error err = {.text = ""};
	struct transfer_change change = {.budget = budget, .options = rig->transfer.options};
	if (transfer_apply(&rig->transfer, &change, &err) != 0)
		fail_msg("%s", err.text);
	assert_int_equal(atomic_load(&rig->store.slots.header->budget), budget);
}

static void a_budget_that_falls_gives_memory_back_and_one_that_rises_uses_it(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = 96});
	uint64_t empty_bytes = store_bytes(&rig.store);
	for (uint32_t l = 0; l < 3; l++)
		run_layer(&rig, l, 0, 32);
	expect_in_use(&rig, 96);
	uint64_t full_bytes = store_bytes(&rig.store) - empty_bytes;
	assert_true(full_bytes > 48 * geometry.slot_bytes);
	/* Of all that the slots are within the budget; the tables come on top. */
	assert_true(store_table_bytes(&rig.store) > 0);
	assert_true(store_arena_bytes(&rig.store) <= 96 * geometry.slot_bytes);
	assert_int_equal(store_arena_bytes(&rig.store) + store_table_bytes(&rig.store),
		store_bytes(&rig.store));
	change_budget(&rig, 32);
	expect_in_use(&rig, 32);
	/* A third of the slots have a third of the memory. */
	assert_true(store_bytes(&rig.store) - empty_bytes <= full_bytes * 36 / 96);
	assert_int_equal(run_layer(&rig, 2, 0, 32), 32);
	assert_int_equal(rig.source->stats.misses, 96);
	/* As many come back as there is room for, and no more. */
	for (uint32_t l = 0; l < 3; l++)
		assert_int_equal(run_layer(&rig, l, 0, 32), 32);
	assert_int_equal(atomic_load(&rig.store.slots.header->in_use), 32);
	change_budget(&rig, 80);
	for (uint32_t l = 0; l < 3; l++)
		assert_int_equal(run_layer(&rig, l, 0, 32), 32);
	expect_in_use(&rig, 80);
	assert_int_equal(counter(&rig.store.slots.header->self_served), 0);
	rig_stop(&rig);
}

/* The memory of so many slots; tables that were not touched before take less than half of one. */
static void expect_slots_of_memory(const struct rig *rig, uint64_t empty_bytes, uint32_t n)
{
	uint64_t least = empty_bytes + n * geometry.slot_bytes,
		 most = least + geometry.slot_bytes / 2;
	uint64_t bytes;
	UNTIL((bytes = store_bytes(&rig->store)) >= least && bytes <= most);
}

/* Whoever finds pages may be at it just then: they are given back when he is idle. */
static void the_pages_of_a_load_that_failed_count_as_found_ahead(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	static const struct cache_prefetch want = {.layer = 1, .expert = 2};
	rig_start(&rig, &(struct rig_options){.budget = 1, .no_worker = true});
	uint64_t empty_bytes = store_bytes(&rig.store);
	uint32_t slot = store_take(&rig.store, &want, LOAD_PREFETCH, 0);
	memset(slots_at(&rig.store.slots, slot), 1, geometry.slot_bytes);
	uint64_t bytes = store_bytes(&rig.store);
	assert_true(bytes > empty_bytes);
	store_failed(&rig.store, slot, false);
	store_set_aside(&rig.store, slot);
	assert_int_equal(store_in_use(&rig.store), 0);
	assert_int_equal(store_bytes(&rig.store), bytes);
	assert_false(store_too_far_ahead(&rig.store));
	/* The next load takes it before slots that have none. */
	assert_int_equal(store_take(&rig.store, &want, LOAD_PREFETCH, 0), slot);
	assert_int_equal(rig.store.n_ahead, 0);
	store_failed(&rig.store, slot, false);
	store_set_aside(&rig.store, slot);
	store_set_budget(&rig.store, 0);
	assert_true(store_too_far_ahead(&rig.store));
	store_drop_ahead(&rig.store);
	assert_int_equal(rig.store.n_ahead, 0);
	assert_true(store_bytes(&rig.store) < bytes);
	rig_stop(&rig);
}

static void pages_are_found_ahead_as_far_as_the_budget_allows(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = 64, .no_worker = true});
	uint64_t empty_bytes = store_bytes(&rig.store);
	rig_stop(&rig);
	rig_start(&rig, &(struct rig_options){.budget = 64, .pages_ahead = true});
	/* Small pages and no others: a slot has exactly its own. */
	bool huge = huge_pages_advise(rig.store.region.header, rig.store.region.bytes, true) !=
		    HUGE_NONE;
	if (!huge)
		expect_slots_of_memory(&rig, empty_bytes, 64);
	expect_in_use(&rig, 0);
	for (uint32_t l = 0; l < 3; l++)
		assert_int_equal(run_layer(&rig, l, 0, 20), 20);
	if (!huge)
		expect_slots_of_memory(&rig, empty_bytes, 64);
	change_budget(&rig, 32);
	expect_in_use(&rig, 32);
	if (!huge)
		expect_slots_of_memory(&rig, empty_bytes, 32);
	/* What is read before its pages were found has only those that were read into. */
	change_budget(&rig, 96);
	for (uint32_t l = 0; l < 3; l++)
		assert_int_equal(run_layer(&rig, l, 0, 32), 32);
	expect_in_use(&rig, 96);
	if (!huge)
		assert_true(store_bytes(&rig.store) < empty_bytes + 97 * geometry.slot_bytes);
	assert_int_equal(counter(&rig.store.slots.header->self_served), 0);
	rig_stop(&rig);
}

static void a_pinned_layer_outlives_a_budget_that_falls_below_it(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	uint16_t experts[32], tokens[32];
	struct expert_view views[LIMIT_EXPERTS];
	rig_start(&rig, &(struct rig_options){.budget = 64});
	run_layer(&rig, 0, 0, 32);
	run_layer(&rig, 1, 0, 32);
	for (uint16_t i = 0; i < 32; i++) {
		experts[i] = i;
		tokens[i] = 1;
	}
	struct expert_source *source = rig.source;
	source->ops->begin(source, 1, experts, tokens, 32);
	assert_int_equal(source->ops->ready(source, views), 32);
	change_budget(&rig, 16);
	/* The others go, these cannot. */
	expect_in_use(&rig, 32);
	usleep(120000);
	assert_int_equal(atomic_load(&rig.store.slots.header->in_use), 32);
	const struct layer *l = &model->layers[1];
	for (int i = 0; i < 32; i++) {
		expect_part(
			&l->gate, experts[views[i].index], place_at(views[i].gate), LAYOUT_ROWS);
		expect_part(
			&l->down, experts[views[i].index], place_at(views[i].down), LAYOUT_ROWS);
	}
	source->ops->end(source);
	expect_in_use(&rig, 16);
	/* A layer larger than the budget goes in waves. */
	assert_int_equal(run_layer(&rig, 2, 0, 32), 32);
	rig_stop(&rig);
}

/* Changes the policy to a fresh one of this name; tells the old one's name. */
static const char *change_policy(struct rig *rig, const char *name)
{
	struct error err = {.text = ""};
	struct transfer_change change = {
		.budget = rig->store.budget,
		.options = rig->transfer.options,
		.policy = cache_policy_find(name),
		.scratch = calloc(geometry.n_total, sizeof(struct store_resident)),
	};
	assert_non_null(change.scratch);
	if (store_policy_create(&rig->store, change.policy, 64, &change.policy_state, &err) != 0 ||
		transfer_apply(&rig->transfer, &change, &err) != 0)
		fail_msg("%s", err.text);
	const char *old = change.policy->name;
	change.policy->destroy(change.policy_state);
	free(change.scratch);
	return old;
}

static void a_new_policy_knows_what_is_resident_and_in_which_order_it_was_used(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = 32});
	run_layer(&rig, 0, 0, 16);
	run_layer(&rig, 1, 0, 16);
	run_layer(&rig, 0, 0, 8); /* layer 0's 8..15 are now the oldest */
	assert_string_equal(change_policy(&rig, "lru"), "lru");
	run_layer(&rig, 2, 0, 8);
	assert_int_equal(rig.source->stats.misses, 40);
	run_layer(&rig, 0, 0, 8);
	run_layer(&rig, 1, 0, 16);
	assert_int_equal(rig.source->stats.misses, 40);
	rig_stop(&rig);
}

/* The policies and budgets of a running cache change all the time while layers are asked for. */
static void changes_in_the_middle_of_everything_lose_nothing(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	static const uint32_t budgets[] = {96, 32, 192, 33, 64, 1};
	uint32_t n_policies = 0;
	while (cache_policies[n_policies] != NULL)
		n_policies++;
	rig_start(&rig, &(struct rig_options){.budget = 96, .packs_later = true});
	for (uint32_t i = 0; i < 60; i++) {
		uint32_t budget = budgets[i % 6];
		change_budget(&rig, budget < geometry.n_total ? budget : geometry.n_total);
		if (i % 3 == 0)
			change_policy(&rig, cache_policies[i / 3 % n_policies]->name);
		for (uint32_t l = 0; l < geometry.n_layers; l++)
			assert_int_equal(run_layer(&rig, l, i * 5 % 16, 16), 16);
	}
	assert_int_equal(counter(&rig.store.slots.header->self_served), 0);
	rig_stop(&rig);
}

static void uses_are_counted_by_expert_and_prefetches_by_what_became_of_them(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	struct error err;
	struct slots_hinter hinter;
	rig_start(&rig, &(struct rig_options){.budget = 40});
	assert_int_equal(
		slots_hinter_attach(&hinter, &rig.store.region, &rig.store.hints, &err), 0);
	for (uint16_t e = 0; e < 10; e++) {
		struct slot_hint hint = {.layer = 3, .expert = e, .score = (float)e};
		assert_true(slots_hint(&hinter, &hint));
	}
	struct slots_counts *counts = &rig.store.slots.counts[3];
	assert_true(wait_for(&counts->prefetched, 10));
	for (int i = 0; i < 3; i++)
		run_layer(&rig, 3, 0, 4);
	assert_true(wait_for(&counts->prefetch_used, 4));
	/* The other six are pushed out unused. */
	run_layer(&rig, 0, 0, 32);
	run_layer(&rig, 1, 0, 32);
	assert_true(wait_for(&counts->prefetch_wasted, 6));
	assert_int_equal(counter(&counts->prefetch_used), 4);
	assert_true(wait_for(slots_uses(&rig.store.slots, 3, 2), 3));
	assert_int_equal(counter(slots_uses(&rig.store.slots, 3, 2)), 3);
	assert_int_equal(counter(slots_uses(&rig.store.slots, 3, 9)), 0);
	assert_true(wait_for(slots_uses(&rig.store.slots, 1, 31), 1));
	rig_stop(&rig);
}

static void a_dead_verifiers_pins_do_not_starve_its_successor(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	struct error err;
	rig_start(&rig, &(struct rig_options){.budget = 16});
	run_layer(&rig, 0, 0, 16);
	/* Died in the middle of a layer: all 16 slots pinned for ever. */
	uint16_t experts[16], tokens[16];
	for (uint16_t i = 0; i < 16; i++) {
		experts[i] = i;
		tokens[i] = 1;
	}
	struct expert_source *dead = rig.source;
	struct experts_cached *dead_cached = rig.cached;
	dead->ops->begin(dead, 0, experts, tokens, 16);
	struct experts_cached_options options = {
		.backend = test_backend(), .patience_ns = 30000000000ull, .generation = 6};
	assert_int_equal(experts_cached_create(model, &options, &rig.cached, &err), 0);
	assert_int_equal(
		experts_cached_attach(rig.cached, &rig.store.region, &rig.store.hints, &err), 0);
	rig.source = experts_cached_source(rig.cached);
	assert_int_equal(run_layer(&rig, 1, 0, 16), 16);
	assert_int_equal(counter(&rig.store.slots.header->self_served), 0);
	experts_cached_destroy(&dead_cached);
	rig_stop(&rig);
}

/* ---- Steps that run behind the pass. ---- */

static ticket tickets_reached;
static uint32_t tickets_waited_for;

static bool late_reached(struct queue *q, ticket t)
{
	(void)q;
	return t <= tickets_reached;
}

static int late_wait(struct queue *q, ticket t)
{
	(void)q;
	tickets_waited_for++;
	tickets_reached = t;
	return 0;
}

static uint32_t pins_of(struct rig *rig, uint32_t slot)
{
	return slot_pins(atomic_load(&rig->store.slots.state[slot]));
}

static void slots_stay_pinned_until_their_steps_have_run(void **state)
{
	static const struct backend_ops ops = {.reached = late_reached, .wait = late_wait};
	static struct expert_view views[LIMIT_EXPERTS];
	struct queue q = {.ops = &ops};
	uint16_t experts[16], tokens[16];
	struct rig rig;
	int n, all = 0;
	(void)state;
	need_model();
	tickets_reached = tickets_waited_for = 0;
	for (uint16_t i = 0; i < 16; i++) {
		experts[i] = i;
		tokens[i] = 1;
	}
	rig_start(&rig, &(struct rig_options){.budget = 8});
	run_layer(&rig, 1, 0, 4);
	rig.source->ops->begin(rig.source, 1, experts, tokens, 4);
	assert_int_equal(rig.source->ops->ready(rig.source, views), 4);
	rig.source->ops->used(rig.source, &q, 1);
	rig.source->ops->end(rig.source);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pins_of(&rig, views[i].slot), 1);
	tickets_reached = 1;
	rig.source->ops->end(rig.source);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pins_of(&rig, views[i].slot), 0);
	/* A layer of more experts than there are slots waits for the steps that hold them. */
	rig.source->ops->begin(rig.source, 2, experts, tokens, 16);
	for (ticket t = 2; (n = rig.source->ops->ready(rig.source, views)) > 0; t++, all += n)
		rig.source->ops->used(rig.source, &q, t);
	rig.source->ops->end(rig.source);
	assert_int_equal(all, 16);
	assert_true(tickets_waited_for > 0);
	tickets_reached = UINT64_MAX;
	rig.source->ops->end(rig.source);
	rig_stop(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(slots_stay_pinned_until_their_steps_have_run),
		cmocka_unit_test(a_slot_lies_as_the_file_does),
		cmocka_unit_test(preloaded_experts_are_all_hits),
		cmocka_unit_test(packed_experts_lie_together_from_a_cache_line_on),
		cmocka_unit_test(the_smallest_budget_serves_everything),
		cmocka_unit_test(a_layer_larger_than_the_budget_goes_in_waves),
		cmocka_unit_test(threads_instead_of_io_uring_serve_the_same),
		cmocka_unit_test(a_cache_that_is_gone_costs_no_wait),
		cmocka_unit_test(activations_wake_the_worker_for_every_half_of_their_ring),
		cmocka_unit_test(uses_of_what_is_resident_are_all_counted),
		cmocka_unit_test(a_cache_that_hangs_costs_the_patience),
		cmocka_unit_test(a_full_demand_ring_is_served_from_the_file),
		cmocka_unit_test(what_cannot_be_read_is_refused_at_once_and_the_verifier_reads_it),
		cmocka_unit_test(an_expert_that_changed_on_the_disk_makes_the_model_lost),
		cmocka_unit_test(a_lost_region_is_not_used_by_who_comes_later),
		cmocka_unit_test(hinted_experts_are_there_when_asked_for),
		cmocka_unit_test(only_loads_of_a_policy_that_takes_hints_are_counted_as_hinted),
		cmocka_unit_test(hints_that_say_they_are_for_ever_hold_their_slots_for_seconds),
		cmocka_unit_test(demands_out_of_range_are_ignored),
		cmocka_unit_test(rubbish_in_the_words_and_counters_stops_nobody),
		cmocka_unit_test(a_successor_keeps_what_is_resident_and_its_order),
		cmocka_unit_test(a_successor_takes_over_what_was_loaded_and_not_what_was_written),
		cmocka_unit_test(a_word_that_says_lost_and_is_not_the_owners_is_not_believed),
		cmocka_unit_test(reads_of_a_dead_process_cannot_land_in_its_successors_slots),
		cmocka_unit_test(slots_that_are_held_back_come_free_and_meanwhile_nobody_waits),
		cmocka_unit_test(a_successor_with_a_smaller_budget_keeps_what_was_used_last),
		cmocka_unit_test(another_model_gets_a_new_region),
		cmocka_unit_test(who_is_refused_for_his_own_file_has_lost_his_model),
		cmocka_unit_test(a_model_that_was_written_to_gets_a_new_region),
		cmocka_unit_test(a_region_of_another_version_is_replaced),
		cmocka_unit_test(a_budget_that_falls_gives_memory_back_and_one_that_rises_uses_it),
		cmocka_unit_test(the_pages_of_a_load_that_failed_count_as_found_ahead),
		cmocka_unit_test(pages_are_found_ahead_as_far_as_the_budget_allows),
		cmocka_unit_test(a_pinned_layer_outlives_a_budget_that_falls_below_it),
		cmocka_unit_test(
			a_new_policy_knows_what_is_resident_and_in_which_order_it_was_used),
		cmocka_unit_test(changes_in_the_middle_of_everything_lose_nothing),
		cmocka_unit_test(uses_are_counted_by_expert_and_prefetches_by_what_became_of_them),
		cmocka_unit_test(a_dead_verifiers_pins_do_not_starve_its_successor),
	};
	log_init("test", 0);
	return cmocka_run_group_tests(tests, group_init, group_exit);
}
