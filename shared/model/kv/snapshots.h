/*
 * Snapshots: the states of recurrent layers (recurrent.h) after the last token of a shared page, or
 * the window before its end in layers that keep windows of their own. A sequence that begins with
 * tokens of others can go on only there, so in such a cache prefixes end there (kv_prefix.h), and kept
 * pages without a snapshot at them or behind them are of no use (kv_keep.c). Engine thread.
 *
 * A snapshot of states is a copy, made between two passes and never changed. One of a window has no
 * content of its own: it keeps the window cells where they are (kv_window.h), and is the first to give
 * way when running sequences need some. Where snapshots are made is the caller's choice; Marconi (Pan
 * et al., arXiv 2411.19379, section 4.1) takes where prompts end and where they part.
 *
 * There is a fixed number. The one of least worth gives way: its worth is how many pages have to be
 * computed without it, times how often it was of use, counted from the worth of the one that went
 * last (GreedyDual-Size-Frequency, Cherkasova 1998; all have the same size). One gives way with its
 * page, too.
 *
 * The map has a record of each for a successor: its page, what that page held, and a checksum of the
 * state, which is compared before the first use. The checksum is made after the copy, by a thread of
 * its own where there is one (snapshots_sums_apart). A successor does not use a state whose checksum is
 * missing.
 */
#pragma once

#include "kernels/steps.h"
#include "shared/base/error.h"
#include "shared/base/limits.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv;
struct kv_seq;

#define SNAPSHOT_NONE UINT32_MAX

/* page: 1 more than its page; 0: the snapshot is free, or is being written. Stored with release
 * after everything else; a successor loads it with acquire. */
struct snapshot_meta {
	_Alignas(CACHE_LINE) _Atomic uint64_t page;
	_Atomic uint64_t chain; /* of the page (struct kv_page_meta) */
	_Atomic uint64_t sum; /* checksum of the state; 0: it is not made yet */
};

/* What the running process knows of it. */
struct snapshot {
	uint32_t page; /* KV_NONE: it is free, or taken without a page (snapshots_reserve) */
	uint32_t pins; /* it does not give way now; of windows 0, unless it has no page */
	bool holds; /* window cells: kv_windows_need */
	uint32_t uses;
	uint64_t since; /* the worth from which its own is counted */
	uint64_t sum; /* unchecked: what its content must have */
	bool unchecked; /* from a predecessor: its content was not compared yet */
	uint64_t tag; /* the caller's; 0 since it was made */
};

struct snapshots {
	struct snapshot_meta *meta; /* [n], in the map */
	struct snapshot *of; /* [n] owned */
	uint32_t n;
	uint64_t worth; /* of the one that went last */
	/* offset in the store of [n] states of so many bytes; 0 bytes: of windows */
	size_t at, bytes;
	uint64_t n_used;
	struct snapshot_sums *sums; /* NULL: sums are made at once; owned */
};

/* Called by kv.c and the other files of the cache. map: snapshot_meta[n]. -ENOMEM. */
int snapshots_init(struct kv *kv, void *map, size_t at, bool fresh);
void snapshots_exit(struct kv *kv);
/* In a successor, once it is known which pages are there: forgets the snapshots of others. */
void snapshots_settle(struct kv *kv);
/* The page is free, or no longer shared. */
void snapshots_leave(struct kv *kv, uint32_t page);
/* Lets a sequence go on from the snapshot of its last shared page, if there is one: pins one of states
 * until the sequence has its state. */
void snapshots_pin(struct kv *kv, struct kv_seq *seq);
void snapshots_unpin(struct kv *kv, struct kv_seq *seq);
/* Copies the snapshot that the sequence has pinned to its slot, and unpins it. False: the device has
 * failed. */
bool snapshots_load(struct kv *kv, struct kv_seq *seq);

/* Whether the sequence, which has tokens, can go on behind them: with a state or a snapshot of one, or with
 * its window. */
bool snapshots_ready(const struct kv *kv, const struct kv_seq *seq);

/* The snapshot of a page, or SNAPSHOT_NONE; compares its content before its first use. */
uint32_t snapshots_find(struct kv *kv, uint32_t page);
/* Whether there is one, whatever its content. */
bool snapshots_has(const struct kv *kv, uint32_t page);
/* Frees the one of least worth, for its window cells. There must be one. */
void snapshots_less(struct kv *kv);
/* Makes a snapshot of a sequence where it is of use: behind shared pages that can be found. A state must
 * be known, and be that behind them. *last: where the caller keeps which one the sequence made last
 * while it decoded, which then gives way first; NULL: it does not. */
void snapshots_take(struct kv *kv, const struct kv_seq *seq, uint32_t *last);

/* Offset in the store, and bytes, of a snapshot's content. */
size_t snapshots_place(const struct kv *kv, uint32_t snapshot);
/* For a store that this process does not see, behind kv_use_queue: copies a snapshot's content to a
 * place that it sees, or from there, and waits for it. False: the device has failed. */
bool snapshots_copy_out(struct kv *kv, uint32_t snapshot, struct place to);
bool snapshots_copy_in(struct kv *kv, uint32_t snapshot, struct place from);
/* A snapshot without content and page, pinned, whose content the caller writes; SNAPSHOT_NONE: all
 * are pinned. Ends with snapshots_give or snapshots_put. */
uint32_t snapshots_reserve(struct kv *kv);
/* Removes one pin. */
void snapshots_give(struct kv *kv, uint32_t snapshot);
/* The content is that of this shared page, which can be found. False, and it is given back, when the
 * page has one. */
bool snapshots_put(struct kv *kv, uint32_t snapshot, uint32_t page, uint64_t tag);
/* From now on a thread of its own makes the checksums. Does nothing where there are none to be made. */
int snapshots_sums_apart(struct kv *kv, struct error *err);
