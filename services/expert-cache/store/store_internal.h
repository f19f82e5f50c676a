/* What the two files of the store share: store_open.c makes and adopts it, store.c is what the worker does with it. */
#pragma once

#include "services/expert-cache/store/store.h"

/* No iteration demanded this slot. */
#define DEMAND_NONE UINT64_MAX

static inline uint64_t store_state(const struct store *store, uint32_t slot)
{
	/* The owner reads its own words; pins of the verifier are looked at by slots_evict. */
	return atomic_load_explicit(&store->slots.state[slot], memory_order_relaxed);
}

/* Gives the pages of n slots back to the kernel; false when it would not take them, which the log says once. */
bool store_punch(struct store *store, uint32_t first, uint32_t n);
/* The same for free slots: those whose pages it does not take are noted. */
void store_empty(struct store *store, uint32_t first, uint32_t n);
/* Whether the slot has any page. (The offset of the descriptor is used by nobody.) */
bool store_has_pages(const struct store *store, uint32_t slot);
void store_publish_in_use(struct store *store);
