#include "shared/model/kv/kv.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const type_names[] = {
	[KV_F32] = "f32",
	[KV_F16] = "f16",
	[KV_Q8_0] = "q8_0",
	[KV_Q16_0] = "q16_0",
};
enum { N_TYPES = sizeof(type_names) / sizeof(type_names[0]) };

const char *kv_type_name(enum kv_type type)
{
	return type_names[type];
}

int kv_type_named(const char *name, enum kv_type *type)
{
	for (int i = 0; i < N_TYPES; i++) {
		if (strcmp(name, type_names[i]) == 0) {
			*type = (enum kv_type)i;
			return 0;
		}
	}
	return -EINVAL;
}

enum kv_type kv_type_auto(const struct model *model)
{
	bool plain = model->embedding.type == TENSOR_F32 && model->output.type == TENSOR_F32;
	return plain ? KV_F32 : KV_Q16_0;
}

enum kv_type kv_type_of(const char *setting, const struct model *model)
{
	enum kv_type type;
	return setting && kv_type_named(setting, &type) == 0 ? type : kv_type_auto(model);
}

struct kv_layout kv_layout_of(const struct model *model, enum kv_type type, uint32_t n_pages)
{
	const struct model_config *config = &model->config;
	struct kv_layout layout = {
		.n_layers = config->n_kv_layers,
		.n_kv_heads = config->n_kv_heads,
		.k_dim = config->head_dim,
		.v_dim = config->head_dim,
		.type = type,
		.n_pages = n_pages,
		.states = recurrent_layout_of(model, 1),
	};
	if (config->mla.kv_rank) {
		layout.n_kv_heads = 1;
		layout.k_dim = config->mla.kv_rank + config->mla.rope;
		layout.v_dim = 0;
	}
	return layout;
}

static bool layout_valid(const struct kv_layout *layout)
{
	return layout->n_layers >= 1 && layout->n_layers <= LIMIT_LAYERS &&
	       layout->n_kv_heads >= 1 && layout->n_kv_heads <= LIMIT_HEADS && layout->k_dim >= 1 &&
	       layout->k_dim <= LIMIT_HEAD_DIM && layout->v_dim <= LIMIT_HEAD_DIM &&
	       (unsigned int)layout->type < N_TYPES && layout->n_pages >= 1 &&
	       layout->n_pages <= KV_PAGES_MAX && layout->windows.n_layers <= layout->n_layers &&
	       layout->windows.n_cells < layout->n_pages * KV_PAGE_CELLS;
}

static_assert((uint64_t)LIMIT_LAYERS * LIMIT_HEADS * LIMIT_HEAD_DIM * 2 * 4 * KV_PAGES_MAX *
			      KV_PAGE_CELLS <=
		      (uint64_t)1 << 60,
	"kv_bytes cannot overflow");

static size_t lines(size_t bytes)
{
	return (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

/* n_cells cells of one head of one layer, whole turns of them; 0 for vectors of no values. */
static size_t head_bytes(const struct kv_layout *layout, uint32_t n_cells, uint32_t dim)
{
	size_t n = ((size_t)n_cells + KV_TURN - 1) / KV_TURN * KV_TURN;
	return lines(n * kv_vector_bytes(layout->type, dim));
}

/* Where each part of the map and of the store begins. */
struct parts {
	size_t table, state_records, map_end;
	size_t window_cells, states, store_end;
};

static struct parts parts_of(const struct kv_layout *layout)
{
	uint32_t n_cells = layout->n_pages * KV_PAGE_CELLS;
	const struct kv_windows_layout *w = &layout->windows;
	size_t cell = head_bytes(layout, n_cells, layout->k_dim) +
		      head_bytes(layout, n_cells, layout->v_dim);
	size_t window_cell = head_bytes(layout, w->n_cells, layout->k_dim) +
			     head_bytes(layout, w->n_cells, layout->v_dim);
	struct parts p = {.table = lines(layout->n_pages * sizeof(struct kv_page_meta))};
	p.state_records = p.table + (w->n_layers ? lines(n_cells * sizeof(uint32_t)) : 0);
	p.map_end = p.state_records + recurrent_map_bytes(&layout->states);
	p.window_cells = cell * layout->n_kv_heads * (layout->n_layers - w->n_layers);
	p.states = p.window_cells + window_cell * layout->n_kv_heads * w->n_layers;
	p.store_end = p.states + recurrent_store_bytes(&layout->states);
	return p;
}

size_t kv_map_bytes(const struct kv_layout *layout)
{
	return layout_valid(layout) ? parts_of(layout).map_end : 0;
}

size_t kv_store_bytes(const struct kv_layout *layout)
{
	return layout_valid(layout) ? parts_of(layout).store_end : 0;
}

size_t kv_bytes(const struct kv_layout *layout)
{
	return kv_map_bytes(layout) + kv_store_bytes(layout);
}

/* A cell's marker is cleared before anything may be written into the cell. The acquire half keeps those later
 * writes behind it: without it a successor could find the marker of a token whose keys are half overwritten. */
static void marker_clear(struct kv *kv, uint32_t cell)
{
	struct kv_page_meta *meta = &kv->meta[cell / KV_PAGE_CELLS];
	atomic_exchange_explicit(&meta->position[cell % KV_PAGE_CELLS], -1, memory_order_acq_rel);
	kv->position[cell] = -1;
	kv_windows_give(kv, cell);
}

static void page_clear(struct kv *kv, uint32_t page)
{
	for (uint32_t i = 0; i < KV_PAGE_CELLS; i++)
		marker_clear(kv, page * KV_PAGE_CELLS + i);
}

static void page_free(struct kv *kv, uint32_t page)
{
	page_clear(kv, page);
	/* Pairs with the acquire in kv_adopt and kv_init: a page seen free or of a new owner has no old markers. */
	atomic_store_explicit(&kv->meta[page].owner, 0, memory_order_release);
	kv->owner[page] = 0;
	kv->free_pages[kv->n_free++] = page;
}

int kv_init(struct kv *kv, void *map, void *store, const struct kv_layout *layout, bool fresh,
	struct error *err)
{
	memset(kv, 0, sizeof(*kv));
	if (!layout_valid(layout))
		return error_set(err, EINVAL,
			"KV cache of %u layers, %u heads of %u and %u, %u pages: allowed are 1..%d "
			"layers, 1..%d heads of 1..%d, 1..%d pages",
			layout->n_layers, layout->n_kv_heads, layout->k_dim, layout->v_dim,
			layout->n_pages, LIMIT_LAYERS, LIMIT_HEADS, LIMIT_HEAD_DIM, KV_PAGES_MAX);
	if ((uintptr_t)map % CACHE_LINE != 0 || (uintptr_t)store % CACHE_LINE != 0)
		return error_set(
			err, EINVAL, "KV cache memory is not aligned to %d bytes", CACHE_LINE);
	kv->free_pages = malloc(layout->n_pages * sizeof(*kv->free_pages));
	kv->owner = malloc(layout->n_pages * sizeof(*kv->owner));
	kv->position = malloc((size_t)layout->n_pages * KV_PAGE_CELLS * sizeof(*kv->position));
	if (!kv->free_pages || !kv->owner || !kv->position) {
		kv_exit(kv);
		return error_set(
			err, ENOMEM, "no memory for the list of %u KV pages", layout->n_pages);
	}
	kv->layout = *layout;
	kv->meta = map;
	kv->store = store;
	struct parts parts = parts_of(layout);
	unsigned char *bytes = map;
	uint32_t n_cells = layout->n_pages * KV_PAGE_CELLS;
	for (uint32_t cell = 0; cell < n_cells; cell++)
		kv->position[cell] = -1;
	kv->k_head_bytes = head_bytes(layout, n_cells, layout->k_dim);
	kv->v_head_bytes = head_bytes(layout, n_cells, layout->v_dim);
	if (kv_windows_init(kv, bytes + parts.table, parts.window_cells, fresh) < 0) {
		kv_exit(kv);
		return error_set(err, ENOMEM, "no memory for the table of %u cells", n_cells);
	}
	kv->windows.k_head_bytes = head_bytes(layout, layout->windows.n_cells, layout->k_dim);
	kv->windows.v_head_bytes = head_bytes(layout, layout->windows.n_cells, layout->v_dim);
	kv->k_bytes = kv_vector_bytes(layout->type, layout->k_dim);
	if (recurrent_init(&kv->states, bytes + parts.state_records, parts.states, &layout->states,
		    fresh) < 0) {
		kv_exit(kv);
		return error_set(err, ENOMEM, "no memory for the list of %u recurrent states",
			layout->states.n_slots);
	}
	kv->v_bytes = layout->v_dim ? kv_vector_bytes(layout->type, layout->v_dim) : kv->k_bytes;
	/* Pushed from the last to the first, so that pages are handed out in ascending order. */
	for (uint32_t page = layout->n_pages; page-- > 0;) {
		if (fresh) {
			page_free(kv, page);
			continue;
		}
		kv->owner[page] = atomic_load_explicit(&kv->meta[page].owner, memory_order_acquire);
		if (kv->owner[page] == 0)
			kv->free_pages[kv->n_free++] = page;
	}
	return 0;
}

void kv_check(struct kv *kv)
{
	kv->checked = true;
}

void kv_exit(struct kv *kv)
{
	free(kv->free_pages);
	free(kv->owner);
	free(kv->position);
	kv_windows_exit(kv);
	recurrent_exit(&kv->states);
	memset(kv, 0, sizeof(*kv));
}

static uint32_t seq_pages_max(uint32_t n_max)
{
	return (n_max + LIMIT_DRAFT + KV_PAGE_CELLS) / KV_PAGE_CELLS;
}

int kv_seq_init(struct kv_seq *seq, uint64_t owner, uint32_t n_max)
{
	memset(seq, 0, sizeof(*seq));
	if (owner == 0 || n_max == 0 || n_max > LIMIT_CONTEXT)
		return -EINVAL;
	uint32_t pages = seq_pages_max(n_max);
	seq->cell = malloc(n_max * sizeof(*seq->cell));
	seq->spare = malloc((size_t)pages * KV_PAGE_CELLS * sizeof(*seq->spare));
	seq->pages = malloc(pages * sizeof(*seq->pages));
	if (!seq->cell || !seq->spare || !seq->pages) {
		free(seq->cell);
		free(seq->spare);
		free(seq->pages);
		memset(seq, 0, sizeof(*seq));
		return -ENOMEM;
	}
	seq->owner = owner;
	seq->n_max = n_max;
	return 0;
}

void kv_seq_exit(struct kv *kv, struct kv_seq *seq)
{
	if (kv_states(kv))
		recurrent_give(kv_states(kv), &seq->state);
	for (uint32_t i = seq->n_pages; i-- > 0;)
		page_free(kv, seq->pages[i]);
	free(seq->cell);
	free(seq->spare);
	free(seq->pages);
	memset(seq, 0, sizeof(*seq));
}

/* Enters the page's committed cells into the map as far as they are valid; the map's unset entries are KV_NONE. */
static void adopt_page(struct kv *kv, struct kv_seq *seq, uint32_t page, uint32_t limit)
{
	int32_t positions[KV_PAGE_CELLS];
	bool held[KV_SUMS];
	seq->pages[seq->n_pages++] = page;
	/* Pairs with the release in kv_commit: the keys and values behind a marker are complete. */
	for (uint32_t i = 0; i < KV_PAGE_CELLS; i++)
		positions[i] =
			atomic_load_explicit(&kv->meta[page].position[i], memory_order_acquire);
	for (uint32_t i = 0; i < KV_SUMS; i++)
		held[i] = kv_sums_hold(kv, seq->owner, page * KV_SUMS + i, &positions[i * KV_TURN]);
	for (uint32_t i = 0; i < KV_PAGE_CELLS; i++) {
		int32_t position = positions[i];
		if (held[i / KV_TURN] && position >= 0 && (uint32_t)position < limit &&
			seq->cell[position] == KV_NONE)
			seq->cell[position] = page * KV_PAGE_CELLS + i;
	}
}

/* What is not a position below n is spare, whatever its marker says. */
static void sort_cells(struct kv *kv, struct kv_seq *seq)
{
	for (uint32_t i = 0; i < seq->n; i++)
		kv->position[seq->cell[i]] = (int32_t)i;
	for (uint32_t i = seq->n_pages; i-- > 0;) {
		for (uint32_t j = KV_PAGE_CELLS; j-- > 0;) {
			uint32_t cell = seq->pages[i] * KV_PAGE_CELLS + j;
			if (kv->position[cell] >= 0)
				continue;
			marker_clear(kv, cell);
			seq->spare[seq->n_spare++] = cell;
		}
	}
}

void kv_adopt(struct kv *kv, struct kv_seq *seq, uint32_t limit)
{
	assert(seq->n == 0 && seq->n_pages == 0);
	uint32_t pages_max = seq_pages_max(seq->n_max);
	if (limit > seq->n_max)
		limit = seq->n_max;
	for (uint32_t i = 0; i < limit; i++)
		seq->cell[i] = KV_NONE;
	for (uint32_t page = 0; page < kv->layout.n_pages; page++) {
		if (kv->owner[page] != seq->owner)
			continue;
		if (seq->n_pages < pages_max)
			adopt_page(kv, seq, page, limit);
		else
			page_free(kv, page);
	}
	while (seq->n < limit && seq->cell[seq->n] != KV_NONE)
		seq->n++;
	seq->n = kv_windows_adopt(kv, seq, seq->n);
	/* The state of a recurrent layer cannot go back to where the cells end; the cells can. */
	if (kv_states(kv))
		seq->n = recurrent_adopt(kv_states(kv), &seq->state, seq->owner, seq->n);
	sort_cells(kv, seq);
}

void kv_reclaim(struct kv *kv, const uint64_t *owners, size_t n_owners)
{
	for (uint32_t page = kv->layout.n_pages; page-- > 0;) {
		bool live = kv->owner[page] == 0;
		for (size_t i = 0; i < n_owners && !live; i++)
			live = owners[i] == kv->owner[page];
		if (!live)
			page_free(kv, page);
	}
	if (kv_states(kv))
		recurrent_reclaim(kv_states(kv), owners, n_owners);
}

int kv_take(struct kv *kv, struct kv_seq *seq, uint32_t n, uint32_t *cells)
{
	uint32_t short_by = n > seq->n_spare ? n - seq->n_spare : 0;
	uint32_t pages = (uint32_t)(((uint64_t)short_by + KV_PAGE_CELLS - 1) / KV_PAGE_CELLS);
	if (pages > kv->n_free || pages > seq_pages_max(seq->n_max) - seq->n_pages ||
		!kv_windows_left(kv, n))
		return -ENOSPC;
	if (kv_states(kv) && !seq->state.held &&
		recurrent_take(kv_states(kv), &seq->state, seq->owner) < 0)
		return -ENOSPC;
	for (uint32_t i = 0; i < n; i++) {
		if (seq->n_spare == 0) {
			uint32_t page = kv->free_pages[--kv->n_free];
			page_clear(kv, page);
			/* Pairs with the acquire in kv_adopt: an owner's page has no markers of the last one. */
			atomic_store_explicit(
				&kv->meta[page].owner, seq->owner, memory_order_release);
			kv->owner[page] = seq->owner;
			seq->pages[seq->n_pages++] = page;
			for (uint32_t j = KV_PAGE_CELLS; j-- > 0;)
				seq->spare[seq->n_spare++] = page * KV_PAGE_CELLS + j;
		}
		cells[i] = seq->spare[--seq->n_spare];
		kv_windows_take(kv, cells[i]);
	}
	return 0;
}

void kv_commit(struct kv *kv, struct kv_seq *seq, const uint32_t *accepted, uint32_t n_accepted,
	const uint32_t *rejected, uint32_t n_rejected)
{
	assert(n_accepted <= seq->n_max - seq->n);
	for (uint32_t i = 0; i < n_accepted; i++) {
		uint32_t cell = accepted[i];
		seq->cell[seq->n] = cell;
		/* Pairs with the acquire in adopt_page: without it a successor could adopt a cell whose keys or
		 * values are not all written yet. In ascending order, so that what is marked is a prefix. */
		atomic_store_explicit(
			&kv->meta[cell / KV_PAGE_CELLS].position[cell % KV_PAGE_CELLS],
			(int32_t)seq->n, memory_order_release);
		kv->position[cell] = (int32_t)seq->n;
		seq->n++;
	}
	kv_sums_commit(kv, seq->owner, accepted, n_accepted);
	/* Pushed from the last, so that the next kv_take hands them out in the same order. */
	for (uint32_t i = n_rejected; i-- > 0;) {
		kv_windows_give(kv, rejected[i]);
		seq->spare[seq->n_spare++] = rejected[i];
	}
	kv_windows_slide(kv, seq);
	if (kv_states(kv))
		recurrent_commit(kv_states(kv), &seq->state, n_accepted);
}

void kv_truncate(struct kv *kv, struct kv_seq *seq, uint32_t n)
{
	if (kv_states(kv) && seq->n > n)
		n = recurrent_truncate(kv_states(kv), &seq->state, n);
	if (seq->n > n)
		n = kv_windows_back(kv, seq, n);
	seq->window_first = seq->window_first < n ? seq->window_first : n;
	while (seq->n > n) {
		uint32_t cell = seq->cell[--seq->n];
		marker_clear(kv, cell);
		seq->spare[seq->n_spare++] = cell;
	}
}

uint32_t kv_free_cells(const struct kv *kv, const struct kv_seq *seq)
{
	return seq->n_spare + kv->n_free * KV_PAGE_CELLS;
}

/* Where a layer begins, and how many bytes its heads' keys and values take. */
static size_t layer_at(
	const struct kv *kv, uint32_t layer, size_t *k_head_bytes, size_t *v_head_bytes)
{
	bool own = kv_own_window(kv, layer);
	*k_head_bytes = own ? kv->windows.k_head_bytes : kv->k_head_bytes;
	*v_head_bytes = own ? kv->windows.v_head_bytes : kv->v_head_bytes;
	if (own)
		layer -= kv->layout.n_layers - kv->layout.windows.n_layers;
	return (own ? kv->windows.at : 0) +
	       (*k_head_bytes + *v_head_bytes) * kv->layout.n_kv_heads * layer;
}

size_t kv_k(const struct kv *kv, uint32_t layer, uint32_t kv_head)
{
	size_t k_bytes, v_bytes, at = layer_at(kv, layer, &k_bytes, &v_bytes);
	return at + k_bytes * kv_head;
}

size_t kv_v(const struct kv *kv, uint32_t layer, uint32_t kv_head)
{
	if (kv->layout.v_dim == 0)
		return kv_k(kv, layer, kv_head);
	size_t k_bytes, v_bytes, at = layer_at(kv, layer, &k_bytes, &v_bytes);
	return at + k_bytes * kv->layout.n_kv_heads + v_bytes * kv_head;
}
