/* What the two files of the store share: store_open.c creates and adopts it; store.c has what the
 * worker does with it. */
#pragma once

#include "services/expert-cache/store/store.h"

/* No iteration demanded this slot. */
#define DEMAND_NONE UINT64_MAX

static inline uint64_t store_state(const struct store *store, uint32_t slot)
{
	/* The owner reads its own words; slots_evict checks the verifier's pins. */
	return atomic_load_explicit(&store->slots.state[slot], memory_order_relaxed);
}

/* Returns the pages of n slots to the kernel; false when it does not take them, which is logged
 * once. */
bool store_punch(struct store *store, uint32_t first, uint32_t n);
/* The same for free slots; those whose pages the kernel does not take are noted. */
void store_empty(struct store *store, uint32_t first, uint32_t n);
/* True when the slot has any page. (Moves the descriptor's offset, which nobody uses.) */
bool store_has_pages(const struct store *store, uint32_t slot);
void store_publish_in_use(struct store *store);
