/*
 * Finds pages of the KV cache by the tokens whose beginning they hold. A sequence that begins with
 * the tokens of another one finds that one's shared pages here, page by page, and takes them over
 * (kv_share.c): nothing is computed for them. It also finds pages of sequences that have ended, as
 * long as they are kept (kv_keep.c). A page is filed under a hash of its domain, its tokens and the
 * page before it; a page that is found is compared token by token. Used by the engine's thread.
 *
 * Sequences share pages only with those of the same domain, any number that the caller chooses. A
 * sequence may have another domain from a position on.
 *
 * It costs two hashes and two look-ups per KV_PAGE_CELLS tokens, however many sequences there are.
 * Sequences that begin with the same tokens at the same time compute them twice; the pages of the
 * later one are then replaced by those of the other.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct kv;
struct kv_seq;

/* The domains of a sequence's pages: of those that begin before position `until`, and of the others. */
struct kv_domains {
	uint64_t first, rest;
	uint32_t until;
};

static inline uint64_t kv_domain_at(const struct kv_domains *domains, uint32_t position)
{
	return position < domains->until ? domains->first : domains->rest;
}

/* Enables looking up shared pages. Takes memory of this process for the tokens of pages in use.
 * -ENOMEM. */
int kv_prefix_init(struct kv *kv);
void kv_prefix_exit(struct kv *kv);
/* Files those shared pages of the sequence that are not filed yet, and writes their tokens to the map,
 * for a successor. Pages that hold what others do give way to those (kv_merge). tokens: [seq->n]. */
void kv_prefix_enter(
	struct kv *kv, struct kv_seq *seq, const struct kv_domains *domains, const int32_t *tokens);
/* Call when a page is no longer shared, or is free. Does nothing for a page that was not filed. */
void kv_prefix_leave(struct kv *kv, uint32_t page);
/* True when the page can be found by its tokens. */
bool kv_prefix_filed(const struct kv *kv, uint32_t page);
/* For a sequence that has no tokens but those in its shared pages (its owner may be 0): returns how
 * many of these n tokens, from the first on, are in shared pages; *tip: the last of these pages.
 * Looks only for those that the sequence does not have. With recurrent layers these end where there
 * is a snapshot (snapshots.h), with windows where the window before their end is there. */
uint32_t kv_prefix_find(struct kv *kv, const struct kv_seq *seq, const struct kv_domains *domains,
	const int32_t *tokens, uint32_t n, uint32_t *tip);
/* The same, whether there is a snapshot or not. */
uint32_t kv_prefix_pages(struct kv *kv, const struct kv_seq *seq, const struct kv_domains *domains,
	const int32_t *tokens, uint32_t n, uint32_t *tip);
/* Takes over what kv_prefix_find has just found, which must not exceed the sequence's n_max. With
 * recurrent layers the sequence gets the state with its first cells (kv_take). False when all records
 * are in use. */
bool kv_prefix_share(struct kv *kv, struct kv_seq *seq, uint32_t tip);
/* Call once for a sequence that goes on behind the pages that it has taken over: counts that they
 * were of use. */
void kv_prefix_found(struct kv *kv, const struct kv_seq *seq);
