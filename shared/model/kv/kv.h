/*
 * The paged KV cache. A cell holds the keys and values of one token in every layer; cells come in pages. A
 * sequence owns pages and maps position -> cell, so that an accepted branch of a tree is adopted by writing the
 * map and a rejected one is dropped by returning its cells: nothing is ever copied. Layers with a sliding window may have
 * a smaller store of their own (kv_window.h).
 *
 * Both memories are the caller's, and outlive the process. The map is the host's: the meta records of all pages, each with
 * the page's owner and, per cell, the committed position, then the sequences that share pages, and the tables of windows and
 * states. They are written and, but
 * by a successor, not read: what this process goes by is its own. A successor rebuilds its sequences from them (kv_adopt);
 * what they say is checked, never trusted. The store is the back end's: [layer][k, v][kv_head][cell], each head's cells
 * rounded up to whole turns (KV_TURN) and a cache line, so that what one attention job reads is contiguous. Nothing here
 * points into it: vectors are known by their offsets.
 * A page stays with its sequence until kv_seq_exit, and is free again when no sequence has it. Used by one engine thread.
 */
#pragma once

#include "kernels/kv_format.h"
#include "kernels/backend.h"
#include "shared/base/error.h"
#include "shared/model/kv/kv_sums.h"
#include "shared/model/kv/kv_window.h"
#include "shared/model/arch/model.h"
#include "shared/model/kv/recurrent.h"

#include <stdatomic.h>

#define KV_PAGE_CELLS 32
#define KV_PAGES_MAX (1 << 20)
#define KV_NONE UINT32_MAX /* no cell */

struct kv_layout {
	uint32_t n_layers; /* that have keys and values: layer->kv_layer counts them */
	uint32_t n_kv_heads;
	uint32_t k_dim, v_dim; /* v_dim 0: the values are the first part of the key vector (MLA) */
	enum kv_type type;
	uint32_t n_pages;
	uint32_t n_records; /* sequences that can share pages at one time; 0: none does */
	struct kv_windows_layout windows; /* n_layers 0: windowed layers are kept like the others */
	struct recurrent_layout states; /* behind the cells; n_layers 0 without recurrent layers */
};

/* The layout of a model's cache; kv_bytes says whether it is in bounds. With recurrent layers there is room for the state of
 * one sequence; who has more of them sets states.n_slots. Windowed layers are kept like the others; who wants to
 * save that sets windows to kv_windows_of. */
struct kv_layout kv_layout_of(const struct model *model, enum kv_type type, uint32_t n_pages);
/* "f32", "f16", "q8_0", "q16_0"; and back: -EINVAL for any other name. */
const char *kv_type_name(enum kv_type type);
int kv_type_named(const char *name, enum kv_type *type);
/* What "auto" means: F32 for a model of F32 matrices, so that nothing is rounded that the file did not round, else Q16_0. */
enum kv_type kv_type_auto(const struct model *model);
/* What a setting means that has been checked: a type's name, or "auto", as NULL does. */
enum kv_type kv_type_of(const char *setting, const struct model *model);

/* A page as a successor finds it. Each word is stored at once, and whatever the order in which a process died, each page is
 * free, of one sequence, or in the chains of those that share it.
 *
 * Commit marker: owner 0 = free page; position[i] = -1 unless cell i holds a committed token. The position is stored with
 * release after all layers of the cell were written; a successor loads it with acquire. */
enum { KV_SUMS = KV_PAGE_CELLS / KV_TURN };
struct kv_page_meta {
	_Atomic uint64_t owner; /* the session that filled it */
	_Atomic uint32_t
		before; /* shared: the page of the positions before, KV_NONE: it has the first ones */
	_Atomic uint32_t
		shared; /* not the owner's alone: whoever has it in its chain (kv_share.c) */
	_Atomic uint64_t chain; /* shared: a checksum of its sums and of those before it */
	_Atomic int32_t position[KV_PAGE_CELLS];
	_Atomic uint64_t sums[KV_SUMS]; /* of its turns of cells, see kv_sums.h; 0 = none yet */
};

/* A sequence with shared pages, as a successor finds it. owner 0 = free record. */
struct kv_record {
	_Atomic uint64_t owner;
	_Atomic uint64_t
		tip; /* the last of its shared pages and a checksum, as kv_share.c packs them; 0: it has none */
};

/* What this process goes by of a page. */
struct kv_page {
	uint64_t owner; /* 0: free */
	uint32_t
		refs; /* the sequence whose page it is, or of a shared one the pages behind it and the sequences that end in it */
	uint32_t before;
	uint32_t
		spare; /* a bit for each cell that holds nothing and is not in flight; of a sequence's own page */
	uint32_t next, prev; /* among its sequence's own pages, or the free ones; KV_NONE */
	uint32_t next_spare; /* among its sequence's own pages with spare cells */
	bool shared;
};

struct kv {
	struct kv_layout layout;
	struct kv_page_meta *meta; /* [n_pages], in the map */
	struct kv_record *records; /* [n_records], in the map */
	struct kv_page *pages; /* [n_pages] owned */
	int32_t *position; /* [cells] as in meta; owned */
	bool checked; /* kv_check */
	struct buffer store; /* owned; see kv_k, kv_v */
	size_t k_bytes,
		v_bytes; /* from a cell's vector to the next cell's; equal when v lies in k */
	size_t k_head_bytes,
		v_head_bytes; /* of all cells of one layer and head; v's 0 when it lies in k */
	uint32_t free_page, n_free; /* the first of the free pages, and how many */
	uint32_t *free_records, n_free_records; /* owned */
	struct kv_left *left; /* kv_adopt.c; until kv_reclaim, in a successor; owned */
	struct kv_prefixes *prefixes; /* kv_prefix.h; NULL: prefixes are not looked up; owned */
	struct kv_windows windows; /* kv_window.h */
	struct recurrent states; /* of the same sequences, in recurrent layers; see kv_states */
};

struct kv_seq {
	uint64_t owner; /* session uid, not 0 */
	uint32_t n; /* committed tokens: positions 0..n-1 */
	uint32_t n_max;
	/* [n_max] position -> cell; owned. cell[n..] is scratch of the forward pass. */
	uint32_t *cell;
	struct buffer
		map; /* cell, as steps read it: of the first pass that does, with which it is wrapped */
	uint32_t n_pages; /* that it holds, shared ones too */
	uint32_t own, own_last; /* the first and the last of its own pages; KV_NONE */
	uint32_t spare,
		n_spare; /* the first of its own pages with spare cells; and cells, of all of them */
	/* Positions before it lie in shared pages, of KV_PAGE_CELLS positions each. */
	uint32_t n_shared;
	uint32_t tip; /* the last of those; KV_NONE */
	uint32_t record; /* its record; KV_NONE as long as it has no shared page */
	uint32_t n_named; /* of its shared tokens, those that kv_prefix_enter has entered */
	uint32_t window_first; /* positions before it have lost their window cells (kv_window.h) */
	struct recurrent_seq state; /* in kv_states: after n tokens, too */
};

/* NULL for a model without recurrent layers. */
static inline struct recurrent *kv_states(struct kv *kv)
{
	return kv->states.layout.n_layers ? &kv->states : NULL;
}

/* Of the map and of the store, both multiples of a cache line, and of the two together; 0 when the layout is out of bounds
 * (limits.h, KV_PAGES_MAX). */
size_t kv_map_bytes(const struct kv_layout *layout);
size_t kv_store_bytes(const struct kv_layout *layout);
size_t kv_bytes(const struct kv_layout *layout);
/* map: kv_map_bytes, 64-byte aligned; store: of kv_store_bytes at least, taken over (also where this fails). fresh: mark all pages
 * free; else keep the map for kv_adopt. */
int kv_init(struct kv *kv, void *map, struct buffer *store, const struct kv_layout *layout,
	bool fresh, struct error *err);
/* The same in memory of this process, kv_bytes: the map, and behind it the store of a back end that can be given memory. */
int kv_init_memory(struct kv *kv, struct backend *backend, void *memory,
	const struct kv_layout *layout, bool fresh, struct error *err);
void kv_exit(struct kv *kv);
/* After kv_init, of memory that other processes could write to: kv_adopt takes over what has the right checksum (kv_sums.h). Only
 * where this process sees the store. */
void kv_check(struct kv *kv);

/* For n_max tokens and LIMIT_DRAFT_NODES more in flight. -EINVAL: owner 0 or n_max not in 1..LIMIT_CONTEXT. */
int kv_seq_init(struct kv_seq *seq, uint64_t owner, uint32_t n_max);
/* Returns every page of the sequence; shared ones when nobody else has them. */
void kv_seq_exit(struct kv *kv, struct kv_seq *seq);
/* Frees what the sequence has of this process. Its pages stay its own, for a successor. */
void kv_seq_forget(struct kv_seq *seq);

/* After a restart: takes over the pages seq->owner left, as far as positions 0..n-1 are contiguous and n <= limit (of shared pages
 * whole ones). kv_reclaim, once afterwards, frees what no sequence has taken over. Until then no sequence takes cells. */
void kv_adopt(struct kv *kv, struct kv_seq *seq, uint32_t limit);
void kv_reclaim(struct kv *kv);

/*
 * A sequence without tokens takes over the first n of another one's, as many as can be had; returns how many: seq->n. Whole
 * pages are shared. What is left of n in the next page is copied where a page is free for it, else it is left out. Nothing at all is
 * shared where layers keep a window of their own or a recurrent state: what the sequence would need of them is another one's.
 *
 * Shared pages are never written to. All of a sequence's full pages can be shared, from the first on, as long as each holds just the
 * positions of its turn; behind drafts of several branches that ends. A sequence that is truncated in a page that others have gets
 * a copy of what it keeps, or goes back to the page's beginning when no page is free: look at seq->n.
 */
uint32_t kv_share(struct kv *kv, struct kv_seq *seq, const struct kv_seq *from, uint32_t n);

/* n cells for tokens in flight; -ENOSPC when the pages, the window cells or the sequence's own room are used up (nothing
 * is taken then).
 * Cells that were taken go back with kv_commit. */
int kv_take(struct kv *kv, struct kv_seq *seq, uint32_t n, uint32_t *cells);
/* Of the cells taken, `accepted` (in order) become positions seq->n.. and are marked committed; `rejected` become
 * spare. Only the books are kept here: with recurrent layers, accepted drafts have to be replayed (forward_replay)
 * before the sequence's next pass, as recurrent_behind tells. */
void kv_commit(struct kv *kv, struct kv_seq *seq, const uint32_t *accepted, uint32_t n_accepted,
	const uint32_t *rejected, uint32_t n_rejected);
/* Forgets positions n.. (session edits, a drafter's rewind), and with recurrent layers those before it that their
 * newest usable state does not cover, all of them where the window before n is gone, and what kv_share says: look at
 * seq->n. */
void kv_truncate(struct kv *kv, struct kv_seq *seq, uint32_t n);
uint32_t kv_free_cells(const struct kv *kv, const struct kv_seq *seq); /* spare + free pages */

/* Where in the store's buffer cell 0's vector of a layer (of those with KV) and head lies; cell c lies k_bytes (v_bytes) * c further,
 * or is one of the turned vectors there. c: kv_cell. */
size_t kv_k(const struct kv *kv, uint32_t layer, uint32_t kv_head);
size_t kv_v(const struct kv *kv, uint32_t layer, uint32_t kv_head);

/* Whether keys lie turned (KV_TURN, kernels/kv_format.h): where no values are read from them. */
static inline bool kv_turned(const struct kv *kv)
{
	return kv->layout.v_dim != 0;
}

/* Whether values lie paired: those of blocks that are not the keys'. */
static inline bool kv_paired(const struct kv *kv)
{
	return kv->layout.v_dim != 0 && kv_in_blocks(kv->layout.type);
}

/* Whether the layer has cells of its own for its window, and which of them, or else the cell itself, is a token's. */
static inline bool kv_own_window(const struct kv *kv, uint32_t layer)
{
	return layer >= kv->layout.n_layers - kv->layout.windows.n_layers;
}

/* Whether the cell may hold a token in every layer: kv_take has handed it out and it is not rejected since. */
static inline bool kv_windows_has(const struct kv *kv, uint32_t cell)
{
	return kv->layout.windows.n_layers == 0 || kv->windows.of[cell] != KV_NONE;
}

static inline uint32_t kv_cell(const struct kv *kv, uint32_t layer, uint32_t cell)
{
	return kv_own_window(kv, layer) ? kv->windows.of[cell] : cell;
}
