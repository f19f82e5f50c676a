/*
 * Which pages of the KV cache hold the beginning of which tokens. A sequence that begins with the tokens of another one finds
 * that one's shared pages here, page by page, and takes them over (kv_share.c): nothing is computed for them. A page is filed under a
 * hash of its tokens and of the page before it; what is found is compared token by token.
 *
 * Costs one hash and one look-up for KV_PAGE_CELLS tokens, however many sequences there are. Sequences that began with the same
 * tokens at the same time have pages of their own: one of them is found.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct kv;
struct kv_seq;

/* From now on shared pages can be looked up. Memory of this process, for tokens of pages in use. -ENOMEM. */
int kv_prefix_init(struct kv *kv);
void kv_prefix_exit(struct kv *kv);
/* Files the shared pages of the sequence that are not filed yet; tokens: [seq->n]. */
void kv_prefix_enter(struct kv *kv, struct kv_seq *seq, const int32_t *tokens);
/* A page is not shared any more, or free. Nothing for one that was not filed. */
void kv_prefix_leave(struct kv *kv, uint32_t page);
/* For a sequence without tokens (its owner may be 0), or with no others than its shared ones: how many of these n tokens, from the
 * first on, are there in shared pages, and the last of those. Looks for those only that the sequence has not. */
uint32_t kv_prefix_find(const struct kv *kv, const struct kv_seq *seq, const int32_t *tokens,
	uint32_t n, uint32_t *tip);
/* The sequence takes over what kv_prefix_find has found just now; they are no more tokens than its n_max. False where every record is
 * in use. */
bool kv_prefix_share(struct kv *kv, struct kv_seq *seq, uint32_t tip);
