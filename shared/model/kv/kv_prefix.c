#include "shared/model/kv/kv_prefix.h"

#include "shared/base/checksum.h"
#include "shared/model/kv/kv_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct filed {
	uint64_t hash, domain;
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

/* Hash of a page's domain and tokens and of the page before it. That page does not change while one
 * is behind it. */
static uint64_t hash_of(uint32_t before, uint64_t domain, const int32_t *tokens)
{
	return checksum(
		checksum(before, &domain, sizeof(domain)), tokens, KV_PAGE_CELLS * sizeof(*tokens));
}

static void file(struct kv *kv, uint32_t page, uint64_t domain, const int32_t *tokens)
{
	struct kv_prefixes *p = kv->prefixes;
	struct filed *filed = &p->pages[page];
	memcpy(filed->tokens, tokens, sizeof(filed->tokens));
	filed->domain = domain;
	filed->hash = hash_of(kv->pages[page].before, domain, tokens);
	filed->is_filed = true;
	kv->pages[page].tag = 0;
	uint32_t *head = bucket(p, filed->hash);
	filed->next = *head;
	filed->prev = KV_NONE;
	if (*head != KV_NONE)
		p->pages[*head].prev = page;
	*head = page;
}

/* The checksum that vouches for the domain and the tokens of a page in the map. */
static uint64_t name_of(struct kv_page_meta *meta, uint64_t domain, const int32_t *tokens)
{
	uint64_t chain = atomic_load_explicit(&meta->chain, memory_order_relaxed);
	return checksum(
		checksum(chain, &domain, sizeof(domain)), tokens, KV_PAGE_CELLS * sizeof(*tokens));
}

/* Writes to the map what a successor needs to file the page. */
static void record(struct kv *kv, uint32_t page)
{
	struct kv_page_meta *meta = &kv->meta[page];
	const struct filed *filed = &kv->prefixes->pages[page];
	atomic_store_explicit(&meta->domain, filed->domain, memory_order_relaxed);
	for (uint32_t i = 0; i < KV_PAGE_CELLS; i++)
		atomic_store_explicit(&meta->token[i], filed->tokens[i], memory_order_relaxed);
	/* Release pairs with the acquire in kv_prefix_refile. */
	atomic_store_explicit(&meta->name, name_of(meta, filed->domain, filed->tokens),
		memory_order_release); /* [names] */
}

bool kv_prefix_has(const struct kv *kv, uint32_t page)
{
	return kv->prefixes && kv->prefixes->pages[page].is_filed;
}

const int32_t *kv_prefix_tokens(const struct kv *kv, uint32_t page, uint64_t *domain)
{
	*domain = kv->prefixes->pages[page].domain;
	return kv->prefixes->pages[page].tokens;
}

/* The page with these tokens behind `before`, or KV_NONE. A damaged one of a predecessor is not
 * filed any more then. */
static uint32_t find(struct kv *kv, uint32_t before, uint64_t domain, const int32_t *tokens)
{
	const struct kv_prefixes *p = kv->prefixes;
	uint64_t hash = hash_of(before, domain, tokens);
	for (uint32_t page = *bucket(p, hash), next; page != KV_NONE; page = next) {
		const struct filed *filed = &p->pages[page];
		next = filed->next;
		if (filed->hash != hash || filed->domain != domain ||
			kv->pages[page].before != before ||
			memcmp(filed->tokens, tokens, sizeof(filed->tokens)) != 0)
			continue;
		if (!kv->pages[page].unchecked || kv_keep_check(kv, page))
			return page;
		kv_prefix_leave(kv, page);
	}
	return KV_NONE;
}

bool kv_prefix_refile(struct kv *kv, uint32_t page)
{
	struct kv_page_meta *meta = &kv->meta[page];
	uint64_t name = atomic_load_explicit(&meta->name, memory_order_acquire);
	uint64_t domain = atomic_load_explicit(&meta->domain, memory_order_relaxed);
	int32_t tokens[KV_PAGE_CELLS];
	for (uint32_t i = 0; i < KV_PAGE_CELLS; i++)
		tokens[i] = atomic_load_explicit(&meta->token[i], memory_order_relaxed);
	if (!kv->prefixes || name_of(meta, domain, tokens) != name ||
		find(kv, kv->pages[page].before, domain, tokens) != KV_NONE)
		return false;
	file(kv, page, domain, tokens);
	return true;
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

/* Enters one page of the sequence, or takes over those that already hold its next tokens. False: its
 * pages hold what others do, but are used by others too. */
static bool enter(
	struct kv *kv, struct kv_seq *seq, const struct kv_domains *domains, const int32_t *tokens)
{
	uint32_t first = seq->n_named, page = seq->cell[first] / KV_PAGE_CELLS, tip = KV_NONE;
	uint32_t before = kv->pages[page].before, same;
	seq->n_named += KV_PAGE_CELLS;
	if (kv->prefixes->pages[page].is_filed)
		return true;
	for (uint32_t at = first; at < seq->n_shared; at += KV_PAGE_CELLS, before = tip = same)
		if ((same = find(kv, before, kv_domain_at(domains, at), tokens + at)) == KV_NONE)
			break;
	if (tip == KV_NONE) {
		file(kv, page, kv_domain_at(domains, first), tokens + first);
		record(kv, page);
		return true;
	}
	seq->n_named = (uint32_t)kv->position[tip * KV_PAGE_CELLS] / KV_PAGE_CELLS * KV_PAGE_CELLS +
		       KV_PAGE_CELLS;
	return kv_merge(kv, seq, first, tip);
}

void kv_prefix_enter(
	struct kv *kv, struct kv_seq *seq, const struct kv_domains *domains, const int32_t *tokens)
{
	while (kv->prefixes && seq->n_named < seq->n_shared)
		if (!enter(kv, seq, domains, tokens))
			/* What is behind a page that is not filed is not found either. */
			seq->n_named = seq->n_shared;
}

bool kv_prefix_filed(const struct kv *kv, uint32_t page)
{
	return kv_prefix_has(kv, page);
}

static bool can_begin(struct kv *kv, uint32_t page)
{
	return kv_windows_whole(kv, page) &&
	       (!kv_states(kv) || snapshots_find(kv, page) != SNAPSHOT_NONE);
}

uint32_t kv_prefix_find(struct kv *kv, const struct kv_seq *seq, const struct kv_domains *domains,
	const int32_t *tokens, uint32_t n, uint32_t *tip)
{
	uint32_t found = kv_prefix_pages(kv, seq, domains, tokens, n, tip);
	while (found > seq->n_shared && !can_begin(kv, *tip)) {
		found -= KV_PAGE_CELLS;
		*tip = kv->pages[*tip].before;
	}
	return found;
}

uint32_t kv_prefix_pages(struct kv *kv, const struct kv_seq *seq, const struct kv_domains *domains,
	const int32_t *tokens, uint32_t n, uint32_t *tip)
{
	uint32_t found = seq->n_shared, page;
	*tip = seq->owner ? seq->tip : KV_NONE;
	while (kv->prefixes && n >= found + KV_PAGE_CELLS &&
		(page = find(kv, *tip, kv_domain_at(domains, found), tokens + found)) != KV_NONE) {
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
	snapshots_pin(kv, seq);
	return true;
}

void kv_prefix_found(struct kv *kv, const struct kv_seq *seq)
{
	uint32_t page = seq->n_shared > 0 ? seq->tip : KV_NONE;

	for (; page != KV_NONE; page = kv->pages[page].before)
		if (kv->pages[page].uses < UINT32_MAX)
			kv->pages[page].uses++;
}
