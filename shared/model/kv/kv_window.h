/*
 * Cells of layers with a sliding window. There a token attends only to a few cells before it, so
 * those layers need not keep every token. They have a small store of window cells, and a cell of
 * the cache (kv.h) has one of these as long as a query of its sequence can reach it. struct kv
 * drives this: kv_take hands window cells out, and kv_commit takes back those that have fallen out
 * of every window. Where this does not pay (kv_windows_of), windowed layers are stored like the
 * others, and nothing here does anything.
 *
 * Which window cell belongs to which cell is stored twice: in this process, which works with it,
 * and in the map for a successor, which checks it when it starts (kv_windows_init).
 */
#pragma once

#include "shared/base/limits.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct kv;
struct kv_seq;
struct model;

struct kv_windows_layout {
	/* number of layers with a window, the last of the layers with KV; 0: the rest is unused */
	uint32_t n_layers;
	uint32_t n_cells; /* window cells of all sequences together */
	uint32_t window; /* positions that a query attends to, its own included */
	/* newest positions of a sequence that keep their window cells: window, plus what a rewind
	 * may drop */
	uint32_t kept;
};

struct kv_windows {
	_Atomic uint32_t *shared; /* [cell] its window cell, or KV_NONE; in the map */
	uint32_t *of; /* the same in this process; owned */
	uint32_t *free, n_free; /* window cells that are free; owned */
	size_t k_head_bytes, v_head_bytes; /* all window cells of one layer and head */
	size_t at; /* offset in the store of [layer][k, v][kv_head][window cell] */
};

/* The layout for n_seqs sequences of a model, with n_batch tokens in flight altogether, in a cache
 * of n_cells cells. n_layers is 0 when the model has no windowed layers, or when nothing would be
 * saved. */
struct kv_windows_layout kv_windows_of(
	const struct model *model, uint32_t n_seqs, uint32_t n_batch, uint32_t n_cells);

/* Called by kv.c. Needs kv->layout and the meta records. table: in the map. at: offset of the
 * window cells in the store. -ENOMEM. */
int kv_windows_init(struct kv *kv, void *table, size_t at, bool fresh);
void kv_windows_exit(struct kv *kv);
/* Returns the window cell, if there is one, of a cell that holds nothing any more. */
void kv_windows_give(struct kv *kv, uint32_t cell);
/* True when n window cells are free; kv_windows_take takes one for a cell that has none. */
bool kv_windows_left(const struct kv *kv, uint32_t n);
void kv_windows_take(struct kv *kv, uint32_t cell);
/* Call when tokens were committed: returns the window cells that no query can reach any more. */
void kv_windows_slide(struct kv *kv, struct kv_seq *seq);
/* How far back a sequence may go when n positions are wanted: n, or 0 when the cells before n are
 * gone. */
uint32_t kv_windows_back(const struct kv *kv, const struct kv_seq *seq, uint32_t n);
/* After a restart, for a sequence whose map is known up to n: n, or 0. */
uint32_t kv_windows_adopt(struct kv *kv, struct kv_seq *seq, uint32_t n);
