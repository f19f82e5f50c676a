/*
 * The states of sequences in recurrent layers (gated delta nets): what such a layer keeps of all
 * tokens before the next one, in a fixed size. They belong to the KV cache: struct kv drives this,
 * and kv_take, kv_commit, kv_truncate, kv_adopt, kv_reclaim and kv_seq_exit keep both in step.
 *
 * The meta records of all slots lie in the map of the KV cache (kv.h). The states lie in its store,
 * [slot][2 buffers][layer]; each is a window (the last inputs of the convolution, oldest first)
 * followed by the heads' states. A state is never changed in place: it is read from one buffer and
 * written to the other, which then gets its mark, the number of tokens that it is the state after.
 * So at any instant one buffer of a slot is complete (or its sequence begins anew), and a successor
 * continues from the newest usable mark. The state after no tokens is zeros and needs no buffer.
 *
 * Rejected drafts never reach a buffer. The forward pass writes the state after the certain tokens,
 * and keeps the small inputs of the drafts. When some drafts are accepted, kv_commit leaves the
 * state behind the sequence's tokens (recurrent_behind), and forward_replay computes it from those
 * inputs. Nothing here computes.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/limits.h"
#include "shared/model/kv/owners.h"

#include <stdatomic.h>
#include <stdbool.h>

struct model;

struct recurrent_layout {
	uint32_t n_layers; /* number of layers with a state; 0: no memory is needed */
	uint32_t n_slots; /* sequences with a state at one time */
	uint32_t n_snapshots; /* copies for later sequences (snapshots.h); 0: none are kept */
	uint32_t zero; /* instead of padding: layouts are compared byte by byte */
	uint64_t window_floats, state_floats; /* of one layer */
};

/* owner 0: free slot. mark: the number of tokens that the buffer is the state after; 0: it is none.
 * Stored with release after everything in the buffer; a successor loads it with acquire. */
struct recurrent_meta {
	_Alignas(CACHE_LINE) _Atomic uint64_t owner;
	_Atomic uint64_t mark[2];
};

/* What the running process knows of a slot. */
struct recurrent_slot {
	uint64_t owner, mark[2];
	bool held; /* by a sequence of this process */
};

struct recurrent {
	struct recurrent_layout layout;
	struct recurrent_meta *meta; /* [n_slots], in the map */
	/* [n_slots] the same, read from there once at the start; owned */
	struct recurrent_slot *slots;
	struct owners left; /* slots that a predecessor left, until recurrent_reclaim */
	size_t at; /* offset in the store of [n_slots][2][n_layers][window_floats + state_floats] */
	size_t layer_floats, buffer_floats;
};

/* A sequence's state. All zeros: it has no slot. */
struct recurrent_seq {
	bool held; /* it has a slot */
	uint8_t current; /* the buffer with the state after n tokens; undefined when n is 0 */
	uint32_t slot;
	uint32_t n; /* number of tokens that the state is after */
	/* tokens of the last pass that the other buffer already includes, see recurrent_begin */
	uint32_t pending;
};

/* What the model's sequences need; n_layers is 0 without recurrent layers. */
struct recurrent_layout recurrent_layout_of(const struct model *model, uint32_t n_slots);
/* Bytes of one state of all layers. */
size_t recurrent_state_bytes(const struct recurrent_layout *layout);
/* Bytes of the meta records, and of the buffers; 0 when none are needed. Layouts from
 * recurrent_layout_of cannot overflow. */
size_t recurrent_map_bytes(const struct recurrent_layout *layout);
size_t recurrent_store_bytes(const struct recurrent_layout *layout);
/* map: recurrent_map_bytes, 64-byte aligned. at: offset of the buffers in the store. fresh: all
 * slots are free; otherwise the meta records are kept for recurrent_adopt. -ENOMEM. */
int recurrent_init(struct recurrent *r, void *map, size_t at, const struct recurrent_layout *layout,
	bool fresh);
void recurrent_exit(struct recurrent *r);

/* Gives a free slot, with the state after no tokens, to a sequence that has none. -ENOSPC. owner is
 * not 0. */
int recurrent_take(struct recurrent *r, struct recurrent_seq *seq, uint64_t owner);
void recurrent_give(struct recurrent *r, struct recurrent_seq *seq);
/* After a restart: takes over the owner's slot, with its newest state after at most `limit` tokens.
 * Returns their number; 0: there is none, the sequence has no slot, and kv_take gets one. */
uint32_t recurrent_adopt(
	struct recurrent *r, struct recurrent_seq *seq, uint64_t owner, uint32_t limit);
/* Frees the slots that no sequence has taken over. */
void recurrent_reclaim(struct recurrent *r);
/* Goes back to a state after at most n tokens; returns the number of tokens it is after. */
uint32_t recurrent_truncate(struct recurrent *r, struct recurrent_seq *seq, uint32_t n);

/* recurrent_begin removes the mark of the buffer that is not current; then the state after seq->n +
 * pending tokens may be written there. It becomes valid with recurrent_publish(n tokens). Calling
 * recurrent_begin again drops it. */
void recurrent_begin(struct recurrent *r, struct recurrent_seq *seq, uint32_t pending);
void recurrent_publish(struct recurrent *r, struct recurrent_seq *seq, uint32_t n);
/* Call when n tokens of the last pass were accepted (kv_commit): first all pending ones, then
 * drafts. */
void recurrent_commit(struct recurrent *r, struct recurrent_seq *seq, uint32_t n);
/* How many of a sequence's n_tokens, the newest ones, are accepted drafts that its state does not
 * include yet. */
static inline uint32_t recurrent_behind(const struct recurrent_seq *seq, uint32_t n_tokens)
{
	return seq->held ? n_tokens - seq->n : 0;
}

/* Offsets in the store, for a layer (index among the recurrent ones): of the current state, which
 * exists only if seq->n > 0; and of the place where the next one is written. The window comes
 * first, then the heads. */
size_t recurrent_current(
	const struct recurrent *r, const struct recurrent_seq *seq, uint32_t layer);
size_t recurrent_next(const struct recurrent *r, const struct recurrent_seq *seq, uint32_t layer);
