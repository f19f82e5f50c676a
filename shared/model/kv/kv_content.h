/*
 * The content of shared pages as bytes, for who keeps pages elsewhere, and pages that are filled with
 * such bytes instead of being computed. With recurrent layers such a page has no state: the sequence
 * gets one from a snapshot (snapshots.h). Only for caches whose pages can be shared (kv_share.c). For a
 * store that this process does not see, call kv_use_queue first. Engine thread.
 */
#pragma once

#include "shared/model/kv/kv.h"

/* Bytes of a page: of each layer and head the keys of its cells, then their values, as they lie in
 * the store. 0: pages of this cache cannot be had; so it is where layers keep windows of their own. */
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
/* Appends a page with this content to a sequence that has no tokens but those in its shared pages.
 * order: a permutation. -ENOSPC: no page is free or kept, or the sequence has no room. Other errors:
 * the device has failed. */
int kv_content_append(struct kv *kv, struct kv_seq *seq, const uint8_t *order, const void *content);
