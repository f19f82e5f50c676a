/* Cells, pages and markers: nothing is held twice, nothing is lost, and a successor finds what was committed. */
#include "tests/model/rig.h"

enum { PAGES = 8, CELLS = PAGES * KV_PAGE_CELLS };

static const struct kv_layout layout = {2, 3, 16, KV_F32, PAGES};

struct cache {
	struct kv kv;
	void *memory;
};

static void cache_open(struct cache *cache)
{
	struct error err;
	cache->memory = aligned_alloc(64, (kv_bytes(&layout) + 63) / 64 * 64);
	assert_non_null(cache->memory);
	assert_int_equal(kv_init(&cache->kv, cache->memory, &layout, true, &err), 0);
}

/* The process dies and another one maps the same memory. */
static void cache_restart(struct cache *cache)
{
	struct error err;
	kv_exit(&cache->kv);
	assert_int_equal(kv_init(&cache->kv, cache->memory, &layout, false, &err), 0);
}

static void cache_close(struct cache *cache)
{
	kv_exit(&cache->kv);
	free(cache->memory);
}

/* A sequence of the dead process: its lists are gone, its pages are not. */
static void seq_forget(struct kv_seq *seq)
{
	free(seq->cell);
	free(seq->spare);
	free(seq->pages);
}

static void grow(struct cache *cache, struct kv_seq *seq, uint32_t n)
{
	uint32_t cells[CELLS];
	assert_int_equal(kv_take(&cache->kv, seq, n, cells), 0);
	kv_commit(&cache->kv, seq, cells, n, NULL, 0);
}

static int32_t marker(const struct cache *cache, uint32_t cell)
{
	return atomic_load(&cache->kv.meta[cell / KV_PAGE_CELLS].position[cell % KV_PAGE_CELLS]);
}

static void bytes_hold_meta_and_every_vector_apart(void **state)
{
	(void)state;
	struct cache cache;
	cache_open(&cache);
	const unsigned char *at = (const unsigned char *)(cache.kv.meta + PAGES);
	size_t head = (size_t)CELLS * layout.head_dim * 4;
	for (uint32_t l = 0; l < layout.n_layers; l++) {
		for (int v = 0; v < 2; v++) {
			for (uint32_t h = 0; h < layout.n_kv_heads; h++) {
				const unsigned char *p =
					v ? kv_v(&cache.kv, l, h) : kv_k(&cache.kv, l, h);
				assert_true(p >= at);
				assert_int_equal((uintptr_t)p % 64, 0);
				at = p + head;
			}
		}
	}
	assert_true((size_t)(at - (const unsigned char *)cache.memory) == kv_bytes(&layout));
	cache_close(&cache);
}

static void layouts_out_of_bounds_are_refused(void **state)
{
	(void)state;
	struct error err;
	struct kv kv;
	static _Alignas(64) unsigned char memory[64];
	const struct kv_layout bad[] = {
		{0, 3, 16, KV_F32, 8},
		{LIMIT_LAYERS + 1, 3, 16, KV_F32, 8},
		{2, 0, 16, KV_F32, 8},
		{2, LIMIT_HEADS + 1, 16, KV_F32, 8},
		{2, 3, 0, KV_F32, 8},
		{2, 3, LIMIT_HEAD_DIM + 1, KV_F32, 8},
		{2, 3, 16, (enum kv_type)7, 8},
		{2, 3, 16, KV_F32, 0},
		{2, 3, 16, KV_F32, KV_PAGES_MAX + 1},
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		assert_int_equal(kv_bytes(&bad[i]), 0);
		assert_int_equal(kv_init(&kv, memory, &bad[i], true, &err), -EINVAL);
	}
	assert_int_equal(kv_init(&kv, memory + 8, &layout, true, &err), -EINVAL);
	struct kv_seq seq;
	assert_int_equal(kv_seq_init(&seq, 0, 10), -EINVAL);
	assert_int_equal(kv_seq_init(&seq, 1, 0), -EINVAL);
	assert_int_equal(kv_seq_init(&seq, 1, LIMIT_CONTEXT + 1), -EINVAL);
}

static void a_full_cache_refuses_and_takes_nothing(void **state)
{
	(void)state;
	struct cache cache;
	struct kv_seq a, b;
	uint32_t cells[CELLS];
	cache_open(&cache);
	assert_int_equal(kv_seq_init(&a, 1, 7 * KV_PAGE_CELLS), 0);
	assert_int_equal(kv_seq_init(&b, 2, CELLS), 0);
	grow(&cache, &a, 7 * KV_PAGE_CELLS - 2);
	assert_int_equal(kv_free_cells(&cache.kv, &b), KV_PAGE_CELLS);
	assert_int_equal(kv_take(&cache.kv, &b, KV_PAGE_CELLS + 1, cells), -ENOSPC);
	assert_int_equal(kv_take(&cache.kv, &b, UINT32_MAX, cells), -ENOSPC);
	assert_int_equal(b.n_pages, 0);
	/* Its own room, although a page is free: n_max and a draft. */
	assert_int_equal(kv_take(&cache.kv, &a, KV_PAGE_CELLS + 3, cells), -ENOSPC);
	assert_int_equal(kv_take(&cache.kv, &a, 2 + LIMIT_DRAFT, cells), 0);
	kv_commit(&cache.kv, &a, cells, 2, cells + 2, LIMIT_DRAFT);
	assert_int_equal(a.n, a.n_max);
	assert_int_equal(kv_take(&cache.kv, &b, 1, cells), -ENOSPC);
	kv_seq_exit(&cache.kv, &a);
	assert_int_equal(kv_free_cells(&cache.kv, &b), CELLS);
	assert_int_equal(kv_take(&cache.kv, &b, CELLS, cells), 0);
	kv_commit(&cache.kv, &b, cells, 1, cells + 1, CELLS - 1);
	kv_seq_exit(&cache.kv, &b);
	cache_close(&cache);
}

/* Random taking, committing, rejecting and truncating of three sequences: every cell has at most one holder, and the
 * markers say exactly what the maps say. */
static void no_cell_has_two_holders(void **state)
{
	(void)state;
	struct cache cache;
	struct kv_seq seqs[3];
	uint64_t random = 3;
	cache_open(&cache);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(kv_seq_init(&seqs[i], i + 1, 100), 0);
	for (int step = 0; step < 4000; step++) {
		struct kv_seq *seq = &seqs[rig_random(&random) % 3];
		uint32_t cells[16], n = (uint32_t)(rig_random(&random) % 16) + 1;
		if (rig_random(&random) % 8 == 0) {
			kv_truncate(&cache.kv, seq, (uint32_t)(rig_random(&random) % 101));
		} else if (seq->n + n <= seq->n_max && kv_take(&cache.kv, seq, n, cells) == 0) {
			uint32_t keep = (uint32_t)(rig_random(&random) % (n + 1));
			/* The last ones are accepted: any of those taken may be. */
			kv_commit(&cache.kv, seq, cells + n - keep, keep, cells, n - keep);
		}
		int32_t expected[CELLS];
		bool held[CELLS] = {false};
		memset(expected, -1, sizeof(expected));
		for (uint32_t i = 0; i < 3; i++) {
			assert_int_equal(
				seqs[i].n + seqs[i].n_spare, seqs[i].n_pages * KV_PAGE_CELLS);
			for (uint32_t j = 0; j < seqs[i].n + seqs[i].n_spare; j++) {
				uint32_t cell = j < seqs[i].n ? seqs[i].cell[j]
							      : seqs[i].spare[j - seqs[i].n];
				assert_true(cell < CELLS && !held[cell]);
				held[cell] = true;
				expected[cell] = j < seqs[i].n ? (int32_t)j : -1;
				assert_int_equal(
					atomic_load(&cache.kv.meta[cell / KV_PAGE_CELLS].owner),
					i + 1);
			}
		}
		for (uint32_t cell = 0; cell < CELLS; cell++)
			assert_int_equal(marker(&cache, cell), expected[cell]);
	}
	for (uint32_t i = 0; i < 3; i++)
		kv_seq_exit(&cache.kv, &seqs[i]);
	assert_int_equal(cache.kv.n_free, PAGES);
	cache_close(&cache);
}

static void a_successor_adopts_what_was_committed_and_nothing_in_flight(void **state)
{
	(void)state;
	struct cache cache;
	struct kv_seq dead, other, heir;
	uint32_t cells[16], before[50];
	cache_open(&cache);
	assert_int_equal(kv_seq_init(&dead, 77, 120), 0);
	assert_int_equal(kv_seq_init(&other, 78, 120), 0);
	grow(&cache, &dead, 40);
	grow(&cache, &other, 33);
	grow(&cache, &dead, 10);
	kv_truncate(&cache.kv, &dead, 45);
	grow(&cache, &dead, 5);
	memcpy(before, dead.cell, sizeof(before));
	assert_int_equal(kv_take(&cache.kv, &dead, 16, cells), 0);
	seq_forget(&dead);
	seq_forget(&other);
	cache_restart(&cache);

	assert_int_equal(kv_seq_init(&heir, 77, 120), 0);
	kv_adopt(&cache.kv, &heir, 120);
	assert_int_equal(heir.n, 50);
	assert_memory_equal(heir.cell, before, sizeof(before));
	assert_int_equal(heir.n + heir.n_spare, heir.n_pages * KV_PAGE_CELLS);
	/* The other owner is not among the living. */
	kv_reclaim(&cache.kv, (const uint64_t[]){77}, 1);
	assert_int_equal(cache.kv.n_free, PAGES - heir.n_pages);
	grow(&cache, &heir, 60);
	kv_seq_exit(&cache.kv, &heir);
	assert_int_equal(cache.kv.n_free, PAGES);
	cache_close(&cache);
}

static void adoption_stops_at_the_limit_and_at_the_first_gap(void **state)
{
	(void)state;
	struct cache cache;
	struct kv_seq dead, heir;
	cache_open(&cache);
	assert_int_equal(kv_seq_init(&dead, 5, 120), 0);
	grow(&cache, &dead, 90);
	seq_forget(&dead);
	cache_restart(&cache);
	assert_int_equal(kv_seq_init(&heir, 5, 120), 0);
	kv_adopt(&cache.kv, &heir, 70);
	assert_int_equal(heir.n, 70);
	atomic_store(&cache.kv.meta[heir.cell[30] / KV_PAGE_CELLS]
			      .position[heir.cell[30] % KV_PAGE_CELLS],
		-1);
	seq_forget(&heir);
	cache_restart(&cache);
	assert_int_equal(kv_seq_init(&heir, 5, 120), 0);
	kv_adopt(&cache.kv, &heir, 120);
	assert_int_equal(heir.n, 30);
	assert_int_equal(heir.n_spare, heir.n_pages * KV_PAGE_CELLS - 30);
	for (uint32_t cell = 0; cell < CELLS; cell++)
		assert_true(marker(&cache, cell) < 30);
	kv_seq_exit(&cache.kv, &heir);
	cache_close(&cache);
}

/* The memory outlives processes; whatever it says, indices stay in range and no cell is held twice. */
static void rubbish_in_the_markers_does_no_harm(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 200; seed++) {
		struct cache cache;
		struct kv_seq heir;
		uint64_t random = seed;
		cache_open(&cache);
		for (uint32_t page = 0; page < PAGES; page++) {
			atomic_store(&cache.kv.meta[page].owner, rig_random(&random) % 3 * 5);
			for (uint32_t i = 0; i < KV_PAGE_CELLS; i++)
				atomic_store(&cache.kv.meta[page].position[i],
					seed % 2 ? (int32_t)rig_random(&random)
						 : (int32_t)(rig_random(&random) % 40) - 4);
		}
		cache_restart(&cache);
		assert_int_equal(kv_seq_init(&heir, 5, 60), 0);
		kv_adopt(&cache.kv, &heir, 60);
		bool held[CELLS] = {false};
		for (uint32_t i = 0; i < heir.n + heir.n_spare; i++) {
			uint32_t cell = i < heir.n ? heir.cell[i] : heir.spare[i - heir.n];
			assert_true(cell < CELLS && !held[cell]);
			held[cell] = true;
		}
		kv_reclaim(&cache.kv, (const uint64_t[]){5}, 1);
		assert_int_equal(cache.kv.n_free + heir.n_pages, PAGES);
		kv_seq_exit(&cache.kv, &heir);
		cache_close(&cache);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_hold_meta_and_every_vector_apart),
		cmocka_unit_test(layouts_out_of_bounds_are_refused),
		cmocka_unit_test(a_full_cache_refuses_and_takes_nothing),
		cmocka_unit_test(no_cell_has_two_holders),
		cmocka_unit_test(a_successor_adopts_what_was_committed_and_nothing_in_flight),
		cmocka_unit_test(adoption_stops_at_the_limit_and_at_the_first_gap),
		cmocka_unit_test(rubbish_in_the_markers_does_no_harm),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
