/*
 * Experts in a device's memory: the fast tier above the slots of slots.h. The expert-cache owns two
 * regions. "experts.dev" is a region as others: struct device_header; for each (layer, expert) one
 * table word; for each slot one state word, the number of its load, a flag, a recency stamp and a
 * seal. "experts.mem" is memory of the device, which a back end has exported as a descriptor
 * (kernels/backend.h): no process sees its bytes, and each has it at another address. It begins with
 * the number of the region that describes it (DEVICE_FIRST bytes), followed by n_slots slots of
 * slot_bytes each. An expert lies in a slot in tiles (LAYOUT_TILES), gate, up and down one after the
 * other, each at a multiple of DEVICE_ALIGN.
 *
 * A load. The owner gives the slot a load number, marks it LOADING for the expert and enters it into
 * the table. A queue of its own copies the bytes and then writes the load number to the slot's flag,
 * without a host in between. When the owner sees that the copy is done, it makes the slot READY.
 *
 * A use. The verifier pins a slot that is READY, or LOADING: then its queue first waits for the
 * flag. So a layer that is queued behind a copy needs no host when the copy ends. Pins last until the
 * verifier's ticket is reached.
 *
 * States: EMPTY -> LOADING -> READY -> EVICTING -> EMPTY. The words are those of slots.h, and so are
 * epochs, void pins and the table. What differs is that pins exist in LOADING too, so the owner's
 * LOADING -> READY keeps them. tests/spin/device.pml models it; names in brackets are its steps.
 *
 * When the owner dies, or a copy does not end, a queue of the verifier's that waits for the flag
 * would wait for ever. The verifier then copies the expert into the slot itself, from the model's
 * file, and writes the flag behind that (device_rescue.c). It has the slot pinned, and the bytes are
 * those that the owner was to write, so it does not matter whether the owner still writes them.
 *
 * Adoption. Nobody can compute a checksum of a device's memory. The successor of a dead owner keeps
 * the slots that are READY and whose seal, which the owner writes with READY, is that of their
 * content and load. A dead process's copies have ended when its successor starts.
 */
#pragma once

#include "kernels/backend.h"
#include "shared/spec/slots.h"

#define DEVICE_REGION "experts.dev"
#define DEVICE_LAYOUT 3
/* Not a region: the name under which the memory's descriptor travels. */
#define DEVICE_MEMORY "experts.mem"

enum {
	DEVICE_ALIGN = 256, /* of the matrices in a slot */
	DEVICE_FIRST = 256, /* bytes before the first slot */
};

/* Counters are grouped on cache lines by their single writer. */
struct device_header {
	uint32_t n_layers, n_experts, n_slots;
	uint64_t slot_bytes;
	uint64_t model_fingerprint, model_files, model_stamps; /* as in struct slots_header */
	uint64_t number; /* random; the memory begins with it */
	char backend[LIMIT_NAME]; /* whose memory it is, such as "simt" */
	/* The setting that the owner was started with, and the one in force. */
	char configured[LIMIT_NAME], budget[LIMIT_NAME];

	/* Written by the owner. */
	alignas(CACHE_LINE) _Atomic uint32_t
		starved; /* it waits for an unpin; after one, ring `work` */
	_Atomic uint32_t
		closed; /* it gets no more loads: another region has taken its place, or copies fail */
	_Atomic uint32_t in_use; /* slots that are not EMPTY */
	/* Copies that have ended: all, and for demands and prefetches. */
	_Atomic uint64_t loads, demanded, prefetched, bytes_loaded, evictions;
	_Atomic uint32_t in_flight; /* copies now */
	/* Time with copies in flight, and the sum of the times that each was in flight. */
	_Atomic uint64_t busy_ns, flight_ns;
	_Atomic uint64_t load_ns; /* time of one copy when the link always has work; 0: not known */

	/* Written by the verifier. */
	alignas(CACHE_LINE) _Atomic uint32_t verifier_epoch;
	/* Look-ups: READY; LOADING, so that its queue waits; absent. self_served: of these, taken by
	 * the verifier itself. rescued: waits that it ended itself. slot_waits, wait_ns: layers that
	 * slept until an absent expert got a slot, and how long. */
	_Atomic uint64_t hits, waits, misses, self_served, rescued, slot_waits, wait_ns;
	_Atomic uint32_t resident; /* 1: every expert is pinned for good */
	/* Who computes what is missing: enum balance_rule in force. streamed: experts whose copy the
	 * queue waited for; by_cpu: those that the CPU computed. What one takes with one token, and
	 * each token of one with several, in ns; rows_ns, row_ns: the CPU's wait for its inputs (struct
	 * expert_costs). 0: not measured. window_ns: drafting before a pass. tau: of each layer, with
	 * the rule spac, when it last lacked an expert. */
	_Atomic uint32_t hybrid;
	_Atomic uint64_t streamed, by_cpu, cpu_expert_ns, cpu_token_ns, gpu_expert_ns, gpu_token_ns,
		rows_ns, row_ns, window_ns;
	_Atomic uint8_t tau[LIMIT_LAYERS];

	alignas(CACHE_LINE) struct doorbell arrivals; /* rung when a load begins */
};

/* One side's view, private to its process. The sizes are copies. */
struct device_slots {
	struct device_header *header;
	uint32_t n_layers, n_experts, n_slots;
	uint64_t slot_bytes;
	_Atomic uint32_t *table; /* [n_layers][n_experts] slot + 1, or 0 */
	_Atomic uint64_t *state; /* [n_slots] */
	_Atomic uint32_t *load; /* [n_slots] number of the slot's last load; written by the owner */
	/* [n_slots] number of the last load whose bytes are there; written by queues */
	_Atomic uint32_t *flag;
	_Atomic uint64_t *used; /* [n_slots] recency; written by the owner, for its successor */
	_Atomic uint64_t *seal; /* [n_slots] of READY slots; written by the owner */
};

/* ---- Where an expert's matrices lie in a slot. ---- */

/* Offset of a part in a slot of its layer, and bytes of a slot for any layer. */
uint64_t device_part_at(const struct slots_layer_geometry *layer, int part);
uint64_t device_expert_bytes(const struct slots_layer_geometry *layer);
uint64_t device_slot_bytes(const struct slots_geometry *geometry);
/* The experts that passes of the verifier use, as they lie on the device. */
void device_geometry(const struct slots_geometry *geometry, struct slots_geometry *out);
/* Offset of a slot in the memory, and bytes of the memory. */
static inline uint64_t device_slot_at(uint64_t slot_bytes, uint32_t slot)
{
	return DEVICE_FIRST + slot * slot_bytes;
}
/* Writes an expert as it lies in a slot to `to`, host memory of device_expert_bytes. from: its
 * parts, in this layout. */
void device_pack(const struct slots_layer_geometry *layer, const void *const from[EXPERT_PARTS],
	enum matrix_layout layout, unsigned char *to);

/* ---- The region. ---- */

struct device_shape {
	uint32_t n_layers, n_experts, n_slots;
	uint64_t slot_bytes, model_fingerprint;
};

/* Size of the payload in bytes; 0 when the shape is out of range. */
uint64_t device_payload_bytes(const struct device_shape *shape);
/* Owner: initialises a new zero-filled region of that size. Every slot is EMPTY. */
void device_format(const struct region *region, const struct device_shape *shape);
/* Either side: maps the region. Checks every size against the region, and the shape against
 * *expected (n_slots 0 there accepts any). */
int device_map(const struct region *region, const struct device_shape *expected,
	struct device_slots *out, struct error *err);
/* Offset of a slot's flag in the region, its header included. */
size_t device_flag_at(const struct region *region, const struct device_slots *slots, uint32_t slot);
/* Compares the memory's first bytes with the region's number, by a copy in q to `word`, a place that
 * the host sees. -ESTALE: they do not belong together. */
int device_check_memory(const struct device_slots *slots, const struct buffer *memory,
	struct queue *q, const struct buffer *word, struct error *err);

static inline _Atomic uint32_t *device_word(
	const struct device_slots *slots, uint32_t layer, uint32_t expert)
{
	return &slots->table[(size_t)layer * slots->n_experts + expert];
}

/* ---- Functions of the verifier. ---- */

/* [enter] As slots_verifier_enter. */
uint32_t device_enter(struct device_slots *slots);

struct device_pin {
	uint32_t slot;
	uint32_t load; /* number of its load: what its flag will be, or is */
	bool coming; /* the copy may not have ended: wait for the flag before the bytes are read */
};
/* [pin] Looks up an expert and pins it. False when it is in no slot. coming_too: LOADING slots as
 * well. */
bool device_pin(struct device_slots *slots, uint32_t epoch, uint32_t layer, uint32_t expert,
	bool coming_too, struct device_pin *out);
/* [unpin] False: somebody else wrote to the state word. */
bool device_unpin(
	struct device_slots *slots, uint32_t slot, uint32_t epoch, uint32_t layer, uint32_t expert);
/* [pin_again] Adds a pin to those that this verifier has on the slot. False: it has none any more. */
bool device_pin_again(struct device_slots *slots, const struct device_pin *pin, uint32_t epoch,
	uint32_t layer, uint32_t expert);
/* True while this verifier has the slot pinned for the expert. */
bool device_pinned(const struct device_slots *slots, uint32_t slot, uint32_t epoch, uint32_t layer,
	uint32_t expert);

/* ---- Functions of the owner, for one thread. ---- */

/* [load_begin] EMPTY -> LOADING; enters the slot into the table and rings arrivals. Returns the
 * number of the load, which the queue writes to the flag behind the copy. */
uint32_t device_load_begin(
	struct device_slots *slots, uint32_t slot, uint32_t layer, uint32_t expert);
/* [load_end] LOADING -> READY, with its pins. False when the word is not that of this load: somebody
 * else wrote to it. */
bool device_load_end(struct device_slots *slots, uint32_t slot, uint32_t layer, uint32_t expert);
/* [abandon] For loads of a dead owner: out of the table, and LOADING -> EMPTY. False while it is
 * pinned. */
bool device_abandon(struct device_slots *slots, uint32_t slot);
/* [evict] READY -> EVICTING -> out of the table -> EMPTY. False when it is pinned. */
bool device_evict(struct device_slots *slots, uint32_t slot);
/* True when device_evict would succeed now. */
bool device_evictable(const struct device_slots *slots, uint32_t slot);
/* The slot of a READY or LOADING expert, or SLOT_NONE. */
uint32_t device_find(const struct device_slots *slots, uint32_t layer, uint32_t expert);

struct device_adopted {
	uint32_t ready; /* slots that were kept */
	uint32_t loading; /* loads of the dead owner: left LOADING, for device_abandon */
	uint32_t wrong; /* READY slots without their seal, made EMPTY */
};
/* [adopt] For the owner's successor. -EUCLEAN: a bad word; make a new region. */
int device_adopt(struct device_slots *slots, const struct slots_geometry *geometry,
	struct device_adopted *adopted, struct error *err);
