/*
 * Takes over what a predecessor left. kv_left_init reads every page and record once and files them
 * by owner. kv_adopt takes over one sequence's: first its chain of shared pages, then its own
 * pages. kv_reclaim keeps (kv_keep.c) or frees the rest. All together is linear in the number of pages, because a shared
 * page is checked only for the first sequence that has it. Nothing that is read is used for memory
 * accesses before it is checked, and the check is made on a copy.
 */
#include "shared/model/kv/kv_internal.h"
#include "shared/model/kv/owners.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct kv_left {
	struct owners pages, records; /* filed in ascending order for each owner */
	struct record_left {
		uint64_t owner;
		bool taken; /* by a sequence of this process */
	} * of_records; /* [n_records] */
};

void kv_left_exit(struct kv *kv)
{
	if (!kv->left)
		return;
	owners_exit(&kv->left->pages);
	owners_exit(&kv->left->records);
	free(kv->left->of_records);
	free(kv->left);
	kv->left = NULL;
}

static void read_page(struct kv *kv, uint32_t page)
{
	/* Acquire pairs with the release in kv_page_take and kv_page_free. */
	uint64_t owner = atomic_load_explicit(&kv->meta[page].owner, memory_order_acquire);
	if (owner == 0) {
		kv_page_free(kv, page);
		return;
	}
	kv->pages[page] = (struct kv_page){
		.owner = owner,
		.before = KV_NONE,
		.next = KV_NONE,
		.prev = KV_NONE,
		.next_spare = KV_NONE,
		.shared = atomic_load_explicit(&kv->meta[page].shared, memory_order_acquire) != 0,
	};
	owners_add(&kv->left->pages, page, owner);
}

static void read_record(struct kv *kv, uint32_t i)
{
	uint64_t owner = atomic_load_explicit(&kv->records[i].owner, memory_order_acquire);
	kv->left->of_records[i].owner = owner;
	owners_add(&kv->left->records, i, owner);
}

int kv_left_init(struct kv *kv)
{
	uint32_t n_pages = kv->layout.n_pages, n_records = kv->layout.n_records;
	struct kv_left *left = kv->left = calloc(1, sizeof(*kv->left));
	if (!left)
		return -ENOMEM;
	left->of_records = calloc((size_t)n_records + 1, sizeof(*left->of_records));
	if (!left->of_records || owners_init(&left->pages, n_pages) < 0 ||
		owners_init(&left->records, n_records) < 0)
		return -ENOMEM;
	/* From the last to the first, so that pages are handed out in ascending order. */
	for (uint32_t page = n_pages; page-- > 0;)
		read_page(kv, page);
	for (uint32_t i = n_records; i-- > 0;)
		read_record(kv, i);
	return 0;
}

void kv_read_positions(const struct kv *kv, uint32_t page, int32_t *positions)
{
	/* Acquire pairs with the release in kv_marker_set: the keys and values behind a marker are
	 * complete. */
	for (uint32_t i = 0; i < KV_PAGE_CELLS; i++)
		positions[i] =
			atomic_load_explicit(&kv->meta[page].position[i], memory_order_acquire);
}

/* The place in a chain of a page whose positions are exactly those of one page; 0 is the first. -1:
 * it has others, or not all. */
int64_t kv_place_of(const int32_t *positions)
{
	uint32_t seen = 0;
	int32_t place = positions[0] / KV_PAGE_CELLS;
	for (uint32_t i = 0; i < KV_PAGE_CELLS; i++) {
		if (positions[i] < 0 || positions[i] / KV_PAGE_CELLS != place)
			return -1;
		seen |= 1u << positions[i] % KV_PAGE_CELLS;
	}
	return seen == UINT32_MAX ? place : -1;
}

/* True when the page can be at this place of the owner's chain, according to its mark and its
 * markers. */
static bool may_stand(const struct kv *kv, uint32_t page, uint64_t owner, int64_t place)
{
	int32_t positions[KV_PAGE_CELLS];
	if (!kv->pages[page].shared && kv->pages[page].owner != owner)
		return false;
	kv_read_positions(kv, page, positions);
	return kv_place_of(positions) == place;
}

/* True when the page was linked behind `before`. */
bool kv_is_linked(const struct kv *kv, uint32_t page, uint32_t before)
{
	struct kv_page_meta *meta = &kv->meta[page];
	uint64_t sums[KV_SUMS];
	if (before != KV_NONE && before >= kv->layout.n_pages)
		return false;
	for (uint32_t i = 0; i < KV_SUMS; i++)
		sums[i] = atomic_load_explicit(&meta->sums[i], memory_order_acquire);
	return atomic_load_explicit(&meta->chain, memory_order_relaxed) ==
	       kv_chain_of(kv, before, kv->pages[page].owner, sums);
}

/* Links the pages of a chain from the first to the tip by .next; KV_NONE when there is no valid
 * chain. None of them is in another list. The record vouches for the tip, and each page for the one
 * before it: behind a broken link nothing belongs to the sequence. */
static uint32_t find_chain(struct kv *kv, uint32_t tip, uint64_t owner)
{
	int32_t positions[KV_PAGE_CELLS];
	uint32_t behind = KV_NONE, page = tip;
	kv_read_positions(kv, tip, positions);
	for (int64_t place = kv_place_of(positions); place >= 0; place--) {
		if (page == KV_NONE || kv->pages[page].owner == 0 ||
			!may_stand(kv, page, owner, place))
			return KV_NONE;
		uint32_t before =
			atomic_load_explicit(&kv->meta[page].before, memory_order_relaxed);
		if (!kv_is_linked(kv, page, before))
			return KV_NONE;
		kv->pages[page].next = behind;
		behind = page;
		page = before;
	}
	return page == KV_NONE ? behind : KV_NONE;
}

bool kv_check_page(struct kv *kv, uint32_t page, int64_t place)
{
	int32_t positions[KV_PAGE_CELLS];
	kv_read_positions(kv, page, positions);
	int64_t found = kv_place_of(positions);
	if (found < 0 || (place >= 0 && found != place))
		return false;
	for (uint32_t i = 0; i < KV_SUMS; i++)
		if (!kv_sums_hold(
			    kv, kv->pages[page].owner, page * KV_SUMS + i, &positions[i * KV_TURN]))
			return false;
	memcpy(&kv->position[page * KV_PAGE_CELLS], positions, sizeof(positions));
	return true;
}

/* Takes the page over, behind `before` in a chain. */
static void hold(struct kv *kv, uint32_t page, uint32_t before)
{
	kv->pages[page].before = before;
	kv->pages[page].shared = true;
	kv->pages[page].refs = 0; /* until kv_attach, or a page behind it */
	/* The predecessor may have been killed before it could. */
	atomic_store_explicit(&kv->meta[page].shared, 1, memory_order_release);
	if (before != KV_NONE)
		kv->pages[before].refs++;
}

static void adopt_chain(struct kv *kv, struct kv_seq *seq, uint32_t record, uint32_t limit)
{
	uint64_t tip = atomic_load_explicit(&kv->records[record].tip, memory_order_acquire);
	uint32_t last = KV_NONE, n = 0, page = kv_tip_unpack(kv, seq->owner, tip);
	if (page == KV_NONE || kv->pages[page].owner == 0)
		return;
	for (page = find_chain(kv, page, seq->owner); page != KV_NONE;
		page = kv->pages[page].next) {
		if (n + KV_PAGE_CELLS > limit)
			break;
		/* Another sequence has taken it over already: it was checked then, and so were
		 * those before it. */
		if (kv->pages[page].refs == 0) {
			if (!kv_check_page(kv, page, -1))
				break;
			hold(kv, page, last);
		} else if (kv->pages[page].before != last) {
			break;
		}
		last = page;
		n += KV_PAGE_CELLS;
	}
	if (last != KV_NONE)
		kv_attach(kv, seq, last);
}

static void adopt_record(struct kv *kv, struct kv_seq *seq, uint32_t limit)
{
	struct kv_left *left = kv->left;
	uint32_t i = owners_first(&left->records, seq->owner);
	while (i != OWNERS_NONE &&
		(left->of_records[i].owner != seq->owner || left->of_records[i].taken))
		i = owners_next(&left->records, i);
	if (i == OWNERS_NONE || !kv_shares(kv))
		return;
	left->of_records[i].taken = true;
	seq->record = i;
	adopt_chain(kv, seq, i, limit);
}

/* Enters the page's committed cells into the map as far as they are valid; unset entries of the map
 * are KV_NONE. */
static void adopt_page(struct kv *kv, struct kv_seq *seq, uint32_t page, uint32_t limit)
{
	int32_t positions[KV_PAGE_CELLS];
	bool held[KV_SUMS];
	kv->pages[page].refs = 1;
	kv_own_add(kv, seq, page);
	seq->n_pages++;
	kv_read_positions(kv, page, positions);
	for (uint32_t i = 0; i < KV_SUMS; i++)
		held[i] = kv_sums_hold(kv, seq->owner, page * KV_SUMS + i, &positions[i * KV_TURN]);
	for (uint32_t i = 0; i < KV_PAGE_CELLS; i++) {
		int32_t position = positions[i];
		if (held[i / KV_TURN] && position >= 0 && (uint32_t)position < limit &&
			seq->cell[position] == KV_NONE)
			seq->cell[position] = page * KV_PAGE_CELLS + i;
	}
}

/* Makes every cell spare that is not a position below n, whatever its marker says. */
static void clear_others(struct kv *kv, struct kv_seq *seq, uint32_t page)
{
	uint32_t spare = 0;
	for (uint32_t i = 0; i < KV_PAGE_CELLS; i++) {
		uint32_t cell = page * KV_PAGE_CELLS + i;
		if (kv->position[cell] >= 0)
			continue;
		kv_marker_clear(kv, cell);
		spare |= 1u << i;
	}
	if (spare != 0)
		kv_spare_add(kv, seq, page, spare);
}

static void sort_cells(struct kv *kv, struct kv_seq *seq)
{
	/* The page with the newest token is filled first, so that pages remain shareable. */
	uint32_t newest = seq->n > seq->n_shared ? seq->cell[seq->n - 1] / KV_PAGE_CELLS : KV_NONE;
	for (uint32_t i = seq->n_shared; i < seq->n; i++)
		kv->position[seq->cell[i]] = (int32_t)i;
	for (uint32_t page = seq->own_last; page != KV_NONE; page = kv->pages[page].prev)
		if (page != newest)
			clear_others(kv, seq, page);
	if (newest != KV_NONE)
		clear_others(kv, seq, newest);
}

/* The sequence has nothing any more; it finds its pages and a snapshot as another one would. */
static void lose(struct kv *kv, struct kv_seq *seq)
{
	if (kv_states(kv))
		recurrent_give(kv_states(kv), &seq->state);
	seq->n_pages -= seq->n_shared / KV_PAGE_CELLS;
	kv_detach(kv, seq);
	seq->n = seq->n_shared = seq->window_first = 0;
}

void kv_adopt(struct kv *kv, struct kv_seq *seq, uint32_t limit)
{
	struct kv_left *left = kv->left;
	uint32_t pages_max = (seq->n_max + LIMIT_DRAFT_NODES + KV_PAGE_CELLS) / KV_PAGE_CELLS;
	assert(seq->n == 0 && seq->n_pages == 0);
	if (!left)
		return;
	if (limit > seq->n_max)
		limit = seq->n_max;
	for (uint32_t i = 0; i < limit; i++)
		seq->cell[i] = KV_NONE;
	adopt_record(kv, seq, limit);
	for (uint32_t page = owners_first(&left->pages, seq->owner), next; page != OWNERS_NONE;
		page = next) {
		next = owners_next(&left->pages, page);
		if (kv->pages[page].owner == seq->owner && !kv->pages[page].shared &&
			kv->pages[page].refs == 0 && seq->n_pages < pages_max)
			adopt_page(kv, seq, page, limit);
	}
	while (seq->n < limit && seq->cell[seq->n] != KV_NONE)
		seq->n++;
	seq->n = kv_windows_adopt(kv, seq, seq->n);
	/* The state of a recurrent layer cannot go back to where the cells end, but the sequence's own
	 * cells can go back to the state. */
	if (kv_states(kv))
		seq->n = recurrent_adopt(kv_states(kv), &seq->state, seq->owner, seq->n);
	if (seq->n < seq->n_shared)
		lose(kv, seq);
	sort_cells(kv, seq);
}

void kv_reclaim(struct kv *kv)
{
	struct kv_left *left = kv->left;
	if (!left)
		return;
	/* Before their pages are freed: a successor trusts a record. */
	for (uint32_t i = kv->layout.n_records; i-- > 0;) {
		if (left->of_records[i].taken)
			continue;
		atomic_store_explicit(&kv->records[i].tip, 0, memory_order_relaxed);
		atomic_store_explicit(&kv->records[i].owner, 0, memory_order_release);
		kv->free_records[kv->n_free_records++] = i;
	}
	kv_keep_left(kv);
	for (uint32_t page = kv->layout.n_pages; page-- > 0;)
		if (kv->pages[page].owner != 0 && kv->pages[page].refs == 0 &&
			!kv->pages[page].kept)
			kv_page_free(kv, page);
	if (kv_states(kv))
		recurrent_reclaim(kv_states(kv));
	kv_left_exit(kv);
	kv_windows_reclaim(kv);
}
