/*
 * Shared pages against a plain model: sequences are lists of tokens, and a cell holds what follows from all tokens up to its own.
 * Whatever is appended, rejected, shared, copied away and brought back, truncated, ended and taken over by a successor, every position has its own content,
 * every page is somebody's, kept or free, and the counts are those of the chains. The same where one of
 * the layers keeps a window of its own, and sequences go on where snapshots keep that.
 */
#include "shared/model/kv/kv_content.h"
#include "shared/model/kv/kv_internal.h"
#include "shared/model/kv/kv_prefix.h"
#include "tests/model/rig.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

enum { PAGES = 24, CELLS = PAGES * KV_PAGE_CELLS, SEQS = 6, RECORDS = SEQS, CONTEXT = 300 };

#define DOMAIN 5
#define IN_DOMAIN(d) (&(const struct kv_domains){(d), (d), 0})

/* What a sequence ought to be. In memory that a killed process leaves behind. */
struct list {
	uint64_t owner; /* 0: ended */
	uint32_t n; /* tokens */
	uint32_t kept; /* of them, those that no crash may lose any more */
	int32_t tokens[CONTEXT];
};

struct world {
	struct kv kv;
	struct kv_layout layout;
	unsigned char *map, *memory; /* memory: of the store */
	struct list *lists; /* [SEQS] */
	struct kv_seq seqs[SEQS];
	uint64_t random, next_owner;
	uint32_t kept_max;
	uint32_t last[SEQS]; /* of snapshots_take */
	bool checked; /* kv_check */
	uint32_t n_back; /* pages that were brought back */
	bool traced; /* stops around the operations, for who steps through them */
};

static uint32_t below(struct world *w, uint32_t n)
{
	return (uint32_t)(rig_random(&w->random) % n);
}

/* Around each call that the process may be killed in. */
static void mark(const struct world *w)
{
	if (w->traced)
		raise(SIGSTOP);
}

/* What the tokens up to position p make of the cell. */
static uint64_t content(const struct list *list, uint32_t p)
{
	uint64_t hash = 1;
	for (uint32_t i = 0; i <= p; i++) {
		hash += (uint64_t)(uint32_t)list->tokens[i] + 1;
		hash = rig_random(&hash);
	}
	return hash;
}

/* Word i of one vector of a cell. Keys of a turn lie together, word by word. */
static float *word(
	struct world *w, uint32_t layer, uint32_t head, bool value, uint32_t cell, uint32_t i)
{
	const struct kv *kv = &w->kv;
	size_t at = (value ? kv_v(kv, layer, head) : kv_k(kv, layer, head)) / sizeof(float);
	size_t bytes = value ? kv->v_bytes : kv->k_bytes;
	float *floats = (float *)(void *)kv->store.host;
	if (value || !kv_turned(kv))
		return floats + at + cell * bytes / sizeof(float) + i;
	at += (size_t)cell / KV_TURN * KV_TURN * bytes / sizeof(float);
	return floats + at + (size_t)i * KV_TURN + cell % KV_TURN;
}

/* write: what is to be there, or compare it; windows: also in the layers that keep windows of their own. */
static bool each_word(struct world *w, uint32_t at_cell, uint64_t what, bool write, bool windows)
{
	const struct kv_layout *l = &w->layout;
	for (uint32_t layer = 0; layer < l->n_layers - (windows ? 0 : l->windows.n_layers);
		layer++) {
		uint32_t cell = kv_cell(&w->kv, layer, at_cell);
		assert_int_not_equal(cell, KV_NONE);
		for (uint32_t head = 0; head < l->n_kv_heads; head++) {
			for (uint32_t i = 0; i < l->k_dim + l->v_dim; i++) {
				bool value = i >= l->k_dim;
				float *at =
					word(w, layer, head, value, cell, value ? i - l->k_dim : i);
				what = rig_random(&what);
				float wanted = (float)(what >> 40);
				if (write)
					*at = wanted;
				else if (*at != wanted)
					return false;
			}
		}
	}
	return true;
}

static void check_content(struct world *w, const struct kv_seq *seq, const struct list *list)
{
	uint64_t hash = 1;
	for (uint32_t p = 0; p < seq->n; p++) {
		hash += (uint64_t)(uint32_t)list->tokens[p] + 1;
		hash = rig_random(&hash);
		assert_true(seq->cell[p] < CELLS);
		bool in_window = p + w->layout.windows.window > seq->n;
		if (!each_word(w, seq->cell[p], hash, false, in_window))
			fail_msg("position %u of session %lu holds something else", p,
				(unsigned long)seq->owner);
	}
}

/* The pages of one sequence, its own counted in owners, its shared ones in refs. */
static void count_pages(struct world *w, const struct kv_seq *seq, uint32_t *owners, uint32_t *refs)
{
	const struct kv *kv = &w->kv;
	uint32_t n_own = 0, n_spare = 0, n_listed = 0, n_chain = 0, last = KV_NONE;
	for (uint32_t p = seq->own; p != KV_NONE; last = p, p = kv->pages[p].next, n_own++) {
		assert_true(p < PAGES && n_own < PAGES);
		owners[p]++;
		assert_int_equal(kv->pages[p].prev, last);
		assert_int_equal(kv->pages[p].owner, seq->owner);
		assert_int_equal(atomic_load(&kv->meta[p].owner), seq->owner);
		assert_int_equal(atomic_load(&kv->meta[p].shared), 0);
		n_spare += (uint32_t)__builtin_popcount(kv->pages[p].spare);
		n_listed += kv->pages[p].spare != 0;
	}
	assert_int_equal(seq->own_last, last);
	for (uint32_t p = seq->spare; p != KV_NONE; p = kv->pages[p].next_spare, n_listed--)
		assert_true(n_listed > 0 && kv->pages[p].spare != 0 && owners[p] == 1);
	assert_int_equal(n_listed, 0);
	assert_int_equal(seq->n_spare, n_spare);
	if (seq->tip != KV_NONE)
		refs[seq->tip]++;
	for (uint32_t p = seq->tip; p != KV_NONE; p = kv->pages[p].before, n_chain++) {
		assert_true(p < PAGES && n_chain < PAGES);
		assert_int_equal(atomic_load(&kv->meta[p].shared), 1);
		assert_int_equal(atomic_load(&kv->meta[p].before), kv->pages[p].before);
	}
	assert_int_equal(seq->n_shared, n_chain * KV_PAGE_CELLS);
	assert_true(seq->n_shared <= seq->n);
	assert_int_equal(seq->n_pages, n_own + n_chain);
	assert_int_equal(seq->n + n_spare, seq->n_pages * KV_PAGE_CELLS);
}

/* Kept pages: their number, and those without pages behind them in the list. */
static void count_kept(const struct kv *kv)
{
	uint32_t n_kept = 0, n_last = 0, last = KV_NONE, behind[PAGES] = {0};
	for (uint32_t p = 0; p < PAGES; p++) {
		uint32_t before = kv->pages[p].before;
		if (!kv->pages[p].shared || kv->pages[p].owner == 0)
			continue;
		if (before != KV_NONE)
			behind[before]++;
		n_kept += kv->pages[p].kept;
	}
	for (uint32_t p = kv->kept_first; p != KV_NONE; last = p, p = kv->pages[p].next, n_last++) {
		assert_true(p < PAGES && n_last < PAGES);
		assert_true(kv->pages[p].kept && behind[p] == 0 && kv->pages[p].prev == last);
	}
	assert_int_equal(kv->kept_last, last);
	for (uint32_t p = 0; p < PAGES; p++) {
		assert_int_equal(kv->pages[p].behind, behind[p]);
		n_last -= kv->pages[p].kept && behind[p] == 0;
		if (kv->pages[p].kept)
			assert_true(kv->pages[p].shared && atomic_load(&kv->meta[p].owner) != 0);
	}
	assert_int_equal(n_last, 0);
	assert_int_equal(kv->n_kept, n_kept);
	assert_true(n_kept <= kv->kept_max);
}

/* Between operations: every count is what the sequences say. */
static void check_counts(struct world *w)
{
	const struct kv *kv = &w->kv;
	uint32_t owners[PAGES] = {0}, refs[PAGES] = {0}, n_free = 0, n_records = 0;
	bool counted[PAGES] = {false};
	for (uint32_t s = 0; s < SEQS; s++) {
		if (w->seqs[s].owner == 0)
			continue;
		count_pages(w, &w->seqs[s], owners, refs);
		n_records += w->seqs[s].record != KV_NONE;
		for (uint32_t p = w->seqs[s].tip; p != KV_NONE && !counted[p];
			p = kv->pages[p].before) {
			counted[p] = true;
			if (kv->pages[p].before != KV_NONE)
				refs[kv->pages[p].before]++;
		}
		for (uint32_t i = 0; i < w->seqs[s].n; i++)
			assert_int_equal(kv->position[w->seqs[s].cell[i]], i);
	}
	for (uint32_t p = kv->free_page; p != KV_NONE; p = kv->pages[p].next, n_free++) {
		assert_true(p < PAGES && n_free < PAGES);
		owners[p]++;
		assert_int_equal(atomic_load(&kv->meta[p].owner), 0);
	}
	assert_int_equal(kv->n_free, n_free);
	assert_int_equal(n_records + kv->n_free_records, kv->layout.n_records);
	for (uint32_t p = 0; p < PAGES; p++) {
		assert_int_equal(owners[p] + (refs[p] > 0) + kv->pages[p].kept, 1);
		if (kv->pages[p].shared)
			assert_int_equal(kv->pages[p].refs, refs[p]);
	}
	count_kept(kv);
}

/* Who needs the window cells of each page, and that nobody else has any. */
static void check_windows(const struct world *w)
{
	const struct kv *kv = &w->kv;
	uint32_t seqs[PAGES] = {0}, snapshots[PAGES] = {0}, n_used = 0, n_spared = 0;
	bool used[CELLS] = {false};
	uint32_t span = (w->layout.windows.window + KV_PAGE_CELLS - 2) / KV_PAGE_CELLS;
	for (uint32_t s = 0; s < SEQS; s++) {
		const struct kv_seq *seq = &w->seqs[s];
		if (seq->owner == 0)
			continue;
		uint32_t n = seq->n_shared, window = w->layout.windows.window;
		for (uint32_t p = seq->tip; p != KV_NONE && n > seq->window_first;
			p = kv->pages[p].before, n -= KV_PAGE_CELLS)
			seqs[p]++;
		assert_true(seq->window_first <= (seq->n < window ? 0 : seq->n + 1 - window));
		for (uint32_t i = seq->window_first; i < seq->n; i++)
			assert_int_not_equal(kv->windows.of[seq->cell[i]], KV_NONE);
	}
	for (uint32_t i = 0; i < kv->snapshots.n; i++) {
		uint32_t p = kv->snapshots.of[i].page;
		if (p != KV_NONE)
			assert_true(kv->pages[p].snapshot == i + 1 && kv_windows_whole(kv, p));
		for (uint32_t k = span; k > 0 && p != KV_NONE; k--, p = kv->pages[p].before)
			snapshots[p]++;
	}
	for (uint32_t cell = 0; cell < CELLS; cell++) {
		uint32_t at = kv->windows.of[cell];
		const struct kv_page *page = &kv->pages[cell / KV_PAGE_CELLS];
		assert_int_equal(atomic_load(&kv->windows.shared[cell]), at);
		if (at == KV_NONE)
			continue;
		assert_true(at < kv->layout.windows.n_cells && !used[at] && page->owner != 0);
		assert_true(!page->shared || page->window_seqs + page->window_snapshots > 0);
		used[at] = true;
		n_used++;
	}
	for (uint32_t p = 0; p < PAGES; p++) {
		assert_int_equal(kv->pages[p].window_seqs, seqs[p]);
		assert_int_equal(kv->pages[p].window_snapshots, snapshots[p]);
		n_spared += seqs[p] == 0 && snapshots[p] > 0 ? KV_PAGE_CELLS : 0;
	}
	assert_int_equal(n_used + kv->windows.n_free, kv->layout.windows.n_cells);
	assert_int_equal(kv->windows.n_spared, n_spared);
}

static void open_cache(struct world *w, bool fresh)
{
	struct buffer store;
	struct error err;
	const struct backend_ops *ops = test_backend()->ops;
	assert_int_equal(
		ops->wrap(test_backend(), w->memory, kv_store_bytes(&w->layout), &store, &err), 0);
	assert_int_equal(kv_init(&w->kv, w->map, &store, &w->layout, fresh, &err), 0);
	if (w->checked)
		kv_check(&w->kv);
	assert_int_equal(kv_prefix_init(&w->kv), 0);
	kv_keep_max(&w->kv, w->kept_max);
}

static void start(struct world *w, uint32_t s)
{
	w->lists[s].n = w->lists[s].kept = 0;
	w->last[s] = KV_NONE;
	assert_int_equal(kv_seq_init(&w->seqs[s], ++w->next_owner, CONTEXT), 0);
	w->lists[s].owner = w->next_owner;
}

static void stop(struct world *w, uint32_t s)
{
	w->lists[s].owner = 0;
	mark(w);
	kv_seq_exit(&w->kv, &w->seqs[s]);
	mark(w);
}

/* Takes cells for a draft, of which some are accepted: mostly the first ones, sometimes any. The list is what is journalled before
 * the commit. */
static bool has_windows(const struct world *w)
{
	return w->layout.windows.n_layers > 0;
}

static void append(struct world *w, uint32_t s)
{
	struct kv_seq *seq = &w->seqs[s];
	struct list *list = &w->lists[s];
	uint32_t n = below(w, 45) + 1, cells[64], accepted[64], rejected[64], n_accepted = 0,
		 n_rejected = 0, keep = below(w, 3) ? n : below(w, n + 1);
	bool scattered = below(w, 12) == 0;
	/* There are always enough of them. */
	if (has_windows(w))
		assert_true(kv_windows_left(&w->kv, n));
	if (seq->n + n > CONTEXT || kv_take(&w->kv, seq, n, cells) != 0)
		return;
	for (uint32_t i = 0; i < n; i++) {
		bool accept = scattered ? below(w, 2) && n_accepted < keep : i < keep;
		if (!accept) {
			each_word(w, cells[i], rig_random(&w->random), true, true);
			rejected[n_rejected++] = cells[i];
			continue;
		}
		/* Few tokens, so that sequences begin with the same ones. */
		list->tokens[seq->n + n_accepted] = (int32_t)(below(w, 60) == 0);
		each_word(w, cells[i], content(list, seq->n + n_accepted), true, true);
		accepted[n_accepted++] = cells[i];
	}
	list->n = seq->n + n_accepted;
	mark(w);
	kv_commit(&w->kv, seq, accepted, n_accepted, rejected, n_rejected);
	kv_prefix_enter(&w->kv, seq, IN_DOMAIN(DOMAIN), list->tokens);
	snapshots_take(&w->kv, seq, n % 2 == 0 ? &w->last[s] : NULL);
	mark(w);
	list->kept = seq->n;
}

/* Takes over what is there of these tokens. */
static uint32_t prefix(struct world *w, uint32_t s, const int32_t *tokens, uint32_t n)
{
	uint32_t tip,
		found = kv_prefix_find(&w->kv, &w->seqs[s], IN_DOMAIN(DOMAIN), tokens, n, &tip);
	assert_true(kv_prefix_share(&w->kv, &w->seqs[s], tip));
	assert_int_equal(w->seqs[s].n, found);
	return found;
}

static void share(struct world *w, uint32_t s)
{
	uint32_t other = below(w, SEQS), got;
	struct list *from = &w->lists[other], *to = &w->lists[s];
	if (other == s || from->owner == 0)
		return;
	if (w->seqs[s].owner != 0)
		stop(w, s);
	start(w, s);
	uint32_t n = below(w, from->n + 1);
	memcpy(to->tokens, from->tokens, sizeof(to->tokens));
	to->n = n;
	bool by_tokens = below(w, 2) || has_windows(w);
	mark(w);
	got = by_tokens ? prefix(w, s, to->tokens, n)
			: kv_share(&w->kv, &w->seqs[s], &w->seqs[other], n);
	mark(w);
	if (!by_tokens) {
		assert_true(got >= (n < w->seqs[other].n_shared ? n : w->seqs[other].n_shared) /
					   KV_PAGE_CELLS * KV_PAGE_CELLS);
		if (n <= w->seqs[other].n_shared && n % KV_PAGE_CELLS == 0)
			assert_int_equal(got, n);
	} else {
		assert_int_equal(got % KV_PAGE_CELLS, 0);
		if (n >= KV_PAGE_CELLS && w->seqs[other].n_named >= KV_PAGE_CELLS &&
			!has_windows(w))
			assert_true(got > 0);
	}
	assert_true(got <= n && got == w->seqs[s].n);
	to->n = to->kept = got;
}

/* Pages that were copied away: their tokens, and of each its content, the order of its cells and its window cells. */
struct copies {
	uint32_t n; /* tokens */
	int32_t tokens[CONTEXT];
	unsigned char *content[PAGES], *window[PAGES];
	struct kv_content_name name[PAGES];
};

/* The last of the sequence's pages behind which another could go on, or KV_NONE. */
static uint32_t last_whole(struct world *w, const struct kv_seq *seq)
{
	uint32_t page = seq->n_named == seq->n_shared ? seq->tip : KV_NONE;
	while (page != KV_NONE && has_windows(w) && !snapshots_has(&w->kv, page))
		page = w->kv.pages[page].before;
	return page;
}

static void copy_away(struct world *w, const struct list *list, uint32_t page, struct copies *out)
{
	uint32_t n = (uint32_t)w->kv.position[page * KV_PAGE_CELLS] / KV_PAGE_CELLS + 1;
	memset(out, 0, sizeof(*out));
	out->n = n * KV_PAGE_CELLS;
	memcpy(out->tokens, list->tokens, sizeof(out->tokens));
	for (uint32_t i = n; i-- > 0; page = w->kv.pages[page].before) {
		out->content[i] = malloc(kv_content_bytes(&w->kv));
		assert_non_null(out->content[i]);
		assert_true(kv_content_name(&w->kv, page, &out->name[i]));
		assert_int_equal(kv_content_read(&w->kv, page, out->content[i]), 0);
		if (!has_windows(w) || i + kv_windows_span(&w->layout) < n)
			continue;
		assert_true(kv_window_there(&w->kv, page));
		out->window[i] = malloc(kv_windows_page_bytes(&w->layout));
		assert_non_null(out->window[i]);
		kv_window_read(&w->kv, page, out->window[i]);
	}
}

/* Continues the sequence with the copies, as far as memory does not have the same. False: there is no room. */
static bool bring_pages(struct world *w, struct kv_seq *seq, const struct copies *copies)
{
	while (seq->n < copies->n) {
		uint32_t at = seq->n, tip, i = at / KV_PAGE_CELLS;
		snapshots_unpin(&w->kv, seq);
		if (kv_prefix_pages(&w->kv, seq, IN_DOMAIN(DOMAIN), copies->tokens,
			    at + KV_PAGE_CELLS, &tip) > at) {
			if (!kv_prefix_share(&w->kv, seq, tip))
				return false;
			continue;
		}
		if (kv_content_append(&w->kv, seq, copies->name[i].order, copies->content[i]) != 0)
			return false;
		kv_prefix_enter(&w->kv, seq, IN_DOMAIN(DOMAIN), copies->tokens);
		if (seq->own != KV_NONE)
			return false;
	}
	return true;
}

/* And with the window before their end. */
static bool bring_window(struct world *w, struct kv_seq *seq, const struct copies *copies)
{
	uint32_t snapshot;
	if (snapshots_has(&w->kv, seq->tip)) {
		kv_windows_regain(&w->kv, seq);
		return snapshots_ready(&w->kv, seq);
	}
	for (uint32_t i = 0; i < copies->n / KV_PAGE_CELLS; i++) {
		uint32_t page = seq->cell[i * KV_PAGE_CELLS] / KV_PAGE_CELLS;
		if (!copies->window[i])
			continue;
		kv_windows_expect(&w->kv, seq);
		assert_false(snapshots_ready(&w->kv, seq) && !kv_windows_whole(&w->kv, seq->tip));
		if (kv_window_write(&w->kv, page, copies->window[i]) != 0)
			return false;
	}
	snapshot = snapshots_reserve(&w->kv);
	return snapshot != SNAPSHOT_NONE && snapshots_put(&w->kv, snapshot, seq->tip, 1) &&
	       snapshots_ready(&w->kv, seq);
}

/* Copies a sequence's pages away, and begins another one with the copies. How many pages came back. */
static uint32_t bring_back(struct world *w, uint32_t s)
{
	uint32_t other = below(w, SEQS), page;
	struct copies copies;
	bool traced = w->traced;
	if (other == s || w->lists[other].owner == 0 ||
		(page = last_whole(w, &w->seqs[other])) == KV_NONE)
		return 0;
	copy_away(w, &w->lists[other], page, &copies);
	w->traced = false;
	/* So that memory has only some of them, or none. */
	for (uint32_t i = 0, all = below(w, 2); i < SEQS; i++)
		if (w->lists[i].owner != 0 && (all || i == other || below(w, 3) == 0))
			stop(w, i);
	if (below(w, 4) > 0)
		kv_keep_max(&w->kv, 0);
	kv_keep_max(&w->kv, w->kept_max);
	if (w->seqs[s].owner != 0)
		stop(w, s);
	start(w, s);
	memcpy(w->lists[s].tokens, copies.tokens, sizeof(copies.tokens));
	w->lists[s].n = copies.n;
	w->traced = traced;
	mark(w);
	uint32_t found = prefix(w, s, copies.tokens, copies.n);
	bool whole = found == copies.n ||
		     (bring_pages(w, &w->seqs[s], &copies) &&
			     (!has_windows(w) || bring_window(w, &w->seqs[s], &copies)));
	mark(w);
	w->lists[s].kept = w->seqs[s].n;
	if (!whole)
		stop(w, s);
	for (uint32_t i = 0; i < PAGES; i++) {
		free(copies.content[i]);
		free(copies.window[i]);
	}
	return whole ? (copies.n - found) / KV_PAGE_CELLS : 0;
}

static void truncate_one(struct world *w, uint32_t s)
{
	struct kv_seq *seq = &w->seqs[s];
	uint32_t n = below(w, seq->n + 1), first = n / KV_PAGE_CELLS * KV_PAGE_CELLS;
	bool room = w->kv.n_free + w->kv.n_kept > 0;
	w->lists[s].kept = has_windows(w) ? 0 : first;
	w->lists[s].n = seq->n;
	mark(w);
	kv_truncate(&w->kv, seq, n);
	mark(w);
	if (has_windows(w))
		assert_true(seq->n == n || seq->n == first || seq->n == 0);
	else if (room || n >= seq->n_shared + KV_PAGE_CELLS)
		assert_int_equal(seq->n, n);
	assert_true(seq->n <= n && (seq->n >= first || has_windows(w)));
	w->lists[s].n = w->lists[s].kept = seq->n;
}

static void step(struct world *w)
{
	uint32_t s = below(w, SEQS), what = below(w, 20);
	if (w->lists[s].owner == 0 && what >= 5)
		start(w, s);
	else if (what < 5)
		share(w, s);
	else if (what < 8)
		truncate_one(w, s);
	else if (what == 8 || (what == 9 && w->kept_max > 0))
		stop(w, s);
	else if (what == 10)
		w->n_back += bring_back(w, s);
	else
		append(w, s);
}

/* Another process over the same memory: it takes over what lives, in any order, and finds all that had to be kept. */
static void succeed(struct world *w, bool torn)
{
	uint32_t first = below(w, SEQS);
	open_cache(w, false);
	for (uint32_t i = 0; i < SEQS; i++) {
		uint32_t s = (first + i) % SEQS;
		struct list *list = &w->lists[s];
		struct kv_seq *seq = &w->seqs[s];
		if (list->owner == 0)
			continue;
		assert_int_equal(kv_seq_init(seq, list->owner, CONTEXT), 0);
		kv_adopt(&w->kv, seq, list->n);
		assert_true(seq->n <= list->n);
		/* The last sequence's window may have been on its way from one cell to another. */
		if (!w->checked && !(torn && has_windows(w)))
			assert_true(seq->n >= list->kept);
		if (!w->checked && !torn)
			assert_int_equal(seq->n, list->n);
		list->n = list->kept = seq->n;
	}
	kv_reclaim(&w->kv);
	check_counts(w);
	if (has_windows(w))
		check_windows(w);
	for (uint32_t s = 0; s < SEQS; s++) {
		w->last[s] = KV_NONE;
		if (w->lists[s].owner == 0)
			continue;
		check_content(w, &w->seqs[s], &w->lists[s]);
		kv_prefix_enter(&w->kv, &w->seqs[s], IN_DOMAIN(DOMAIN), w->lists[s].tokens);
	}
}

static void die(struct world *w)
{
	for (uint32_t s = 0; s < SEQS; s++)
		kv_seq_forget(&w->seqs[s]);
	kv_exit(&w->kv);
}

static void *shared_memory(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(memory, MAP_FAILED);
	return memory;
}

/* window: of the second layer, or 0. */
static void world_open_window(struct world *w, uint64_t seed, bool checked, uint32_t v_dim,
	uint32_t kept_max, uint32_t window)
{
	memset(w, 0, sizeof(*w));
	w->kept_max = kept_max;
	w->random = seed;
	w->checked = checked;
	w->layout = (struct kv_layout){.n_layers = 2,
		.n_kv_heads = v_dim ? 2 : 1,
		.k_dim = 4,
		.v_dim = v_dim,
		.type = KV_F32,
		.n_pages = PAGES,
		.n_records = RECORDS};
	if (window > 0) {
		w->layout.windows = (struct kv_windows_layout){.n_layers = 1,
			.window = window,
			.kept = window,
			.n_cells = SEQS * window + 64};
		kv_windows_spare(&w->layout.windows, SEQS, 2, CELLS);
		assert_int_equal(w->layout.windows.n_layers, 1);
		w->layout.states.n_snapshots = 8;
	}
	w->map = shared_memory(kv_map_bytes(&w->layout));
	w->memory = shared_memory(kv_store_bytes(&w->layout));
	w->lists = shared_memory(SEQS * sizeof(*w->lists));
	open_cache(w, true);
}

static void world_open(
	struct world *w, uint64_t seed, bool checked, uint32_t v_dim, uint32_t kept_max)
{
	world_open_window(w, seed, checked, v_dim, kept_max, 0);
}

static void world_free(struct world *w)
{
	munmap(w->map, kv_map_bytes(&w->layout));
	munmap(w->memory, kv_store_bytes(&w->layout));
	munmap(w->lists, SEQS * sizeof(*w->lists));
}

static void world_close(struct world *w)
{
	for (uint32_t s = 0; s < SEQS; s++)
		kv_seq_exit(&w->kv, &w->seqs[s]);
	assert_int_equal(w->kv.n_free + w->kv.n_kept, PAGES);
	kv_keep_max(&w->kv, 0);
	assert_int_equal(w->kv.n_free, PAGES);
	assert_int_equal(w->kv.n_free_records, RECORDS);
	for (uint32_t cell = 0; cell < CELLS; cell++)
		assert_int_equal(w->kv.position[cell], -1);
	kv_exit(&w->kv);
	world_free(w);
}

static void live_in(const uint32_t *windows)
{
	uint32_t shared = 0, revived = 0, back = 0;
	static const uint32_t kept_max[] = {0, PAGES, 5, PAGES, 1};
	for (uint64_t seed = 0; seed < 20; seed++) {
		struct world w;
		world_open_window(&w, seed, seed % 2, seed % 3 ? 4 : 0, kept_max[seed % 5],
			windows ? windows[seed % 4] : 0);
		for (int i = 0; i < 1500; i++) {
			uint32_t n_kept = w.kv.n_kept, n_free = w.kv.n_free;
			step(&w);
			check_counts(&w);
			if (windows)
				check_windows(&w);
			revived += w.kv.n_kept < n_kept && w.kv.n_free >= n_free;
			for (uint32_t p = 0; p < PAGES; p++)
				shared += w.kv.pages[p].refs > 1;
			for (uint32_t s = 0; i % 8 == 0 && s < SEQS; s++)
				if (w.lists[s].owner != 0)
					check_content(&w, &w.seqs[s], &w.lists[s]);
			if (below(&w, 60) == 0) {
				die(&w);
				succeed(&w, false);
			}
		}
		back += w.n_back;
		world_close(&w);
	}
	/* That much was shared that the above means something. */
	assert_true(shared > 3000);
	assert_true(revived > 100);
	assert_true(back > 150);
}

static void every_cell_holds_what_its_tokens_make_it(void **state)
{
	(void)state;
	live_in(NULL);
}

static void so_does_every_cell_of_a_window(void **state)
{
	static const uint32_t windows[4] = {20, 40, 33, 1};
	(void)state;
	live_in(windows);
}

/* Does some work, and then one operation that the parent steps through: any, or one that brings pages back. */
static void work(struct world *w, bool back)
{
	for (uint32_t n = 20 + below(w, 100); n > 0; n--)
		step(w);
	ptrace(PTRACE_TRACEME, 0, NULL, NULL);
	for (;; step(w)) {
		w->traced = true;
		if (back)
			(void)bring_back(w, below(w, SEQS));
		else
			step(w);
		w->traced = false;
	}
}

/* What a successor finds when the process dies now. */
static void check_successor(const struct world *w, unsigned char *map, struct list *lists)
{
	struct world heir = *w;
	memcpy(lists, w->lists, SEQS * sizeof(*lists));
	heir.map = map;
	heir.lists = lists;
	heir.next_owner = UINT32_MAX;
	memset(heir.seqs, 0, sizeof(heir.seqs));
	succeed(&heir, true);
	for (uint32_t s = 0; s < SEQS; s++)
		kv_seq_exit(&heir.kv, &heir.seqs[s]);
	assert_int_equal(heir.kv.n_free + heir.kv.n_kept, PAGES);
	kv_keep_max(&heir.kv, 0);
	assert_int_equal(heir.kv.n_free, PAGES);
	kv_exit(&heir.kv);
}

static bool next_stop(pid_t pid, enum __ptrace_request how, int signal)
{
	int status;
	assert_int_equal(ptrace(how, pid, NULL, NULL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSTOPPED(status));
	return WSTOPSIG(status) == signal;
}

/* Steps through an operation; after each store to the map a successor is tried on a copy of it. How many there were. */
static uint32_t step_through(const struct world *w, pid_t pid)
{
	uint32_t n = 0, bytes = (uint32_t)kv_map_bytes(&w->layout);
	unsigned char *seen = aligned_alloc(64, bytes), *copy = aligned_alloc(64, bytes);
	struct list *lists = malloc(SEQS * sizeof(*lists));
	int status;
	assert_true(seen && copy && lists);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
	memcpy(seen, w->map, bytes);
	while (next_stop(pid, PTRACE_SINGLESTEP, SIGTRAP)) {
		if (memcmp(seen, w->map, bytes) == 0)
			continue;
		memcpy(seen, w->map, bytes);
		memcpy(copy, w->map, bytes);
		check_successor(w, copy, lists);
		n++;
	}
	free(seen);
	free(copy);
	free(lists);
	return n;
}

/* Killed after any store of an operation: what the successor takes over holds together, and nothing that was there is lost. */
static void die_in(uint32_t window, bool back)
{
	uint32_t n = 0, seeds = back ? 12 : 48;
	for (uint64_t seed = 0; seed < seeds; seed++) {
		struct world w;
		world_open_window(&w, seed, seed % 4 == 3, 4, seed % 3 ? PAGES : 0, window);
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid == 0)
			work(&w, back);
		n += step_through(&w, pid);
		kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, NULL, 0), pid);
		kv_exit(&w.kv);
		world_free(&w);
	}
	assert_true(n > 12 * seeds);
}

static void a_process_that_dies_loses_no_page(void **state)
{
	(void)state;
	die_in(0, false);
}

static void and_leaves_windows_that_hold_together(void **state)
{
	(void)state;
	die_in(40, false);
}

static void and_so_while_pages_come_back(void **state)
{
	(void)state;
	die_in(40, true);
}

static void opened(struct world *w)
{
	world_open(w, 1, false, 4, 0);
	for (uint32_t s = 0; s < SEQS; s++)
		start(w, s);
}

/* Appends n tokens, none of them rejected. */
static void fill(struct world *w, uint32_t s, uint32_t n)
{
	uint32_t cells[CONTEXT];
	struct list *list = &w->lists[s];
	assert_int_equal(kv_take(&w->kv, &w->seqs[s], n, cells), 0);
	for (uint32_t i = 0; i < n; i++, list->n++) {
		list->tokens[list->n] = (int32_t)(s * 1000 + list->n);
		each_word(w, cells[i], content(list, list->n), true, true);
	}
	kv_commit(&w->kv, &w->seqs[s], cells, n, NULL, 0);
	kv_prefix_enter(&w->kv, &w->seqs[s], IN_DOMAIN(DOMAIN), list->tokens);
}

static void whole_pages_are_shared_and_the_rest_is_copied(void **state)
{
	struct world w;
	(void)state;
	opened(&w);
	fill(&w, 0, 150);
	assert_int_equal(w.seqs[0].n_shared, 128);
	uint32_t n_free = w.kv.n_free;
	w.lists[1] = w.lists[0];
	assert_int_equal(kv_share(&w.kv, &w.seqs[1], &w.seqs[0], 150), 150);
	assert_memory_equal(w.seqs[1].cell, w.seqs[0].cell, 128 * sizeof(uint32_t));
	assert_int_equal(w.kv.n_free, n_free - 1);
	check_content(&w, &w.seqs[1], &w.lists[1]);
	/* In a shared page: 32 tokens are the same cells, and 8 are copies. */
	w.lists[2] = w.lists[0];
	assert_int_equal(kv_share(&w.kv, &w.seqs[2], &w.seqs[0], 40), 40);
	assert_int_equal(w.seqs[2].n_shared, 32);
	/* The others stay when the first one ends, and goes back. */
	kv_truncate(&w.kv, &w.seqs[2], 33);
	kv_truncate(&w.kv, &w.seqs[1], 100);
	assert_int_equal(w.seqs[1].n, 100);
	assert_int_equal(w.seqs[0].n, 150);
	w.lists[1].n = 100;
	fill(&w, 1, 70);
	check_content(&w, &w.seqs[0], &w.lists[0]);
	check_content(&w, &w.seqs[1], &w.lists[1]);
	stop(&w, 0);
	check_content(&w, &w.seqs[1], &w.lists[1]);
	check_counts(&w);
	world_close(&w);
}

static void a_truncated_sequence_goes_back_to_a_page_where_none_is_free(void **state)
{
	struct world w;
	(void)state;
	opened(&w);
	fill(&w, 0, 96);
	w.lists[1] = w.lists[0];
	assert_int_equal(kv_share(&w.kv, &w.seqs[1], &w.seqs[0], 96), 96);
	for (uint32_t s = 2; w.kv.n_free > 0; s++)
		fill(&w, s, w.kv.n_free > 9 ? 9 * KV_PAGE_CELLS : w.kv.n_free * KV_PAGE_CELLS);
	kv_truncate(&w.kv, &w.seqs[1], 70);
	assert_int_equal(w.seqs[1].n, 64);
	check_counts(&w);
	/* Alone it keeps its page, and every token. */
	stop(&w, 1);
	kv_truncate(&w.kv, &w.seqs[0], 70);
	assert_int_equal(w.seqs[0].n, 70);
	check_content(&w, &w.seqs[0], &w.lists[0]);
	check_counts(&w);
	world_close(&w);
}

static void a_prefix_is_found_by_its_tokens_alone(void **state)
{
	struct world w;
	int32_t tokens[CONTEXT];
	(void)state;
	opened(&w);
	fill(&w, 0, 140);
	memcpy(tokens, w.lists[0].tokens, sizeof(tokens));
	tokens[100] = 7;
	assert_int_equal(prefix(&w, 1, tokens, 140), 96);
	assert_int_equal(prefix(&w, 2, tokens, 95), 64);
	assert_int_equal(prefix(&w, 3, tokens + 1, 139), 0);
	tokens[0] = 9;
	assert_int_equal(prefix(&w, 4, tokens, 140), 0);
	/* More of it, once that is there. */
	w.lists[5] = w.lists[0];
	assert_int_equal(prefix(&w, 5, w.lists[5].tokens, 290), 128);
	fill(&w, 0, 30);
	assert_int_equal(prefix(&w, 5, w.lists[0].tokens, 290), 160);
	assert_int_equal(prefix(&w, 5, w.lists[0].tokens, 290), 160);
	w.lists[5].n = 160;
	check_content(&w, &w.seqs[5], &w.lists[0]);
	check_counts(&w);
	stop(&w, 5);
	start(&w, 5);
	/* It is there as long as one has it. */
	stop(&w, 0);
	assert_int_equal(prefix(&w, 4, w.lists[0].tokens, 140), 96);
	stop(&w, 1);
	stop(&w, 4);
	assert_int_equal(prefix(&w, 3, w.lists[0].tokens, 140), 64);
	stop(&w, 2);
	stop(&w, 3);
	assert_int_equal(prefix(&w, 5, w.lists[0].tokens, 140), 0);
	check_counts(&w);
	world_close(&w);
}

/* Three conversations, of which the second continues the first, end; the room is enough for all. */
static void pages_are_kept_until_they_are_needed(void **state)
{
	struct world w;
	uint32_t tip;
	(void)state;
	world_open(&w, 1, false, 4, PAGES);
	for (uint32_t s = 0; s < 3; s++)
		start(&w, s);
	fill(&w, 0, 128);
	w.lists[1].n = prefix(&w, 1, w.lists[0].tokens, 128);
	memcpy(w.lists[1].tokens, w.lists[0].tokens, sizeof(w.lists[0].tokens));
	fill(&w, 1, 64);
	w.lists[2].n = 0;
	w.lists[2].tokens[0] = 77;
	append(&w, 2);
	struct list first = w.lists[0], second = w.lists[1];
	stop(&w, 0);
	assert_int_equal(w.kv.n_kept, 0);
	stop(&w, 2);
	stop(&w, 1);
	check_counts(&w);
	assert_true(w.kv.n_kept >= 6);
	/* Another domain finds nothing. */
	start(&w, 0);
	assert_int_equal(
		kv_prefix_find(&w.kv, &w.seqs[0], IN_DOMAIN(DOMAIN + 1), second.tokens, 192, &tip),
		0);
	/* Nor does another one from a position on. */
	const struct kv_domains later = {DOMAIN, DOMAIN + 1, 64},
				earlier = {DOMAIN + 1, DOMAIN, 64};
	assert_int_equal(kv_prefix_find(&w.kv, &w.seqs[0], &later, second.tokens, 192, &tip), 64);
	assert_int_equal(kv_prefix_find(&w.kv, &w.seqs[0], &earlier, second.tokens, 192, &tip), 0);
	/* A successor finds all of it. */
	die(&w);
	memset(w.seqs, 0, sizeof(w.seqs));
	w.lists[0].n = w.lists[0].kept = 0;
	succeed(&w, false);
	assert_true(w.kv.n_kept >= 6);
	assert_int_equal(prefix(&w, 0, second.tokens, 192), 192);
	check_content(&w, &w.seqs[0], &second);
	w.lists[0] = second;
	w.lists[0].owner = w.seqs[0].owner;
	check_counts(&w);
	/* What lies behind a sequence that goes back is not overwritten. */
	kv_truncate(&w.kv, &w.seqs[0], 96);
	w.lists[0].n = 96;
	fill(&w, 0, 40);
	start(&w, 1);
	assert_int_equal(prefix(&w, 1, second.tokens, 192), 192);
	check_content(&w, &w.seqs[1], &second);
	check_counts(&w);
	stop(&w, 1);
	stop(&w, 0);
	/* New sequences take pages of their ends, and the beginnings last. */
	start(&w, 2);
	start(&w, 4);
	start(&w, 5);
	uint32_t kept = w.kv.n_kept;
	for (uint32_t i = 0; w.kv.n_kept + 2 > kept; i++)
		fill(&w, i % 3 == 0 ? 2 : 3 + i % 3, KV_PAGE_CELLS);
	check_counts(&w);
	start(&w, 3);
	assert_true(prefix(&w, 3, first.tokens, 128) >= 96);
	stop(&w, 3);
	world_close(&w);
}

/* A conversation of three pages, the n-th of its kind, which ends. */
static void talk(struct world *w, int32_t nth)
{
	uint32_t cells[97];
	struct list *list = &w->lists[0];
	start(w, 0);
	assert_int_equal(kv_take(&w->kv, &w->seqs[0], 97, cells), 0);
	for (uint32_t i = 0; i < 97; i++, list->n++) {
		list->tokens[list->n] = nth * 1000 + (int32_t)i;
		each_word(w, cells[i], content(list, list->n), true, true);
	}
	kv_commit(&w->kv, &w->seqs[0], cells, 97, NULL, 0);
	kv_prefix_enter(&w->kv, &w->seqs[0], IN_DOMAIN(DOMAIN), list->tokens);
	stop(w, 0);
}

/* How many tokens of that conversation are found; the session goes on behind them, or only looks. */
static uint32_t found_of(struct world *w, int32_t nth, bool goes_on)
{
	int32_t tokens[96];
	for (uint32_t i = 0; i < 96; i++)
		tokens[i] = nth * 1000 + (int32_t)i;
	start(w, 1);
	uint32_t n = prefix(w, 1, tokens, 96);
	if (goes_on)
		kv_prefix_found(&w->kv, &w->seqs[1]);
	stop(w, 1);
	return n;
}

static void what_is_found_often_is_kept_longest_and_gives_way_in_the_end(void **state)
{
	struct world w;
	uint32_t n = 0;
	(void)state;
	world_open(&w, 1, false, 4, PAGES);
	kv_keep_max(&w.kv, 9);
	talk(&w, 10);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(found_of(&w, 10, true), 96);
	/* Room for three: of those that nobody has found again the oldest go first. */
	for (int32_t token = 11; token <= 14; token++)
		talk(&w, token);
	check_counts(&w);
	assert_int_equal(found_of(&w, 11, false), 0);
	assert_int_equal(found_of(&w, 14, false), 96);
	assert_int_equal(found_of(&w, 10, false), 96);
	for (int32_t token = 20; n == 0 && token < 120; token++) {
		talk(&w, token);
		n = w.kv.kept_worth > 4;
	}
	check_counts(&w);
	assert_true(n > 0);
	for (int32_t token = 200; token < 203; token++)
		talk(&w, token);
	assert_int_equal(found_of(&w, 10, false), 0);
	world_close(&w);
}

/* Two compute the same tokens side by side, in steps that end at different places; then they part. */
static void what_is_computed_twice_is_kept_once(void **state)
{
	struct world w;
	(void)state;
	for (uint32_t parts = 0; parts < 130; parts += 13) {
		opened(&w);
		for (uint32_t n = 0; n < 130; n += 10) {
			for (uint32_t s = 0; s < 2; s++) {
				uint32_t cells[70], more = s == 1 && n % 60 == 0 ? 60
							   : s == 0		 ? 10
										 : 0;
				more = w.lists[s].n + more > 130 ? 130 - w.lists[s].n : more;
				assert_int_equal(kv_take(&w.kv, &w.seqs[s], more, cells), 0);
				for (uint32_t i = 0; i < more; i++) {
					struct list *list = &w.lists[s];
					uint32_t at = list->n++;
					list->tokens[at] =
						(int32_t)(at < parts ? at : at + 1000 * s);
					each_word(&w, cells[i], content(list, at), true, true);
				}
				kv_commit(&w.kv, &w.seqs[s], cells, more, NULL, 0);
				kv_prefix_enter(
					&w.kv, &w.seqs[s], IN_DOMAIN(DOMAIN), w.lists[s].tokens);
				check_counts(&w);
			}
		}
		uint32_t same = parts / KV_PAGE_CELLS * KV_PAGE_CELLS;
		assert_memory_equal(w.seqs[0].cell, w.seqs[1].cell, same * sizeof(uint32_t));
		for (uint32_t s = 0; s < 2; s++) {
			assert_int_equal(w.seqs[s].n, 130);
			assert_int_equal(w.seqs[s].n_shared, 128);
			check_content(&w, &w.seqs[s], &w.lists[s]);
		}
		assert_int_equal(w.kv.n_free, PAGES - 10 + parts / KV_PAGE_CELLS);
		world_close(&w);
	}
}

static void windows_and_states_are_not_shared(void **state)
{
	struct world w;
	(void)state;
	opened(&w);
	fill(&w, 0, 64);
	w.kv.layout.windows.n_layers = 1;
	assert_int_equal(kv_share(&w.kv, &w.seqs[1], &w.seqs[0], 64), 0);
	w.kv.layout.windows.n_layers = 0;
	w.kv.layout.states.n_layers = 1;
	assert_int_equal(kv_share(&w.kv, &w.seqs[1], &w.seqs[0], 64), 0);
	w.kv.layout.states.n_layers = 0;
	world_close(&w);
	/* Nor does anything happen in a cache without records. */
	world_open(&w, 1, false, 4, PAGES);
	kv_exit(&w.kv);
	w.layout.n_records = 0;
	open_cache(&w, true);
	start(&w, 0);
	start(&w, 1);
	fill(&w, 0, 64);
	assert_int_equal(w.seqs[0].n_shared, 0);
	assert_int_equal(kv_share(&w.kv, &w.seqs[1], &w.seqs[0], 64), 0);
	kv_seq_exit(&w.kv, &w.seqs[0]);
	kv_seq_exit(&w.kv, &w.seqs[1]);
	kv_exit(&w.kv);
	world_free(&w);
}

/* Two share three pages, one byte of the map becomes another: a successor gets what was before that, and nothing that was not. */
static void a_damaged_map_takes_nothing_wrong_over(void **state)
{
	(void)state;
	uint32_t whole = 0, found = 0;
	for (uint64_t seed = 0; seed < 600; seed++) {
		struct world w;
		world_open(&w, seed, true, 4, seed % 2 ? PAGES : 0);
		for (uint32_t s = 0; s < 3; s++)
			start(&w, s);
		fill(&w, 0, 140);
		w.lists[1].n = kv_share(&w.kv, &w.seqs[1], &w.seqs[0], 96);
		memcpy(w.lists[1].tokens, w.lists[0].tokens, sizeof(w.lists[0].tokens));
		fill(&w, 1, 40);
		/* Another beginning, so that there are pages to be mistaken for these. */
		for (uint32_t n = 0; n < 130; n += 10) {
			uint32_t cells[10];
			assert_int_equal(kv_take(&w.kv, &w.seqs[2], 10, cells), 0);
			for (uint32_t i = 0; i < 10; i++) {
				w.lists[2].tokens[n + i] = 1000;
				each_word(&w, cells[i], content(&w.lists[2], n + i), true, true);
			}
			w.lists[2].n = n + 10;
			kv_commit(&w.kv, &w.seqs[2], cells, 10, NULL, 0);
		}
		for (uint32_t s = 0; s < SEQS; s++)
			w.lists[s].kept = 0;
		/* Its pages are kept, but for those that another one has. */
		struct list ended = w.lists[1];
		if (seed % 4 == 1)
			stop(&w, 1);
		unsigned char *map = w.map;
		die(&w);
		if (seed % 3 == 0) {
			struct kv_page_meta *meta = (struct kv_page_meta *)(void *)w.map;
			uint32_t to = below(&w, PAGES + 2);
			atomic_store(&meta[below(&w, 14)].before, to < PAGES ? to : KV_NONE);
		} else if (seed % 3 == 1) {
			map[kv_parts_of(&w.layout).records +
				below(&w, RECORDS * sizeof(struct kv_record))] ^=
				(unsigned char)(1 + below(&w, 255));
		} else {
			for (uint32_t i = 0; i < 1 + seed % 40; i++)
				map[below(&w, (uint32_t)kv_map_bytes(&w.layout))] =
					(unsigned char)rig_random(&w.random);
		}
		succeed(&w, true);
		whole += w.seqs[0].n == 128 && w.seqs[1].n == 128;
		start(&w, 3);
		ended.n = prefix(&w, 3, ended.tokens, ended.n);
		w.lists[3] = ended;
		w.lists[3].owner = w.seqs[3].owner;
		check_content(&w, &w.seqs[3], &ended);
		check_counts(&w);
		found += seed % 4 == 1 && ended.n == 128;
		world_close(&w);
	}
	assert_true(whole > 50 && found > 30);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_cell_holds_what_its_tokens_make_it),
		cmocka_unit_test(so_does_every_cell_of_a_window),
		cmocka_unit_test(a_process_that_dies_loses_no_page),
		cmocka_unit_test(and_leaves_windows_that_hold_together),
		cmocka_unit_test(and_so_while_pages_come_back),
		cmocka_unit_test(whole_pages_are_shared_and_the_rest_is_copied),
		cmocka_unit_test(a_truncated_sequence_goes_back_to_a_page_where_none_is_free),
		cmocka_unit_test(a_prefix_is_found_by_its_tokens_alone),
		cmocka_unit_test(pages_are_kept_until_they_are_needed),
		cmocka_unit_test(what_is_found_often_is_kept_longest_and_gives_way_in_the_end),
		cmocka_unit_test(what_is_computed_twice_is_kept_once),
		cmocka_unit_test(windows_and_states_are_not_shared),
		cmocka_unit_test(a_damaged_map_takes_nothing_wrong_over),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
