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
 *
 * Shared pages (kv_share.c) keep their window cells as long as one of their sequences can reach a cell
 * of the page, or a snapshot needs it: here a snapshot (snapshots.h) holds no copy, but the window
 * cells before the end of its page. A sequence can go on behind a page where all of these are there.
 * Window cells that snapshots alone need give way to running sequences.
 */
#pragma once

#include "shared/base/limits.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct kv;
struct kv_layout;
struct kv_seq;
struct model;

struct kv_windows_layout {
	/* number of layers with a window, the last of the layers with KV; 0: the rest is unused */
	uint32_t n_layers;
	uint32_t n_cells; /* window cells of all sequences together */
	uint32_t window; /* positions that a query attends to, its own included */
	/* newest positions of a sequence that keep their window cells: window, plus what a rewind
	 * may drop, and with snapshots what may lie behind the end of the last page */
	uint32_t kept;
};

struct kv_windows {
	_Atomic uint32_t *shared; /* [cell] its window cell, or KV_NONE; in the map */
	uint32_t *of; /* the same in this process; owned */
	uint32_t *free, n_free; /* window cells that are free; owned */
	uint32_t n_spared; /* window cells that snapshots alone need */
	size_t k_head_bytes, v_head_bytes; /* all window cells of one layer and head */
	size_t at; /* offset in the store of [layer][k, v][kv_head][window cell] */
};

/* The layout for n_seqs sequences of a model, with n_batch tokens in flight altogether, in a cache
 * of n_cells cells. n_layers is 0 when the model has no windowed layers, or when nothing would be
 * saved. */
struct kv_windows_layout kv_windows_of(
	const struct model *model, uint32_t n_seqs, uint32_t n_batch, uint32_t n_cells);

/* Makes room for snapshots: pages that hold all their window cells, n_pages at most. Each sequence may
 * then have some more window cells. Without windows, or where nothing would be saved any more, windowed
 * layers are stored like the others. */
void kv_windows_spare(
	struct kv_windows_layout *windows, uint32_t n_seqs, uint32_t n_pages, uint32_t n_cells);

/* Bytes of the window cells of a page, in a cache with windows. */
size_t kv_windows_page_bytes(const struct kv_layout *layout);
/* How many pages the window before the end of a page reaches into. */
uint32_t kv_windows_span(const struct kv_layout *layout);

/* Called by kv.c. Needs kv->layout and the meta records. table: in the map. at: offset of the
 * window cells in the store. -ENOMEM. */
int kv_windows_init(struct kv *kv, void *table, size_t at, bool fresh);
void kv_windows_exit(struct kv *kv);
/* Returns the window cell, if there is one, of a cell that holds nothing any more. */
void kv_windows_give(struct kv *kv, uint32_t cell);
/* True when n window cells are free, or can be; kv_windows_take takes one for a cell that has none. */
bool kv_windows_left(const struct kv *kv, uint32_t n);
void kv_windows_take(struct kv *kv, uint32_t cell);
/* The same for a cell that is committed: a successor learns of the window cell with kv_windows_show, once
 * its content is there. */
void kv_windows_take_hidden(struct kv *kv, uint32_t cell);
void kv_windows_show(struct kv *kv, uint32_t cell);
/* Call when tokens were committed: returns the window cells that no query can reach any more. */
void kv_windows_slide(struct kv *kv, struct kv_seq *seq);
/* How far back a sequence may go when n positions are wanted: n, or 0 when the cells before n are
 * gone. */
uint32_t kv_windows_back(const struct kv *kv, const struct kv_seq *seq, uint32_t n);
/* After a restart, for a sequence whose map is known up to n: n; or where its shared pages end; or 0.
 */
uint32_t kv_windows_adopt(struct kv *kv, struct kv_seq *seq, uint32_t n);

/* Shared pages. True when the page has all its window cells. */
bool kv_windows_filled(const struct kv *kv, uint32_t page);
/* True when a sequence can go on behind the page; always without windows. */
bool kv_windows_whole(const struct kv *kv, uint32_t page);
/* The sequence's own page has become a shared one, its last. */
void kv_windows_publish(struct kv *kv, const struct kv_seq *seq);
/* The sequence goes on behind its tip now: it has what is there of the window before that. It had
 * n shared positions, the last of them in `page`. */
void kv_windows_attach(struct kv *kv, struct kv_seq *seq, uint32_t page, uint32_t n);
/* The sequence, which has n positions or is about to, gives up all window cells. It can go on behind them
 * once it has the window again. */
void kv_windows_skip(struct kv *kv, struct kv_seq *seq, uint32_t n);
/* The sequence has no positions but those in its shared pages. It holds the window before their end: what
 * is there of it, and what is written there next (kv_window_write). Until then it cannot go on. */
void kv_windows_expect(struct kv *kv, struct kv_seq *seq);
/* The same, but holds only what is there from the end on. */
void kv_windows_regain(struct kv *kv, struct kv_seq *seq);
/* The sequence gives up the window cells of its shared pages. */
void kv_windows_detach(struct kv *kv, const struct kv_seq *seq);
/* It gives up those of this page, its last shared one, whose first position is `first`: it leaves the page
 * to others, or gets it back as its own. */
void kv_windows_leave(struct kv *kv, const struct kv_seq *seq, uint32_t page, uint32_t first);
void kv_windows_take_back(struct kv *kv, struct kv_seq *seq, uint32_t page, uint32_t first);
/* `to` takes the place of the sequence's own page `from`, and holds the same; it is the sequence's last
 * shared one from now on, and its first position is `first`. It gets the window cells that it lacks. */
void kv_windows_merge(
	struct kv *kv, const struct kv_seq *seq, uint32_t to, uint32_t from, uint32_t first);
/* A snapshot needs the window before the end of this page, which must be whole; and no longer. */
void kv_windows_need(struct kv *kv, uint32_t page);
void kv_windows_free(struct kv *kv, uint32_t page);
/* In a successor, once all sequences and snapshots have what they need: returns the other window cells of
 * shared pages. */
void kv_windows_reclaim(struct kv *kv);
