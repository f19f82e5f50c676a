/*
 * The states of sequences in recurrent layers (gated delta nets): what such a layer keeps of all the tokens before
 * the next one, of a fixed size. It goes with the KV cache: struct kv drives it, and kv_take, kv_commit, kv_truncate,
 * kv_adopt, kv_reclaim and kv_seq_exit keep both together.
 *
 * The meta records of all slots lie in the map of the KV cache (kv.h), and in its store [slot][2 buffers][layer] of a
 * window (the last inputs of the convolution, oldest first) and the heads' states. A state is never changed in place: it is read from one buffer and written to the other, which then gets its mark, the
 * number of tokens it is the state after. So at any instant one buffer of a slot is complete (or its sequence begins
 * anew), and a successor goes on from the newest mark it can use. No token at all needs no buffer: that state is zeros.
 *
 * Rejected drafts never reach a buffer. The forward pass writes the state after the tokens that are certain, and keeps
 * the small inputs of the drafts. When some are accepted, kv_commit leaves the state behind the sequence's tokens
 * (recurrent_behind), and forward_replay computes it from those inputs. Nothing here computes.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/limits.h"
#include "shared/model/kv/owners.h"

#include <stdatomic.h>
#include <stdbool.h>

struct model;

struct recurrent_layout {
	uint32_t n_layers; /* that keep a state; 0: no memory is needed */
	uint32_t n_slots; /* sequences with a state at one time */
	uint64_t window_floats, state_floats; /* of one layer */
};

/* owner 0 = free slot. mark: tokens the buffer is the state after, 0 when it is none. Stored with release after
 * everything in the buffer; a successor loads it with acquire. */
struct recurrent_meta {
	_Alignas(CACHE_LINE) _Atomic uint64_t owner;
	_Atomic uint64_t mark[2];
};

/* What this process goes by of a slot. */
struct recurrent_slot {
	uint64_t owner, mark[2];
	bool held; /* by a sequence of this process */
};

struct recurrent {
	struct recurrent_layout layout;
	struct recurrent_meta *meta; /* [n_slots], in the map */
	struct recurrent_slot *slots; /* [n_slots] the same, and read from there once; owned */
	struct owners left; /* slots that a predecessor left; until recurrent_reclaim */
	size_t at; /* in the store: [n_slots][2][n_layers][window_floats + state_floats] */
	size_t layer_floats, buffer_floats;
};

/* A sequence's part. All zeros: no slot. */
struct recurrent_seq {
	bool held; /* has a slot */
	uint8_t current; /* buffer with the state after n tokens; of no meaning when n is 0 */
	uint32_t slot;
	uint32_t n; /* tokens the state is after */
	uint32_t
		pending; /* tokens of the last pass that are in the other buffer already, see recurrent_begin */
};

/* What the model's sequences need; n_layers is 0 for a model without recurrent layers. */
struct recurrent_layout recurrent_layout_of(const struct model *model, uint32_t n_slots);
/* Of the meta records, and of the buffers; 0 when none are needed. Cannot overflow for layouts of recurrent_layout_of. */
size_t recurrent_map_bytes(const struct recurrent_layout *layout);
size_t recurrent_store_bytes(const struct recurrent_layout *layout);
/* map: recurrent_map_bytes, 64-byte aligned; at: where the buffers begin in the store. fresh: all slots are free; else the
 * meta is kept for recurrent_adopt. -ENOMEM. */
int recurrent_init(struct recurrent *r, void *map, size_t at, const struct recurrent_layout *layout,
	bool fresh);
void recurrent_exit(struct recurrent *r);

/* A free slot for a sequence that has none, its state that after no tokens; -ENOSPC. owner is not 0. */
int recurrent_take(struct recurrent *r, struct recurrent_seq *seq, uint64_t owner);
void recurrent_give(struct recurrent *r, struct recurrent_seq *seq);
/* After a restart: the owner's slot, with its newest state after at most limit tokens. Returns how many, 0 when there
 * is none (the sequence then has no slot, and kv_take gets one). */
uint32_t recurrent_adopt(
	struct recurrent *r, struct recurrent_seq *seq, uint64_t owner, uint32_t limit);
/* Frees the slots that no sequence has taken over. */
void recurrent_reclaim(struct recurrent *r);
/* Goes back to a state after at most n tokens; returns after how many. */
uint32_t recurrent_truncate(struct recurrent *r, struct recurrent_seq *seq, uint32_t n);

/* The buffer that is not current loses its mark and may be written: the state after seq->n + pending tokens. What
 * was written there counts from recurrent_publish(n tokens) on; calling this again drops it. */
void recurrent_begin(struct recurrent *r, struct recurrent_seq *seq, uint32_t pending);
void recurrent_publish(struct recurrent *r, struct recurrent_seq *seq, uint32_t n);
/* n tokens of the last pass were accepted (kv_commit): first those that are pending, all of them, then drafts. */
void recurrent_commit(struct recurrent *r, struct recurrent_seq *seq, uint32_t n);
/* How many of a sequence's n_tokens, the newest, are accepted drafts that its state does not cover yet. */
static inline uint32_t recurrent_behind(const struct recurrent_seq *seq, uint32_t n_tokens)
{
	return seq->held ? n_tokens - seq->n : 0;
}

/* Of a layer (counted among the recurrent ones): where in the store the current state lies, which a sequence of no tokens
 * has not (seq->n is 0); and where the next one is written. Window, then heads. */
size_t recurrent_current(
	const struct recurrent *r, const struct recurrent_seq *seq, uint32_t layer);
size_t recurrent_next(const struct recurrent *r, const struct recurrent_seq *seq, uint32_t layer);
