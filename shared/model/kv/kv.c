#include "shared/model/kv/kv_content.h"
#include "shared/model/kv/kv_internal.h"

#include "shared/model/kv/kv_prefix.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The acquire half keeps later writes into the cell behind it. Without it a successor could find
 * the marker of a token whose keys are half overwritten. */
void kv_marker_clear(struct kv *kv, uint32_t cell)
{
	struct kv_page_meta *meta = &kv->meta[cell / KV_PAGE_CELLS];
	atomic_exchange_explicit(&meta->position[cell % KV_PAGE_CELLS], -1, memory_order_acq_rel);
	kv->position[cell] = -1;
	kv_windows_give(kv, cell);
}

void kv_marker_set(struct kv *kv, uint32_t cell, uint32_t position)
{
	/* Release pairs with the acquire in kv_adopt.c. Without it a successor could adopt a cell
	 * whose keys or values are not all written. */
	atomic_store_explicit(&kv->meta[cell / KV_PAGE_CELLS].position[cell % KV_PAGE_CELLS],
		(int32_t)position, memory_order_release);
	kv->position[cell] = (int32_t)position;
}

static void page_clear(struct kv *kv, uint32_t page)
{
	for (uint32_t i = 0; i < KV_PAGE_CELLS; i++)
		kv_marker_clear(kv, page * KV_PAGE_CELLS + i);
}

void kv_page_free(struct kv *kv, uint32_t page)
{
	struct kv_page_meta *meta = &kv->meta[page];
	kv_prefix_leave(kv, page);
	snapshots_leave(kv, page);
	page_clear(kv, page);
	/* Release pairs with the acquire in kv_adopt.c: a page that is seen free, or with a new
	 * owner, has no old markers. A shared page stays marked as shared: until it is free it
	 * belongs to nobody, not even to the session that filled it. */
	atomic_store_explicit(&meta->owner, 0, memory_order_release);
	kv->pages[page] = (struct kv_page){
		.before = KV_NONE, .next = kv->free_page, .prev = KV_NONE, .next_spare = KV_NONE};
	kv->free_page = page;
	kv->n_free++;
}

void kv_own_add(struct kv *kv, struct kv_seq *seq, uint32_t page)
{
	kv->pages[page].next = KV_NONE;
	kv->pages[page].prev = seq->own_last;
	if (seq->own_last != KV_NONE)
		kv->pages[seq->own_last].next = page;
	else
		seq->own = page;
	seq->own_last = page;
}

void kv_own_remove(struct kv *kv, struct kv_seq *seq, uint32_t page)
{
	uint32_t next = kv->pages[page].next, prev = kv->pages[page].prev;
	if (prev != KV_NONE)
		kv->pages[prev].next = next;
	else
		seq->own = next;
	if (next != KV_NONE)
		kv->pages[next].prev = prev;
	else
		seq->own_last = prev;
	kv->pages[page].next = kv->pages[page].prev = KV_NONE;
}

void kv_spare_add(struct kv *kv, struct kv_seq *seq, uint32_t page, uint32_t cells)
{
	/* At the front, so that cells that came back last are handed out first. */
	if (kv->pages[page].spare == 0) {
		kv->pages[page].next_spare = seq->spare;
		seq->spare = page;
	}
	kv->pages[page].spare |= cells;
	seq->n_spare += (uint32_t)__builtin_popcount(cells);
}

/* Takes the first spare cell of the first page that has one. */
static uint32_t take_spare(struct kv *kv, struct kv_seq *seq)
{
	struct kv_page *page = &kv->pages[seq->spare];
	uint32_t cell = seq->spare * KV_PAGE_CELLS + (uint32_t)__builtin_ctz(page->spare);
	page->spare &= page->spare - 1;
	if (page->spare == 0)
		seq->spare = page->next_spare;
	seq->n_spare--;
	return cell;
}

static void give_spare(struct kv *kv, struct kv_seq *seq, uint32_t cell)
{
	kv_spare_add(kv, seq, cell / KV_PAGE_CELLS, 1u << cell % KV_PAGE_CELLS);
}

uint32_t kv_page_take(struct kv *kv, struct kv_seq *seq)
{
	if (kv->n_free == 0)
		kv_keep_less(kv);
	uint32_t page = kv->free_page;
	kv->free_page = kv->pages[page].next;
	kv->n_free--;
	page_clear(kv, page);
	atomic_store_explicit(&kv->meta[page].shared, 0, memory_order_relaxed);
	/* Release pairs with the acquire in kv_adopt.c: an owner's page has no markers of the
	 * previous owner. */
	atomic_store_explicit(&kv->meta[page].owner, seq->owner, memory_order_release);
	kv->pages[page].owner = seq->owner;
	kv->pages[page].refs = 1;
	kv_own_add(kv, seq, page);
	kv_spare_add(kv, seq, page, UINT32_MAX);
	seq->n_pages++;
	return page;
}

static_assert(KV_PAGE_CELLS == 32, "a page's spare cells are the bits of a uint32_t");

/* Allocates the lists of this process. */
static int allocate(struct kv *kv, const struct kv_layout *layout)
{
	kv->pages = calloc(layout->n_pages, sizeof(*kv->pages));
	kv->position = malloc((size_t)layout->n_pages * KV_PAGE_CELLS * sizeof(*kv->position));
	kv->free_records = malloc((layout->n_records + 1) * sizeof(*kv->free_records));
	if (!kv->pages || !kv->position || !kv->free_records)
		return -ENOMEM;
	for (uint32_t cell = 0; cell < layout->n_pages * KV_PAGE_CELLS; cell++)
		kv->position[cell] = -1;
	return 0;
}

/* Frees all pages and records, from the last to the first, so that they are handed out in ascending
 * order. */
static void free_all(struct kv *kv)
{
	for (uint32_t page = kv->layout.n_pages; page-- > 0;)
		kv_page_free(kv, page);
	for (uint32_t i = kv->layout.n_records; i-- > 0;) {
		atomic_store_explicit(&kv->records[i].tip, 0, memory_order_relaxed);
		atomic_store_explicit(&kv->records[i].owner, 0, memory_order_release);
		kv->free_records[kv->n_free_records++] = i;
	}
}

static void place_vectors(struct kv *kv)
{
	const struct kv_layout *layout = &kv->layout;
	uint32_t n_cells = layout->n_pages * KV_PAGE_CELLS;
	kv->k_head_bytes = kv_head_bytes(layout, n_cells, layout->k_dim);
	kv->v_head_bytes = kv_head_bytes(layout, n_cells, layout->v_dim);
	kv->windows.k_head_bytes = kv_head_bytes(layout, layout->windows.n_cells, layout->k_dim);
	kv->windows.v_head_bytes = kv_head_bytes(layout, layout->windows.n_cells, layout->v_dim);
	kv->k_bytes = kv_vector_bytes(layout->type, layout->k_dim);
	kv->v_bytes = layout->v_dim ? kv_vector_bytes(layout->type, layout->v_dim) : kv->k_bytes;
}

static int check(const struct kv_layout *layout, const void *map, const struct buffer *store,
	struct error *err)
{
	if (!kv_layout_valid(layout))
		return error_set(err, EINVAL,
			"KV cache of %u layers, %u heads of %u and %u, %u pages: allowed are 1..%d "
			"layers, 1..%d heads of 1..%d, 1..%d pages",
			layout->n_layers, layout->n_kv_heads, layout->k_dim, layout->v_dim,
			layout->n_pages, LIMIT_LAYERS, LIMIT_HEADS, LIMIT_HEAD_DIM, KV_PAGES_MAX);
	if ((uintptr_t)map % CACHE_LINE != 0 || (uintptr_t)store->host % CACHE_LINE != 0)
		return error_set(
			err, EINVAL, "KV cache memory is not aligned to %d bytes", CACHE_LINE);
	return 0;
}

int kv_init(struct kv *kv, void *map, struct buffer *store, const struct kv_layout *layout,
	bool fresh, struct error *err)
{
	unsigned char *bytes = map;
	memset(kv, 0, sizeof(*kv));
	kv->store = *store;
	memset(store, 0, sizeof(*store));
	int rc = check(layout, map, &kv->store, err);
	if (rc < 0) {
		kv_exit(kv);
		return rc;
	}
	struct kv_parts parts = kv_parts_of(layout);
	kv->layout = *layout;
	kv->meta = map;
	kv->records = (struct kv_record *)(void *)(bytes + parts.records);
	kv->free_page = kv->kept_first = kv->kept_last = KV_NONE;
	if (allocate(kv, layout) < 0) {
		kv_exit(kv);
		return error_set(
			err, ENOMEM, "no memory for the list of %u KV pages", layout->n_pages);
	}
	if (kv_windows_init(kv, bytes + parts.table, parts.window_cells, fresh) < 0) {
		kv_exit(kv);
		return error_set(err, ENOMEM, "no memory for the table of %u cells",
			layout->n_pages * KV_PAGE_CELLS);
	}
	place_vectors(kv);
	if (recurrent_init(&kv->states, bytes + parts.state_records, parts.states, &layout->states,
		    fresh) < 0) {
		kv_exit(kv);
		return error_set(err, ENOMEM, "no memory for the list of %u recurrent states",
			layout->states.n_slots);
	}
	if (fresh)
		free_all(kv);
	else if (kv_left_init(kv) < 0) {
		kv_exit(kv);
		return error_set(
			err, ENOMEM, "no memory to take over %u KV pages", layout->n_pages);
	}
	if (snapshots_init(kv, bytes + parts.snapshot_records, parts.snapshots, fresh) < 0) {
		kv_exit(kv);
		return error_set(err, ENOMEM, "no memory for the list of %u snapshots",
			layout->states.n_snapshots);
	}
	return 0;
}

int kv_init_memory(struct kv *kv, struct backend *backend, void *memory,
	const struct kv_layout *layout, bool fresh, struct error *err)
{
	struct buffer store;
	size_t map_bytes = kv_map_bytes(layout);
	int rc = backend->ops->wrap(
		backend, (unsigned char *)memory + map_bytes, kv_store_bytes(layout), &store, err);
	return rc < 0 ? rc : kv_init(kv, memory, &store, layout, fresh, err);
}

int kv_init_own(struct kv *kv, struct backend *backend, void *map, const struct kv_layout *layout,
	struct error *err)
{
	struct buffer store;
	int rc = backend->ops->alloc(backend, kv_store_bytes(layout), BUFFER_OWN, &store, err);
	return rc < 0 ? rc : kv_init(kv, map, &store, layout, true, err);
}

void kv_check(struct kv *kv)
{
	kv->checked = true;
}

int kv_use_queue(struct kv *kv, struct queue *q, struct error *err)
{
	struct backend *backend = kv->store.backend;
	size_t bytes = kv_content_bytes(kv);
	if (kv->store.host || bytes == 0)
		return 0;
	int rc = backend->ops->alloc(backend, bytes, BUFFER_HOST, &kv->staging, err);
	if (rc == 0)
		kv->queue = q;
	return rc;
}

void kv_exit(struct kv *kv)
{
	kv_left_exit(kv);
	kv_prefix_exit(kv);
	free(kv->pages);
	free(kv->position);
	free(kv->free_records);
	/* Its thread reads from the store. */
	snapshots_exit(kv);
	if (kv->staging.backend)
		kv->staging.backend->ops->free(&kv->staging);
	if (kv->store.backend)
		kv->store.backend->ops->free(&kv->store);
	kv_windows_exit(kv);
	recurrent_exit(&kv->states);
	memset(kv, 0, sizeof(*kv));
}

int kv_seq_init(struct kv_seq *seq, uint64_t owner, uint32_t n_max)
{
	memset(seq, 0, sizeof(*seq));
	if (owner == 0 || n_max == 0 || n_max > LIMIT_CONTEXT)
		return -EINVAL;
	seq->cell = kv_table_alloc(n_max * sizeof(*seq->cell));
	if (!seq->cell)
		return -ENOMEM;
	seq->owner = owner;
	seq->n_max = n_max;
	seq->own = seq->own_last = seq->spare = seq->tip = seq->record = KV_NONE;
	return 0;
}

void kv_seq_forget(struct kv_seq *seq)
{
	if (seq->map.backend)
		seq->map.backend->ops->free(&seq->map);
	free(seq->cell);
	memset(seq, 0, sizeof(*seq));
}

void kv_seq_exit(struct kv *kv, struct kv_seq *seq)
{
	if (seq->owner == 0)
		return;
	if (kv_states(kv))
		recurrent_give(kv_states(kv), &seq->state);
	snapshots_unpin(kv, seq);
	/* From the last one, so that they are handed out in the same order again. */
	for (uint32_t page = seq->own_last, prev; page != KV_NONE; page = prev) {
		prev = kv->pages[page].prev;
		kv_page_free(kv, page);
	}
	kv_detach(kv, seq);
	kv_seq_forget(seq);
}

/* Number of cells that were taken and have neither become tokens nor come back. */
static uint32_t in_flight(const struct kv_seq *seq)
{
	return seq->n_pages * KV_PAGE_CELLS - seq->n - seq->n_spare;
}

/* Gives the sequence a state, if it has none: the one of its snapshot, or the one after no tokens. */
static int take_state(struct kv *kv, struct kv_seq *seq)
{
	if (!kv_states(kv) || seq->state.held)
		return 0;
	assert(seq->n == 0 || seq->snapshot != 0);
	if (recurrent_take(kv_states(kv), &seq->state, seq->owner) < 0)
		return -ENOSPC;
	if (seq->n == 0 || snapshots_load(kv, seq))
		return 0;
	recurrent_give(kv_states(kv), &seq->state);
	return -ENOSPC;
}

bool kv_has_room(const struct kv *kv, const struct kv_seq *seq, uint32_t n)
{
	uint32_t short_by = n > seq->n_spare ? n - seq->n_spare : 0;
	uint32_t pages = (uint32_t)(((uint64_t)short_by + KV_PAGE_CELLS - 1) / KV_PAGE_CELLS);
	return pages <= kv->n_free + kv->n_kept &&
	       (uint64_t)n + in_flight(seq) <= seq->n_max - seq->n + LIMIT_DRAFT_NODES;
}

int kv_take(struct kv *kv, struct kv_seq *seq, uint32_t n, uint32_t *cells)
{
	if (!kv_has_room(kv, seq, n) || !kv_windows_left(kv, n) || take_state(kv, seq) < 0)
		return -ENOSPC;
	kv_take_cells(kv, seq, n, cells);
	for (uint32_t i = 0; i < n; i++)
		kv_windows_take(kv, cells[i]);
	return 0;
}

void kv_take_cells(struct kv *kv, struct kv_seq *seq, uint32_t n, uint32_t *cells)
{
	for (uint32_t i = 0; i < n; i++) {
		if (seq->n_spare == 0)
			kv_page_take(kv, seq);
		cells[i] = take_spare(kv, seq);
	}
}

void kv_commit(struct kv *kv, struct kv_seq *seq, const uint32_t *accepted, uint32_t n_accepted,
	const uint32_t *rejected, uint32_t n_rejected)
{
	assert(n_accepted <= seq->n_max - seq->n);
	/* In ascending order, so that the marked positions are always a prefix. */
	for (uint32_t i = 0; i < n_accepted; i++) {
		seq->cell[seq->n] = accepted[i];
		kv_marker_set(kv, accepted[i], seq->n++);
	}
	kv_sums_commit(kv, seq->owner, accepted, n_accepted);
	/* From the last one, so that the next kv_take hands them out in the same order. */
	for (uint32_t i = n_rejected; i-- > 0;) {
		kv_windows_give(kv, rejected[i]);
		give_spare(kv, seq, rejected[i]);
	}
	if (kv_states(kv))
		recurrent_commit(kv_states(kv), &seq->state, n_accepted);
	/* Before the window slides, so that shared pages have all their window cells. */
	kv_publish(kv, seq);
	kv_windows_slide(kv, seq);
}

void kv_forget(struct kv *kv, struct kv_seq *seq, uint32_t n)
{
	while (seq->n > n) {
		uint32_t cell = seq->cell[--seq->n];
		kv_marker_clear(kv, cell);
		give_spare(kv, seq, cell);
	}
}

void kv_truncate(struct kv *kv, struct kv_seq *seq, uint32_t n)
{
	if (kv_states(kv) && seq->n > n)
		n = recurrent_truncate(kv_states(kv), &seq->state, n);
	if (seq->n > n)
		n = kv_windows_back(kv, seq, n);
	kv_forget(kv, seq, n > seq->n_shared ? n : seq->n_shared);
	kv_unshare(kv, seq, n);
	/* It has gone back to the beginning of a page, before which the window may be gone. */
	if (seq->n < n && kv_windows_back(kv, seq, seq->n) == 0)
		kv_unshare(kv, seq, 0);
	seq->window_first = seq->window_first < seq->n ? seq->window_first : seq->n;
	/* It has gone back further, because no page was free for a copy. */
	while (kv_states(kv) && seq->state.n > seq->n) {
		n = recurrent_truncate(kv_states(kv), &seq->state, seq->n);
		kv_forget(kv, seq, n > seq->n_shared ? n : seq->n_shared);
		kv_unshare(kv, seq, n);
	}
}

uint32_t kv_free_cells(const struct kv *kv, const struct kv_seq *seq)
{
	return seq->n_spare + (kv->n_free + kv->n_kept) * KV_PAGE_CELLS;
}
