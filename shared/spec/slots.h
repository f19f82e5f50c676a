/*
 * The region "experts", owned by the expert-cache: a cache of experts in slots. The verifier looks
 * experts up and pins them; the drafter reads. The drafter's hints are written to a region of their
 * own, "hints" (struct slots_hints), so that no mistake of the drafter reaches the table or the
 * bytes of an expert.
 *
 * Layout of the payload: struct slots_header; the demand, activation and gate rings; for each layer
 * a struct slots_counts; for each (layer, expert) one table word and one count of uses; for each
 * slot one state word, one recency stamp and one checksum; then, page-aligned in the mapping,
 * n_slots slots of slot_bytes each.
 *
 * There is a slot for every expert of the model, in a file that has no pages until they are
 * written. What limits the cache is its budget, a number of slots in the header, which the owner
 * changes while everybody continues. When the budget falls, slots are evicted and their pages
 * return to the kernel; when it rises, more of the empty slots are used. Only the owner acts on it.
 *
 * A slot holds the gate, up and down matrices of one expert in page-aligned areas. Each matrix lies
 * as in the file, with the page in which it starts: its first byte has the same offset within a
 * page as in the file. So O_DIRECT reads straight into the slot, and both sides compute the place
 * from the model alone (slots_geometry). Matrices that are adjacent in the file share an area and a
 * read. The owner may pack the matrices (kernels/tiles.h), and move them together, before the slot
 * becomes READY; the state word tells whether it has.
 *
 * A table word is 0 (absent), slot + 1, or SLOTS_REFUSED (the cache will not deliver the expert
 * that was demanded: read it from the file now). A state word holds the state, the number of pins,
 * the epoch of the verifier that pinned, the tag (layer, expert) and the layout of the matrices.
 * One compare-and-swap pins exactly that expert or fails, so reuse of a slot needs no version
 * number.
 *
 * States: EMPTY -> LOADING -> READY -> EVICTING -> EMPTY, and READY -> LOADING -> READY when the
 * owner packs a resident expert. Pins exist only in READY. tests/spin/slots.pml models the
 * protocol, and starved.pml the case without a free slot; the functions below name their
 * transitions in brackets. Who may write a state word: in READY the verifier (pins) and the owner
 * (eviction, packing), both by compare-and-swap; in every other state the owner alone. An eviction
 * that races a pin loses. The pages of an EMPTY slot may disappear at any time: nobody reads them.
 *
 * Epochs: a verifier that attaches takes verifier_epoch + 1 and puts it into its pins. Pins of an
 * epoch other than the header's belong to a dead verifier and are void, because only one process
 * can hold the verifier's socket. The owner reads the state word before the header's epoch. A live
 * verifier's pin was made after its epoch was stored, so an owner that sees the pin also sees the
 * epoch, and never takes a live pin for a dead one.
 */
#pragma once

#include "shared/base/limits.h"
#include "shared/ipc/page.h"
#include "shared/ipc/region.h"
#include "shared/ipc/ring.h"
#include "shared/model/pass/experts.h"

#define EXPERTS_REGION "experts"
#define EXPERTS_LAYOUT 14
#define HINTS_REGION "hints"
#define HINTS_LAYOUT 2

enum {
	SLOTS_DEMAND_RING = 4096,
	SLOTS_ACTIVATION_RING = 4096,
	SLOTS_HINT_RING = 4096,
	SLOTS_HEAD_RING = 1024,
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

/* Settings for the owner's successor, if that is started with the same settings as its predecessor:
 * see services/expert-cache/live.h. */
struct slots_settings {
	char budget[LIMIT_NAME], policy[LIMIT_NAME];
};

/* How much of the memory that it shares with the experts the verifier takes, in bytes. `there`
 * changes at run time and is sent again. */
struct slots_needs {
	/* weights that every token uses: a copy in memory, or pages of the file */
	uint64_t weights;
	uint64_t kv; /* the whole cache, filled or not */
	uint64_t rest; /* session pages, and the rings to the drafter */
	/* of all these: memory that they already had when this was sent, and keep */
	uint64_t there;
	/* gguf_files of its model, because experts of another are useless to it; 0: not sent */
	uint64_t files;
	/* of the device's memory: weights, passes, spare slots and KV cache; what it already had of
	 * that; and the KV cache alone */
	uint64_t device, device_there, device_kv;
	uint64_t device_most; /* that the whole service may take of it; 0: all */
};
/* of each number, so that sums of all do not overflow */
#define SLOTS_NEEDS_BYTES_MAX ((uint64_t)1 << 60)

/* Counters and measures are grouped on cache lines by their single writer. Times are
 * CLOCK_MONOTONIC. A measure of 0 is not known yet. */
struct slots_header {
	uint32_t n_layers, n_experts; /* of the model */
	uint32_t n_slots, n_experts_used; /* n_slots: whether used or not */
	uint64_t slot_bytes; /* the largest expert of any layer, with its pages */
	uint64_t model_fingerprint;
	uint64_t model_files, model_stamps; /* gguf_files and gguf_stamps of the owner's files */
	uint64_t demand_offset, activation_offset, gate_offset, counts_offset, table_offset,
		uses_offset, state_offset, used_offset, sums_offset,
		arena_offset; /* from the start of the payload */
	/* Generation of the cache process that found the model file changed; 0: none. Nothing is
	 * loaded any more, resident experts may not fit together, and the verifier ends its
	 * sessions. Permanent for this region. */
	_Atomic uint64_t lost;
	/* checksum of `lost`, so that a stray write to it ends no service */
	_Atomic uint64_t lost_sum;
	_Atomic uint32_t starved; /* the owner waits for an unpin: after one, ring `work` */
	struct slots_settings configured, changed; /* written by the owner's loop thread */
	uint32_t automatic; /* number of slots of the budget "auto"; 0: nobody asked; likewise */

	/* Written by the owner. */
	/* slots that may be in use; more are while it falls */
	alignas(CACHE_LINE) _Atomic uint32_t budget;
	_Atomic uint32_t in_use; /* slots that are not EMPTY */
	/* Bit 1 << enum hint_source is set for each kind of hint that the owner wants now; 0 when
	 * everything fits. */
	_Atomic uint32_t hint_sources;
	_Atomic uint64_t loads, evictions, bytes_loaded, hints, hint_loads;
	_Atomic uint64_t beat_ns; /* last round of the transfer worker */
	_Atomic uint64_t load_ns; /* time to load one expert when the link always has work */
	/* of demands, from the ring to submission */
	_Atomic uint64_t submits, submit_ns, submit_ns_max;

	/* Written by the verifier. */
	/* its pins carry this; never 0 once a verifier has attached */
	alignas(CACHE_LINE) _Atomic uint32_t verifier_epoch;
	_Atomic uint64_t demand_hits, demand_misses, self_served;
	_Atomic uint64_t verify_layer_ns; /* one layer of a verification, without waits */
	_Atomic uint64_t verify_layer_wall_ns; /* the same with waits */

	/* Written by the owner's loop thread: what the verifier tells it when it registers and as
	 * its KV cache fills (PeerNeeds of proto/peer.proto). The numbers of a verifier that is
	 * gone stay. */
	alignas(CACHE_LINE) struct page_lock needs_lock;
	struct slots_needs needs;

	alignas(CACHE_LINE) struct doorbell arrivals; /* rung when a slot becomes READY */
};

/* The payload of "hints": this, followed by the drafter's rings: of hints, and of the experts that
 * its head used (struct slot_activation), which the owner loads where they are missing. */
struct slots_hints {
	/* Rung to wake the owner of the experts: for demands, hints and unpins. It lies here
	 * because both the drafter and the verifier ring it. */
	alignas(CACHE_LINE) struct doorbell work;
	/* Written by the drafter. */
	alignas(CACHE_LINE) _Atomic uint64_t draft_layer_ns; /* one step of its model / n_layers */
	_Atomic uint32_t draft_tokens; /* tokens drafted last */
};

/* Counters of one layer; each writer has cache lines of its own. */
struct slots_counts {
	/* Written by the verifier, about look-ups. wait_ns: time asleep until something arrived. */
	alignas(CACHE_LINE) _Atomic uint64_t hits;
	_Atomic uint64_t misses, wait_ns, self_served;
	/* Written by the owner. About prefetches: how many arrived, were used before eviction, were
	 * evicted unused, were awaited by a demand (promoted), and were cancelled. */
	alignas(CACHE_LINE) _Atomic uint64_t loads;
	_Atomic uint64_t evictions, bytes_loaded, prefetched, prefetch_used, prefetch_wasted,
		promoted, cancelled;
};

struct slot_demand { /* verifier to cache: must be loaded now */
	uint16_t layer, expert;
	uint16_t tokens; /* of the batch that need the expert */
	uint16_t device; /* 1: wanted in a slot of the device (device_slots.h) */
	/* Grows with each layer that the verifier begins; demands with another number are obsolete.
	 */
	uint64_t iteration;
	uint64_t time_ns; /* when the demand was pushed */
};

enum { SLOT_ACTIVATION_PAIRS = 25 };
struct slot_activation { /* verifier to cache: one layer of one pass */
	uint64_t iteration;
	uint64_t session; /* the only session in the batch; 0: several, or unknown */
	/* CLOCK_MONOTONIC; 0: no hints are wanted that it would be compared with */
	uint64_t begun_ns;
	uint16_t layer, n; /* n: number of pairs */
	/* (expert, tokens) pairs; more pairs take more entries. */
	uint16_t expert_tokens[2 * SLOT_ACTIVATION_PAIRS];
};

/* What predicts that an expert will be needed. */
enum hint_source {
	/* the draft model's hidden state through the target's router (SP-MoE section 3) */
	HINT_DRAFT,
	HINT_GATE, /* this layer's hidden state through the next layer's router (AdapMoE, Fate) */
	HINT_HISTORY, /* experts that were used after such tokens before */
	HINT_GATE_FAR, /* this layer's hidden state through the router of a layer beyond the next */
	HINT_SOURCES
};

/* in ring hints of "hints": drafter to cache; in ring gates: verifier to cache */
struct slot_hint {
	uint16_t layer, expert;
	float score;
	uint32_t source; /* enum hint_source */
	uint64_t session;
	uint64_t needed_by_ns; /* CLOCK_MONOTONIC; 0: soon */
	uint64_t made_ns; /* CLOCK_MONOTONIC */
	/* Number of the demand that it predicts. A hint for a demand that the verifier has already
	 * made is out of date. 0: unknown */
	uint64_t iteration;
};

#define SLOT_DEMAND_BYTES 64
#define SLOT_ACTIVATION_BYTES 128
#define SLOT_HINT_BYTES 64
static_assert(sizeof(struct slot_demand) <= SLOT_DEMAND_BYTES, "a demand is one cache line");
static_assert(sizeof(struct slot_activation) <= SLOT_ACTIVATION_BYTES, "two cache lines");
static_assert(sizeof(struct slot_hint) <= SLOT_HINT_BYTES, "a hint is one cache line");

/* ---- Where the bytes of an expert are (slots_layout.c). ---- */

enum expert_part { EXPERT_GATE, EXPERT_UP, EXPERT_DOWN, EXPERT_PARTS };

struct slots_part {
	uint64_t file_offset; /* that of expert 0 */
	uint64_t bytes; /* of one expert */
	uint64_t stride; /* distance between experts in the file */
	/* [n_experts] where each expert lies in the file, instead; NULL: file_offset and stride
	 * tell; owned by the model */
	const uint64_t *places;
	struct matrix matrix; /* shape of one expert's matrix as in the file, without data */
	uint64_t area; /* offset of the part's area in the slot */
	uint64_t behind; /* bytes of other parts before it, in the same area and in the file */
	uint64_t tiles_at; /* offset of the part in a slot with LAYOUT_TILES */
};

struct slots_geometry {
	uint64_t slot_bytes; /* of the largest layer */
	uint32_t n_layers, n_experts, n_experts_used;
	uint32_t n_total; /* experts of all layers */
	/* the last layers are the blocks of the model that draft (model->drafting): the drafter uses
	 * their experts, and no pass of the verifier does */
	uint32_t n_drafting;
	struct slots_layer_geometry {
		bool moe;
		/* the file has the parts of an expert together and in tiles
		 * (shared/model/arch/pack.h) */
		bool packed;
		struct slots_part part[EXPERT_PARTS];
	} layers[LIMIT_LAYERS];
};
/* Computes the geometry: of the model's layers, and of the blocks that draft. A dense model gives n_total 0 and slot_bytes 0. The model must outlive the
 * geometry. */
void slots_geometry_init(struct slots_geometry *geometry, const struct model *model);

/* Where a part of one expert begins: in the file; and in its slot. */
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
/* Where it begins in a slot of the given layout. */
static inline uint64_t slots_part_at(
	const struct slots_part *part, uint32_t expert, enum matrix_layout layout)
{
	return layout == LAYOUT_TILES ? part->tiles_at : slots_part_place(part, expert);
}

/* One read for an expert: whole pages of the file, to a page boundary in its slot. */
struct slots_read {
	uint64_t offset; /* in the file */
	size_t bytes, need; /* need: bytes wanted; the file may end after them */
	uint64_t at; /* in the slot */
};
/* Fills in the reads of one expert, one for each area; returns their number. */
unsigned slots_reads(const struct slots_layer_geometry *layer, uint32_t expert,
	struct slots_read out[static EXPERT_PARTS]);

/* The smallest legal budget: slots that one layer of one verification with a full draft may need.
 */
uint32_t slots_min(const struct slots_geometry *geometry);

/* ---- The region, mapped (slots_layout.c). ---- */

/* One side's view, private to its process. The sizes are copies, so that a peer cannot change them
 * later. Each ring belongs to one thread of each side; any thread may use everything else. */
struct slots {
	struct slots_header *header;
	uint32_t n_layers, n_experts, n_slots;
	uint64_t slot_bytes;
	_Atomic uint32_t *table; /* [n_layers][n_experts] */
	/* [n_layers][n_experts] number of activations; written by the owner */
	_Atomic uint64_t *uses;
	_Atomic uint64_t *state; /* [n_slots] */
	/* [n_slots] recency stamps; written by the owner, kept for its successor */
	_Atomic uint64_t *used;
	/* [n_slots] checksums of READY slots; written by the owner, kept for its successor; 0:
	 * none */
	_Atomic uint64_t *sums;
	struct slots_counts *counts; /* [n_layers] */
	unsigned char *arena; /* [n_slots][slot_bytes] */
	struct ring demands, activations, gates;
	/* In "hints": */
	struct slots_hints *hinted;
	struct ring hints, heads;
};

struct slots_shape {
	uint32_t n_layers, n_experts, n_experts_used, n_slots;
	uint64_t slot_bytes, model_fingerprint;
};

/* Size of the payload in bytes; 0 when the shape is out of range. */
uint64_t slots_payload_bytes(const struct slots_shape *shape);
/* Owner: initialises a new zero-filled region of that size. Every slot is EMPTY; the budget is all
 * slots. */
void slots_format(const struct region *region, const struct slots_shape *shape);
/* Either side: maps the region. Checks every size and offset against the region, and the shape
 * against *expected unless that is NULL (n_slots 0 there accepts any). "hints" is mapped by
 * slots_map_hints. */
int slots_map(const struct region *region, const struct slots_shape *expected, struct slots *out,
	struct error *err);

/* The payload of "hints". Its owner formats a new region; either side maps it after slots_map. */
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
enum matrix_layout slot_layout(uint64_t word); /* for types that can be packed */

/* Functions of the verifier: */

/* [enter] Takes the next epoch, which pins of this verifier carry. The predecessor must be dead. */
uint32_t slots_verifier_enter(struct slots *slots);
/* [pin] Looks up an expert and pins it. Returns its slot, or SLOT_NONE when it is not resident.
 * layer and expert must be in range. Until slots_unpin the slot's bytes are those of (layer,
 * expert) and do not change. */
uint32_t slots_pin(struct slots *slots, uint32_t epoch, uint32_t layer, uint32_t expert);
/* [unpin] False: the state word was not that of a slot that this verifier had pinned for (layer,
 * expert), so somebody else wrote to it. */
bool slots_unpin(
	struct slots *slots, uint32_t slot, uint32_t epoch, uint32_t layer, uint32_t expert);

/* Functions of the owner, for one thread of the one cache process: */

/* [load_begin] EMPTY -> LOADING: the owner may now write the slot's bytes. */
void slots_load_begin(struct slots *slots, uint32_t slot, uint32_t layer, uint32_t expert);
/* [load_end] LOADING -> READY; enters the slot into the table and rings arrivals. layer and expert:
 * as at the beginning, from the owner's own records, because others can write to the state word. */
void slots_load_end(struct slots *slots, uint32_t slot, uint32_t layer, uint32_t expert,
	enum matrix_layout layout);
/* [load_fail] LOADING -> EMPTY. slots_refuse tells a waiting verifier to read the file itself. */
void slots_load_fail(struct slots *slots, uint32_t slot);
/* [evict] READY -> EVICTING -> out of the table -> EMPTY. False when the slot is pinned, is not
 * READY, or names an expert that the model does not have. */
bool slots_evict(struct slots *slots, uint32_t slot);
/* [pack_begin] READY -> LOADING for the same expert, which stays in the table. The owner may now
 * change the layout of the slot's bytes; slots_load_end ends this. False when the slot is pinned or
 * does not hold (layer, expert). */
bool slots_pack_begin(struct slots *slots, uint32_t slot, uint32_t layer, uint32_t expert);
/* True when slots_evict would succeed now. */
bool slots_evictable(const struct slots *slots, uint32_t slot);
/* Marks the model file as changed (header->lost) and wakes a waiting verifier. Any thread of the
 * owner. */
void slots_lose(struct slots *slots, uint64_t generation);
bool slots_lost(const struct slots *slots);
/* True when the slot is READY and holds (layer, expert). */
bool slots_holds(const struct slots *slots, uint32_t slot, uint32_t layer, uint32_t expert);
/* [refuse] Tells the verifier that the cache will not deliver (layer, expert). */
void slots_refuse(struct slots *slots, uint32_t layer, uint32_t expert);

struct slots_adopted {
	uint32_t ready; /* slots that were kept */
	uint32_t loading; /* loads of the dead owner: left LOADING, see slots_adopt */
	uint32_t evicting; /* slots returned to EMPTY */
	uint32_t words; /* table words that were corrected */
	/* slots given up because their content is wrong or unknown
	 * (services/expert-cache/store/sums.h) */
	uint32_t wrong;
};
/* [adopt] For the owner's successor, once the predecessor is dead. Checks every state word
 * (-EUCLEAN names a bad one: make a new region), corrects table words that disagree, and turns
 * EVICTING into EMPTY. Safe while a verifier pins. LOADING slots stay, because reads that the dead
 * owner submitted may still arrive in them. The owner calls slots_load_fail on each when none can
 * any more (services/expert-cache/store/store_open.c gives them new pages). */
int slots_adopt(struct slots *slots, const struct slots_geometry *geometry,
	struct slots_adopted *adopted, struct error *err);

/* ---- The verifier's source of experts in the region (slots_source.c, slots_wait.c). ---- */

/* Gives the forward pass its experts. While the cache process is gone, slow, or has all slots
 * pinned, a missing expert is read from the model file here. Used by one thread. A layer that needs
 * more experts than there are slots is computed in waves: views are unpinned when `ready` is called
 * again (shared/model/pass/experts.h). */
struct experts_cached;
struct experts_cached_options {
	struct backend *backend; /* the back end that computes with the experts; borrowed */
	struct backend *host; /* the CPU's beside a device; borrowed; NULL: none */
	uint64_t spin_ns; /* time to spin before sleeping on arrivals */
	/* The least time without an arrival before a demand is served from the file. A slow link
	 * gets longer: see slots_patience in slots_wait.c. */
	uint64_t patience_ns;
	uint64_t generation; /* that of the verifier */
	bool (*cache_alive)(void *arg); /* may be NULL: the cache counts as alive */
	void *arg;
};
int experts_cached_create(const struct model *model, const struct experts_cached_options *options,
	struct experts_cached **out, struct error *err);
void experts_cached_destroy(struct experts_cached **cached);
/* Changes the waits. Call between two passes. */
void experts_cached_tune(struct experts_cached *cached, uint64_t spin_ns, uint64_t patience_ns);
/* Who computes what a device lacks: one of enum balance_rule. Call between two passes. */
void experts_cached_hybrid(struct experts_cached *cached, int rule);
/* How long the drafts of the coming pass were waited for: gamma t_draft of MoE-SpAc. */
void experts_cached_drafted(struct experts_cached *cached, uint64_t ns);
struct expert_source *experts_cached_source(struct experts_cached *cached);
/* Sets the session of the coming passes, for the cache's policy: the only session of the batch, 0
 * for several. */
void experts_cached_session(struct experts_cached *cached, uint64_t session);
/* Sets other work to do while a layer waits for demanded experts. `ready` calls work repeatedly
 * until an expert arrives or work returns false (nothing is left to do), so each call must be
 * short. Not called when all experts are there. */
void experts_cached_meanwhile(struct experts_cached *cached, bool (*work)(void *arg), void *arg);
/* The number of regions ever attached: when it changes the region is another one, even at the same
 * address. */
uint64_t experts_cached_attachment(const struct experts_cached *cached);
/* Sets the queue of the passes, in which a device's copies and waits are put. Before the first pass,
 * and before experts_cached_attach_device. */
void experts_cached_queue(struct experts_cached *cached, struct queue *q);
/* Uses the device's slots (device_slots.h) from now on; dups both descriptors. control NULL: none.
 * -ESTALE: the two do not belong together, or are of another model. On failure what is attached stays.
 * Between passes. */
int experts_cached_attach_device(struct experts_cached *cached, const struct region *control,
	int memory_fd, struct error *err);
/* True when, since the last call, somebody wrote to the state of a slot that was in use. The slot's
 * bytes may have changed meanwhile, so results computed with them must not be used. */
bool experts_cached_damaged(struct experts_cached *cached);
/* Number of experts of the present layer that were demanded and have not arrived. */
uint32_t experts_cached_missing(const struct experts_cached *cached);
/* The region in use, or NULL; for sending hints from the same thread. Valid until the next attach.
 */
struct slots *experts_cached_slots(struct experts_cached *cached);
/* The states of the slots that passes read experts from, as slot_state and so on read them: the device's,
 * where it has slots, else those in memory. False: there are none. Valid as experts_cached_slots. */
struct experts_places {
	const _Atomic uint64_t *state; /* [n_slots] */
	uint32_t n_slots, n_layers, n_experts;
};
bool experts_cached_places(const struct experts_cached *cached, struct experts_places *out);
/* The iteration of the layer begun last. Each layer with experts takes the next number. */
uint64_t experts_cached_iteration(const struct experts_cached *cached);
/* Uses these two regions from now on; dups their fds. NULL: serve everything from the file. Checks
 * the layouts and the model's fingerprint; on failure the attached regions stay. Regions that are
 * attached already (same uids) change nothing. Call between passes. */
int experts_cached_attach(struct experts_cached *cached, const struct region *region,
	const struct region *hints, struct error *err);

/* ---- What the verifier takes in addition to experts (slots_needs.c). ---- */

/* Bytes of a model's weights that are not experts, and of the 8-bit copies of its routers. */
uint64_t slots_needs_weights(const struct model *model);

/* Writes the needs; one thread of the owner. */
void slots_say_needs(struct slots_header *header, const struct slots_needs *needs);
/* Reads the needs written last. False when there are none, or the owner died while it wrote. Other
 * processes can write them, so the numbers may be any up to SLOTS_NEEDS_BYTES_MAX; `there` is no
 * more than the sum of all. */
bool slots_needs_said(const struct slots_header *header, struct slots_needs *out);

/* ---- Sending hints: the drafter, and the verifier for its next layers (slots_hinter.c). ---- */

struct slots_hinter {
	struct slots slots;
	const struct slots_header *header;
	struct ring hints;
};
/* For the drafter: tells the owner which experts of the block that drafts a pass used: (expert,
 * tokens) pairs. iteration: the number of the pass. What finds no room is dropped and counted. */
void slots_head_used(struct slots *slots, uint64_t iteration, uint32_t layer,
	const uint16_t *experts, const uint16_t *tokens, uint32_t n);
/* For the drafter: the slot that holds (layer, expert) now, unpinned, and its state word; SLOT_NONE
 * when it is not resident. */
uint32_t slots_peek(const struct slots *slots, uint32_t layer, uint32_t expert, uint64_t *word);
/* True when the slot still holds what it held then, in the same layout. */
bool slots_unchanged(const struct slots *slots, uint32_t slot, uint64_t word);
/* For the drafter. Borrows the regions; writes to "hints" only. */
int slots_hinter_attach(struct slots_hinter *hinter, const struct region *region,
	const struct region *hints, struct error *err);
/* For the verifier: uses the ring gates of its view of the region, which is copied. */
void slots_hinter_gates(struct slots_hinter *hinter, const struct slots *slots);
/* True when the owner wants hints of this source now. */
bool slots_hint_wanted(const struct slots_hinter *hinter, enum hint_source source);
/* Sends a hint. False when the ring is full (the hint is dropped and counted), or the hint is out
 * of the model's range. Hint resident experts, too: it keeps them from being evicted. The owner
 * sees the hint when it looks next; slots_hint_wake makes it look. */
bool slots_hint(struct slots_hinter *hinter, const struct slot_hint *hint);
void slots_hint_wake(struct slots_hinter *hinter);
/* True when (layer, expert) is resident: a hint for it starts no load. */
bool slots_resident(const struct slots_hinter *hinter, uint32_t layer, uint32_t expert);
