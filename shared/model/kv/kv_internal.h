/*
 * What the files of the cache share: kv_layout.c (where everything lies), kv.c (pages and cells),
 * kv_share.c (shared pages), kv_keep.c (those that no sequence has), kv_prefix.c (how they are found),
 * kv_content.c (their bytes) and kv_adopt.c (what a predecessor left). No other file includes it.
 */
#pragma once

#include "shared/model/kv/kv.h"

/* Offsets of the parts of the map and of the store. */
struct kv_parts {
	size_t records, table, state_records, snapshot_records, map_end;
	size_t window_cells, states, snapshots, store_end;
};

bool kv_layout_valid(const struct kv_layout *layout);
struct kv_parts kv_parts_of(const struct kv_layout *layout);
/* Bytes of n_cells cells of one head in one layer, rounded up to whole turns; 0 for vectors without
 * values. */
size_t kv_head_bytes(const struct kv_layout *layout, uint32_t n_cells, uint32_t dim);
/* True when pages can be copied: this process sees the store, or has a queue (kv_use_queue). */
static inline bool kv_reaches(const struct kv *kv)
{
	return kv->store.host || kv->queue;
}
/* Copies bytes between two offsets of the store; a queue may do it later. Needs kv_reaches. */
void kv_copy_bytes(struct kv *kv, size_t to, size_t from, size_t bytes);
/* Copies all vectors of a page to another page. Needs kv_reaches. False: the device has failed. */
bool kv_copy_page(struct kv *kv, uint32_t to, uint32_t from);

/* kv_marker_clear must come before anything is written into the cell. */
void kv_marker_clear(struct kv *kv, uint32_t cell);
void kv_marker_set(struct kv *kv, uint32_t cell, uint32_t position);
/* Whether n cells can be taken, and takes them; without a state and without window cells. */
bool kv_has_room(const struct kv *kv, const struct kv_seq *seq, uint32_t n);
void kv_take_cells(struct kv *kv, struct kv_seq *seq, uint32_t n, uint32_t *cells);
/* Forgets positions n.. in a sequence's own pages. */
void kv_forget(struct kv *kv, struct kv_seq *seq, uint32_t n);
/* Frees a page that no sequence has. */
void kv_page_free(struct kv *kv, uint32_t page);
/* Appends a free page to the sequence's own ones, with all its cells spare. There must be one. */
uint32_t kv_page_take(struct kv *kv, struct kv_seq *seq);
/* A sequence's lists: its own pages, and those with spare cells; kv_spare_add adds cells to a
 * page's spare ones. */
void kv_own_add(struct kv *kv, struct kv_seq *seq, uint32_t page);
void kv_own_remove(struct kv *kv, struct kv_seq *seq, uint32_t page);
void kv_spare_add(struct kv *kv, struct kv_seq *seq, uint32_t page, uint32_t cells);

/* True when a sequence can go on from shared pages only where there is a snapshot, or would be one. */
static inline bool kv_ends_at_snapshots(const struct kv_layout *layout)
{
	return layout->states.n_layers > 0 || layout->windows.n_layers > 0;
}

/* True when sequences of a cache with this layout can share pages. */
static inline bool kv_can_share(const struct kv_layout *layout)
{
	return layout->n_records > 0 &&
	       (!kv_ends_at_snapshots(layout) || layout->states.n_snapshots > 0);
}

static inline bool kv_shares(const struct kv *kv)
{
	return kv_can_share(&kv->layout);
}

/* Turns the sequence's full pages, as far as each holds the positions of just one page, into shared
 * ones. */
void kv_publish(struct kv *kv, struct kv_seq *seq);
/* Continues a sequence with the shared pages up to this one, which lies behind its tip. It must
 * have no tokens but those in its shared pages. False when there is no free record. */
bool kv_attach(struct kv *kv, struct kv_seq *seq, uint32_t tip);
/* Replaces shared pages of the sequence, from the position `first` on, by those up to `tip`, which
 * hold the same tokens behind the same page; tip: no more pages than the sequence has. False, and
 * nothing is done, when another sequence has one of its pages. */
bool kv_merge(struct kv *kv, struct kv_seq *seq, uint32_t first, uint32_t tip);
/* The sequence gives up all shared pages and its record. */
void kv_detach(struct kv *kv, struct kv_seq *seq);
/* Goes back from seq->n_shared positions, which must be all it has, to n, or to the beginning of
 * the page with position n. Does nothing when fewer are shared. */
void kv_unshare(struct kv *kv, struct kv_seq *seq, uint32_t n);
/* Packs and unpacks the tip of a record, kv->records[seq->record]; KV_NONE when it is invalid. */
uint64_t kv_tip_pack(const struct kv *kv, uint64_t owner, uint32_t page);
uint32_t kv_tip_unpack(const struct kv *kv, uint64_t owner, uint64_t tip);
/* The value that a page's chain must have, with these sums and behind the page `before`. */
uint64_t kv_chain_of(const struct kv *kv, uint32_t before, uint64_t owner, const uint64_t *sums);

/* Keeps or frees a shared page that has just lost its last reference. */
void kv_keep(struct kv *kv, uint32_t page);
/* A kept page gets its first reference: it is not kept any more. */
void kv_keep_end(struct kv *kv, uint32_t page);
/* In a cache with snapshots: frees the page, and those before it, as far as they are kept and
 * neither they nor pages behind them have a snapshot. */
void kv_keep_useless(struct kv *kv, uint32_t page);
/* Frees the kept page of least worth. There must be one. */
void kv_keep_less(struct kv *kv);
/* Keeps what a predecessor had filed and no sequence has taken over; counts the pages behind each
 * page. Call after all sequences were taken over. Nothing is kept when there is no memory for it. */
void kv_keep_left(struct kv *kv);
/* Checks a kept page of a predecessor before its first use, which needs its positions; `before` was
 * checked. False: its content is damaged. */
bool kv_keep_check(struct kv *kv, uint32_t page);
/* The positions of a page as the map says, and their place: see kv_adopt.c. */
void kv_read_positions(const struct kv *kv, uint32_t page, int32_t *positions);
int64_t kv_place_of(const int32_t *positions);
/* True when the page was linked behind `before`. */
bool kv_is_linked(const struct kv *kv, uint32_t page, uint32_t before);
/* True when the page's content matches its checksums and it stands at this place of a chain, or at
 * any (-1); then its positions are known. */
bool kv_check_page(struct kv *kv, uint32_t page, int64_t place);
/* True when the page is filed, and so can be found. */
bool kv_prefix_has(const struct kv *kv, uint32_t page);
/* The tokens of a filed page. */
const int32_t *kv_prefix_tokens(const struct kv *kv, uint32_t page, uint64_t *domain);
/* Files a predecessor's page under the tokens that the map gives for it. False: they are not valid,
 * or another page holds them. */
bool kv_prefix_refile(struct kv *kv, uint32_t page);

/* Files the pages and records that a predecessor left by their owner. */
int kv_left_init(struct kv *kv);
void kv_left_exit(struct kv *kv);
