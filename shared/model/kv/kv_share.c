/*
 * Shared pages. They form a forest: each page has the KV_PAGE_CELLS positions that follow those of
 * the page before it. A sequence has a chain of them, from the page with position 0 to its tip.
 * Shared pages are never written to. A page that no sequence has any more is kept or freed
 * (kv_keep.c); it is free only when no page is behind it.
 *
 * In the map, a page names the page before it, and a record says where its sequence ends. All
 * counts follow from these. A sequence gains or loses pages with a single store, that of its
 * record's tip. The names in brackets mark the stores below:
 *
 * - A sequence's own page becomes shared: before and chain are written [links], the tip moves to it
 *   [extends], and it is marked shared [marks]. If only the mark is missing, a successor still
 *   takes the page as shared, but only in its owner's chain.
 * - A sequence takes over a chain: its tip is set [attaches].
 * - A page returns to the only sequence that has it: the mark is removed [unmarks], then the tip
 *   moves back [shrinks], and only then are cells of the page cleared.
 * - A sequence has computed what other pages already hold: its pages return to it, its tip moves to
 *   the others [merges], and its own ones are freed. Until then a successor finds these positions
 *   twice, and uses the shared ones.
 * - A sequence ends: the tip is removed [detaches], then the pages that no other sequence has are
 *   kept, which stores nothing, or freed, the last one first [frees].
 */
#include "shared/model/kv/kv_internal.h"

#include "shared/base/checksum.h"
#include "shared/model/kv/kv_prefix.h"

#include <assert.h>

uint64_t kv_chain_of(const struct kv *kv, uint32_t before, uint64_t owner, const uint64_t *sums)
{
	uint64_t chain = 0;
	if (before != KV_NONE)
		chain = atomic_load_explicit(&kv->meta[before].chain, memory_order_relaxed);
	chain = checksum(chain, &owner, sizeof(owner));
	return kv->checked ? checksum(chain, sums, KV_SUMS * sizeof(*sums)) : chain;
}

uint64_t kv_tip_pack(const struct kv *kv, uint64_t owner, uint32_t page)
{
	if (page == KV_NONE)
		return 0;
	uint64_t chain = atomic_load_explicit(&kv->meta[page].chain, memory_order_relaxed);
	const uint64_t of[] = {owner, page, chain};
	return checksum(0, of, sizeof(of)) << 32 | (page + 1);
}

uint32_t kv_tip_unpack(const struct kv *kv, uint64_t owner, uint64_t tip)
{
	uint32_t page = (uint32_t)tip - 1;
	if (page >= kv->layout.n_pages || kv_tip_pack(kv, owner, page) != tip)
		return KV_NONE;
	return page;
}

static void set_tip(struct kv *kv, struct kv_seq *seq, uint32_t page)
{
	/* Release pairs with the acquire in kv_adopt.c: the chain up to the tip is complete. */
	atomic_store_explicit(&kv->records[seq->record].tip, kv_tip_pack(kv, seq->owner, page),
		memory_order_release);
	seq->tip = page;
}

static bool take_record(struct kv *kv, struct kv_seq *seq)
{
	if (seq->record != KV_NONE)
		return true;
	if (kv->n_free_records == 0)
		return false;
	seq->record = kv->free_records[--kv->n_free_records];
	atomic_store_explicit(&kv->records[seq->record].tip, 0, memory_order_relaxed);
	/* After the tip: the previous owner's tip must not become the new owner's. */
	atomic_store_explicit(&kv->records[seq->record].owner, seq->owner, memory_order_release);
	return true;
}

/* Adds a reference to the page, and to those before it that had none. */
static void ref(struct kv *kv, uint32_t page)
{
	while (page != KV_NONE && kv->pages[page].refs++ == 0 && kv->pages[page].kept) {
		kv_keep_end(kv, page);
		page = kv->pages[page].before;
	}
}

/* Removes one reference from the page, and from those before it that have no other. While sequences
 * of a predecessor are being taken over, one of them may still have the page, so kv_reclaim
 * decides. */
static void unref(struct kv *kv, uint32_t page)
{
	while (page != KV_NONE && --kv->pages[page].refs == 0) {
		uint32_t before = kv->pages[page].before;
		if (!kv->left)
			kv_keep(kv, page); /* [frees] */
		page = before;
	}
}

/* The page with all positions of the sequence's next shared page, or KV_NONE. */
static uint32_t next_page(const struct kv_seq *seq)
{
	if (seq->n - seq->n_shared < KV_PAGE_CELLS)
		return KV_NONE;
	const uint32_t *cells = seq->cell + seq->n_shared;
	for (uint32_t i = 1; i < KV_PAGE_CELLS; i++)
		if (cells[i] / KV_PAGE_CELLS != cells[0] / KV_PAGE_CELLS)
			return KV_NONE;
	return cells[0] / KV_PAGE_CELLS;
}

static void publish_page(struct kv *kv, struct kv_seq *seq, uint32_t page)
{
	struct kv_page *own = &kv->pages[page];
	struct kv_page_meta *meta = &kv->meta[page];
	uint64_t sums[KV_SUMS];
	for (int i = 0; i < KV_SUMS; i++)
		sums[i] = atomic_load_explicit(&meta->sums[i], memory_order_relaxed);
	atomic_store_explicit(&meta->before, seq->tip, memory_order_relaxed); /* [links] */
	atomic_store_explicit(
		&meta->chain, kv_chain_of(kv, seq->tip, own->owner, sums), memory_order_relaxed);
	kv_own_remove(kv, seq, page);
	own->before = seq->tip;
	if (seq->tip != KV_NONE)
		kv->pages[seq->tip].behind++;
	/* The sequence's reference to its last tip becomes this page's. */
	set_tip(kv, seq, page); /* [extends] */
	/* After the tip: without that order a successor would find the page shared and in no chain.
	 */
	atomic_store_explicit(&meta->shared, 1, memory_order_release); /* [marks] */
	own->shared = true;
	seq->n_shared += KV_PAGE_CELLS;
	kv_windows_publish(kv, seq);
}

void kv_publish(struct kv *kv, struct kv_seq *seq)
{
	uint32_t page;
	while (kv_shares(kv) && (page = next_page(seq)) != KV_NONE && take_record(kv, seq))
		publish_page(kv, seq, page);
}

bool kv_attach(struct kv *kv, struct kv_seq *seq, uint32_t tip)
{
	uint32_t n = 0, before = seq->tip;
	assert(seq->n == seq->n_shared && seq->own == KV_NONE);
	if (!take_record(kv, seq))
		return false;
	ref(kv, tip);
	set_tip(kv, seq, tip); /* [attaches] */
	for (uint32_t page = tip; page != before; page = kv->pages[page].before, n++) {
		for (uint32_t i = 0; i < KV_PAGE_CELLS; i++) {
			uint32_t cell = page * KV_PAGE_CELLS + i;
			seq->cell[kv->position[cell]] = cell;
		}
	}
	seq->n_pages += n;
	seq->n_shared += n * KV_PAGE_CELLS;
	seq->n = seq->n_shared;
	kv_windows_attach(kv, seq, before, seq->n_shared - n * KV_PAGE_CELLS);
	unref(kv, before);
	return true;
}

void kv_detach(struct kv *kv, struct kv_seq *seq)
{
	uint32_t tip = seq->tip;
	if (seq->record == KV_NONE)
		return;
	kv_windows_detach(kv, seq);
	/* Before a page is freed: otherwise a successor could find a chain of pages with other
	 * content. */
	set_tip(kv, seq, KV_NONE); /* [detaches] */
	unref(kv, tip);
	atomic_store_explicit(&kv->records[seq->record].owner, 0, memory_order_release);
	kv->free_records[kv->n_free_records++] = seq->record;
	seq->record = KV_NONE;
}

static uint32_t first_of(const struct kv *kv, uint32_t page)
{
	return (uint32_t)kv->position[page * KV_PAGE_CELLS] / KV_PAGE_CELLS * KV_PAGE_CELLS;
}

/* Makes the last shared page the sequence's own again; no other sequence has it, and no page is
 * behind it. */
static void take_back(struct kv *kv, struct kv_seq *seq)
{
	uint32_t page = seq->tip;
	struct kv_page *own = &kv->pages[page];
	kv_prefix_leave(kv, page);
	snapshots_leave(kv, page);
	kv_windows_take_back(kv, seq, page, first_of(kv, page));
	atomic_store_explicit(&kv->meta[page].shared, 0, memory_order_release); /* [unmarks] */
	own->shared = false;
	set_tip(kv, seq, own->before); /* [shrinks] */
	if (own->before != KV_NONE)
		kv->pages[own->before].behind--;
	own->before = KV_NONE;
	kv_own_add(kv, seq, page);
}

/* True when the sequence's last n pages are shared by nobody else. */
static bool has_alone(const struct kv *kv, const struct kv_seq *seq, uint32_t n)
{
	uint32_t page = seq->tip, behind = 0;
	for (; n > 0; n--, behind = 1, page = kv->pages[page].before) {
		const struct kv_page *own = &kv->pages[page];
		if (own->refs != 1 || own->behind != behind || own->owner != seq->owner)
			return false;
	}
	return true;
}

bool kv_merge(struct kv *kv, struct kv_seq *seq, uint32_t first, uint32_t tip)
{
	uint32_t n = (seq->n_shared - first) / KV_PAGE_CELLS, before;
	if (kv->left || !has_alone(kv, seq, n))
		return false;
	for (; seq->n_shared > first; seq->n_shared -= KV_PAGE_CELLS)
		take_back(kv, seq);
	before = seq->tip;
	ref(kv, tip);
	set_tip(kv, seq, tip); /* [merges] */
	unref(kv, before);
	for (uint32_t page = tip; page != before; page = kv->pages[page].before) {
		uint32_t cell = page * KV_PAGE_CELLS, at = first_of(kv, page),
			 own = seq->cell[at] / KV_PAGE_CELLS;
		kv_windows_merge(kv, seq, page, own, at);
		for (uint32_t i = 0; i < KV_PAGE_CELLS; i++)
			seq->cell[kv->position[cell + i]] = cell + i;
		kv_own_remove(kv, seq, own);
		kv_page_free(kv, own);
		seq->n_shared += KV_PAGE_CELLS;
	}
	kv_publish(kv, seq);
	return true;
}

/* Leaves the last shared page to the others. */
static void leave(struct kv *kv, struct kv_seq *seq)
{
	uint32_t page = seq->tip, before = kv->pages[page].before;
	kv_windows_leave(kv, seq, page, first_of(kv, page));
	if (before != KV_NONE)
		kv->pages[before].refs++;
	set_tip(kv, seq, before); /* [shrinks] */
	unref(kv, page);
	seq->n_pages--;
}

/* Copies n positions from `first` on, all in one page, to a page of the sequence's own. False when
 * none is free, when this process cannot copy, or when window cells would have to be copied too. */
static bool copy_page(struct kv *kv, struct kv_seq *seq, uint32_t from, uint32_t first, uint32_t n)
{
	uint32_t cells[KV_PAGE_CELLS], kept = 0;
	if (kv->n_free + kv->n_kept == 0 || !kv_reaches(kv) || kv->layout.windows.n_layers > 0)
		return false;
	uint32_t to = kv_page_take(kv, seq);
	if (!kv_copy_page(kv, to, from))
		return false;
	for (uint32_t i = 0; i < KV_PAGE_CELLS; i++) {
		uint32_t at = (uint32_t)kv->position[from * KV_PAGE_CELLS + i] - first;
		if (at >= n)
			continue;
		cells[at] = seq->cell[first + at] = to * KV_PAGE_CELLS + i;
		kept |= 1u << i;
	}
	for (uint32_t i = 0; i < n; i++)
		kv_marker_set(kv, cells[i], first + i);
	/* It is the first of the pages with spare cells. */
	kv->pages[to].spare &= ~kept;
	seq->n_spare -= n;
	if (kv->pages[to].spare == 0)
		seq->spare = kv->pages[to].next_spare;
	kv_sums_commit(kv, seq->owner, cells, n);
	return true;
}

void kv_unshare(struct kv *kv, struct kv_seq *seq, uint32_t n)
{
	while (seq->n_shared > n) {
		uint32_t page = seq->tip, first = seq->n_shared - KV_PAGE_CELLS;
		uint32_t keep = n > first ? n - first : 0;
		assert(seq->n == seq->n_shared);
		seq->n_shared = first;
		if (kv->pages[page].refs == 1 && kv->pages[page].behind == 0 &&
			kv->pages[page].owner == seq->owner) {
			take_back(kv, seq);
			kv_forget(kv, seq, first + keep);
			continue;
		}
		if (keep > 0 && !copy_page(kv, seq, page, first, keep))
			keep = 0;
		leave(kv, seq);
		seq->n = first + keep;
	}
	if (seq->n_named > seq->n_shared)
		seq->n_named = seq->n_shared;
}

uint32_t kv_share(struct kv *kv, struct kv_seq *seq, const struct kv_seq *from, uint32_t n)
{
	uint32_t most = from->n < seq->n_max ? from->n : seq->n_max;
	n = n < most ? n : most;
	uint32_t pages = (n < from->n_shared ? n : from->n_shared) / KV_PAGE_CELLS;
	assert(seq->n == 0 && seq->n_pages == 0);
	if (!kv_shares(kv) || kv_ends_at_snapshots(&kv->layout))
		return 0;
	uint32_t next = pages * KV_PAGE_CELLS;
	if (pages > 0 && !kv_attach(kv, seq, from->cell[next - 1] / KV_PAGE_CELLS))
		return 0;
	/* The positions after that which lie in one page. */
	uint32_t rest = 0;
	while (next + rest < n &&
		from->cell[next + rest] / KV_PAGE_CELLS == from->cell[next] / KV_PAGE_CELLS)
		rest++;
	if (rest > 0 && copy_page(kv, seq, from->cell[next] / KV_PAGE_CELLS, next, rest))
		seq->n += rest;
	return seq->n;
}
