/*
 * What the files of the map share: kv_layout.c (where everything lies), kv.c (pages and cells), kv_share.c (shared pages) and
 * kv_adopt.c (what a predecessor left). Nobody else includes it.
 */
#pragma once

#include "shared/model/kv/kv.h"

/* Where each part of the map and of the store begins. */
struct kv_parts {
	size_t records, table, state_records, map_end;
	size_t window_cells, states, store_end;
};

bool kv_layout_valid(const struct kv_layout *layout);
struct kv_parts kv_parts_of(const struct kv_layout *layout);
/* n_cells cells of one head of one layer, whole turns of them; 0 for vectors of no values. */
size_t kv_head_bytes(const struct kv_layout *layout, uint32_t n_cells, uint32_t dim);
/* All vectors of a page to another one. Only where this process sees the store. */
void kv_copy_page(struct kv *kv, uint32_t to, uint32_t from);

/* A cell's marker is cleared before anything may be written into the cell. */
void kv_marker_clear(struct kv *kv, uint32_t cell);
void kv_marker_set(struct kv *kv, uint32_t cell, uint32_t position);
/* The positions n.. of a sequence's own pages are tokens no more. */
void kv_forget(struct kv *kv, struct kv_seq *seq, uint32_t n);
/* A page that nobody has any more becomes free. */
void kv_page_free(struct kv *kv, uint32_t page);
/* Puts a free page behind the sequence's own ones, with all of its cells spare; there is one. */
uint32_t kv_page_take(struct kv *kv, struct kv_seq *seq);
/* The lists of a sequence: its own pages; and the spare cells in one of them, which it adds to. */
void kv_own_add(struct kv *kv, struct kv_seq *seq, uint32_t page);
void kv_own_remove(struct kv *kv, struct kv_seq *seq, uint32_t page);
void kv_spare_add(struct kv *kv, struct kv_seq *seq, uint32_t page, uint32_t cells);

/* Whether sequences of this cache can share pages. */
static inline bool kv_shares(const struct kv *kv)
{
	return kv->layout.n_records > 0 && kv->layout.windows.n_layers == 0 &&
	       kv->layout.states.n_layers == 0;
}

/* The sequence's full pages, as far as they have the positions of one page each, become shared ones. */
void kv_publish(struct kv *kv, struct kv_seq *seq);
/* A sequence without tokens, or with no others than its shared ones, goes on to this page, which lies behind its tip; false when there
 * is no record for it. */
bool kv_attach(struct kv *kv, struct kv_seq *seq, uint32_t tip);
/* The sequence has no shared pages any more, and no record. */
void kv_detach(struct kv *kv, struct kv_seq *seq);
/* Goes back from seq->n_shared positions, which are all it has, to n, or to where the page of the last of them begins; does nothing
 * where fewer are shared. */
void kv_unshare(struct kv *kv, struct kv_seq *seq, uint32_t n);
/* Of a record, kv->records[seq->record]: its tip as it is written down, and what that says; KV_NONE when that cannot be. */
uint64_t kv_tip_pack(const struct kv *kv, uint64_t owner, uint32_t page);
uint32_t kv_tip_unpack(const struct kv *kv, uint64_t owner, uint64_t tip);
/* What a page's chain has to be, with these sums, behind the page `before`. */
uint64_t kv_chain_of(const struct kv *kv, uint32_t before, uint64_t owner, const uint64_t *sums);

/* What a predecessor left, by owner: of its pages and records the first of each owner's hash, and the next ones. */
int kv_left_init(struct kv *kv);
void kv_left_exit(struct kv *kv);
