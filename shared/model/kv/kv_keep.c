/*
 * Kept pages: shared pages that no sequence has any more. They wait for a sequence that begins with
 * their tokens (kv_prefix.h), and give way when pages are needed.
 *
 * A page that loses its last reference is kept if it is filed, and if so are those before it. Pages
 * are freed from the end of their chain, the one of least worth first. All pages have the same size,
 * and finding one saves about the same work, so its value per byte is how often it will be found. That
 * is taken to be how often it was found (struct kv_page.uses), counted from the worth of the pages
 * that were freed last, so that what was found often long ago gives way in the end (LFU with dynamic
 * ageing). Among pages that were found equally often the longest unused goes first. As a page cannot
 * be used without those before it, none of them is worth less. In a cache with snapshots a page
 * is of use only if it, or one behind it, has a snapshot (snapshots.h); others are freed at once.
 *
 * Nothing in the map says that a page is kept. A successor keeps the shared pages that no sequence
 * has taken over, as far as the map vouches for them: each must be linked to the page before it,
 * stand at the place behind that one, and have a valid name (kv_prefix.c). Their content is checked
 * when they are used first.
 */
#include "shared/model/kv/kv_internal.h"

#include "shared/model/kv/kv_prefix.h"

#include <stdlib.h>

/* Puts a page without pages behind it into the list, which is ordered by worth: behind those of the
 * same worth, or before them (first). */
static void list_add(struct kv *kv, uint32_t page, bool first)
{
	struct kv_page *kept = &kv->pages[page];
	uint32_t at = kv->kept_last;
	while (at != KV_NONE &&
		(first ? kv->pages[at].worth >= kept->worth : kv->pages[at].worth > kept->worth))
		at = kv->pages[at].prev;
	kept->prev = at;
	kept->next = at != KV_NONE ? kv->pages[at].next : kv->kept_first;
	if (kept->prev != KV_NONE)
		kv->pages[kept->prev].next = page;
	else
		kv->kept_first = page;
	if (kept->next != KV_NONE)
		kv->pages[kept->next].prev = page;
	else
		kv->kept_last = page;
}

static void list_remove(struct kv *kv, uint32_t page)
{
	struct kv_page *kept = &kv->pages[page];
	if (kept->prev != KV_NONE)
		kv->pages[kept->prev].next = kept->next;
	else
		kv->kept_first = kept->next;
	if (kept->next != KV_NONE)
		kv->pages[kept->next].prev = kept->prev;
	else
		kv->kept_last = kept->prev;
	kept->next = kept->prev = KV_NONE;
}

/* True when no sequence could go on from the page, which has no pages behind it. */
static bool is_useless(const struct kv *kv, uint32_t page)
{
	return kv_ends_at_snapshots(&kv->layout) && !snapshots_has(kv, page);
}

/* Frees a page that nobody has and no page is behind, and then those before it that are of no use
 * without it. */
static void free_last(struct kv *kv, uint32_t page)
{
	for (uint32_t before; page != KV_NONE; page = before) {
		before = kv->pages[page].before;
		kv_page_free(kv, page);
		if (before == KV_NONE || --kv->pages[before].behind > 0 || !kv->pages[before].kept)
			return;
		if (!is_useless(kv, before)) {
			list_add(kv, before, true);
			return;
		}
		kv->n_kept--;
	}
}

void kv_keep(struct kv *kv, uint32_t page)
{
	struct kv_page *lost = &kv->pages[page];
	if (lost->behind == 0 &&
		(kv->kept_max == 0 || !kv_prefix_has(kv, page) || is_useless(kv, page))) {
		free_last(kv, page);
		return;
	}
	lost->kept = true;
	lost->worth = kv->kept_worth + lost->uses + 1;
	kv->n_kept++;
	if (lost->behind == 0)
		list_add(kv, page, false);
	if (kv->n_kept > kv->kept_max)
		kv_keep_less(kv);
}

void kv_keep_end(struct kv *kv, uint32_t page)
{
	if (kv->pages[page].behind == 0)
		list_remove(kv, page);
	kv->pages[page].kept = false;
	kv->n_kept--;
}

void kv_keep_useless(struct kv *kv, uint32_t page)
{
	if (!kv->pages[page].kept || kv->pages[page].behind > 0 || !is_useless(kv, page))
		return;
	kv_keep_end(kv, page);
	free_last(kv, page);
}

void kv_keep_less(struct kv *kv)
{
	uint32_t page = kv->kept_first;
	kv->kept_worth = kv->pages[page].worth;
	kv_keep_end(kv, page);
	free_last(kv, page);
}

void kv_keep_max(struct kv *kv, uint32_t pages)
{
	kv->kept_max = pages;
	while (kv->n_kept > pages)
		kv_keep_less(kv);
}

bool kv_keep_check(struct kv *kv, uint32_t page)
{
	uint32_t before = kv->pages[page].before;
	int64_t place = 0;
	if (before != KV_NONE)
		place = kv->position[before * KV_PAGE_CELLS] / KV_PAGE_CELLS + 1;
	if (!kv_check_page(kv, page, place))
		return false;
	kv->pages[page].unchecked = false;
	return true;
}

/* What kv_keep_left reads of each page, once. */
struct found {
	uint32_t place, before;
	uint32_t next; /* in the list of its place */
	bool valid; /* it, and so every page before it, is in use or can be kept */
};

/* Reads the pages that might be kept, and lists those of each place. */
static void read_found(const struct kv *kv, struct found *found, uint32_t *heads)
{
	for (uint32_t page = kv->layout.n_pages; page-- > 0;) {
		const struct kv_page *own = &kv->pages[page];
		int32_t positions[KV_PAGE_CELLS];
		heads[page] = KV_NONE;
		found[page].valid = own->shared && own->refs > 0;
		if (found[page].valid) {
			found[page].place =
				(uint32_t)kv->position[page * KV_PAGE_CELLS] / KV_PAGE_CELLS;
			found[page].before = own->before;
			continue;
		}
		found[page].place = KV_NONE;
		if (own->owner == 0 || !own->shared)
			continue;
		kv_read_positions(kv, page, positions);
		int64_t place = kv_place_of(positions);
		if (place < 0 || place >= kv->layout.n_pages)
			continue;
		found[page].place = (uint32_t)place;
		found[page].before =
			atomic_load_explicit(&kv->meta[page].before, memory_order_relaxed);
	}
	for (uint32_t page = kv->layout.n_pages; page-- > 0;) {
		if (found[page].place == KV_NONE || found[page].valid)
			continue;
		found[page].next = heads[found[page].place];
		heads[found[page].place] = page;
	}
}

static bool may_be_kept(const struct kv *kv, const struct found *found, uint32_t page)
{
	uint32_t before = found[page].before, place = found[page].place;
	if (place == 0)
		return before == KV_NONE && kv_is_linked(kv, page, before);
	return before < kv->layout.n_pages && found[before].valid &&
	       found[before].place + 1 == place && kv_is_linked(kv, page, before);
}

void kv_keep_left(struct kv *kv)
{
	uint32_t n_pages = kv->layout.n_pages;
	struct found *found = malloc(n_pages * sizeof(*found));
	uint32_t *heads = malloc(n_pages * sizeof(*heads));
	bool keeps = found && heads && kv->kept_max > 0 && kv_shares(kv);
	if (keeps)
		read_found(kv, found, heads);
	for (uint32_t place = 0; keeps && place < n_pages; place++) {
		for (uint32_t page = heads[place]; page != KV_NONE; page = found[page].next) {
			struct kv_page *own = &kv->pages[page];
			if (!may_be_kept(kv, found, page))
				continue;
			own->before = found[page].before;
			if (!kv_prefix_refile(kv, page))
				continue;
			found[page].valid = own->kept = own->unchecked = true;
			kv->n_kept++;
			atomic_store_explicit(&kv->meta[page].shared, 1, memory_order_release);
		}
	}
	for (uint32_t page = 0; page < n_pages; page++) {
		const struct kv_page *own = &kv->pages[page];
		if (own->shared && (own->refs > 0 || own->kept) && own->before != KV_NONE)
			kv->pages[own->before].behind++;
	}
	for (uint32_t page = 0; page < n_pages; page++)
		if (kv->pages[page].kept && kv->pages[page].behind == 0)
			list_add(kv, page, false);
	snapshots_settle(kv);
	for (uint32_t page = 0; page < n_pages; page++)
		kv_keep_useless(kv, page);
	free(found);
	free(heads);
	kv_keep_max(kv, kv->kept_max);
}
