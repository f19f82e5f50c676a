/*
 * Cells of layers with a sliding window. A token attends there to a few cells before it only, so those layers need not
 * keep every token: they have a small store of window cells of their own, and a cell of the cache (kv.h) has one of them
 * as long as a query of its sequence can reach it. struct kv drives this; kv_take hands window cells out, kv_commit takes
 * back those that have fallen out of every window. Where it does not pay (kv_windows_of) windowed layers are kept
 * like the others, and nothing here does anything.
 *
 * Which window cell belongs to which cell is kept twice: in this process, which goes by it, and in the map, for
 * a successor, which checks it when it starts (kv_windows_init).
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
	uint32_t
		n_layers; /* with a window: the last ones of the layers with KV; 0: nothing below counts */
	uint32_t n_cells; /* window cells, all sequences together */
	uint32_t window; /* positions a query attends to, its own counted */
	uint32_t
		kept; /* newest positions of a sequence that keep theirs: window, and what a rewind may drop */
};

struct kv_windows {
	_Atomic uint32_t *shared; /* [cell] window cell or KV_NONE, in the map */
	uint32_t *of; /* the same, this process's own; owned */
	uint32_t *free, n_free; /* window cells nobody has; owned */
	size_t k_head_bytes, v_head_bytes; /* of all window cells of one layer and head */
	size_t at; /* in the store: [layer][k, v][kv_head][window cell] */
};

/* For n_seqs sequences of a model, with n_batch tokens in flight altogether, in a cache of n_cells cells. n_layers is 0
 * when the model has no windowed layers, or saves nothing. */
struct kv_windows_layout kv_windows_of(
	const struct model *model, uint32_t n_seqs, uint32_t n_batch, uint32_t n_cells);

/* kv.c's own calls. kv->layout and the meta records are there; table: in the map; at: of the window cells in the store.
 * -ENOMEM. */
int kv_windows_init(struct kv *kv, void *table, size_t at, bool fresh);
void kv_windows_exit(struct kv *kv);
/* A cell that holds nothing any more gives back its window cell, if it has one. */
void kv_windows_give(struct kv *kv, uint32_t cell);
/* Whether there are n to take; and one for a cell that has none. */
bool kv_windows_left(const struct kv *kv, uint32_t n);
void kv_windows_take(struct kv *kv, uint32_t cell);
/* Tokens were committed: what no query can reach any more is given back. */
void kv_windows_slide(struct kv *kv, struct kv_seq *seq);
/* How far back a sequence may go when n positions are wanted: n, or 0 when the cells before n are gone. */
uint32_t kv_windows_back(const struct kv *kv, const struct kv_seq *seq, uint32_t n);
/* After a restart, of a sequence whose map is known up to n: n, or 0. */
uint32_t kv_windows_adopt(struct kv *kv, struct kv_seq *seq, uint32_t n);
