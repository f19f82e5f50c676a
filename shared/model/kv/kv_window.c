#include "shared/model/kv/kv.h"

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
		uint32_t at = atomic_load_explicit(&w->shared[cell], memory_order_relaxed);
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
	return !in_use(kv) || n <= kv->windows.n_free;
}

void kv_windows_take(struct kv *kv, uint32_t cell)
{
	struct kv_windows *w = &kv->windows;
	if (!in_use(kv))
		return;
	w->of[cell] = w->free[--w->n_free];
	/* The release in kv_commit orders this before the cell's marker. */
	atomic_store_explicit(&w->shared[cell], w->of[cell], memory_order_relaxed);
}

void kv_windows_slide(struct kv *kv, struct kv_seq *seq)
{
	while (in_use(kv) && seq->n - seq->window_first > kv->layout.windows.kept)
		kv_windows_give(kv, seq->cell[seq->window_first++]);
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

uint32_t kv_windows_adopt(struct kv *kv, struct kv_seq *seq, uint32_t n)
{
	if (!in_use(kv))
		return n;
	seq->window_first = n;
	while (seq->window_first > 0 && kv->windows.of[seq->cell[seq->window_first - 1]] != KV_NONE)
		seq->window_first--;
	if (seq->window_first > first_needed(kv, n)) {
		seq->window_first = 0;
		return 0;
	}
	for (uint32_t i = 0; i < seq->window_first; i++)
		kv_windows_give(kv, seq->cell[i]);
	return n;
}
