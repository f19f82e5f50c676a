/*
 * The state words of slots: of those in memory (slots.c) and of those on a device (device_slots.c). No
 * other file includes it.
 */
#pragma once

#include "shared/spec/slots.h"

/*
 * A state word: state 2 bits, pins 16, epoch 20, layer 8, expert 10, layout 1.
 * Pins are the low part above the state, so that an unpin is one subtraction.
 */
enum {
	PINS_SHIFT = 2,
	PINS_BITS = 16,
	EPOCH_SHIFT = PINS_SHIFT + PINS_BITS,
	EPOCH_BITS = 20,
	LAYER_SHIFT = EPOCH_SHIFT + EPOCH_BITS,
	LAYER_BITS = 8,
	EXPERT_SHIFT = LAYER_SHIFT + LAYER_BITS,
	EXPERT_BITS = 10,
	LAYOUT_SHIFT = EXPERT_SHIFT + EXPERT_BITS,
};
static_assert(LIMIT_LAYERS <= 1 << LAYER_BITS, "a layer fits the tag");
static_assert(LIMIT_EXPERTS <= 1 << EXPERT_BITS, "an expert fits the tag");
static_assert(LAYOUT_SHIFT + 1 <= 64, "the word is 64 bits");

#define PINS_MAX ((1u << PINS_BITS) - 1)
#define EPOCH_MASK ((1u << EPOCH_BITS) - 1)
#define ONE_PIN (1ull << PINS_SHIFT)

static inline uint64_t make_word(enum slot_state state, uint32_t pins, uint32_t epoch, uint64_t tag)
{
	return (uint64_t)state | (uint64_t)pins << PINS_SHIFT | (uint64_t)epoch << EPOCH_SHIFT |
	       tag;
}

static inline uint64_t make_tag(uint32_t layer, uint32_t expert)
{
	return (uint64_t)layer << LAYER_SHIFT | (uint64_t)expert << EXPERT_SHIFT;
}

static inline uint64_t tag_of(uint64_t word)
{
	return word & (((1ull << (LAYER_BITS + EXPERT_BITS)) - 1) << LAYER_SHIFT);
}

/* The part of the word that a pin does not change: what the slot holds, and in which layout. */
static inline uint64_t content_of(uint64_t word)
{
	return word >> LAYER_SHIFT << LAYER_SHIFT;
}
