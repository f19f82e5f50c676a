/*
 * The paged KV cache. A cell holds the keys and values of one token in every layer; cells come in
 * pages. A sequence owns pages and maps each position to a cell. An accepted branch of a tree is
 * adopted by writing the map, and a rejected one is dropped by returning its cells: nothing is ever
 * copied. Layers with a sliding window may have a smaller store of their own (kv_window.h). Used by
 * one thread, the engine's.
 *
 * There are two memories, both the caller's, and both outlive the process.
 *
 * The map is the host's. It has the meta records of all pages, each with the page's owner and each
 * cell's committed position; then the records of sequences that share pages, and the tables of
 * windows and states. They are written for a successor, which rebuilds its sequences from them
 * (kv_adopt) and checks what they say. The running process does not read them: it works on its own
 * copies.
 *
 * The store is the back end's: [layer][k, v][kv_head][cell]. The cells of each head are rounded up
 * to whole turns (KV_TURN) and to a cache line, so that what one attention job reads is contiguous.
 * Nothing here points into the store: vectors are known by their offsets. In a device's memory this
 * process does not see it; a queue then copies pages (kv_use_queue).
 *
 * A page stays with its sequence until kv_seq_exit, and is free again when no sequence has it. Shared
 * pages may be kept beyond that, for later sequences that begin with the same tokens (kv_keep.c).
 */
#pragma once

#include "kernels/kv_format.h"
#include "kernels/backend.h"
#include "shared/base/error.h"
#include "shared/model/kv/kv_sums.h"
#include "shared/model/kv/kv_window.h"
#include "shared/model/arch/model.h"
#include "shared/model/kv/recurrent.h"
#include "shared/model/kv/snapshots.h"

#include <stdlib.h>

#include <stdatomic.h>

#define KV_PAGE_CELLS 32
#define KV_PAGES_MAX (1 << 20)
#define KV_NONE UINT32_MAX /* no cell */

struct kv_layout {
	/* number of layers with keys and values; layer->kv_layer is an index among them */
	uint32_t n_layers;
	uint32_t n_kv_heads;
	uint32_t k_dim, v_dim; /* v_dim 0: the value is the beginning of the key vector (MLA) */
	enum kv_type type;
	uint32_t n_pages;
	/* number of sequences that can share pages at one time; 0: sharing is off */
	uint32_t n_records;
	uint32_t zero; /* instead of padding: layouts are compared byte by byte */
	/* n_layers 0: windowed layers are stored like the others */
	struct kv_windows_layout windows;
	struct recurrent_layout states; /* behind the cells; n_layers 0 without recurrent layers */
};

/* The layout of a model's cache; kv_bytes tells whether it is within limits. With recurrent layers
 * it has room for the state of one sequence, and for no snapshot; a caller with more sets
 * states.n_slots and n_snapshots. Windowed layers are stored like the others; to save that memory,
 * set windows to kv_windows_of, and for snapshots of windows call kv_windows_spare too. */
struct kv_layout kv_layout_of(const struct model *model, enum kv_type type, uint32_t n_pages);
/* "f32", "f16", "q8_0", "q16_0"; kv_type_named is the inverse, -EINVAL for any other name. */
const char *kv_type_name(enum kv_type type);
int kv_type_named(const char *name, enum kv_type *type);
/* The meaning of "auto": F32 for a model with F32 matrices, so that nothing is rounded that the
 * file did not round; otherwise Q16_0. */
enum kv_type kv_type_auto(const struct model *model);
/* The type of a checked setting: a type's name, or "auto", which NULL means as well. */
enum kv_type kv_type_of(const char *setting, const struct model *model);

/* A page, as a successor finds it. Each word is stored atomically. Whenever a process dies, each
 * page is free, belongs to one sequence, or is in the chains of those that share it.
 *
 * Commit marker: owner 0 = free page; position[i] = -1 unless cell i holds a committed token. The
 * position is stored with release after all layers of the cell were written; a successor loads it
 * with acquire. */
enum { KV_SUMS = KV_PAGE_CELLS / KV_TURN };
struct kv_page_meta {
	_Atomic uint64_t owner; /* session that filled it */
	/* if shared: the page with the preceding positions; KV_NONE: it has the first ones */
	_Atomic uint32_t before;
	/* 1: it belongs to every sequence with it in its chain (kv_share.c), not to the owner
	 * alone */
	_Atomic uint32_t shared;
	_Atomic uint64_t chain; /* if shared: checksum of its sums and of those before it */
	_Atomic int32_t position[KV_PAGE_CELLS];
	/* checksums of its turns of cells, see kv_sums.h; 0: none yet */
	_Atomic uint64_t sums[KV_SUMS];
	/* if shared and filed (kv_prefix.h): its domain and tokens, and a checksum of them and of
	 * chain */
	_Atomic uint64_t domain, name;
	_Atomic int32_t token[KV_PAGE_CELLS];
};

/* A sequence with shared pages, as a successor finds it. owner 0: free record. */
struct kv_record {
	_Atomic uint64_t owner;
	/* the last of its shared pages and a checksum, packed as in kv_share.c; 0: none */
	_Atomic uint64_t tip;
};

/* What the running process knows of a page. */
struct kv_page {
	uint64_t owner; /* 0: free */
	/* if not shared: 1, for its sequence; if shared: the number of sequences that end in it and
	 * of pages behind it that have references themselves */
	uint32_t refs;
	uint32_t behind; /* number of shared pages behind it; counted after kv_reclaim */
	uint32_t before;
	/* of a sequence's own page: a bit for each cell that holds nothing and is not in flight */
	uint32_t spare;
	/* in the list of its sequence's own pages, of the free ones, or of the kept ones without
	 * pages behind them; KV_NONE: end */
	uint32_t next, prev;
	uint32_t next_spare; /* in the list of its sequence's own pages with spare cells */
	bool shared;
	bool kept; /* no sequence has it */
	uint32_t uses; /* how many sessions have found it (kv_prefix_found) */
	uint64_t tag; /* the caller's, of a filed page; 0 since it was filed */
	uint64_t worth; /* kept: see kv_keep.c */
	uint32_t snapshot; /* 1 more than the state after it (snapshots.h); 0: there is none */
	/* shared: how many sequences, and how many snapshots, need its window cells (kv_window.h) */
	uint32_t window_seqs, window_snapshots;
	bool unchecked; /* kept, from a predecessor: its positions are not known yet */
};

struct kv {
	struct kv_layout layout;
	struct kv_page_meta *meta; /* [n_pages], in the map */
	struct kv_record *records; /* [n_records], in the map */
	struct kv_page *pages; /* [n_pages] owned */
	int32_t *position; /* [cells] as in meta; owned */
	bool checked; /* set by kv_check */
	struct buffer store; /* owned; see kv_k, kv_v */
	/* of kv_use_queue: NULL, or borrowed; and a page's content on its way, owned */
	struct queue *queue;
	struct buffer staging;
	/* distance between the vectors of neighbouring cells; equal when v lies in k */
	size_t k_bytes, v_bytes;
	size_t k_head_bytes,
		v_head_bytes; /* all cells of one layer and head; v's is 0 when it lies in k */
	uint32_t free_page, n_free; /* the first of the free pages, and their number */
	/* Kept pages: the list of those without pages behind them, those of least worth first; their
	 * number and the largest number, all included; the worth of the last that was freed. */
	uint32_t kept_first, kept_last, n_kept, kept_max;
	uint64_t kept_worth;
	uint32_t *free_records, n_free_records; /* owned */
	struct kv_left *left; /* of kv_adopt.c, in a successor, until kv_reclaim; owned */
	struct kv_prefixes *prefixes; /* kv_prefix.h; NULL: prefixes are not looked up; owned */
	struct kv_windows windows; /* kv_window.h */
	struct recurrent states; /* of the same sequences in recurrent layers; see kv_states */
	struct snapshots snapshots; /* of these states, or of windows */
};

struct kv_seq {
	uint64_t owner; /* session uid, not 0 */
	uint32_t n; /* number of committed tokens: positions 0..n-1 */
	uint32_t n_max;
	/* [n_max] from position to cell; owned. cell[n..] is scratch of the forward pass. */
	uint32_t *cell;
	/* `cell` as a buffer for steps; wrapped by the first pass that uses it */
	struct buffer map;
	uint32_t n_pages; /* pages that it holds, shared ones included */
	uint32_t own, own_last; /* the first and the last of its own pages; KV_NONE: none */
	/* spare: the first of its own pages with spare cells; n_spare: cells in all of them */
	uint32_t spare, n_spare;
	/* The positions before this one lie in shared pages, of KV_PAGE_CELLS positions each. */
	uint32_t n_shared;
	uint32_t tip; /* the last of these pages; KV_NONE: none */
	uint32_t record; /* index of its record; KV_NONE while it has no shared page */
	uint32_t n_named; /* how many of its shared tokens kv_prefix_enter has entered */
	/* the sequence needs no window cells of positions before this one (kv_window.h) */
	uint32_t window_first;
	struct recurrent_seq state; /* in kv_states; also after n tokens */
	/* 1 more than the snapshot that it begins with: it has no state yet; 0: none */
	uint32_t snapshot;
};

/* The states of the cache; NULL for a model without recurrent layers. */
static inline struct recurrent *kv_states(struct kv *kv)
{
	return kv->states.layout.n_layers ? &kv->states : NULL;
}

/* A table that a back end wraps; to be freed with free(). It has whole pages, because a device maps
 * each page of the host once. NULL: there is no memory. */
static inline void *kv_table_alloc(size_t bytes)
{
	enum { PAGE = 4096 };

	return aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE);
}

/* Bytes of the map and of the store, both multiples of a cache line, and of both together; 0 when
 * the layout is out of limits (limits.h, KV_PAGES_MAX). */
size_t kv_map_bytes(const struct kv_layout *layout);
size_t kv_store_bytes(const struct kv_layout *layout);
size_t kv_bytes(const struct kv_layout *layout);
/* map: kv_map_bytes, 64-byte aligned. store: at least kv_store_bytes; taken over, also on failure.
 * fresh: marks all pages free; otherwise the map is kept for kv_adopt. */
int kv_init(struct kv *kv, void *map, struct buffer *store, const struct kv_layout *layout,
	bool fresh, struct error *err);
/* The same in memory of this process, kv_bytes: first the map, behind it the store, for a back end
 * that can wrap memory. */
int kv_init_memory(struct kv *kv, struct backend *backend, void *memory,
	const struct kv_layout *layout, bool fresh, struct error *err);
/* A fresh cache whose store is memory that the back end allocates: a device's own. map: of this
 * process, kv_map_bytes. */
int kv_init_own(struct kv *kv, struct backend *backend, void *map, const struct kv_layout *layout,
	struct error *err);
void kv_exit(struct kv *kv);
/* Call after kv_init, for memory that other processes could write to: kv_adopt then takes over only
 * cells with the right checksum (kv_sums.h). */
void kv_check(struct kv *kv);
/* Lets pages of a store that this process does not see be copied (kv_share, kv_content.h), through
 * this queue: from now on the cache belongs to the queue's thread. Does nothing for other stores.
 * -ENOMEM. */
int kv_use_queue(struct kv *kv, struct queue *q, struct error *err);

/* Makes an empty sequence for n_max tokens, with LIMIT_DRAFT_NODES more in flight. -EINVAL: owner
 * is 0, or n_max not in 1..LIMIT_CONTEXT. */
int kv_seq_init(struct kv_seq *seq, uint64_t owner, uint32_t n_max);
/* Returns all pages of the sequence. Shared ones that no other sequence has are kept if they are
 * filed and there is room for them (kv_keep_max), else freed. */
void kv_seq_exit(struct kv *kv, struct kv_seq *seq);
/* Frees the sequence's memory in this process. Its pages stay its own, for a successor. */
void kv_seq_forget(struct kv_seq *seq);

/* Call after a restart, for each sequence: takes over the pages that seq->owner left, as far as
 * positions 0..n-1 are contiguous and n <= limit (shared pages only whole). Then call kv_reclaim
 * once: it frees what no sequence has taken over. Before that, no sequence may take cells. */
void kv_adopt(struct kv *kv, struct kv_seq *seq, uint32_t limit);
void kv_reclaim(struct kv *kv);

/*
 * Lets a sequence without tokens take over the first n tokens of another one, as many as possible;
 * returns their number, seq->n. Whole pages are shared. The rest of n, in the next page, is copied
 * if a page is free for it, and otherwise left out. Nothing is shared in a cache whose layers
 * keep windows of their own or recurrent states: see kv_prefix.h.
 *
 * Shared pages are never written to. All full pages of a sequence can be shared, from the first on,
 * as long as each holds just the positions of its turn; drafts with several branches end that. A
 * sequence that is truncated within a page that others have gets a copy of what it keeps, or goes
 * back to the beginning of that page when no page is free: see seq->n.
 */
uint32_t kv_share(struct kv *kv, struct kv_seq *seq, const struct kv_seq *from, uint32_t n);

/* Takes n cells for tokens in flight. -ENOSPC, and nothing is taken, when the pages, the window
 * cells or the sequence's own room are used up. Taken cells are returned with kv_commit. */
int kv_take(struct kv *kv, struct kv_seq *seq, uint32_t n, uint32_t *cells);
/* The `accepted` cells become, in order, positions seq->n.. and are marked
 * committed; the `rejected` ones become spare. Only the books are kept here. With recurrent layers,
 * accepted drafts must be replayed (forward_replay) before the sequence's next pass, as
 * recurrent_behind tells. */
void kv_commit(struct kv *kv, struct kv_seq *seq, const uint32_t *accepted, uint32_t n_accepted,
	const uint32_t *rejected, uint32_t n_rejected);
/* Forgets positions n.. (session edits, a drafter's rewind). It may forget more: with recurrent
 * layers, positions that the newest usable state does not cover; all positions when the window
 * before n is gone; with windows, the rest of a page that others have; and what kv_share says. See
 * seq->n. */
void kv_truncate(struct kv *kv, struct kv_seq *seq, uint32_t n);
/* The largest number of kept pages from now on; 0, as after kv_init: none is kept. Frees those that
 * are too many. */
void kv_keep_max(struct kv *kv, uint32_t pages);
/* spare cells, and those of free and of kept pages, which give way */
uint32_t kv_free_cells(const struct kv *kv, const struct kv_seq *seq);

/* Offset in the store of cell 0's vector, for a layer (index among those with KV) and head. Cell c
 * is k_bytes (v_bytes) * c further, or is one of the turned vectors there. c: from kv_cell. */
size_t kv_k(const struct kv *kv, uint32_t layer, uint32_t kv_head);
size_t kv_v(const struct kv *kv, uint32_t layer, uint32_t kv_head);

/* True when keys lie turned (KV_TURN, kernels/kv_format.h): when no values are read from them. */
static inline bool kv_turned(const struct kv *kv)
{
	return kv->layout.v_dim != 0;
}

/* True when values lie paired: with types in blocks, unless they are part of the keys. */
static inline bool kv_paired(const struct kv *kv)
{
	return kv->layout.v_dim != 0 && kv_in_blocks(kv->layout.type);
}

/* True when the layer has window cells of its own. kv_cell then gives the window cell of a cell,
 * otherwise the cell itself. */
static inline bool kv_own_window(const struct kv *kv, uint32_t layer)
{
	return layer >= kv->layout.n_layers - kv->layout.windows.n_layers;
}

/* True when the cell may hold a token in every layer: kv_take handed it out, and it was not
 * rejected since. */
static inline bool kv_windows_has(const struct kv *kv, uint32_t cell)
{
	return kv->layout.windows.n_layers == 0 || kv->windows.of[cell] != KV_NONE;
}

static inline uint32_t kv_cell(const struct kv *kv, uint32_t layer, uint32_t cell)
{
	return kv_own_window(kv, layer) ? kv->windows.of[cell] : cell;
}
