/*
 * The paged KV cache. A cell holds the keys and values of one token in every layer; cells come in pages. A
 * sequence owns pages and maps position -> cell, so that an accepted branch of a tree is adopted by writing the
 * map and a rejected one is dropped by returning its cells: nothing is ever copied.
 *
 * The memory is the caller's (a region that outlives the process). Layout: the meta records of all pages, rounded up
 * to a cache line, then [layer][k, v][kv_head][cell][head_dim], so that the cells of one head, which one attention
 * job reads, are contiguous. A meta record holds the page's owner and, per cell, the committed position. A
 * successor rebuilds its sequences from these (kv_adopt); what they say is checked, never trusted.
 * A page stays with its sequence until kv_seq_exit. Used by one engine thread.
 */
#pragma once

#include "kernels/kernels.h"
#include "shared/base/error.h"
#include "shared/model/model.h"

#include <stdatomic.h>

#define KV_PAGE_CELLS 32
#define KV_PAGES_MAX (1 << 20)
#define KV_NONE UINT32_MAX /* no cell */

struct kv_layout {
	uint32_t n_layers, n_kv_heads, head_dim;
	enum kv_type type;
	uint32_t n_pages;
};

/* Commit marker: owner 0 = free page; position[i] = -1 unless cell i holds a committed token of the owner.
 * The position is stored with release after all layers of the cell were written; a successor loads it with acquire. */
struct kv_page_meta {
	_Atomic uint64_t owner;
	_Atomic int32_t position[KV_PAGE_CELLS];
};

struct kv {
	struct kv_layout layout;
	struct kv_page_meta *meta; /* [n_pages], in the caller's memory */
	unsigned char *cells; /* [layer][k, v][kv_head][cell][head_dim] of type: see kv_k, kv_v */
	size_t head_bytes; /* of all cells of one layer, k or v, and head */
	uint32_t *free_pages, n_free; /* owned */
};

struct kv_seq {
	uint64_t owner; /* session uid, not 0 */
	uint32_t n; /* committed tokens: positions 0..n-1 */
	uint32_t n_max;
	/* [n_max] position -> cell; owned. cell[n..] is scratch of the forward pass. */
	uint32_t *cell;
	uint32_t *spare, n_spare; /* cells of owned pages that hold nothing; owned */
	uint32_t *pages, n_pages; /* owned */
};

/* Meta and cells; 0 when the layout is out of bounds (limits.h, KV_PAGES_MAX). */
size_t kv_bytes(const struct kv_layout *layout);
/* mem: kv_bytes, 64-byte aligned. fresh: mark all pages free; else keep the meta for kv_adopt. */
int kv_init(
	struct kv *kv, void *mem, const struct kv_layout *layout, bool fresh, struct error *err);
void kv_exit(struct kv *kv);

/* Room for n_max tokens and LIMIT_DRAFT more in flight. -EINVAL: owner 0 or n_max not in 1..LIMIT_CONTEXT. */
int kv_seq_init(struct kv_seq *seq, uint64_t owner, uint32_t n_max);
/* Returns every page of the sequence. */
void kv_seq_exit(struct kv *kv, struct kv_seq *seq);

/* After a restart: takes over the pages seq->owner left, as far as positions 0..n-1 are contiguous and n <= limit.
 * Pages of owners nobody adopts are freed by kv_reclaim(kv, live owners). */
void kv_adopt(struct kv *kv, struct kv_seq *seq, uint32_t limit);
void kv_reclaim(struct kv *kv, const uint64_t *owners, size_t n_owners);

/* n cells for tokens in flight; -ENOSPC when the pages, or the sequence's own room, are used up (nothing taken then).
 * Cells that were taken go back with kv_commit. */
int kv_take(struct kv *kv, struct kv_seq *seq, uint32_t n, uint32_t *cells);
/* Of the cells taken, `accepted` (in order) become positions seq->n.. and are marked committed; `rejected` become
 * spare. */
void kv_commit(struct kv *kv, struct kv_seq *seq, const uint32_t *accepted, uint32_t n_accepted,
	const uint32_t *rejected, uint32_t n_rejected);
/* Forgets positions n.. (session edits, a drafter's rewind). */
void kv_truncate(struct kv *kv, struct kv_seq *seq, uint32_t n);
uint32_t kv_free_cells(const struct kv *kv, const struct kv_seq *seq); /* spare + free pages */

/* Cell 0's vector of a layer and head; cell c lies head_dim * sizeof(type) * c bytes further. */
void *kv_k(const struct kv *kv, uint32_t layer, uint32_t kv_head);
void *kv_v(const struct kv *kv, uint32_t layer, uint32_t kv_head);
