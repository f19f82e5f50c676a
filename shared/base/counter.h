/* Counters that one thread writes and any thread may read. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

/* The caller must be the only writer, so no locked instruction is needed. */
static inline void counter_add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
		memory_order_relaxed);
}

static inline void counter_add32(_Atomic uint32_t *counter, uint32_t n)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
		memory_order_relaxed);
}
