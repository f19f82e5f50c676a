/*
 * The content of shared pages as bytes, for who keeps pages elsewhere, and pages that are filled with
 * such bytes instead of being computed. With recurrent layers such a page has no state: the sequence
 * gets one from a snapshot (snapshots.h). Only for caches whose pages can be shared (kv_share.c). For a
 * store that this process does not see, call kv_use_queue first. Engine thread.
 */
#pragma once

#include "shared/model/kv/kv.h"

/* Bytes of a page: of each layer and head the keys of its cells, then their values, as they lie in
 * the store, without layers that keep windows of their own. 0: pages of this cache cannot be had; so it is
 * with such windows in memory that this process does not see. */
size_t kv_content_bytes(const struct kv *kv);
/* The same of a cache with this layout, in memory that its process sees. */
size_t kv_content_bytes_of(const struct kv_layout *layout);

struct kv_content_name {
	uint64_t domain;
	const int32_t *tokens; /* [KV_PAGE_CELLS] until the page changes */
	uint8_t order[KV_PAGE_CELLS]; /* which of them cell i holds */
};

/* What a page holds. False: it cannot be found by its tokens (kv_prefix.h), or is damaged. */
bool kv_content_name(struct kv *kv, uint32_t page, struct kv_content_name *out);
/* -errno: the device has failed. */
int kv_content_read(struct kv *kv, uint32_t page, void *out);
/* Appends a page with this content to a sequence that has no tokens but those in its shared pages, which
 * then has no window of its own: see kv_windows_expect. order: a permutation. -ENOSPC: no page is free or kept, or the sequence has no room. Other errors:
 * the device has failed. */
int kv_content_append(struct kv *kv, struct kv_seq *seq, const uint8_t *order, const void *content);

/*
 * In a cache whose layers keep windows of their own, in memory that this process sees: the window cells
 * of a shared page, kv_windows_page_bytes, token by token.
 */

/* Whether all of them are there, and may be used. */
bool kv_window_there(const struct kv *kv, uint32_t page);
/* They must be there. */
void kv_window_read(struct kv *kv, uint32_t page, void *out);
/* Fills those that are missing. A sequence must hold them (kv_windows_expect). -ENOSPC: no window cells are
 * free or can be. */
int kv_window_write(struct kv *kv, uint32_t page, const void *content);
