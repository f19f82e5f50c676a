#include "shared/model/kv/snapshots.h"

#include "shared/model/kv/kv_internal.h"
#include "shared/model/kv/snapshot_sums.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct snapshot *pinned_by(struct kv *kv, const struct kv_seq *seq)
{
	return seq->snapshot != 0 ? &kv->snapshots.of[seq->snapshot - 1] : NULL;
}

size_t snapshots_place(const struct kv *kv, uint32_t snapshot)
{
	return kv->snapshots.at + snapshot * kv->snapshots.bytes;
}

static const unsigned char *content_of(const struct kv *kv, uint32_t snapshot)
{
	return kv->store.host + snapshots_place(kv, snapshot);
}

/* Unpins the snapshots whose sums have been made. */
static void take_sums(struct kv *kv)
{
	uint32_t snapshot;

	while (kv->snapshots.sums && snapshot_sums_done(kv->snapshots.sums, &snapshot))
		kv->snapshots.of[snapshot].pins--;
}

/* A store that this process does not see has no sums. */
static void make_sum(struct kv *kv, uint32_t snapshot)
{
	struct snapshots *x = &kv->snapshots;
	_Atomic uint64_t *sum = &x->meta[snapshot].sum;

	if (x->bytes == 0)
		return;
	if (x->sums) {
		x->of[snapshot].pins++;
		snapshot_sums_ask(x->sums, snapshot, content_of(kv, snapshot), sum);
	} else if (kv->store.host) {
		atomic_store_explicit(sum, snapshot_sum(content_of(kv, snapshot), x->bytes),
			memory_order_release);
	}
}

/* Of a predecessor's, which must have a sum. */
static bool is_whole(const struct kv *kv, uint32_t snapshot)
{
	uint64_t sum = kv->snapshots.of[snapshot].sum;

	return !kv->store.host || kv->snapshots.bytes == 0 ||
	       (sum != 0 && sum == snapshot_sum(content_of(kv, snapshot), kv->snapshots.bytes));
}

int snapshots_sums_apart(struct kv *kv, struct error *err)
{
	struct snapshots *x = &kv->snapshots;

	if (x->bytes == 0 || !kv->store.host)
		return 0;
	return snapshot_sums_start(x->n, x->bytes, &x->sums, err);
}

static bool copy_between(struct kv *kv, struct place to, struct place from)
{
	struct queue *q = kv->queue;

	q->ops->copy(q, to, from, kv->snapshots.bytes);
	return q->ops->wait(q, q->ops->ticket(q)) == 0;
}

bool snapshots_copy_out(struct kv *kv, uint32_t snapshot, struct place to)
{
	return copy_between(kv, to, (struct place){&kv->store, snapshots_place(kv, snapshot)});
}

bool snapshots_copy_in(struct kv *kv, uint32_t snapshot, struct place from)
{
	return copy_between(kv, (struct place){&kv->store, snapshots_place(kv, snapshot)}, from);
}

/* Copies a state between two offsets of the store, and waits for it. False: the device has failed. */
static bool copy_state(struct kv *kv, size_t to, size_t from)
{
	struct queue *q = kv->queue;

	kv_copy_bytes(kv, to, from, kv->snapshots.bytes);
	return kv->store.host || q->ops->wait(q, q->ops->ticket(q)) == 0;
}

/* The acquire half keeps later writes into the content behind it. Without it a successor could find
 * a record of a state that is half overwritten. */
static void erase(struct kv *kv, uint32_t snapshot)
{
	(void)atomic_exchange_explicit(&kv->snapshots.meta[snapshot].page, 0, memory_order_acq_rel);
}

static void record(struct kv *kv, uint32_t snapshot)
{
	struct snapshot_meta *meta = &kv->snapshots.meta[snapshot];
	const struct snapshot *own = &kv->snapshots.of[snapshot];
	uint64_t chain = atomic_load_explicit(&kv->meta[own->page].chain, memory_order_relaxed);

	atomic_store_explicit(&meta->chain, chain, memory_order_relaxed);
	atomic_store_explicit(&meta->sum, 0, memory_order_relaxed);
	/* Release pairs with the acquire in read_records: the state is complete. */
	atomic_store_explicit(&meta->page, (uint64_t)own->page + 1, memory_order_release);
}

/* Reads what a predecessor left. Of two snapshots that name one page the second is dropped. */
static void read_records(struct kv *kv)
{
	struct snapshots *x = &kv->snapshots;

	for (uint32_t i = 0; i < x->n; i++) {
		/* Acquire pairs with the release in record. */
		uint64_t page = atomic_load_explicit(&x->meta[i].page, memory_order_acquire);

		if (page == 0 || page > kv->layout.n_pages || kv->pages[page - 1].owner == 0 ||
			kv->pages[page - 1].snapshot != 0) {
			erase(kv, i);
			continue;
		}
		x->of[i].page = (uint32_t)page - 1;
		x->of[i].unchecked = true;
		/* Acquire pairs with the release in make_sum, and in snapshot_sums.c. */
		x->of[i].sum = atomic_load_explicit(&x->meta[i].sum, memory_order_acquire);
		kv->pages[page - 1].snapshot = i + 1;
		x->n_used++;
	}
}

int snapshots_init(struct kv *kv, void *map, size_t at, bool fresh)
{
	struct snapshots *x = &kv->snapshots;

	if (!kv_ends_at_snapshots(&kv->layout) || kv->layout.states.n_snapshots == 0)
		return 0;
	x->of = calloc(kv->layout.states.n_snapshots, sizeof(*x->of));
	if (!x->of)
		return -ENOMEM;
	x->n = kv->layout.states.n_snapshots;
	x->meta = map;
	x->at = at;
	x->bytes = kv->states.buffer_floats * sizeof(float);
	for (uint32_t i = 0; i < x->n; i++)
		x->of[i].page = KV_NONE;
	for (uint32_t i = 0; fresh && i < x->n; i++)
		erase(kv, i);
	if (!fresh)
		read_records(kv);
	return 0;
}

void snapshots_exit(struct kv *kv)
{
	snapshot_sums_stop(&kv->snapshots.sums);
	free(kv->snapshots.of);
	memset(&kv->snapshots, 0, sizeof(kv->snapshots));
}

/* Makes it free, unless it is pinned; then it only loses its page. */
static void drop(struct kv *kv, uint32_t snapshot)
{
	struct snapshot *own = &kv->snapshots.of[snapshot];

	erase(kv, snapshot);
	if (own->holds)
		kv_windows_free(kv, own->page);
	own->holds = false;
	kv->pages[own->page].snapshot = 0;
	kv->snapshots.n_used--;
	own->page = KV_NONE;
}

static void hold_window(struct kv *kv, uint32_t snapshot)
{
	struct snapshot *own = &kv->snapshots.of[snapshot];

	if (kv->layout.windows.n_layers == 0)
		return;
	kv_windows_need(kv, own->page);
	own->holds = true;
}

void snapshots_leave(struct kv *kv, uint32_t page)
{
	if (kv->pages[page].snapshot != 0)
		drop(kv, kv->pages[page].snapshot - 1);
}

void snapshots_settle(struct kv *kv)
{
	struct snapshots *x = &kv->snapshots;

	for (uint32_t i = 0; i < x->n; i++) {
		uint32_t page = x->of[i].page;

		if (page == KV_NONE)
			continue;
		uint64_t chain = atomic_load_explicit(&x->meta[i].chain, memory_order_relaxed);
		const struct kv_page *own = &kv->pages[page];
		if (!own->shared || (own->refs == 0 && !own->kept) ||
			chain !=
				atomic_load_explicit(&kv->meta[page].chain, memory_order_relaxed) ||
			!kv_windows_whole(kv, page))
			drop(kv, i);
		else
			hold_window(kv, i);
	}
}

bool snapshots_has(const struct kv *kv, uint32_t page)
{
	return kv->pages[page].snapshot != 0;
}

uint32_t snapshots_find(struct kv *kv, uint32_t page)
{
	uint32_t snapshot = kv->pages[page].snapshot;

	if (snapshot == 0)
		return SNAPSHOT_NONE;
	struct snapshot *own = &kv->snapshots.of[--snapshot];
	if (own->unchecked && !is_whole(kv, snapshot)) {
		drop(kv, snapshot);
		return SNAPSHOT_NONE;
	}
	own->unchecked = false;
	return snapshot;
}

static void note_use(struct kv *kv, uint32_t snapshot)
{
	struct snapshot *own = &kv->snapshots.of[snapshot];

	own->uses += own->uses < UINT32_MAX;
	own->since = kv->snapshots.worth;
}

void snapshots_pin(struct kv *kv, struct kv_seq *seq)
{
	uint32_t snapshot = seq->tip != KV_NONE ? snapshots_find(kv, seq->tip) : SNAPSHOT_NONE;

	snapshots_unpin(kv, seq);
	if (snapshot == SNAPSHOT_NONE)
		return;
	if (!kv_states(kv)) {
		/* The sequence has the window already. */
		note_use(kv, snapshot);
		return;
	}
	kv->snapshots.of[snapshot].pins++;
	seq->snapshot = snapshot + 1;
}

void snapshots_unpin(struct kv *kv, struct kv_seq *seq)
{
	struct snapshot *own = pinned_by(kv, seq);

	if (own)
		own->pins--;
	seq->snapshot = 0;
}

bool snapshots_load(struct kv *kv, struct kv_seq *seq)
{
	struct snapshot *own = pinned_by(kv, seq);
	struct recurrent *states = &kv->states;

	assert(own && own->page == seq->tip && seq->n == seq->n_shared && seq->state.held &&
		seq->state.n == 0);
	recurrent_begin(states, &seq->state, 0);
	if (!copy_state(kv, recurrent_next(states, &seq->state, 0),
		    snapshots_place(kv, seq->snapshot - 1)))
		return false;
	recurrent_publish(states, &seq->state, seq->n);
	note_use(kv, seq->snapshot - 1);
	snapshots_unpin(kv, seq);
	return true;
}

bool snapshots_ready(const struct kv *kv, const struct kv_seq *seq)
{
	if (kv->states.layout.n_layers > 0)
		return seq->state.held || seq->snapshot != 0;
	return kv_windows_back(kv, seq, seq->n) == seq->n &&
	       (seq->n > seq->n_shared || kv_windows_whole(kv, seq->tip));
}

/* How many pages have to be computed without it. */
static uint64_t saves(const struct kv *kv, uint32_t page)
{
	uint64_t n = 1;

	while ((page = kv->pages[page].before) != KV_NONE && kv->pages[page].snapshot == 0)
		n++;
	return n;
}

static uint64_t worth_of(const struct kv *kv, const struct snapshot *own)
{
	return own->since + ((uint64_t)own->uses + 1) * saves(kv, own->page);
}

/* Frees the one of least worth, of several the one that was of use longest ago. SNAPSHOT_NONE: all
 * are pinned. */
static uint32_t give_way(struct kv *kv)
{
	struct snapshots *x = &kv->snapshots;
	uint32_t least = SNAPSHOT_NONE;
	uint64_t worth = 0;

	for (uint32_t i = 0; i < x->n; i++) {
		if (x->of[i].pins > 0 || x->of[i].page == KV_NONE)
			continue;
		uint64_t own = worth_of(kv, &x->of[i]);

		if (least != SNAPSHOT_NONE && own >= worth)
			continue;
		least = i;
		worth = own;
	}
	if (least == SNAPSHOT_NONE)
		return least;
	uint32_t page = x->of[least].page;
	x->worth = worth;
	drop(kv, least);
	kv_keep_useless(kv, page);
	return least;
}

void snapshots_less(struct kv *kv)
{
	uint32_t snapshot = give_way(kv);

	assert(snapshot != SNAPSHOT_NONE);
	(void)snapshot;
}

static uint32_t take_free(struct kv *kv)
{
	const struct snapshots *x = &kv->snapshots;

	for (uint32_t i = 0; i < x->n; i++)
		if (x->of[i].page == KV_NONE && x->of[i].pins == 0)
			return i;
	return give_way(kv);
}

/* The one that a sequence made last while it decoded, if nobody has used it since. */
static uint32_t take_last(struct kv *kv, const struct kv_seq *seq, uint32_t page)
{
	if (page == KV_NONE || kv->pages[page].owner != seq->owner || kv->pages[page].snapshot == 0)
		return SNAPSHOT_NONE;
	uint32_t snapshot = kv->pages[page].snapshot - 1;
	const struct snapshot *own = &kv->snapshots.of[snapshot];
	if (own->pins > 0 || own->uses > 0)
		return SNAPSHOT_NONE;
	drop(kv, snapshot);
	return snapshot;
}

static void enter(struct kv *kv, uint32_t snapshot, uint32_t page, uint64_t tag)
{
	kv->snapshots.of[snapshot] = (struct snapshot){
		.page = page,
		.since = kv->snapshots.worth,
		.tag = tag,
	};
	kv->pages[page].snapshot = snapshot + 1;
	kv->snapshots.n_used++;
	hold_window(kv, snapshot);
	record(kv, snapshot);
	make_sum(kv, snapshot);
}

/* Whether a snapshot of the sequence can be made, and would be of use. */
static bool is_wanted(const struct kv *kv, const struct kv_seq *seq)
{
	const struct recurrent_seq *state = &seq->state;

	if (kv->snapshots.n == 0 || seq->n_shared == 0 || snapshots_has(kv, seq->tip) ||
		!kv_prefix_has(kv, seq->tip))
		return false;
	if (kv->layout.windows.n_layers > 0)
		return kv_windows_whole(kv, seq->tip);
	return kv_reaches(kv) && seq->n == seq->n_shared && state->held && state->n == seq->n;
}

void snapshots_take(struct kv *kv, const struct kv_seq *seq, uint32_t *last)
{
	uint32_t snapshot = SNAPSHOT_NONE;

	if (!is_wanted(kv, seq))
		return;
	take_sums(kv);
	if (last)
		snapshot = take_last(kv, seq, *last);
	if (snapshot == SNAPSHOT_NONE)
		snapshot = take_free(kv);
	/* The one that gave way may have kept window cells of this one. */
	if (snapshot == SNAPSHOT_NONE || !kv_windows_whole(kv, seq->tip))
		return;
	if (kv->snapshots.bytes > 0 && !copy_state(kv, snapshots_place(kv, snapshot),
					       recurrent_current(&kv->states, &seq->state, 0)))
		return;
	enter(kv, snapshot, seq->tip, 0);
	if (last)
		*last = seq->tip;
}

uint32_t snapshots_reserve(struct kv *kv)
{
	take_sums(kv);
	uint32_t snapshot = take_free(kv);

	if (snapshot != SNAPSHOT_NONE)
		kv->snapshots.of[snapshot] = (struct snapshot){.page = KV_NONE, .pins = 1};
	return snapshot;
}

void snapshots_give(struct kv *kv, uint32_t snapshot)
{
	kv->snapshots.of[snapshot].pins--;
}

bool snapshots_put(struct kv *kv, uint32_t snapshot, uint32_t page, uint64_t tag)
{
	snapshots_give(kv, snapshot);
	if (snapshots_has(kv, page) || !kv_prefix_has(kv, page))
		return false;
	enter(kv, snapshot, page, tag);
	return true;
}
