#include "shared/model/kv/kv_prefix.h"

#include "shared/base/checksum.h"
#include "shared/model/kv/kv_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct filed {
	uint64_t hash;
	uint32_t next, prev; /* in its bucket; KV_NONE */
	bool is_filed;
	int32_t tokens[KV_PAGE_CELLS];
};

struct kv_prefixes {
	uint32_t n_buckets; /* a power of two */
	uint32_t *heads; /* [n_buckets] */
	struct filed *pages; /* [n_pages]; untouched for pages that were never filed */
};

int kv_prefix_init(struct kv *kv)
{
	struct kv_prefixes *p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->n_buckets = 64;
	while (p->n_buckets < kv->layout.n_pages)
		p->n_buckets *= 2;
	p->heads = malloc(p->n_buckets * sizeof(*p->heads));
	p->pages = calloc(kv->layout.n_pages, sizeof(*p->pages));
	kv->prefixes = p;
	if (!p->heads || !p->pages) {
		kv_prefix_exit(kv);
		return -ENOMEM;
	}
	memset(p->heads, 0xff, p->n_buckets * sizeof(*p->heads));
	return 0;
}

void kv_prefix_exit(struct kv *kv)
{
	if (!kv->prefixes)
		return;
	free(kv->prefixes->heads);
	free(kv->prefixes->pages);
	free(kv->prefixes);
	kv->prefixes = NULL;
}

static uint32_t *bucket(const struct kv_prefixes *p, uint64_t hash)
{
	return &p->heads[hash & (p->n_buckets - 1)];
}

/* Hash of a page's tokens and of the page before it. That page does not change while one is behind
 * it. */
static uint64_t hash_of(uint32_t before, const int32_t *tokens)
{
	return checksum(before, tokens, KV_PAGE_CELLS * sizeof(*tokens));
}

static void file(struct kv_prefixes *p, uint32_t page, uint32_t before, const int32_t *tokens)
{
	struct filed *filed = &p->pages[page];
	memcpy(filed->tokens, tokens, sizeof(filed->tokens));
	filed->hash = hash_of(before, tokens);
	filed->is_filed = true;
	uint32_t *head = bucket(p, filed->hash);
	filed->next = *head;
	filed->prev = KV_NONE;
	if (*head != KV_NONE)
		p->pages[*head].prev = page;
	*head = page;
}

void kv_prefix_enter(struct kv *kv, struct kv_seq *seq, const int32_t *tokens)
{
	for (; kv->prefixes && seq->n_named < seq->n_shared; seq->n_named += KV_PAGE_CELLS) {
		uint32_t page = seq->cell[seq->n_named] / KV_PAGE_CELLS;
		if (!kv->prefixes->pages[page].is_filed)
			file(kv->prefixes, page, kv->pages[page].before, tokens + seq->n_named);
	}
}

void kv_prefix_leave(struct kv *kv, uint32_t page)
{
	struct kv_prefixes *p = kv->prefixes;
	if (!p || !p->pages[page].is_filed)
		return;
	struct filed *filed = &p->pages[page];
	if (filed->prev != KV_NONE)
		p->pages[filed->prev].next = filed->next;
	else
		*bucket(p, filed->hash) = filed->next;
	if (filed->next != KV_NONE)
		p->pages[filed->next].prev = filed->prev;
	filed->is_filed = false;
}

/* The page with these tokens behind `before`, or KV_NONE. */
static uint32_t find(const struct kv *kv, uint32_t before, const int32_t *tokens)
{
	const struct kv_prefixes *p = kv->prefixes;
	uint64_t hash = hash_of(before, tokens);
	uint32_t page = *bucket(p, hash);
	while (page != KV_NONE &&
		(p->pages[page].hash != hash || kv->pages[page].before != before ||
			memcmp(p->pages[page].tokens, tokens, sizeof(p->pages[page].tokens)) != 0))
		page = p->pages[page].next;
	return page;
}

uint32_t kv_prefix_find(const struct kv *kv, const struct kv_seq *seq, const int32_t *tokens,
	uint32_t n, uint32_t *tip)
{
	uint32_t found = seq->n_shared, page;
	*tip = seq->owner ? seq->tip : KV_NONE;
	while (kv->prefixes && n >= found + KV_PAGE_CELLS &&
		(page = find(kv, *tip, tokens + found)) != KV_NONE) {
		*tip = page;
		found += KV_PAGE_CELLS;
	}
	return found;
}

bool kv_prefix_share(struct kv *kv, struct kv_seq *seq, uint32_t tip)
{
	if (tip != seq->tip && !kv_attach(kv, seq, tip))
		return false;
	seq->n_named = seq->n_shared;
	return true;
}
