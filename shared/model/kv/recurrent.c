#include "shared/model/kv/recurrent.h"

#include "shared/model/arch/model.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Layers begin on cache lines. */
static size_t layer_floats(const struct recurrent_layout *layout)
{
	const size_t line = CACHE_LINE / sizeof(float);
	return (layout->window_floats + layout->state_floats + line - 1) / line * line;
}

struct recurrent_layout recurrent_layout_of(const struct model *model, uint32_t n_slots)
{
	const struct delta_config *delta = &model->config.delta;
	uint64_t keys = (uint64_t)delta->n_k_heads * delta->d_k;
	uint64_t values = (uint64_t)delta->n_v_heads * delta->d_v;
	if (delta->n_layers == 0)
		return (struct recurrent_layout){0};
	return (struct recurrent_layout){
		.n_layers = delta->n_layers,
		.n_slots = n_slots,
		.window_floats = (delta->taps - 1) * (2 * keys + values),
		.state_floats = values * delta->d_k,
	};
}

static_assert((uint64_t)LIMIT_LAYERS * LIMIT_HEADS * LIMIT_HEAD_DIM * LIMIT_HEAD_DIM * 4 * 2 <
		      (uint64_t)1 << 42,
	"the states of a million sequences can be counted in bytes");

size_t recurrent_map_bytes(const struct recurrent_layout *layout)
{
	return layout->n_layers ? layout->n_slots * sizeof(struct recurrent_meta) : 0;
}

size_t recurrent_state_bytes(const struct recurrent_layout *layout)
{
	return layout->n_layers ? layout->n_layers * layer_floats(layout) * sizeof(float) : 0;
}

size_t recurrent_store_bytes(const struct recurrent_layout *layout)
{
	return (size_t)layout->n_slots * 2 * recurrent_state_bytes(layout);
}

static void slot_free(struct recurrent *r, uint32_t slot)
{
	struct recurrent_meta *meta = &r->meta[slot];
	atomic_store_explicit(&meta->mark[0], 0, memory_order_relaxed);
	atomic_store_explicit(&meta->mark[1], 0, memory_order_relaxed);
	/* Release pairs with the acquire in recurrent_adopt: a slot with a new owner has none of
	 * the previous owner's marks. */
	atomic_store_explicit(&meta->owner, 0, memory_order_release);
	r->slots[slot] = (struct recurrent_slot){0};
}

static void set_mark(
	struct recurrent *r, uint32_t slot, uint32_t buffer, uint64_t mark, memory_order order)
{
	atomic_store_explicit(&r->meta[slot].mark[buffer], mark, order);
	r->slots[slot].mark[buffer] = mark;
}

/* Reads what a predecessor left. */
static void read_slots(struct recurrent *r)
{
	for (uint32_t slot = 0; slot < r->layout.n_slots; slot++) {
		struct recurrent_meta *meta = &r->meta[slot];
		struct recurrent_slot *own = &r->slots[slot];
		own->owner = atomic_load_explicit(&meta->owner, memory_order_acquire);
		/* Acquire pairs with the release in recurrent_publish: a buffer with a mark is
		 * complete. */
		for (int i = 0; i < 2; i++)
			own->mark[i] = atomic_load_explicit(&meta->mark[i], memory_order_acquire);
		if (own->owner != 0)
			owners_add(&r->left, slot, own->owner);
	}
}

int recurrent_init(struct recurrent *r, void *map, size_t at, const struct recurrent_layout *layout,
	bool fresh)
{
	memset(r, 0, sizeof(*r));
	if (layout->n_layers == 0)
		return 0;
	r->slots = calloc(layout->n_slots, sizeof(*r->slots));
	if (!r->slots && layout->n_slots > 0)
		return -ENOMEM;
	r->layout = *layout;
	r->meta = map;
	r->at = at;
	r->layer_floats = layer_floats(layout);
	r->buffer_floats = layout->n_layers * r->layer_floats;
	for (uint32_t slot = 0; fresh && slot < layout->n_slots; slot++)
		slot_free(r, slot);
	if (fresh)
		return 0;
	if (owners_init(&r->left, layout->n_slots) < 0)
		return -ENOMEM;
	read_slots(r);
	return 0;
}

void recurrent_exit(struct recurrent *r)
{
	free(r->slots);
	owners_exit(&r->left);
	memset(r, 0, sizeof(*r));
}

int recurrent_take(struct recurrent *r, struct recurrent_seq *seq, uint64_t owner)
{
	for (uint32_t slot = 0; slot < r->layout.n_slots; slot++) {
		if (r->slots[slot].owner != 0)
			continue;
		slot_free(r, slot);
		atomic_store_explicit(&r->meta[slot].owner, owner, memory_order_release);
		r->slots[slot].owner = owner;
		r->slots[slot].held = true;
		*seq = (struct recurrent_seq){.held = true, .slot = slot};
		return 0;
	}
	return -ENOSPC;
}

void recurrent_give(struct recurrent *r, struct recurrent_seq *seq)
{
	if (seq->held)
		slot_free(r, seq->slot);
	*seq = (struct recurrent_seq){0};
}

/* Makes the slot's newest state after at most n tokens the current one. */
static void choose(const struct recurrent *r, struct recurrent_seq *seq, uint32_t n)
{
	seq->n = seq->pending = 0;
	for (uint8_t i = 0; i < 2; i++) {
		uint64_t mark = r->slots[seq->slot].mark[i];
		if (mark > seq->n && mark <= n) {
			seq->n = (uint32_t)mark;
			seq->current = i;
		}
	}
}

uint32_t recurrent_adopt(
	struct recurrent *r, struct recurrent_seq *seq, uint64_t owner, uint32_t limit)
{
	*seq = (struct recurrent_seq){0};
	for (uint32_t slot = owners_first(&r->left, owner); slot != OWNERS_NONE;
		slot = owners_next(&r->left, slot)) {
		if (r->slots[slot].owner != owner)
			continue;
		/* An owner has no second slot, but damaged memory may say so. */
		if (seq->held) {
			slot_free(r, slot);
			continue;
		}
		*seq = (struct recurrent_seq){.held = true, .slot = slot};
		r->slots[slot].held = true;
		choose(r, seq, limit);
	}
	if (seq->held && seq->n == 0)
		recurrent_give(r, seq);
	return seq->n;
}

void recurrent_reclaim(struct recurrent *r)
{
	for (uint32_t slot = 0; slot < r->layout.n_slots; slot++)
		if (r->slots[slot].owner != 0 && !r->slots[slot].held)
			slot_free(r, slot);
	owners_exit(&r->left);
}

uint32_t recurrent_truncate(struct recurrent *r, struct recurrent_seq *seq, uint32_t n)
{
	seq->pending = 0;
	if (seq->held && seq->n > n)
		choose(r, seq, n);
	/* States after more tokens include tokens that were taken back. */
	for (uint32_t i = 0; seq->held && i < 2; i++)
		if (r->slots[seq->slot].mark[i] > n)
			set_mark(r, seq->slot, i, 0, memory_order_release);
	return seq->held ? seq->n : 0;
}

static uint8_t next_buffer(const struct recurrent_seq *seq)
{
	return seq->n == 0 ? 0 : !seq->current;
}

void recurrent_begin(struct recurrent *r, struct recurrent_seq *seq, uint32_t pending)
{
	/* The acquire half keeps the writes into the buffer behind this. Without it a successor
	 * could find a mark on a buffer that is half overwritten. */
	atomic_exchange_explicit(
		&r->meta[seq->slot].mark[next_buffer(seq)], 0, memory_order_acq_rel);
	r->slots[seq->slot].mark[next_buffer(seq)] = 0;
	seq->pending = pending;
}

void recurrent_publish(struct recurrent *r, struct recurrent_seq *seq, uint32_t n)
{
	uint8_t buffer = next_buffer(seq);
	/* Release pairs with the acquire in read_slots: the state behind a mark is complete. The
	 * threads that wrote it have been waited for. */
	set_mark(r, seq->slot, buffer, n, memory_order_release);
	seq->current = buffer;
	seq->n = n;
	seq->pending = 0;
}

void recurrent_commit(struct recurrent *r, struct recurrent_seq *seq, uint32_t n)
{
	uint32_t pending = seq->pending;
	if (n == 0)
		return;
	assert(n >= pending);
	if (pending > 0)
		recurrent_publish(r, seq, seq->n + pending);
}

static size_t place(
	const struct recurrent *r, const struct recurrent_seq *seq, uint8_t buffer, uint32_t layer)
{
	size_t floats =
		((size_t)seq->slot * 2 + buffer) * r->buffer_floats + layer * r->layer_floats;
	return r->at + floats * sizeof(float);
}

size_t recurrent_current(const struct recurrent *r, const struct recurrent_seq *seq, uint32_t layer)
{
	return place(r, seq, seq->current, layer);
}

size_t recurrent_next(const struct recurrent *r, const struct recurrent_seq *seq, uint32_t layer)
{
	return place(r, seq, next_buffer(seq), layer);
}
