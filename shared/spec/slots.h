/*
 * The expert region: region "experts", owned by the expert-cache; the verifier looks up and pins, the drafter reads. What the
 * drafter writes, its hints, lies in a region of its own, "hints" (struct slots_hints): no mistake of the drafter's reaches
 * the table or the bytes of an expert.
 *
 * Layout of the payload: struct slots_header; the demand, activation and gate rings; per
 * layer a struct slots_counts; per (layer, expert) one table word and one count of uses; per slot
 * one state word, one word of recency and one checksum; then, page-aligned in the mapping, n_slots slots of
 * slot_bytes each.
 *
 * There is a slot for every expert of the model, in a file that has no pages until they are
 * written: what a cache may hold is its budget, a number of slots in the header that the owner
 * changes while everybody goes on. When it falls, slots are evicted and their pages go back to the
 * kernel; when it rises, more of the empty ones are used. Nobody else acts on it.
 *
 * A slot holds the gate, up and down matrices of one expert in page-aligned areas, each as it lies
 * in the file with the page it starts in: the first byte is at the same offset within a page as in
 * the file, so that O_DIRECT reads straight into the slot, and both sides compute the place from
 * the model alone (slots_geometry). Matrices that follow one another in the file share an area and
 * a read. The owner may pack the matrices (kernels/tiles.h), and
 * move them together, before the slot becomes READY; the state word says whether it has.
 *
 * A table word is 0 (absent), slot + 1, or SLOTS_REFUSED (the cache will not deliver what was
 * demanded: read it from the file now). A state word holds state, pins, the epoch of the verifier
 * that pinned, the tag (layer, expert) and the layout of the matrices: one compare-and-swap pins
 * exactly that expert or fails, so no version is needed against reuse.
 *
 * States: EMPTY -> LOADING -> READY -> EVICTING -> EMPTY, and READY -> LOADING -> READY where the
 * owner packs what is resident; pins only in READY. tests/spin/slots.pml is the protocol, and
 * starved.pml where there is no slot; the functions below name their transitions. Who may write a
 * state word: in READY the verifier (pins) and the owner (eviction, packing), both by
 * compare-and-swap; in every other state the owner alone. An eviction that races a pin loses. The
 * pages of an EMPTY slot may go at any time: nobody reads them.
 *
 * Epochs: a verifier that attaches takes verifier_epoch + 1 and puts it into its pins. Pins of
 * another epoch than the header's belong to a verifier that is dead (only one can hold the
 * verifier's socket) and are void. The owner reads the state word before the header's epoch: a pin
 * of a live verifier was made after its epoch was stored, so who sees the pin sees the epoch, and a
 * live pin can never be taken for a dead one.
 */
#pragma once

#include "shared/base/limits.h"
#include "shared/ipc/page.h"
#include "shared/ipc/region.h"
#include "shared/ipc/ring.h"
#include "shared/model/pass/experts.h"

#define EXPERTS_REGION "experts"
#define EXPERTS_LAYOUT 11
#define HINTS_REGION "hints"
#define HINTS_LAYOUT 1

enum {
	SLOTS_DEMAND_RING = 4096,
	SLOTS_ACTIVATION_RING = 4096,
	SLOTS_HINT_RING = 4096,
	SLOTS_GATE_RING = 4096,
	SLOTS_MAX = LIMIT_LAYERS * LIMIT_EXPERTS,
	SLOTS_PAGE = 4096, /* alignment of areas, and of O_DIRECT reads */
};

#define SLOT_NONE UINT32_MAX
#define SLOTS_REFUSED UINT32_MAX /* a table word */

enum slot_state {
	SLOT_EMPTY = 0,
	SLOT_LOADING,
	SLOT_READY,
	SLOT_EVICTING,
};

/* What the owner's successor goes on with when it was started as its predecessor was: see
 * services/expert-cache/live.h. */
struct slots_settings {
	char budget[LIMIT_NAME], policy[LIMIT_NAME];
};

/* What the verifier takes of the memory that experts share with it, in bytes. The last changes
 * as it runs, and is said again. */
struct slots_needs {
	uint64_t weights; /* those of every token: a copy in memory, or pages of the file */
	uint64_t kv; /* all of the cache, filled or not */
	uint64_t rest; /* the pages of its sessions, and the rings to the drafter */
	uint64_t
		there; /* of all these: memory that they had already when this was said, and keep */
	uint64_t
		files; /* gguf_files of its model: experts of another are of no use to it; 0: not said */
};
#define SLOTS_NEEDS_BYTES_MAX ((uint64_t)1 << 60) /* of each: sums of all overflow nothing */

/* Counters and measures lie on lines by who writes them; each has one writer. Times are CLOCK_MONOTONIC. A measure
 * of 0 is not known yet. */
struct slots_header {
	uint32_t n_layers, n_experts; /* of the model */
	uint32_t n_slots, n_experts_used; /* n_slots: places, used or not */
	uint64_t slot_bytes; /* the largest expert of any layer with its pages */
	uint64_t model_fingerprint;
	uint64_t model_files, model_stamps; /* gguf_files and gguf_stamps of the owner's files */
	uint64_t demand_offset, activation_offset, gate_offset, counts_offset, table_offset,
		uses_offset, state_offset, used_offset, sums_offset,
		arena_offset; /* from the payload's start */
	/* Of the cache process that found the model file changed: nothing is loaded any more,
	 * what is resident may not fit together, and the verifier ends its sessions. 0 = none.
	 * Stays for the region's life. */
	_Atomic uint64_t lost;
	_Atomic uint64_t lost_sum; /* so that a word which somebody else wrote ends no service */
	_Atomic uint32_t starved; /* the owner waits for an unpin: ring work after one */
	struct slots_settings configured, changed; /* the owner's loop thread */
	uint32_t automatic; /* slots that budget auto is, 0: nobody asked; the same */

	/* The owner's. */
	alignas(CACHE_LINE) _Atomic uint32_t
		budget; /* slots that may be in use; more are while it falls */
	_Atomic uint32_t in_use; /* not EMPTY */
	/* Bit 1 << enum hint_source for each kind of hint it wants now; 0 when everything fits. */
	_Atomic uint32_t hint_sources;
	_Atomic uint64_t loads, evictions, bytes_loaded, hints, hint_loads;
	_Atomic uint64_t beat_ns; /* the transfer worker's last round */
	_Atomic uint64_t load_ns; /* one expert over the link, when it always has work */
	_Atomic uint64_t submits, submit_ns, submit_ns_max; /* demands, from ring to submission */

	/* The verifier's. */
	alignas(CACHE_LINE) _Atomic uint32_t
		verifier_epoch; /* its pins carry this; never 0 once one attached */
	_Atomic uint64_t demand_hits, demand_misses, self_served;
	_Atomic uint64_t verify_layer_ns; /* one layer of a verification, without waits */
	_Atomic uint64_t verify_layer_wall_ns; /* and with them */

	/* The owner's loop thread's: what the verifier tells it when it comes and as its KV cache
	 * fills (PeerNeeds of proto/peer.proto). What one that is gone has told stays. */
	alignas(CACHE_LINE) struct page_lock needs_lock;
	struct slots_needs needs;

	alignas(CACHE_LINE) struct doorbell arrivals; /* rung when a slot becomes READY */
};

/* The payload of "hints": this, then the drafter's ring of hints. */
struct slots_hints {
	/* Rung for the owner of the experts: demands, hints, unpins. Here, because the drafter and the verifier both ring it. */
	alignas(CACHE_LINE) struct doorbell work;
	/* The drafter's. */
	alignas(CACHE_LINE) _Atomic uint64_t draft_layer_ns; /* one step of its model / n_layers */
	_Atomic uint32_t draft_tokens; /* drafted last */
};

/* Per layer, a line or more for each writer. */
struct slots_counts {
	/* The verifier's: of look-ups; wait_ns: asleep until something arrived. */
	alignas(CACHE_LINE) _Atomic uint64_t hits;
	_Atomic uint64_t misses, wait_ns, self_served;
	/* The owner's. Of prefetches: how many came, were used before they were evicted, were
	 * evicted unused; how many a demand waited for, how many were taken back. */
	alignas(CACHE_LINE) _Atomic uint64_t loads;
	_Atomic uint64_t evictions, bytes_loaded, prefetched, prefetch_used, prefetch_wasted,
		promoted, cancelled;
};

struct slot_demand { /* verifier -> cache: must have now */
	uint16_t layer, expert;
	uint16_t tokens; /* of the batch that need it */
	/* Grows with each layer the verifier begins: demands of another one are obsolete. */
	uint64_t iteration;
	uint64_t time_ns; /* when it was pushed */
};

enum { SLOT_ACTIVATION_PAIRS = 25 };
struct slot_activation { /* verifier -> cache: one layer of one pass */
	uint64_t iteration;
	uint64_t session; /* the only one in the batch; 0: several, or not known */
	uint64_t
		begun_ns; /* CLOCK_MONOTONIC; 0: no hints are wanted, which it would be compared with */
	uint16_t layer, n; /* n pairs follow */
	/* (expert, tokens) pairs; more pairs take more entries. */
	uint16_t expert_tokens[2 * SLOT_ACTIVATION_PAIRS];
};

/* Who believes that an expert will be needed. */
enum hint_source {
	HINT_DRAFT, /* the draft model's hidden state through the target's router (SP-MoE section 3) */
	HINT_GATE, /* this layer's hidden state through the next layer's router (AdapMoE, Fate) */
	HINT_HISTORY, /* what was used after such tokens before */
	HINT_GATE_FAR, /* this layer's hidden state through the router of a layer beyond the next */
	HINT_SOURCES
};

struct slot_hint { /* drafter -> cache, the ring in "hints"; verifier -> cache, ring gates */
	uint16_t layer, expert;
	float score;
	uint32_t source; /* enum hint_source */
	uint64_t session;
	uint64_t needed_by_ns; /* CLOCK_MONOTONIC, 0 = soon */
	uint64_t made_ns; /* CLOCK_MONOTONIC */
	/* The demand's that it foresees: what the verifier has reached already, it foresees no more. 0 = not known */
	uint64_t iteration;
};

#define SLOT_DEMAND_BYTES 64
#define SLOT_ACTIVATION_BYTES 128
#define SLOT_HINT_BYTES 64
static_assert(sizeof(struct slot_demand) <= SLOT_DEMAND_BYTES, "a demand is one cache line");
static_assert(sizeof(struct slot_activation) <= SLOT_ACTIVATION_BYTES, "two cache lines");
static_assert(sizeof(struct slot_hint) <= SLOT_HINT_BYTES, "a hint is one cache line");

/* ---- Where the bytes of an expert lie (slots_layout.c). ---- */

enum expert_part { EXPERT_GATE, EXPERT_UP, EXPERT_DOWN, EXPERT_PARTS };

struct slots_part {
	uint64_t file_offset; /* of expert 0 */
	uint64_t bytes; /* of one expert */
	uint64_t stride; /* from one expert to the next in the file */
	const uint64_t *
		places; /* [n_experts] instead, or NULL: where each expert lies in the file; the model's */
	struct matrix matrix; /* of one expert as the file has it, without data */
	uint64_t area; /* offset of the part's area in the slot */
	uint64_t behind; /* bytes of other parts before it in the same area, and in the file */
	uint64_t tiles_at; /* offset of the part in a slot of LAYOUT_TILES */
};

struct slots_geometry {
	uint64_t slot_bytes; /* of the largest layer */
	uint32_t n_layers, n_experts, n_experts_used;
	uint32_t n_total; /* experts of all layers */
	struct slots_layer_geometry {
		bool moe;
		bool packed; /* the file has the parts of an expert together, in tiles (shared/model/arch/pack.h) */
		struct slots_part part[EXPERT_PARTS];
	} layers[LIMIT_LAYERS];
};
/* A dense model gives n_total 0 and slot_bytes 0. The model outlives the geometry. */
void slots_geometry_init(struct slots_geometry *geometry, const struct model *model);

/* Where a part of one expert begins in the file, and in its slot. */
static inline uint64_t slots_part_offset(const struct slots_part *part, uint32_t expert)
{
	return part->places ? part->places[expert]
			    : part->file_offset + (uint64_t)expert * part->stride;
}
static inline uint64_t slots_part_place(const struct slots_part *part, uint32_t expert)
{
	return part->area + (slots_part_offset(part, expert) - part->behind) % SLOTS_PAGE +
	       part->behind;
}
/* And where in a slot of that layout. */
static inline uint64_t slots_part_at(
	const struct slots_part *part, uint32_t expert, enum matrix_layout layout)
{
	return layout == LAYOUT_TILES ? part->tiles_at : slots_part_place(part, expert);
}

/* What is to be read for one expert: whole pages of the file, to a place in its slot from a page boundary. */
struct slots_read {
	uint64_t offset; /* in the file */
	size_t bytes, need; /* the file may end after need */
	uint64_t at; /* in the slot */
};
/* The reads of one expert, one per area; returns how many. */
unsigned slots_reads(const struct slots_layer_geometry *layer, uint32_t expert,
	struct slots_read out[static EXPERT_PARTS]);

/* Slots that one layer of one verification with a full draft may need: the smallest legal budget. */
uint32_t slots_min(const struct slots_geometry *geometry);

/* ---- The region, mapped (slots_layout.c). ---- */

/* One side's view, private to its process. Sizes are copies: a peer cannot change them under us. The rings belong to
 * one thread of each side; everything else may be used by any thread. */
struct slots {
	struct slots_header *header;
	uint32_t n_layers, n_experts, n_slots;
	uint64_t slot_bytes;
	_Atomic uint32_t *table; /* [n_layers][n_experts] */
	_Atomic uint64_t *uses; /* [n_layers][n_experts] the owner's counts of activations */
	_Atomic uint64_t *state; /* [n_slots] */
	_Atomic uint64_t *used; /* [n_slots] the owner's recency stamps, kept for its successor */
	_Atomic uint64_t
		*sums; /* [n_slots] the owner's, of what is READY, kept likewise; 0 = none */
	struct slots_counts *counts; /* [n_layers] */
	unsigned char *arena; /* [n_slots][slot_bytes] */
	struct ring demands, activations, gates;
	/* In "hints". */
	struct slots_hints *hinted;
	struct ring hints;
};

struct slots_shape {
	uint32_t n_layers, n_experts, n_experts_used, n_slots;
	uint64_t slot_bytes, model_fingerprint;
};

/* Bytes of the payload, 0 when the shape is out of limits. */
uint64_t slots_payload_bytes(const struct slots_shape *shape);
/* Owner, on a fresh zero-filled region of that payload: every slot EMPTY, the budget all of them. */
void slots_format(const struct region *region, const struct slots_shape *shape);
/* Either side: checks every size and offset against the region, and the shape against *expected when it is not NULL
 * (n_slots 0 there means any). What lies in "hints" is slots_map_hints's. */
int slots_map(const struct region *region, const struct slots_shape *expected, struct slots *out,
	struct error *err);

/* The payload of "hints"; the owner on a fresh region of it; either side, after slots_map. */
size_t slots_hints_bytes(void);
void slots_hints_format(const struct region *hints);
int slots_map_hints(const struct region *hints, struct slots *slots, struct error *err);

static inline _Atomic uint32_t *slots_word(
	const struct slots *slots, uint32_t layer, uint32_t expert)
{
	return &slots->table[(size_t)layer * slots->n_experts + expert];
}
static inline _Atomic uint64_t *slots_uses(
	const struct slots *slots, uint32_t layer, uint32_t expert)
{
	return &slots->uses[(size_t)layer * slots->n_experts + expert];
}
static inline unsigned char *slots_at(const struct slots *slots, uint32_t slot)
{
	return slots->arena + (uint64_t)slot * slots->slot_bytes;
}

/* ---- State words (slots.c). ---- */

enum slot_state slot_state(uint64_t word);
uint32_t slot_pins(uint64_t word);
uint32_t slot_epoch(uint64_t word);
uint32_t slot_layer(uint64_t word);
uint32_t slot_expert(uint64_t word);
enum matrix_layout slot_layout(uint64_t word); /* of what can be packed */

/* Verifier. */

/* [enter] Takes the next epoch: what pins of this verifier carry. The predecessor must be dead. */
uint32_t slots_verifier_enter(struct slots *slots);
/* [pin] Looks up and pins; the slot, or SLOT_NONE when it is not resident. layer and expert are
 * in range. The bytes of the slot are (layer, expert)'s and do not change until slots_unpin. */
uint32_t slots_pin(struct slots *slots, uint32_t epoch, uint32_t layer, uint32_t expert);
/* [unpin] False: the word was not that of a slot which this verifier has pinned for (layer, expert). Somebody wrote to it. */
bool slots_unpin(
	struct slots *slots, uint32_t slot, uint32_t epoch, uint32_t layer, uint32_t expert);

/* Owner: one thread of the one cache process. */

/* [load_begin] EMPTY -> LOADING: the slot's bytes are the owner's to write. */
void slots_load_begin(struct slots *slots, uint32_t slot, uint32_t layer, uint32_t expert);
/* [load_end] LOADING -> READY, into the table, ring arrivals. layer and expert as at the beginning: the owner's own
 * account of what it loaded, since the word lies where others can write. */
void slots_load_end(struct slots *slots, uint32_t slot, uint32_t layer, uint32_t expert,
	enum matrix_layout layout);
/* [load_fail] LOADING -> EMPTY. slots_refuse tells a verifier that waits to read the file itself. */
void slots_load_fail(struct slots *slots, uint32_t slot);
/* [evict] READY -> EVICTING -> out of the table -> EMPTY; false when it is pinned, not READY, or
 * names an expert that the model does not have. */
bool slots_evict(struct slots *slots, uint32_t slot);
/* [pack_begin] READY -> LOADING, for the same expert and still in the table: the slot's bytes
 * are the owner's to put into another layout, and slots_load_end ends it. False when it is
 * pinned, or does not hold (layer, expert). */
bool slots_pack_begin(struct slots *slots, uint32_t slot, uint32_t layer, uint32_t expert);
/* Whether slots_evict would succeed now. */
bool slots_evictable(const struct slots *slots, uint32_t slot);
/* Any thread of the owner: the model file is not what it was (header->lost). Wakes a verifier that waits. */
void slots_lose(struct slots *slots, uint64_t generation);
bool slots_lost(const struct slots *slots);
/* Whether the slot holds (layer, expert) and is READY. */
bool slots_holds(const struct slots *slots, uint32_t slot, uint32_t layer, uint32_t expert);
/* [refuse] The cache will not deliver (layer, expert). */
void slots_refuse(struct slots *slots, uint32_t layer, uint32_t expert);

struct slots_adopted {
	uint32_t ready; /* slots kept */
	uint32_t loading; /* a dead load's: left LOADING, see slots_adopt */
	uint32_t evicting; /* returned to EMPTY */
	uint32_t words; /* table words put right */
	uint32_t
		wrong; /* not what was loaded, or not known to be: given up (services/expert-cache/store/sums.h) */
};
/* [adopt] The owner's successor, once the predecessor is dead: every state word is checked
 * (-EUCLEAN names a bad one: make a new region), table words are made to agree with them,
 * EVICTING becomes EMPTY. Safe while a verifier pins. LOADING slots stay so: reads the dead
 * owner had submitted may still land in them. The owner calls slots_load_fail on each when none
 * can any more (services/expert-cache/store/store_open.c gives them new pages). */
int slots_adopt(struct slots *slots, const struct slots_geometry *geometry,
	struct slots_adopted *adopted, struct error *err);

/* ---- The verifier's expert source over the region (slots_source.c, slots_wait.c). ---- */

/* While the cache process is gone, slow or full of pins, a missing expert is read from the model
 * file here. Used by one thread. A layer that needs more experts than there are slots goes
 * through in waves: views are unpinned when ready is called again (shared/model/pass/experts.h). */
struct experts_cached;
struct experts_cached_options {
	struct backend *backend; /* that computes with the experts; borrowed */
	uint64_t spin_ns; /* before sleeping on arrivals */
	/* Without an arrival, before a demand is served from the file: at least. A link that is
	 * slow gets longer, see patience() in slots_wait.c. */
	uint64_t patience_ns;
	uint64_t generation; /* the verifier's */
	bool (*cache_alive)(void *arg); /* may be NULL: always */
	void *arg;
};
int experts_cached_create(const struct model *model, const struct experts_cached_options *options,
	struct experts_cached **out, struct error *err);
void experts_cached_destroy(struct experts_cached **cached);
/* Other waits; between two passes. */
void experts_cached_tune(struct experts_cached *cached, uint64_t spin_ns, uint64_t patience_ns);
struct expert_source *experts_cached_source(struct experts_cached *cached);
/* Whose tokens the passes from now on are: the one session of the batch, 0 for several. Told to the cache's policy. */
void experts_cached_session(struct experts_cached *cached, uint64_t session);
/* Something else to do while a layer waits for experts that it has demanded: called again and
 * again by ready, as long as none has come and work returns true (there is more of it), so each
 * call is to be short. Not once everything is there. */
void experts_cached_meanwhile(struct experts_cached *cached, bool (*work)(void *arg), void *arg);
/* How many regions were attached, ever: another number is another region, wherever it is mapped. */
uint64_t experts_cached_attachment(const struct experts_cached *cached);
/* Whether, since this was asked last, somebody wrote to the state of a slot that was in use: its bytes may have been changed
 * meanwhile, and what was computed with them is not to be used. */
bool experts_cached_damaged(struct experts_cached *cached);
/* Of the layer that was begun last, experts that are demanded and have not come yet. */
uint32_t experts_cached_missing(const struct experts_cached *cached);
/* The region in use, or NULL: for whoever sends hints from the same thread. Valid until the next attach. */
struct slots *experts_cached_slots(struct experts_cached *cached);
/* The iteration of the layer that was begun last; each layer with experts that a pass comes to takes the next. */
uint64_t experts_cached_iteration(const struct experts_cached *cached);
/* Uses the two regions from now on (dups their fds; NULL: serve everything from the file). Checks the layouts and the model's
 * fingerprint; on failure what was attached stays. Regions that are attached already (same uids) change nothing.
 * Call between passes. */
int experts_cached_attach(struct experts_cached *cached, const struct region *region,
	const struct region *hints, struct error *err);

/* ---- What the verifier takes beside experts (slots_needs.c). ---- */

/* Of a model: its weights that are not experts, and the routers' 8-bit copies; bytes. */
uint64_t slots_needs_weights(const struct model *model);

/* The owner, one thread of it. */
void slots_say_needs(struct slots_header *header, const struct slots_needs *needs);
/* What was written last; false when nothing was, or the owner died while it wrote. Another
 * process can write it, so the numbers may be any up to SLOTS_NEEDS_BYTES_MAX, what is there no
 * more than all. */
bool slots_needs_said(const struct slots_header *header, struct slots_needs *out);

/* ---- Who hints: the drafter, and the verifier for its next layers (slots_hinter.c). ---- */

struct slots_hinter {
	struct slots slots;
	const struct slots_header *header;
	struct ring hints;
};
/* Borrows the regions; writes to "hints" alone. */
int slots_hinter_attach(struct slots_hinter *hinter, const struct region *region,
	const struct region *hints, struct error *err);
/* The verifier's own ring, over its view of the region, which is copied. */
void slots_hinter_gates(struct slots_hinter *hinter, const struct slots *slots);
/* Whether the owner wants hints of this source now. */
bool slots_hint_wanted(const struct slots_hinter *hinter, enum hint_source source);
/* False when the ring is full (dropped and counted) or the hint is out of the model's range. Of
 * what is resident, too: it says what not to give up. The owner sees it when it looks next:
 * slots_hint_wake makes it look. */
bool slots_hint(struct slots_hinter *hinter, const struct slot_hint *hint);
void slots_hint_wake(struct slots_hinter *hinter);
/* Whether (layer, expert) is resident now: hints for it start no load. */
bool slots_resident(const struct slots_hinter *hinter, uint32_t layer, uint32_t expert);
