#include "shared/ipc/page.h"

#include "shared/base/clock.h"

#include <assert.h>

/* Writing a page takes well under a microsecond. A reader that meets a writer which has lost its
 * processor gives up after some tens of microseconds and keeps its last copy. */
enum { READ_TRIES = 512 };

void page_write_begin(struct page_lock *lock)
{
	uint32_t s = atomic_load_explicit(&lock->sequence, memory_order_relaxed);

	/* The next odd number, also when a predecessor died inside and left an odd one. Relaxed is
	 * enough: the release stores of the payload cannot be reordered before it. */
	atomic_store_explicit(&lock->sequence, (s + 1) | 1, memory_order_relaxed);
}

void page_write_end(struct page_lock *lock)
{
	uint32_t s = atomic_load_explicit(&lock->sequence, memory_order_relaxed);

	/* Release pairs with the acquire of the first load in page_read: a reader that sees the
	 * even number sees the whole payload. Without it a reader could copy old words under the
	 * new number, find the number unchanged, and accept the copy. */
	atomic_store_explicit(&lock->sequence, (s + 1) & ~1u, memory_order_release);
}

void page_recover(struct page_lock *lock)
{
	if (atomic_load_explicit(&lock->sequence, memory_order_relaxed) & 1)
		page_write_end(lock);
}

bool page_read(const struct page_lock *lock, const void *payload, void *out, size_t bytes)
{
	const uint64_t *from = payload;
	uint64_t *to = out;

	assert(bytes % 8 == 0 && (uintptr_t)payload % 8 == 0 && (uintptr_t)out % 8 == 0);
	for (int i = 0; i < READ_TRIES; i++) {
		uint32_t before = atomic_load_explicit(&lock->sequence, memory_order_acquire);

		if ((before & 1) == 0) {
			/* Acquire pairs with the release in page_store: after reading a word of a
			 * later write, the load of the sequence below must see at least that
			 * write's odd number. Relaxed loads could be reordered after it, and a torn
			 * copy would pass. */
			for (size_t w = 0; w < bytes / 8; w++)
				to[w] = __atomic_load_n(from + w, __ATOMIC_ACQUIRE);
			if (atomic_load_explicit(&lock->sequence, memory_order_relaxed) == before)
				return true;
		}
		clock_relax();
	}
	return false;
}

void page_write(struct page_lock *lock, void *payload, const void *from, size_t bytes)
{
	const uint64_t *source = from;
	uint64_t *to = payload;

	assert(bytes % 8 == 0 && (uintptr_t)payload % 8 == 0 && (uintptr_t)from % 8 == 0);
	page_write_begin(lock);
	for (size_t w = 0; w < bytes / 8; w++)
		page_store(to + w, source[w]);
	page_write_end(lock);
}
