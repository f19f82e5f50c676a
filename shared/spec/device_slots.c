#include "shared/spec/device_slots.h"

#include "kernels/tiles.h"
#include "shared/base/checksum.h"
#include "shared/base/round.h"
#include "shared/spec/slots_word.h"

#include <stdatomic.h>
#include <string.h>

/* ---- Where an expert's matrices lie in a slot. ---- */

uint64_t device_part_at(const struct slots_layer_geometry *layer, int part)
{
	uint64_t at = 0;
	for (int p = 0; p < part; p++)
		at += round_up(layer->part[p].bytes, DEVICE_ALIGN);
	return at;
}

uint64_t device_expert_bytes(const struct slots_layer_geometry *layer)
{
	return device_part_at(layer, EXPERT_PARTS);
}

void device_geometry(const struct slots_geometry *geometry, struct slots_geometry *out)
{
	*out = *geometry;
	out->slot_bytes = device_slot_bytes(geometry);
	out->n_total -= geometry->n_drafting * geometry->n_experts;
}

uint64_t device_slot_bytes(const struct slots_geometry *geometry)
{
	uint64_t most = 0;
	for (uint32_t l = 0; l < geometry->n_layers; l++) {
		if (!geometry->layers[l].moe)
			continue;
		uint64_t bytes = device_expert_bytes(&geometry->layers[l]);
		most = bytes > most ? bytes : most;
	}
	return most;
}

void device_pack(const struct slots_layer_geometry *layer, const void *const from[EXPERT_PARTS],
	enum matrix_layout layout, unsigned char *to)
{
	for (int p = 0; p < EXPERT_PARTS; p++) {
		const struct slots_part *part = &layer->part[p];
		unsigned char *at = to + device_part_at(layer, p);
		struct matrix rows = part->matrix;
		rows.data = from[p];
		if (layout == LAYOUT_ROWS && tiles_possible(&rows))
			tiles_pack(&rows, 0, rows.rows, at);
		else
			memcpy(at, from[p], part->bytes);
	}
}

/* ---- The region. ---- */

struct offsets {
	uint64_t table, state, load, flag, used, seal, end;
};

static bool lay_out(const struct device_shape *shape, struct offsets *out)
{
	if (shape->n_layers == 0 || shape->n_layers > LIMIT_LAYERS || shape->n_experts == 0 ||
		shape->n_experts > LIMIT_EXPERTS || shape->n_slots == 0 ||
		shape->n_slots > SLOTS_MAX || shape->slot_bytes == 0 ||
		shape->slot_bytes % DEVICE_ALIGN != 0 || shape->slot_bytes > (1ull << 40))
		return false;
	uint64_t n = shape->n_slots, at = round_up(sizeof(struct device_header), CACHE_LINE);
	out->table = at;
	at += (uint64_t)shape->n_layers * shape->n_experts * sizeof(uint32_t);
	out->state = at = round_up(at, CACHE_LINE);
	out->load = at = round_up(at + n * sizeof(uint64_t), CACHE_LINE);
	out->flag = at = round_up(at + n * sizeof(uint32_t), CACHE_LINE);
	out->used = at = round_up(at + n * sizeof(uint32_t), CACHE_LINE);
	out->seal = at = round_up(at + n * sizeof(uint64_t), CACHE_LINE);
	out->end = at + n * sizeof(uint64_t);
	return true;
}

uint64_t device_payload_bytes(const struct device_shape *shape)
{
	struct offsets at;
	return lay_out(shape, &at) ? at.end : 0;
}

void device_format(const struct region *region, const struct device_shape *shape)
{
	struct device_header *header = region_payload(region);
	header->n_layers = shape->n_layers;
	header->n_experts = shape->n_experts;
	header->n_slots = shape->n_slots;
	header->slot_bytes = shape->slot_bytes;
	header->model_fingerprint = shape->model_fingerprint;
	header->number = region->header->uid;
}

int device_map(const struct region *region, const struct device_shape *expected,
	struct device_slots *out, struct error *err)
{
	unsigned char *payload = region_payload(region);
	struct device_header *header = (struct device_header *)payload;
	struct offsets at;
	if (region->bytes < REGION_DATA + sizeof(*header))
		return error_set(err, EBADMSG, "region %s: %zu bytes hold no header", DEVICE_REGION,
			region->bytes);
	/* Read once: later reads could differ. */
	struct device_shape shape = {.n_layers = header->n_layers,
		.n_experts = header->n_experts,
		.n_slots = header->n_slots,
		.slot_bytes = header->slot_bytes,
		.model_fingerprint = header->model_fingerprint};
	if (!lay_out(&shape, &at) || at.end > region->bytes - REGION_DATA)
		return error_set(err, EBADMSG,
			"region %s: %u slots of %llu bytes for %u layers of %u experts do not fit "
			"its %zu bytes",
			DEVICE_REGION, shape.n_slots, (unsigned long long)shape.slot_bytes,
			shape.n_layers, shape.n_experts, region->bytes);
	if (shape.model_fingerprint != expected->model_fingerprint)
		return error_set(
			err, ESTALE, "region %s: its experts are of another model", DEVICE_REGION);
	if (shape.n_layers != expected->n_layers || shape.n_experts != expected->n_experts ||
		shape.slot_bytes != expected->slot_bytes ||
		(expected->n_slots != 0 && shape.n_slots != expected->n_slots))
		return error_set(err, ESTALE,
			"region %s: %u slots of %llu bytes, where %u of %llu were expected",
			DEVICE_REGION, shape.n_slots, (unsigned long long)shape.slot_bytes,
			expected->n_slots, (unsigned long long)expected->slot_bytes);
	*out = (struct device_slots){
		.header = header,
		.n_layers = shape.n_layers,
		.n_experts = shape.n_experts,
		.n_slots = shape.n_slots,
		.slot_bytes = shape.slot_bytes,
		.table = (_Atomic uint32_t *)(payload + at.table),
		.state = (_Atomic uint64_t *)(payload + at.state),
		.load = (_Atomic uint32_t *)(payload + at.load),
		.flag = (_Atomic uint32_t *)(payload + at.flag),
		.used = (_Atomic uint64_t *)(payload + at.used),
		.seal = (_Atomic uint64_t *)(payload + at.seal),
	};
	return 0;
}

size_t device_flag_at(const struct region *region, const struct device_slots *slots, uint32_t slot)
{
	return (size_t)((const unsigned char *)&slots->flag[slot] -
			(const unsigned char *)region->header);
}

int device_check_memory(const struct device_slots *slots, const struct buffer *memory,
	struct queue *q, const struct buffer *word, struct error *err)
{
	uint64_t number = 0;
	q->ops->copy(q, (struct place){word, 0}, (struct place){memory, 0}, sizeof(number));
	int status = q->ops->wait(q, q->ops->ticket(q));
	if (status != 0)
		return error_set(err, -status, "%s: the device's memory cannot be read: %s",
			DEVICE_MEMORY, strerror(-status));
	memcpy(&number, word->host, sizeof(number));
	if (number != slots->header->number)
		return error_set(
			err, ESTALE, "%s: this memory belongs to another region", DEVICE_MEMORY);
	return 0;
}

/* ---- The verifier. ---- */

/* [enter] */
uint32_t device_enter(struct device_slots *slots)
{
	struct device_header *header = slots->header;
	doorbell_take_over(&header->arrivals);
	uint32_t epoch = atomic_load_explicit(&header->verifier_epoch, memory_order_relaxed);
	do
		epoch = (epoch + 1) & EPOCH_MASK;
	while (epoch == 0);
	/* As in slots_verifier_enter. */
	atomic_store_explicit(&header->verifier_epoch, epoch, memory_order_release);
	atomic_store_explicit(&header->resident, 0, memory_order_relaxed);
	return epoch;
}

/* [pin] */
bool device_pin(struct device_slots *slots, uint32_t epoch, uint32_t layer, uint32_t expert,
	bool coming_too, struct device_pin *out)
{
	uint32_t slot =
		atomic_load_explicit(device_word(slots, layer, expert), memory_order_relaxed) - 1;
	if (slot >= slots->n_slots)
		return false;
	_Atomic uint64_t *state = &slots->state[slot];
	uint64_t tag = make_tag(layer, expert);
	uint64_t word = atomic_load_explicit(state, memory_order_relaxed);
	for (;;) {
		bool coming = slot_state(word) == SLOT_LOADING;
		if ((slot_state(word) != SLOT_READY && !(coming && coming_too)) ||
			tag_of(word) != tag)
			return false;
		uint32_t pins = slot_epoch(word) == epoch ? slot_pins(word) : 0;
		if (pins == PINS_MAX)
			return false;
		/* Acquire pairs with the releases of LOADING and READY: without it the number of the
		 * load, or the slot's bytes, could be those of an earlier one. Release publishes the
		 * epoch, as in slots_pin. */
		if (!atomic_compare_exchange_weak_explicit(state, &word,
			    make_word(slot_state(word), pins + 1, epoch, content_of(word)),
			    memory_order_acq_rel, memory_order_relaxed))
			continue;
		/* Pinned: the slot gets no other load. A READY slot whose flag is behind was made so
		 * by somebody else. */
		*out = (struct device_pin){slot,
			atomic_load_explicit(&slots->load[slot], memory_order_relaxed), coming};
		out->coming |=
			atomic_load_explicit(&slots->flag[slot], memory_order_relaxed) != out->load;
		if (!out->coming || coming_too)
			return true;
		(void)device_unpin(slots, slot, epoch, layer, expert);
		return false;
	}
}

static bool is_pinned(uint64_t word, uint32_t epoch, uint32_t layer, uint32_t expert)
{
	return (slot_state(word) == SLOT_READY || slot_state(word) == SLOT_LOADING) &&
	       slot_pins(word) > 0 && slot_epoch(word) == epoch &&
	       tag_of(word) == make_tag(layer, expert);
}

bool device_pinned(const struct device_slots *slots, uint32_t slot, uint32_t epoch, uint32_t layer,
	uint32_t expert)
{
	return is_pinned(atomic_load_explicit(&slots->state[slot], memory_order_relaxed), epoch,
		layer, expert);
}

/* [pin_again] */
bool device_pin_again(struct device_slots *slots, const struct device_pin *pin, uint32_t epoch,
	uint32_t layer, uint32_t expert)
{
	_Atomic uint64_t *state = &slots->state[pin->slot];
	uint64_t word = atomic_load_explicit(state, memory_order_relaxed);
	do {
		if (!is_pinned(word, epoch, layer, expert) || slot_pins(word) == PINS_MAX)
			return false;
	} while (!atomic_compare_exchange_weak_explicit(
		state, &word, word + ONE_PIN, memory_order_acq_rel, memory_order_relaxed));
	if (atomic_load_explicit(&slots->load[pin->slot], memory_order_relaxed) == pin->load)
		return true;
	/* The pins are for a later load of the same expert. */
	(void)device_unpin(slots, pin->slot, epoch, layer, expert);
	return false;
}

/* [unpin] */
bool device_unpin(
	struct device_slots *slots, uint32_t slot, uint32_t epoch, uint32_t layer, uint32_t expert)
{
	/* As in slots_unpin. The owner may change LOADING to READY meanwhile, and keeps the pins. */
	uint64_t word =
		atomic_fetch_sub_explicit(&slots->state[slot], ONE_PIN, memory_order_seq_cst);
	return is_pinned(word, epoch, layer, expert);
}

/* ---- The owner. ---- */

static uint64_t seal_of(const struct device_slots *slots, uint32_t slot, uint64_t word)
{
	const struct {
		uint64_t number, content;
		uint32_t slot, load;
	} of = {slots->header->number, tag_of(word), slot,
		atomic_load_explicit(&slots->load[slot], memory_order_relaxed)};
	return checksum(DEVICE_LAYOUT, &of, sizeof(of));
}

/* [load_begin] */
uint32_t device_load_begin(
	struct device_slots *slots, uint32_t slot, uint32_t layer, uint32_t expert)
{
	uint32_t load = atomic_load_explicit(&slots->load[slot], memory_order_relaxed) + 1;
	/* The successor of a dead owner must not take the former content's seal for this one's. */
	atomic_store_explicit(&slots->seal[slot], 0, memory_order_relaxed);
	atomic_store_explicit(&slots->load[slot], load, memory_order_relaxed);
	/* It is this already, unless somebody else wrote to it: nobody waits for an EMPTY slot. */
	atomic_store_explicit(&slots->flag[slot], load - 1, memory_order_relaxed);
	/* Release pairs with the acquire in device_pin: whoever sees LOADING sees its number. */
	atomic_store_explicit(&slots->state[slot],
		make_word(SLOT_LOADING, 0, 0, make_tag(layer, expert)), memory_order_release);
	/* Release: a verifier that finds the slot finds LOADING there. */
	atomic_store_explicit(device_word(slots, layer, expert), slot + 1, memory_order_release);
	doorbell_ring(&slots->header->arrivals);
	return load;
}

/* [load_end] */
bool device_load_end(struct device_slots *slots, uint32_t slot, uint32_t layer, uint32_t expert)
{
	_Atomic uint64_t *state = &slots->state[slot];
	uint64_t tag = make_tag(layer, expert);
	atomic_store_explicit(&slots->seal[slot], seal_of(slots, slot, tag), memory_order_relaxed);
	uint64_t word = atomic_load_explicit(state, memory_order_relaxed);
	do {
		if (slot_state(word) != SLOT_LOADING || tag_of(word) != tag)
			return false;
		/* A pin or an unpin made in between changed the word, and stays. Release pairs with
		 * the acquire in device_pin: the copy has ended. */
	} while (!atomic_compare_exchange_weak_explicit(state, &word,
		make_word(SLOT_READY, slot_pins(word), slot_epoch(word), tag), memory_order_release,
		memory_order_relaxed));
	return true;
}

static bool tag_in_model(const struct device_slots *slots, uint64_t word)
{
	return slot_layer(word) < slots->n_layers && slot_expert(word) < slots->n_experts;
}

/* As in slots.c: the word was loaded before the header's epoch. */
static bool void_pins(const struct device_slots *slots, uint64_t word)
{
	return slot_pins(word) == 0 ||
	       slot_epoch(word) !=
		       atomic_load_explicit(&slots->header->verifier_epoch, memory_order_acquire);
}

/* Takes a slot out of the table, if the table names it. */
static void leave_table(struct device_slots *slots, uint32_t slot, uint64_t word)
{
	uint32_t own = slot + 1;
	if (tag_in_model(slots, word))
		atomic_compare_exchange_strong_explicit(
			device_word(slots, slot_layer(word), slot_expert(word)), &own, 0,
			memory_order_release, memory_order_relaxed);
}

/* [abandon] */
bool device_abandon(struct device_slots *slots, uint32_t slot)
{
	_Atomic uint64_t *state = &slots->state[slot];
	uint64_t word = atomic_load_explicit(state, memory_order_acquire);
	/* First, so that no verifier finds a load that nobody will end. */
	leave_table(slots, slot, word);
	word = atomic_load_explicit(state, memory_order_acquire);
	return void_pins(slots, word) && atomic_compare_exchange_strong_explicit(state, &word, 0,
						 memory_order_acq_rel, memory_order_relaxed);
}

bool device_evictable(const struct device_slots *slots, uint32_t slot)
{
	/* Sequentially consistent, see slots_evictable. */
	uint64_t word = atomic_load_explicit(&slots->state[slot], memory_order_seq_cst);
	return slot_state(word) == SLOT_READY && tag_in_model(slots, word) &&
	       void_pins(slots, word);
}

/* [evict] */
bool device_evict(struct device_slots *slots, uint32_t slot)
{
	_Atomic uint64_t *state = &slots->state[slot];
	uint64_t word = atomic_load_explicit(state, memory_order_acquire);
	if (slot_state(word) != SLOT_READY || !tag_in_model(slots, word) || !void_pins(slots, word))
		return false;
	/* As in slots_evict: a pin made in between wins. */
	if (!atomic_compare_exchange_strong_explicit(state, &word,
		    make_word(SLOT_EVICTING, 0, 0, tag_of(word)), memory_order_acq_rel,
		    memory_order_relaxed))
		return false;
	leave_table(slots, slot, word);
	atomic_store_explicit(state, 0, memory_order_release);
	return true;
}

uint32_t device_find(const struct device_slots *slots, uint32_t layer, uint32_t expert)
{
	uint32_t slot =
		atomic_load_explicit(device_word(slots, layer, expert), memory_order_relaxed) - 1;
	if (slot >= slots->n_slots)
		return SLOT_NONE;
	uint64_t word = atomic_load_explicit(&slots->state[slot], memory_order_relaxed);
	bool there = slot_state(word) == SLOT_READY || slot_state(word) == SLOT_LOADING;
	return there && tag_of(word) == make_tag(layer, expert) ? slot : SLOT_NONE;
}

/* Keeps a READY slot, or makes it EMPTY. */
static int adopt_ready(struct device_slots *slots, const struct slots_geometry *geometry,
	uint32_t slot, uint64_t word, struct device_adopted *adopted, struct error *err)
{
	uint32_t layer = slot_layer(word), expert = slot_expert(word);
	bool known = tag_in_model(slots, word) && geometry->layers[layer].moe;
	uint64_t seal = atomic_load_explicit(&slots->seal[slot], memory_order_relaxed);
	if (!known || seal != seal_of(slots, slot, word)) {
		if (!void_pins(slots, word))
			return error_set(err, EUCLEAN,
				"device slot %u differs from what was loaded, and is in use", slot);
		atomic_store_explicit(&slots->state[slot], 0, memory_order_release);
		adopted->wrong++;
		return 0;
	}
	uint32_t other =
		atomic_load_explicit(device_word(slots, layer, expert), memory_order_relaxed) - 1;
	if (other != slot && other < slots->n_slots &&
		device_find(slots, layer, expert) != SLOT_NONE)
		return error_set(err, EUCLEAN,
			"device slots %u and %u both hold layer %u expert %u", slot, other, layer,
			expert);
	atomic_store_explicit(device_word(slots, layer, expert), slot + 1, memory_order_release);
	adopted->ready++;
	return 0;
}

/* [adopt] */
int device_adopt(struct device_slots *slots, const struct slots_geometry *geometry,
	struct device_adopted *adopted, struct error *err)
{
	*adopted = (struct device_adopted){0};
	for (uint32_t slot = 0; slot < slots->n_slots; slot++) {
		uint64_t word = atomic_load_explicit(&slots->state[slot], memory_order_acquire);
		int status = 0;
		if (slot_state(word) == SLOT_READY) {
			status = adopt_ready(slots, geometry, slot, word, adopted, err);
		} else if (slot_state(word) == SLOT_LOADING) {
			leave_table(slots, slot, word);
			adopted->loading++;
		} else if (slot_state(word) == SLOT_EVICTING) {
			leave_table(slots, slot, word);
			atomic_store_explicit(&slots->state[slot], 0, memory_order_release);
		}
		if (status != 0)
			return status;
	}
	/* Where nobody waits, whatever others have written there. */
	for (uint32_t slot = 0; slot < slots->n_slots; slot++)
		if (slot_state(atomic_load_explicit(&slots->state[slot], memory_order_relaxed)) !=
			SLOT_LOADING)
			atomic_store_explicit(&slots->flag[slot],
				atomic_load_explicit(&slots->load[slot], memory_order_relaxed),
				memory_order_relaxed);
	for (uint32_t l = 0; l < slots->n_layers; l++)
		for (uint32_t e = 0; e < slots->n_experts; e++)
			if (device_find(slots, l, e) == SLOT_NONE)
				atomic_store_explicit(
					device_word(slots, l, e), 0, memory_order_relaxed);
	return 0;
}
