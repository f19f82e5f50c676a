/* Cells, pages and markers: nothing is held twice, nothing is lost, and a successor finds what was committed. */
#include "tests/model/rig.h"

#include <errno.h>

enum { PAGES = 8, CELLS = PAGES * KV_PAGE_CELLS };

/* Layers, heads, lengths of key and value, type, pages. */
#define LAYOUT(l, h, k, v, t, p)                                                             \
	{                                                                                    \
		.n_layers = (l), .n_kv_heads = (h), .k_dim = (k), .v_dim = (v), .type = (t), \
		.n_pages = (p)                                                               \
	}
enum { WINDOW = 16, KEPT = 24, WINDOW_CELLS = 100 };

static struct kv_layout layout = LAYOUT(2, 3, 16, 16, KV_F32, PAGES);
/* One layer of two has a window. */
static const struct kv_windows_layout windows = {1, WINDOW_CELLS, WINDOW, KEPT};

struct cache {
	struct kv kv;
	void *memory;
};

static void init(struct kv *kv, void *memory, const struct kv_layout *l, bool fresh)
{
	struct error err;
	assert_int_equal(kv_init_memory(kv, test_backend(), memory, l, fresh, &err), 0);
}

static void cache_open(struct cache *cache)
{
	cache->memory = aligned_alloc(64, kv_bytes(&layout));
	assert_non_null(cache->memory);
	init(&cache->kv, cache->memory, &layout, true);
}

/* The process dies and another one maps the same memory. */
static void cache_restart(struct cache *cache)
{
	kv_exit(&cache->kv);
	init(&cache->kv, cache->memory, &layout, false);
}

static void cache_close(struct cache *cache)
{
	kv_exit(&cache->kv);
	free(cache->memory);
}

static void grow(struct cache *cache, struct kv_seq *seq, uint32_t n)
{
	uint32_t cells[CELLS];
	assert_int_equal(kv_take(&cache->kv, seq, n, cells), 0);
	kv_commit(&cache->kv, seq, cells, n, NULL, 0);
}

/* Of the sequence's cells, number i: first those of its positions, then the spare ones. */
static uint32_t cell_of(const struct kv *kv, const struct kv_seq *seq, uint32_t i)
{
	if (i < seq->n)
		return seq->cell[i];
	i -= seq->n;
	for (uint32_t page = seq->spare; page != KV_NONE; page = kv->pages[page].next_spare)
		for (uint32_t cell = 0; cell < KV_PAGE_CELLS; cell++)
			if (kv->pages[page].spare >> cell & 1 && i-- == 0)
				return page * KV_PAGE_CELLS + cell;
	fail_msg("fewer spare cells than are counted");
	return KV_NONE;
}

static int32_t marker(const struct cache *cache, uint32_t cell)
{
	return atomic_load(&cache->kv.meta[cell / KV_PAGE_CELLS].position[cell % KV_PAGE_CELLS]);
}

/* Vectors of one layout: in order, aligned, apart, and all within the store; and the tables within the map. */
static void check_vectors(const struct kv_layout *l)
{
	struct kv kv;
	void *memory = aligned_alloc(64, kv_bytes(l));
	assert_non_null(memory);
	init(&kv, memory, l, true);
	assert_int_equal(kv.k_bytes, kv_vector_bytes(l->type, l->k_dim));
	assert_int_equal(kv.v_bytes, kv_vector_bytes(l->type, l->v_dim ? l->v_dim : l->k_dim));
	uint32_t n_cells = l->n_pages * KV_PAGE_CELLS;
	const unsigned char *map_end = (const unsigned char *)(kv.meta + l->n_pages);
	if (l->windows.n_layers) {
		assert_ptr_equal(kv.windows.shared, map_end);
		map_end += n_cells * sizeof(uint32_t);
	}
	assert_true((size_t)(map_end - (unsigned char *)memory) <= kv_map_bytes(l));
	assert_ptr_equal(kv.store.host, (unsigned char *)memory + kv_map_bytes(l));
	size_t at = 0;
	for (uint32_t layer = 0; layer < l->n_layers; layer++) {
		for (int v = 0; v < 2; v++) {
			for (uint32_t h = 0; h < l->n_kv_heads; h++) {
				size_t p = v ? kv_v(&kv, layer, h) : kv_k(&kv, layer, h);
				assert_int_equal(p % 64, 0);
				if (v && l->v_dim == 0) {
					assert_int_equal(p, kv_k(&kv, layer, h));
					continue;
				}
				assert_true(p >= at);
				uint32_t cells =
					kv_own_window(&kv, layer) ? l->windows.n_cells : n_cells;
				/* Turned vectors lie in whole turns. */
				cells = (cells + KV_TURN - 1) / KV_TURN * KV_TURN;
				at = p + cells * (v ? kv.v_bytes : kv.k_bytes);
			}
		}
	}
	assert_true(at <= kv_store_bytes(l) && kv_store_bytes(l) - at < 64);
	assert_int_equal(kv_bytes(l), kv_map_bytes(l) + kv_store_bytes(l));
	kv_exit(&kv);
	free(memory);
}

static void bytes_hold_meta_and_every_vector_apart(void **state)
{
	(void)state;
	struct kv_layout layouts[] = {
		layout,
		LAYOUT(2, 3, 16, 24, KV_F16, 8),
		LAYOUT(3, 2, 64, 128, KV_Q8_0, 5),
		LAYOUT(3, 2, 7, 33, KV_Q8_0, 5), /* blocks that are short, and of odd length */
		LAYOUT(4, 1, 576, 0, KV_Q8_0, 3),
		LAYOUT(3, 2, 7, 33, KV_Q16_0, 5),
		LAYOUT(4, 1, 576, 0, KV_Q16_0, 3),
		LAYOUT(4, 1, 40, 0, KV_F32, 3),
		LAYOUT(4, 2, 16, 24, KV_F16, 8),
	};
	layouts[8].windows = (struct kv_windows_layout){3, WINDOW_CELLS, WINDOW, KEPT};
	for (size_t i = 0; i < sizeof(layouts) / sizeof(*layouts); i++)
		check_vectors(&layouts[i]);
	const struct kv_layout q8 = LAYOUT(1, 1, 64, 64, KV_Q8_0, 4),
			       f16 = LAYOUT(1, 1, 64, 64, KV_F16, 4);
	assert_true(kv_bytes(&q8) - sizeof(struct kv_page_meta) * 4 <
		    (kv_bytes(&f16) - sizeof(struct kv_page_meta) * 4) * 54 / 100);
}

static void types_have_names_and_other_names_are_refused(void **state)
{
	(void)state;
	enum kv_type type;
	for (int i = KV_F32; i <= KV_Q16_0; i++) {
		assert_int_equal(kv_type_named(kv_type_name((enum kv_type)i), &type), 0);
		assert_int_equal(type, i);
	}
	assert_int_equal(kv_type_named("q8_0", &type), 0);
	assert_int_equal(type, KV_Q8_0);
	assert_int_equal(kv_type_named("q8", &type), -EINVAL);
	assert_int_equal(kv_type_named("", &type), -EINVAL);
}

static void layouts_out_of_bounds_are_refused(void **state)
{
	(void)state;
	struct error err;
	struct kv kv;
	static _Alignas(64) unsigned char memory[64];
	const struct kv_layout bad[] = {
		LAYOUT(0, 3, 16, 16, KV_F32, 8),
		LAYOUT(LIMIT_LAYERS + 1, 3, 16, 16, KV_F32, 8),
		LAYOUT(2, 0, 16, 16, KV_F32, 8),
		LAYOUT(2, LIMIT_HEADS + 1, 16, 16, KV_F32, 8),
		LAYOUT(2, 3, 0, 16, KV_F32, 8),
		LAYOUT(2, 3, LIMIT_HEAD_DIM + 1, 16, KV_F32, 8),
		LAYOUT(2, 3, 16, LIMIT_HEAD_DIM + 1, KV_F32, 8),
		LAYOUT(2, 3, 16, 16, (enum kv_type)7, 8),
		LAYOUT(2, 3, 16, 16, KV_F32, 0),
		LAYOUT(2, 3, 16, 16, KV_F32, KV_PAGES_MAX + 1),
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		assert_int_equal(kv_bytes(&bad[i]), 0);
		assert_int_equal(
			kv_init_memory(&kv, test_backend(), memory, &bad[i], true, &err), -EINVAL);
	}
	for (size_t i = 0; i < 2; i++) {
		struct buffer store;
		assert_int_equal(test_backend()->ops->wrap(test_backend(), memory + 8 * i,
					 sizeof(memory) - 8 * i, &store, &err),
			0);
		assert_int_equal(
			kv_init(&kv, memory + 8 * !i, &store, &layout, true, &err), -EINVAL);
	}
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
	assert_int_equal(kv_take(&cache.kv, &a, 2 + LIMIT_DRAFT_SHARE, cells), 0);
	kv_commit(&cache.kv, &a, cells, 2, cells + 2, LIMIT_DRAFT_SHARE);
	assert_int_equal(a.n, a.n_max);
	assert_int_equal(kv_take(&cache.kv, &b, 1, cells), -ENOSPC);
	kv_seq_exit(&cache.kv, &a);
	assert_int_equal(kv_free_cells(&cache.kv, &b), CELLS);
	assert_int_equal(kv_take(&cache.kv, &b, CELLS, cells), 0);
	kv_commit(&cache.kv, &b, cells, 1, cells + 1, CELLS - 1);
	kv_seq_exit(&cache.kv, &b);
	cache_close(&cache);
}

/* Between passes: the newest positions have window cells, each its own, and nobody else has any. */
static void check_windows(const struct kv *kv, const struct kv_seq *seqs, uint32_t n_seqs)
{
	bool held[WINDOW_CELLS] = {false};
	uint32_t n_held = 0;
	if (kv->layout.windows.n_layers == 0)
		return;
	for (uint32_t i = 0; i < kv->windows.n_free; i++) {
		assert_true(kv->windows.free[i] < WINDOW_CELLS && !held[kv->windows.free[i]]);
		held[kv->windows.free[i]] = true;
	}
	for (uint32_t i = 0; i < n_seqs; i++) {
		const struct kv_seq *seq = &seqs[i];
		assert_true(seq->window_first == 0 || seq->n >= seq->window_first + WINDOW - 1);
		assert_true(seq->n - seq->window_first <= KEPT);
		for (uint32_t p = seq->window_first; p < seq->n; p++, n_held++) {
			uint32_t at = kv_cell(kv, 1, seq->cell[p]);
			assert_true(at < WINDOW_CELLS && !held[at]);
			assert_int_equal(atomic_load(&kv->windows.shared[seq->cell[p]]), at);
			assert_int_equal(kv_cell(kv, 0, seq->cell[p]), seq->cell[p]);
			held[at] = true;
		}
	}
	assert_int_equal(n_held + kv->windows.n_free, WINDOW_CELLS);
}

/* Random taking, committing, rejecting and truncating of three sequences: every cell has at most one holder, and the
 * markers say exactly what the maps say. */
static void check_holders(void)
{
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
		check_windows(&cache.kv, seqs, 3);
		for (uint32_t i = 0; i < 3; i++) {
			assert_int_equal(
				seqs[i].n + seqs[i].n_spare, seqs[i].n_pages * KV_PAGE_CELLS);
			for (uint32_t j = 0; j < seqs[i].n + seqs[i].n_spare; j++) {
				uint32_t cell = cell_of(&cache.kv, &seqs[i], j);
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

static void no_cell_has_two_holders(void **state)
{
	(void)state;
	check_holders();
	layout.windows = windows;
	check_holders();
	layout.windows = (struct kv_windows_layout){0};
}

/* A long sequence needs no more window cells than a short one; when they are all taken there is none for others. */
static void a_window_slides_in_a_few_cells(void **state)
{
	(void)state;
	struct cache cache;
	struct kv_seq seqs[2];
	uint32_t cells[WINDOW_CELLS + 1];
	layout.windows = windows;
	cache_open(&cache);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(kv_seq_init(&seqs[i], i + 1, 220), 0);
	for (uint32_t i = 0; i < 30; i++) {
		grow(&cache, &seqs[0], 1 + i % 3);
		check_windows(&cache.kv, seqs, 2);
	}
	assert_int_equal(seqs[0].n - seqs[0].window_first, KEPT);
	assert_int_equal(kv_take(&cache.kv, &seqs[1], WINDOW_CELLS - KEPT + 1, cells), -ENOSPC);
	assert_int_equal(seqs[1].n_pages, 0);
	check_windows(&cache.kv, seqs, 2);
	/* A step back within what is kept is one; further back there is nothing to go on from. */
	kv_truncate(&cache.kv, &seqs[0], seqs[0].n - (KEPT - WINDOW));
	assert_int_equal(seqs[0].n, 60 - (KEPT - WINDOW));
	check_windows(&cache.kv, seqs, 2);
	kv_truncate(&cache.kv, &seqs[0], seqs[0].n - 2);
	assert_int_equal(seqs[0].n, 0);
	check_windows(&cache.kv, seqs, 2);
	assert_int_equal(cache.kv.windows.n_free, WINDOW_CELLS);
	/* In flight when the sequence ends. */
	assert_int_equal(kv_take(&cache.kv, &seqs[1], WINDOW_CELLS, cells), 0);
	assert_int_equal(kv_take(&cache.kv, &seqs[0], 1, cells), -ENOSPC);
	kv_seq_exit(&cache.kv, &seqs[1]);
	assert_int_equal(kv_take(&cache.kv, &seqs[0], 1, cells), 0);
	kv_seq_exit(&cache.kv, &seqs[0]);
	assert_int_equal(cache.kv.windows.n_free, WINDOW_CELLS);
	cache_close(&cache);
	layout.windows = (struct kv_windows_layout){0};
}

static void a_successor_adopts_windows(void **state)
{
	(void)state;
	/* Up to the step back that is kept; beyond it the sequence begins anew. */
	const uint32_t limits[] = {150, 150 - (KEPT - WINDOW), 150 - (KEPT - WINDOW) - 2};
	layout.windows = windows;
	for (int i = 0; i < 3; i++) {
		struct cache cache;
		struct kv_seq dead, other, heir;
		uint32_t cells[16], before[WINDOW];
		cache_open(&cache);
		assert_int_equal(kv_seq_init(&dead, 77, 160), 0);
		assert_int_equal(kv_seq_init(&other, 78, 160), 0);
		for (int j = 0; j < 15; j++)
			grow(&cache, &dead, 10);
		grow(&cache, &other, 33);
		for (uint32_t j = 0; j < WINDOW; j++)
			before[j] = kv_cell(&cache.kv, 1, dead.cell[limits[i] - 1 - j]);
		assert_int_equal(kv_take(&cache.kv, &dead, 16, cells), 0);
		kv_seq_forget(&dead);
		kv_seq_forget(&other);
		cache_restart(&cache);

		assert_int_equal(kv_seq_init(&heir, 77, 160), 0);
		kv_adopt(&cache.kv, &heir, limits[i]);
		kv_reclaim(&cache.kv);
		check_windows(&cache.kv, &heir, 1);
		assert_int_equal(heir.n, i < 2 ? limits[i] : 0);
		for (uint32_t j = 0; j < WINDOW && i < 2 && j + 1 < WINDOW; j++)
			assert_int_equal(
				kv_cell(&cache.kv, 1, heir.cell[heir.n - 1 - j]), before[j]);
		grow(&cache, &heir, 10);
		check_windows(&cache.kv, &heir, 1);
		kv_seq_exit(&cache.kv, &heir);
		assert_int_equal(cache.kv.windows.n_free, WINDOW_CELLS);
		cache_close(&cache);
	}
	layout.windows = (struct kv_windows_layout){0};
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
	kv_seq_forget(&dead);
	kv_seq_forget(&other);
	cache_restart(&cache);

	assert_int_equal(kv_seq_init(&heir, 77, 120), 0);
	kv_adopt(&cache.kv, &heir, 120);
	assert_int_equal(heir.n, 50);
	assert_memory_equal(heir.cell, before, sizeof(before));
	assert_int_equal(heir.n + heir.n_spare, heir.n_pages * KV_PAGE_CELLS);
	/* The other owner is not among the living. */
	kv_reclaim(&cache.kv);
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
	kv_seq_forget(&dead);
	cache_restart(&cache);
	assert_int_equal(kv_seq_init(&heir, 5, 120), 0);
	kv_adopt(&cache.kv, &heir, 70);
	assert_int_equal(heir.n, 70);
	atomic_store(&cache.kv.meta[heir.cell[30] / KV_PAGE_CELLS]
			      .position[heir.cell[30] % KV_PAGE_CELLS],
		-1);
	kv_seq_forget(&heir);
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

static void fill(struct cache *cache, uint64_t *random)
{
	for (size_t i = 0; i < kv_store_bytes(&layout); i++)
		cache->kv.store.host[i] = (unsigned char)rig_random(random);
}

/* Whether the byte is one of the turn's keys and values. */
static bool is_in_turn(const struct kv *kv, const unsigned char *at, uint32_t turn)
{
	for (uint32_t layer = 0; layer < layout.n_layers; layer++) {
		for (uint32_t head = 0; head < layout.n_kv_heads; head++) {
			const unsigned char *k = kv->store.host + kv_k(kv, layer, head);
			const unsigned char *v = kv->store.host + kv_v(kv, layer, head);
			k += turn * KV_TURN * kv->k_bytes;
			v += turn * KV_TURN * kv->v_bytes;
			if ((at >= k && at < k + KV_TURN * kv->k_bytes) ||
				(at >= v && at < v + KV_TURN * kv->v_bytes))
				return true;
		}
	}
	return false;
}

/* Whether it is in what is known of the turn's page. What is about chains is not, in a page that is not shared. */
static bool is_in_meta(const struct kv *kv, const unsigned char *at, uint32_t turn)
{
	const struct kv_page_meta *page = &kv->meta[turn / KV_SUMS];
	const unsigned char *meta = (const unsigned char *)page;
	const unsigned char *before = (const unsigned char *)&page->before;
	const unsigned char *chain = (const unsigned char *)&page->chain;
	const unsigned char *name = (const unsigned char *)&page->domain; /* the last fields */
	return at >= meta && at < meta + sizeof(*page) &&
	       !(at >= before && at < before + sizeof(page->before)) &&
	       !(at >= chain && at < chain + sizeof(page->chain)) && at < name;
}

/* How much a successor gets of a sequence of 100 tokens of which one byte somewhere became another: `full` of them fill turns. */
static void spoil_one(uint64_t *random)
{
	const uint32_t full = 96;
	struct cache cache;
	struct kv_seq dead, other, heir;
	uint32_t cells[100];
	cache_open(&cache);
	kv_check(&cache.kv);
	fill(&cache, random);
	assert_int_equal(kv_seq_init(&dead, 77, 120), 0);
	assert_int_equal(kv_seq_init(&other, 78, 120), 0);
	grow(&cache, &dead, 40);
	grow(&cache, &other, 33);
	grow(&cache, &dead, 60);
	memcpy(cells, dead.cell, sizeof(cells));
	kv_seq_forget(&dead);
	kv_seq_forget(&other);
	unsigned char *at = (unsigned char *)cache.memory + rig_random(random) % kv_bytes(&layout);
	if (rig_random(random) % 2 == 0)
		at = (unsigned char *)&cache.kv.meta[0] +
		     rig_random(random) % (PAGES * sizeof(cache.kv.meta[0]));
	*at ^= (unsigned char)(1 + rig_random(random) % 255);
	cache_restart(&cache);
	kv_check(&cache.kv);
	assert_int_equal(kv_seq_init(&heir, 77, 120), 0);
	kv_adopt(&cache.kv, &heir, 99);
	uint32_t bytes_at = full, meta_at = full;
	for (uint32_t i = full; i-- > 0;) {
		if (is_in_turn(&cache.kv, at, cells[i] / KV_TURN))
			bytes_at = i;
		if (is_in_meta(&cache.kv, at, cells[i] / KV_TURN))
			meta_at = i;
	}
	/* A page's record may be wrong about one of its two turns. */
	if (meta_at == full)
		assert_int_equal(heir.n, bytes_at);
	else
		assert_true(heir.n == meta_at || heir.n == meta_at + KV_TURN);
	for (uint32_t i = 0; i < heir.n; i++)
		assert_int_equal(heir.cell[i], cells[i]);
	kv_reclaim(&cache.kv);
	assert_int_equal(cache.kv.n_free + heir.n_pages, PAGES);
	kv_seq_exit(&cache.kv, &heir);
	cache_close(&cache);
}

static void cells_that_were_written_to_are_not_taken_over(void **state)
{
	(void)state;
	const struct kv_layout before = layout;
	const struct kv_layout layouts[] = {
		LAYOUT(2, 3, 16, 16, KV_F32, PAGES),
		LAYOUT(2, 1, 40, 0, KV_F16, PAGES), /* values in the keys */
		LAYOUT(1, 2, 48, 32, KV_Q8_0, PAGES),
		LAYOUT(3, 2, 32, 32, KV_Q16_0, PAGES),
	};
	uint64_t random = 5;
	for (size_t l = 0; l < sizeof(layouts) / sizeof(layouts[0]); l++) {
		layout = layouts[l];
		for (int i = 0; i < 400; i++)
			spoil_one(&random);
	}
	layout = before;
}

static void sums_of_what_was_not_written_to_hold(void **state)
{
	(void)state;
	struct cache cache;
	struct kv_seq dead, heir;
	uint32_t cells[16], accepted[3], rejected[3];
	uint64_t random = 9;
	cache_open(&cache);
	kv_check(&cache.kv);
	fill(&cache, &random);
	assert_int_equal(kv_seq_init(&dead, 77, 120), 0);
	/* Drafts that are taken back, and tokens that are; what is written over has another sum. */
	for (int round = 0; round < 24; round++) {
		assert_int_equal(kv_take(&cache.kv, &dead, 6, cells), 0);
		for (int i = 0; i < 3; i++) {
			accepted[i] = cells[2 * i];
			rejected[i] = cells[2 * i + 1];
		}
		for (int i = 0; i < 6; i++)
			memset(cache.kv.store.host + kv_v(&cache.kv, 1, 2) +
					cells[i] * cache.kv.v_bytes,
				round, cache.kv.v_bytes);
		kv_commit(&cache.kv, &dead, accepted, 3, rejected, 3);
		if (round % 5 == 4)
			kv_truncate(&cache.kv, &dead, dead.n - 4);
	}
	uint32_t n = dead.n;
	kv_seq_forget(&dead);
	for (int turn = 0; turn < 3; turn++) {
		cache_restart(&cache);
		kv_check(&cache.kv);
		assert_int_equal(kv_seq_init(&heir, 77, 120), 0);
		kv_adopt(&cache.kv, &heir, n);
		/* What was in flight and then committed elsewhere may lie in the last turn. */
		assert_true(heir.n <= n && heir.n + 2 * KV_TURN > n);
		n = heir.n;
		if (turn < 2)
			kv_seq_forget(&heir);
	}
	grow(&cache, &heir, 16);
	kv_seq_exit(&cache.kv, &heir);
	cache_close(&cache);
}

/* The memory outlives processes; whatever it says, indices stay in range and no cell is held twice. */
static void rubbish_in_the_markers_does_no_harm(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 400; seed++) {
		struct cache cache;
		struct kv_seq heir;
		uint64_t random = seed;
		layout.windows = windows;
		if (seed < 200)
			memset(&layout.windows, 0, sizeof(layout.windows));
		cache_open(&cache);
		for (uint32_t cell = 0; cell < CELLS && seed >= 200; cell++)
			atomic_store(&cache.kv.windows.shared[cell],
				(uint32_t)(rig_random(&random) % (WINDOW_CELLS + seed % 20)));
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
			uint32_t cell = cell_of(&cache.kv, &heir, i);
			assert_true(cell < CELLS && !held[cell]);
			held[cell] = true;
		}
		kv_reclaim(&cache.kv);
		assert_int_equal(cache.kv.n_free + heir.n_pages, PAGES);
		check_windows(&cache.kv, &heir, 1);
		kv_seq_exit(&cache.kv, &heir);
		cache_close(&cache);
	}
	layout.windows = (struct kv_windows_layout){0};
}

/* However many owners there are, to find what all of them have takes about as many steps as there are things. */
static void an_owner_is_found_without_a_look_at_the_others(void **state)
{
	enum { N = 1 << 14 };
	static const uint32_t counts[] = {1, 16, 256, 4096};
	(void)state;
	for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
		struct owners owners;
		uint64_t random = c, uids[4096];
		uint32_t steps = 0, found = 0;
		assert_int_equal(owners_init(&owners, N), 0);
		/* Neighbouring numbers, and any. */
		for (uint32_t i = 0; i < counts[c]; i++)
			uids[i] = i % 2 ? rig_random(&random) : i + 1;
		for (uint32_t i = 0; i < N; i++)
			owners_add(&owners, i, uids[i % counts[c]]);
		for (uint32_t o = 0; o < counts[c]; o++) {
			for (uint32_t i = owners_first(&owners, uids[o]); i != OWNERS_NONE;
				i = owners_next(&owners, i), steps++)
				found += i % counts[c] == o;
		}
		assert_int_equal(found, N);
		assert_true(steps < 2 * N);
		owners_exit(&owners);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_owner_is_found_without_a_look_at_the_others),
		cmocka_unit_test(bytes_hold_meta_and_every_vector_apart),
		cmocka_unit_test(types_have_names_and_other_names_are_refused),
		cmocka_unit_test(layouts_out_of_bounds_are_refused),
		cmocka_unit_test(a_full_cache_refuses_and_takes_nothing),
		cmocka_unit_test(no_cell_has_two_holders),
		cmocka_unit_test(a_window_slides_in_a_few_cells),
		cmocka_unit_test(a_successor_adopts_windows),
		cmocka_unit_test(a_successor_adopts_what_was_committed_and_nothing_in_flight),
		cmocka_unit_test(adoption_stops_at_the_limit_and_at_the_first_gap),
		cmocka_unit_test(cells_that_were_written_to_are_not_taken_over),
		cmocka_unit_test(sums_of_what_was_not_written_to_hold),
		cmocka_unit_test(rubbish_in_the_markers_does_no_harm),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
