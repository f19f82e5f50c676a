#include "shared/model/kv/kv_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct kv_windows_layout kv_windows_of(
	const struct model *model, uint32_t n_seqs, uint32_t n_batch, uint32_t n_cells)
{
	const struct model_config *config = &model->config;
	struct kv_windows_layout w = {
		.window = config->window,
		.kept = config->window + LIMIT_DRAFT_SHARE + 1,
	};
	uint64_t needed = (uint64_t)n_seqs * w.kept + n_batch;
	for (uint32_t i = 0; i < config->n_layers; i++)
		w.n_layers += model->layers[i].windowed;
	/* A recurrent state and a window would have to go back together; no model has both. */
	if (w.n_layers == 0 || config->delta.n_layers > 0 || needed >= n_cells)
		return (struct kv_windows_layout){0};
	w.n_cells = (uint32_t)needed;
	return w;
}

void kv_windows_spare(
	struct kv_windows_layout *w, uint32_t n_seqs, uint32_t n_pages, uint32_t n_cells)
{
	uint32_t kept = w->window + KV_PAGE_CELLS;
	uint64_t more;

	if (w->n_layers == 0 || n_pages == 0)
		return;
	kept = kept > w->kept ? kept : w->kept;
	/* A shared page is held as a whole. */
	more = (uint64_t)n_seqs * (kept - w->kept + KV_PAGE_CELLS) +
	       (uint64_t)n_pages * KV_PAGE_CELLS;
	if (w->n_cells + more >= n_cells) {
		*w = (struct kv_windows_layout){0};
		return;
	}
	w->kept = kept;
	w->n_cells += (uint32_t)more;
}

size_t kv_windows_page_bytes(const struct kv_layout *layout)
{
	size_t vector = kv_vector_bytes(layout->type, layout->k_dim) +
			(layout->v_dim ? kv_vector_bytes(layout->type, layout->v_dim) : 0);

	return KV_PAGE_CELLS * vector * layout->n_kv_heads * layout->windows.n_layers;
}

uint32_t kv_windows_span(const struct kv_layout *layout)
{
	return (layout->windows.window - 1 + KV_PAGE_CELLS - 1) / KV_PAGE_CELLS;
}

static bool in_use(const struct kv *kv)
{
	return kv->layout.windows.n_layers > 0;
}

/* Takes over what the predecessor's committed cells say, as far as it can be true: each window cell
 * once. */
static void claim(struct kv *kv, bool *claimed)
{
	struct kv_windows *w = &kv->windows;
	for (uint32_t cell = 0; cell < kv->layout.n_pages * KV_PAGE_CELLS; cell++) {
		struct kv_page_meta *meta = &kv->meta[cell / KV_PAGE_CELLS];
		/* Acquire pairs with the release in kv_commit: a committed cell's entry is
		 * complete. */
		if (atomic_load_explicit(&meta->owner, memory_order_acquire) == 0 ||
			atomic_load_explicit(
				&meta->position[cell % KV_PAGE_CELLS], memory_order_acquire) < 0)
			continue;
		/* And this one with the release in kv_windows_show. */
		uint32_t at = atomic_load_explicit(&w->shared[cell], memory_order_acquire);
		if (at < kv->layout.windows.n_cells && !claimed[at]) {
			claimed[at] = true;
			w->of[cell] = at;
		}
	}
}

int kv_windows_init(struct kv *kv, void *table, size_t at, bool fresh)
{
	struct kv_windows *w = &kv->windows;
	uint32_t n = kv->layout.windows.n_cells, n_cells = kv->layout.n_pages * KV_PAGE_CELLS;
	if (!in_use(kv))
		return 0;
	bool *claimed = calloc(n, sizeof(*claimed));
	w->of = kv_table_alloc(n_cells * sizeof(*w->of));
	w->free = malloc(n * sizeof(*w->free));
	if (!claimed || !w->of || !w->free) {
		free(claimed);
		kv_windows_exit(kv);
		return -ENOMEM;
	}
	w->shared = table;
	w->at = at;
	for (uint32_t cell = 0; cell < n_cells; cell++)
		w->of[cell] = KV_NONE;
	if (!fresh)
		claim(kv, claimed);
	for (uint32_t cell = 0; cell < n_cells; cell++)
		atomic_store_explicit(&w->shared[cell], w->of[cell], memory_order_relaxed);
	for (uint32_t i = n; i-- > 0;) {
		if (!claimed[i])
			w->free[w->n_free++] = i;
	}
	free(claimed);
	return 0;
}

void kv_windows_exit(struct kv *kv)
{
	free(kv->windows.of);
	free(kv->windows.free);
	memset(&kv->windows, 0, sizeof(kv->windows));
}

void kv_windows_give(struct kv *kv, uint32_t cell)
{
	struct kv_windows *w = &kv->windows;
	if (!in_use(kv) || w->of[cell] == KV_NONE)
		return;
	/* The acquire half keeps the next owner's writes behind it. Without it a successor could
	 * find two cells that claim the window cell, and believe the one whose keys are gone. */
	atomic_exchange_explicit(&w->shared[cell], KV_NONE, memory_order_acq_rel);
	w->free[w->n_free++] = w->of[cell];
	w->of[cell] = KV_NONE;
}

bool kv_windows_left(const struct kv *kv, uint32_t n)
{
	return !in_use(kv) || n <= kv->windows.n_free + kv->windows.n_spared;
}

void kv_windows_take_hidden(struct kv *kv, uint32_t cell)
{
	struct kv_windows *w = &kv->windows;
	while (w->n_free == 0)
		snapshots_less(kv);
	w->of[cell] = w->free[--w->n_free];
}

void kv_windows_take(struct kv *kv, uint32_t cell)
{
	if (!in_use(kv))
		return;
	kv_windows_take_hidden(kv, cell);
	/* The release in kv_commit orders this before the cell's marker. */
	atomic_store_explicit(
		&kv->windows.shared[cell], kv->windows.of[cell], memory_order_relaxed);
}

void kv_windows_show(struct kv *kv, uint32_t cell)
{
	/* Release pairs with the acquire in claim: the content is complete. */
	atomic_store_explicit(
		&kv->windows.shared[cell], kv->windows.of[cell], memory_order_release);
}

/* Returns all window cells of a shared page. While a successor takes over what it found, another
 * sequence may still need them: see kv_windows_reclaim. */
static void give_page(struct kv *kv, uint32_t page)
{
	for (uint32_t i = 0; !kv->left && i < KV_PAGE_CELLS; i++)
		kv_windows_give(kv, page * KV_PAGE_CELLS + i);
}

static void seq_adds(struct kv *kv, uint32_t page)
{
	struct kv_page *own = &kv->pages[page];

	if (own->window_seqs++ == 0 && own->window_snapshots > 0)
		kv->windows.n_spared -= KV_PAGE_CELLS;
}

static void seq_drops(struct kv *kv, uint32_t page)
{
	struct kv_page *own = &kv->pages[page];

	assert(own->window_seqs > 0);
	if (--own->window_seqs > 0)
		return;
	if (own->window_snapshots > 0)
		kv->windows.n_spared += KV_PAGE_CELLS;
	else
		give_page(kv, page);
}

void kv_windows_slide(struct kv *kv, struct kv_seq *seq)
{
	while (in_use(kv) && seq->n - seq->window_first > kv->layout.windows.kept) {
		uint32_t at = seq->window_first++, cell = seq->cell[at];

		if (at >= seq->n_shared)
			kv_windows_give(kv, cell);
		else if (seq->window_first % KV_PAGE_CELLS == 0)
			seq_drops(kv, cell / KV_PAGE_CELLS);
	}
}

/* The first position that a query at position n attends to. */
static uint32_t first_needed(const struct kv *kv, uint32_t n)
{
	uint32_t window = kv->layout.windows.window;
	return n < window ? 0 : n + 1 - window;
}

uint32_t kv_windows_back(const struct kv *kv, const struct kv_seq *seq, uint32_t n)
{
	return !in_use(kv) || seq->window_first <= first_needed(kv, n) ? n : 0;
}

static uint32_t span(const struct kv *kv)
{
	return kv_windows_span(&kv->layout);
}

bool kv_windows_filled(const struct kv *kv, uint32_t page)
{
	for (uint32_t i = 0; i < KV_PAGE_CELLS; i++)
		if (kv->windows.of[page * KV_PAGE_CELLS + i] == KV_NONE)
			return false;
	return true;
}

bool kv_windows_whole(const struct kv *kv, uint32_t page)
{
	if (!in_use(kv))
		return true;
	for (uint32_t i = span(kv); i > 0 && page != KV_NONE; i--, page = kv->pages[page].before)
		if (!kv_windows_filled(kv, page))
			return false;
	return true;
}

void kv_windows_publish(struct kv *kv, const struct kv_seq *seq)
{
	if (in_use(kv) && seq->n_shared > seq->window_first)
		seq_adds(kv, seq->tip);
}

/* The sequence gives up the pages from this one, whose positions end at n, to the one with `first`. */
static void drop_pages(struct kv *kv, uint32_t page, uint32_t n, uint32_t first)
{
	for (; page != KV_NONE && n > first; n -= KV_PAGE_CELLS, page = kv->pages[page].before)
		seq_drops(kv, page);
}

void kv_windows_attach(struct kv *kv, struct kv_seq *seq, uint32_t page, uint32_t n)
{
	uint32_t first = seq->window_first, tip = seq->tip;

	if (!in_use(kv))
		return;
	seq->window_first = seq->n_shared;
	for (uint32_t i = span(kv); i > 0 && tip != KV_NONE && kv_windows_filled(kv, tip);
		i--, tip = kv->pages[tip].before) {
		seq_adds(kv, tip);
		seq->window_first -= KV_PAGE_CELLS;
	}
	/* After the new ones, which may be the same. */
	drop_pages(kv, page, n, first);
}

void kv_windows_skip(struct kv *kv, struct kv_seq *seq, uint32_t n)
{
	if (!in_use(kv))
		return;
	kv_windows_detach(kv, seq);
	seq->window_first = n;
}

void kv_windows_expect(struct kv *kv, struct kv_seq *seq)
{
	uint32_t tip = seq->tip, reach = span(kv) * KV_PAGE_CELLS;

	/* It does. */
	if (!in_use(kv) || seq->window_first + reach <= seq->n_shared || seq->window_first == 0)
		return;
	kv_windows_skip(kv, seq, seq->n_shared);
	for (uint32_t i = span(kv); i > 0 && tip != KV_NONE; i--, tip = kv->pages[tip].before) {
		seq_adds(kv, tip);
		seq->window_first -= KV_PAGE_CELLS;
	}
}

void kv_windows_regain(struct kv *kv, struct kv_seq *seq)
{
	kv_windows_attach(kv, seq, seq->tip, seq->n_shared);
}

void kv_windows_detach(struct kv *kv, const struct kv_seq *seq)
{
	if (in_use(kv))
		drop_pages(kv, seq->tip, seq->n_shared, seq->window_first);
}

void kv_windows_leave(struct kv *kv, const struct kv_seq *seq, uint32_t page, uint32_t first)
{
	if (in_use(kv) && first + KV_PAGE_CELLS > seq->window_first)
		seq_drops(kv, page);
}

void kv_windows_take_back(struct kv *kv, struct kv_seq *seq, uint32_t page, uint32_t first)
{
	if (!in_use(kv) || first + KV_PAGE_CELLS <= seq->window_first)
		return;
	assert(kv->pages[page].window_seqs == 1 && kv->pages[page].window_snapshots == 0);
	kv->pages[page].window_seqs = 0;
	/* Those that it had no need of, but that are there. */
	while (seq->window_first > first &&
		kv->windows.of[seq->cell[seq->window_first - 1]] != KV_NONE)
		seq->window_first--;
}

/* Whoever dies in between has lost the window cell, which then belongs to neither cell. */
static void move(struct kv *kv, uint32_t to, uint32_t from)
{
	struct kv_windows *w = &kv->windows;
	uint32_t at = w->of[from];

	if (at == KV_NONE || w->of[to] != KV_NONE)
		return;
	atomic_exchange_explicit(&w->shared[from], KV_NONE, memory_order_acq_rel);
	w->of[from] = KV_NONE;
	w->of[to] = at;
	/* Release: the content was committed long ago. */
	atomic_store_explicit(&w->shared[to], at, memory_order_release);
}

void kv_windows_merge(
	struct kv *kv, const struct kv_seq *seq, uint32_t to, uint32_t from, uint32_t first)
{
	if (!in_use(kv) || first + KV_PAGE_CELLS <= seq->window_first)
		return;
	for (uint32_t i = 0; i < KV_PAGE_CELLS; i++) {
		uint32_t cell = to * KV_PAGE_CELLS + i, own = seq->cell[kv->position[cell]];

		assert(own / KV_PAGE_CELLS == from);
		move(kv, cell, own);
	}
	seq_adds(kv, to);
}

void kv_windows_need(struct kv *kv, uint32_t page)
{
	for (uint32_t i = span(kv); i > 0 && page != KV_NONE; i--, page = kv->pages[page].before) {
		struct kv_page *own = &kv->pages[page];

		if (own->window_snapshots++ == 0 && own->window_seqs == 0)
			kv->windows.n_spared += KV_PAGE_CELLS;
	}
}

void kv_windows_free(struct kv *kv, uint32_t page)
{
	for (uint32_t i = span(kv); i > 0 && page != KV_NONE; i--, page = kv->pages[page].before) {
		struct kv_page *own = &kv->pages[page];

		if (--own->window_snapshots > 0 || own->window_seqs > 0)
			continue;
		kv->windows.n_spared -= KV_PAGE_CELLS;
		give_page(kv, page);
	}
}

void kv_windows_reclaim(struct kv *kv)
{
	for (uint32_t page = 0; in_use(kv) && page < kv->layout.n_pages; page++) {
		const struct kv_page *own = &kv->pages[page];

		if (own->shared && own->window_seqs == 0 && own->window_snapshots == 0)
			give_page(kv, page);
	}
}

uint32_t kv_windows_adopt(struct kv *kv, struct kv_seq *seq, uint32_t n)
{
	uint32_t first = n;

	if (!in_use(kv))
		return n;
	while (first > seq->n_shared && kv->windows.of[seq->cell[first - 1]] != KV_NONE)
		first--;
	/* What it has of its shared pages, kv_windows_attach has found. */
	if (first == seq->n_shared && first > 0)
		first = seq->window_first;
	if (first > first_needed(kv, n))
		return n > seq->n_shared && seq->window_first <= first_needed(kv, seq->n_shared)
			       ? seq->n_shared
			       : 0;
	for (uint32_t at = seq->n_shared; at < first; at++)
		kv_windows_give(kv, seq->cell[at]);
	if (first > seq->n_shared)
		kv_windows_detach(kv, seq);
	seq->window_first = first;
	return n;
}
