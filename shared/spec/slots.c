#include "shared/spec/slots_word.h"

#include "shared/base/checksum.h"

#include <stdatomic.h>

enum slot_state slot_state(uint64_t word)
{
	return (enum slot_state)(word & 3);
}

uint32_t slot_pins(uint64_t word)
{
	return (uint32_t)(word >> PINS_SHIFT) & PINS_MAX;
}

uint32_t slot_epoch(uint64_t word)
{
	return (uint32_t)(word >> EPOCH_SHIFT) & EPOCH_MASK;
}

uint32_t slot_layer(uint64_t word)
{
	return (uint32_t)(word >> LAYER_SHIFT) & ((1u << LAYER_BITS) - 1);
}

uint32_t slot_expert(uint64_t word)
{
	return (uint32_t)(word >> EXPERT_SHIFT) & ((1u << EXPERT_BITS) - 1);
}

enum matrix_layout slot_layout(uint64_t word)
{
	return word >> LAYOUT_SHIFT & 1 ? LAYOUT_TILES : LAYOUT_ROWS;
}

/* Names in brackets are the steps of tests/spin/slots.pml and starved.pml. */

/* [enter] */
uint32_t slots_verifier_enter(struct slots *slots)
{
	struct slots_header *header = slots->header;
	/* Only the verifier sleeps there; a killed one may still be counted. */
	doorbell_take_over(&header->arrivals);
	uint32_t epoch = atomic_load_explicit(&header->verifier_epoch, memory_order_relaxed);
	do
		epoch = (epoch + 1) & EPOCH_MASK;
	while (epoch == 0);
	/* Every pin of this epoch releases it again; pairs with void_pins, see there. */
	atomic_store_explicit(&header->verifier_epoch, epoch, memory_order_release);
	return epoch;
}

/* [pin] */
uint32_t slots_pin(struct slots *slots, uint32_t epoch, uint32_t layer, uint32_t expert)
{
	/* Relaxed is enough: the state word decides. The table word only tells where to look. */
	uint32_t value =
		atomic_load_explicit(slots_word(slots, layer, expert), memory_order_relaxed);
	uint32_t slot = value - 1;
	if (value == 0 || slot >= slots->n_slots)
		return SLOT_NONE;
	_Atomic uint64_t *state = &slots->state[slot];
	uint64_t tag = make_tag(layer, expert);
	uint64_t word = atomic_load_explicit(state, memory_order_relaxed);
	for (;;) {
		if (slot_state(word) != SLOT_READY || tag_of(word) != tag)
			return SLOT_NONE;
		uint32_t pins = slot_epoch(word) == epoch ? slot_pins(word) : 0;
		if (pins == PINS_MAX)
			return SLOT_NONE;
		/* Acquire pairs with the release store of READY in slots_load_end: without it the
		 * slot's bytes could be read as they were before the load. Release publishes this
		 * verifier's epoch in the header, see void_pins. */
		if (atomic_compare_exchange_weak_explicit(state, &word,
			    make_word(SLOT_READY, pins + 1, epoch, content_of(word)),
			    memory_order_acq_rel, memory_order_relaxed))
			return slot;
	}
}

/* [unpin] */
bool slots_unpin(
	struct slots *slots, uint32_t slot, uint32_t epoch, uint32_t layer, uint32_t expert)
{
	/* Release pairs with the acquire in slots_evict: without it the next expert's bytes could
	 * be written while ours are still being read. Only this verifier changes a word that it has
	 * pinned, so nothing needs comparing. Sequentially consistent for an owner that starves,
	 * see slots_evictable. */
	uint64_t word =
		atomic_fetch_sub_explicit(&slots->state[slot], ONE_PIN, memory_order_seq_cst);
	return slot_state(word) == SLOT_READY && slot_pins(word) > 0 && slot_epoch(word) == epoch &&
	       tag_of(word) == make_tag(layer, expert);
}

/* [load_begin] */
void slots_load_begin(struct slots *slots, uint32_t slot, uint32_t layer, uint32_t expert)
{
	/* Relaxed: only the owner acts on EMPTY or LOADING slots, and its successor sees what the
	 * kernel has. */
	atomic_store_explicit(&slots->state[slot],
		make_word(SLOT_LOADING, 0, 0, make_tag(layer, expert)), memory_order_relaxed);
}

/* [load_end] */
void slots_load_end(struct slots *slots, uint32_t slot, uint32_t layer, uint32_t expert,
	enum matrix_layout layout)
{
	uint64_t content = make_tag(layer, expert) | (uint64_t)(layout == LAYOUT_TILES)
							     << LAYOUT_SHIFT;
	/* The table first. Otherwise a verifier that pins by a table word which it read long ago
	 * would use the slot, find the expert absent at its next look, and demand it although it is
	 * resident. Until the slot is READY, the word only leads to a pin that fails. */
	atomic_store_explicit(slots_word(slots, layer, expert), slot + 1, memory_order_relaxed);
	/* Release pairs with the acquire of the compare-and-swap in slots_pin: the bytes and the
	 * table word come before READY. And READY comes before the bell, so that a woken verifier
	 * finds it. */
	atomic_store_explicit(
		&slots->state[slot], make_word(SLOT_READY, 0, 0, content), memory_order_release);
	doorbell_ring(&slots->header->arrivals);
}

/* [load_fail] */
void slots_load_fail(struct slots *slots, uint32_t slot)
{
	atomic_store_explicit(&slots->state[slot], 0, memory_order_relaxed);
}

bool slots_holds(const struct slots *slots, uint32_t slot, uint32_t layer, uint32_t expert)
{
	/* Relaxed: only the owner asks, about what it wrote itself. */
	uint64_t word = atomic_load_explicit(&slots->state[slot], memory_order_relaxed);
	return slot_state(word) == SLOT_READY && tag_of(word) == make_tag(layer, expert);
}

/* The tag is an index into the table, and anybody may have written it. */
static bool tag_in_model(const struct slots *slots, uint64_t word)
{
	return slot_layer(word) < slots->n_layers && slot_expert(word) < slots->n_experts;
}

/* True when the pins of a READY word bind nobody. The word was loaded with acquire. Its pins were
 * made with release after the verifier stored its epoch, so that epoch is visible, too. If the
 * word's epoch differs from the header's, which is read after the word, it is older, and its
 * verifier is dead. With the loads in the opposite order, a verifier that attached between them
 * would lose its pins. (Epochs wrap after a million attaches. A pin left that long ago would count
 * as alive and keep its slot; nothing worse.) */
static bool void_pins(const struct slots *slots, uint64_t word)
{
	return slot_pins(word) == 0 ||
	       slot_epoch(word) !=
		       atomic_load_explicit(&slots->header->verifier_epoch, memory_order_acquire);
}

bool slots_evictable(const struct slots *slots, uint32_t slot)
{
	/* Sequentially consistent with slots_unpin: if the owner stored `starved` before, either it
	 * sees the unpin here, or the verifier sees starved after the unpin and rings. */
	uint64_t word = atomic_load_explicit(&slots->state[slot], memory_order_seq_cst);
	return slot_state(word) == SLOT_READY && tag_in_model(slots, word) &&
	       void_pins(slots, word);
}

/* [pack_begin] */
bool slots_pack_begin(struct slots *slots, uint32_t slot, uint32_t layer, uint32_t expert)
{
	_Atomic uint64_t *state = &slots->state[slot];
	uint64_t word = atomic_load_explicit(state, memory_order_acquire);
	if (slot_state(word) != SLOT_READY || tag_of(word) != make_tag(layer, expert) ||
		!void_pins(slots, word))
		return false;
	/* As in slots_evict: acquire pairs with the release of slots_unpin, and a pin made in
	 * between wins. */
	return atomic_compare_exchange_strong_explicit(state, &word,
		make_word(SLOT_LOADING, 0, 0, tag_of(word)), memory_order_acq_rel,
		memory_order_relaxed);
}

/* [evict] */
bool slots_evict(struct slots *slots, uint32_t slot)
{
	_Atomic uint64_t *state = &slots->state[slot];
	uint64_t word = atomic_load_explicit(state, memory_order_acquire);
	if (slot_state(word) != SLOT_READY || !tag_in_model(slots, word) || !void_pins(slots, word))
		return false;
	/* Acquire pairs with the release of slots_unpin. A pin made in between changed the word,
	 * and wins. */
	if (!atomic_compare_exchange_strong_explicit(state, &word,
		    make_word(SLOT_EVICTING, 0, 0, tag_of(word)), memory_order_acq_rel,
		    memory_order_relaxed))
		return false;
	/* If the table word names another slot, that word is right, and this slot is the stale one.
	 */
	uint32_t own = slot + 1;
	atomic_compare_exchange_strong_explicit(
		slots_word(slots, slot_layer(word), slot_expert(word)), &own, 0,
		memory_order_release, memory_order_relaxed);
	/* After the table word: a successor that finds EMPTY may rely on the table not naming this
	 * slot. */
	atomic_store_explicit(state, 0, memory_order_release);
	return true;
}

static uint64_t sum_of_lost(uint64_t generation)
{
	return checksum(EXPERTS_LAYOUT, &generation, sizeof(generation));
}

bool slots_lost(const struct slots *slots)
{
	uint64_t lost = atomic_load_explicit(&slots->header->lost, memory_order_acquire);
	return lost != 0 && atomic_load_explicit(&slots->header->lost_sum, memory_order_relaxed) ==
				    sum_of_lost(lost);
}

void slots_lose(struct slots *slots, uint64_t generation)
{
	atomic_store_explicit(
		&slots->header->lost_sum, sum_of_lost(generation), memory_order_relaxed);
	/* Released before the ring, so that a woken verifier sees it. */
	atomic_store_explicit(&slots->header->lost, generation, memory_order_release);
	doorbell_ring(&slots->header->arrivals);
}

/* [refuse] */
void slots_refuse(struct slots *slots, uint32_t layer, uint32_t expert)
{
	_Atomic uint32_t *word = slots_word(slots, layer, expert);
	uint32_t value = atomic_load_explicit(word, memory_order_relaxed);
	/* The verifier changes refusals to 0 when it demands again. Only we write slots. */
	if (value == 0)
		atomic_compare_exchange_strong_explicit(
			word, &value, SLOTS_REFUSED, memory_order_release, memory_order_relaxed);
	doorbell_ring(&slots->header->arrivals);
}

/* Enters the slot of a READY word into the table. */
static int adopt_ready(struct slots *slots, const struct slots_geometry *geometry, uint32_t slot,
	uint64_t word, struct slots_adopted *adopted, struct error *err)
{
	uint32_t layer = slot_layer(word), expert = slot_expert(word);
	if (layer >= slots->n_layers || expert >= slots->n_experts || !geometry->layers[layer].moe)
		return error_set(err, EUCLEAN,
			"expert slot %u of %u holds layer %u expert %u, which the model does not "
			"have",
			slot, slots->n_slots, layer, expert);
	_Atomic uint32_t *entry = slots_word(slots, layer, expert);
	uint32_t value = atomic_load_explicit(entry, memory_order_relaxed);
	if (value == slot + 1) {
		adopted->ready++;
		return 0;
	}
	/* Another READY slot has the same tag. The protocol never makes two, so neither can be
	 * trusted. */
	if (value != 0 && value - 1 < slots->n_slots) {
		uint64_t other =
			atomic_load_explicit(&slots->state[value - 1], memory_order_relaxed);
		if (slot_state(other) == SLOT_READY && tag_of(other) == tag_of(word))
			return error_set(err, EUCLEAN,
				"expert slots %u and %u both hold layer %u expert %u", slot,
				value - 1, layer, expert);
	}
	/* Somebody has overwritten the word: the protocol writes it before READY. */
	atomic_store_explicit(entry, slot + 1, memory_order_release);
	adopted->words++;
	adopted->ready++;
	return 0;
}

/* Clears a table word that names a slot which does not hold that expert, and an old refusal. */
static void adopt_word(
	struct slots *slots, uint32_t layer, uint32_t expert, struct slots_adopted *adopted)
{
	_Atomic uint32_t *entry = slots_word(slots, layer, expert);
	uint32_t value = atomic_load_explicit(entry, memory_order_relaxed);
	if (value == 0)
		return;
	if (value - 1 < slots->n_slots) {
		uint64_t word =
			atomic_load_explicit(&slots->state[value - 1], memory_order_relaxed);
		if (slot_state(word) == SLOT_READY && tag_of(word) == make_tag(layer, expert))
			return;
	}
	atomic_store_explicit(entry, 0, memory_order_release);
	adopted->words++;
}

/* [adopt] */
int slots_adopt(struct slots *slots, const struct slots_geometry *geometry,
	struct slots_adopted *adopted, struct error *err)
{
	*adopted = (struct slots_adopted){0};
	for (uint32_t slot = 0; slot < slots->n_slots; slot++) {
		uint64_t word = atomic_load_explicit(&slots->state[slot], memory_order_acquire);
		switch (slot_state(word)) {
		case SLOT_EMPTY:
			break;
		case SLOT_LOADING:
			adopted->loading++;
			break;
		case SLOT_READY: {
			int status = adopt_ready(slots, geometry, slot, word, adopted, err);
			if (status != 0)
				return status;
			break;
		}
		case SLOT_EVICTING:
			/* Nobody can have pinned it since: it becomes EMPTY once the table agrees.
			 */
			if (slot_layer(word) < slots->n_layers &&
				slot_expert(word) < slots->n_experts) {
				_Atomic uint32_t *entry =
					slots_word(slots, slot_layer(word), slot_expert(word));
				uint32_t own = slot + 1;
				atomic_compare_exchange_strong_explicit(
					entry, &own, 0, memory_order_release, memory_order_relaxed);
			}
			atomic_store_explicit(&slots->state[slot], 0, memory_order_release);
			adopted->evicting++;
			break;
		}
	}
	for (uint32_t layer = 0; layer < slots->n_layers; layer++)
		for (uint32_t expert = 0; expert < slots->n_experts; expert++)
			adopt_word(slots, layer, expert, adopted);
	return 0;
}

uint32_t slots_peek(const struct slots *slots, uint32_t layer, uint32_t expert, uint64_t *word)
{
	/* Pairs with the release in slots_load_end: the slot's bytes are there. */
	uint32_t slot =
		atomic_load_explicit(slots_word(slots, layer, expert), memory_order_acquire);
	if (slot == 0 || slot - 1 >= slots->n_slots)
		return SLOT_NONE;
	*word = atomic_load_explicit(&slots->state[slot - 1], memory_order_acquire);
	bool there = slot_state(*word) == SLOT_READY && slot_layer(*word) == layer &&
		     slot_expert(*word) == expert;
	return there ? slot - 1 : SLOT_NONE;
}

bool slots_unchanged(const struct slots *slots, uint32_t slot, uint64_t word)
{
	/* What was read of the slot was read before this. */
	atomic_thread_fence(memory_order_acquire);
	uint64_t now = atomic_load_explicit(&slots->state[slot], memory_order_relaxed);
	return slot_state(now) == SLOT_READY && content_of(now) == content_of(word);
}
