/*
 * A page: one writer, many readers, and a seqlock (Lameter, "Effective synchronization on
 * Linux/NUMA systems", 2005). The memory orders follow Boehm, "Can seqlocks get along with
 * programming language memory models?", MSPC 2012, in the variant without fences: the writer stores
 * the words of the payload with release, and readers load them with acquire. On x86 both are plain
 * moves. Readers need no write access, and the thread sanitizer understands the scheme.
 *
 * The sequence is odd while the writer is inside. If the writer dies there, it stays odd: page_read
 * then fails after a bounded number of tries, and readers go on with their last copy. (So they read
 * into another buffer than that copy.)
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct page_lock {
	_Atomic uint32_t sequence;
};

/* The writer calls these before and after it stores to the payload. Between them it stores each
 * word with page_store. page_write_begin also accepts the odd sequence that a dead writer left. */
void page_write_begin(struct page_lock *lock);
void page_write_end(struct page_lock *lock);
/* The writer's successor calls this to make an odd sequence even. The payload stays as the dead
 * writer left it, a mixture of old and new words. A successor that cannot use such a mixture writes
 * the whole payload with page_write instead, which works without page_recover. */
void page_recover(struct page_lock *lock);

/* Copies `bytes` of payload to `out`. bytes: a multiple of 8; both pointers: 8-byte aligned. False
 * when no consistent copy could be made in a bounded number of tries; the content of `out` is then
 * undefined. */
bool page_read(const struct page_lock *lock, const void *payload, void *out, size_t bytes);
/* Writes the whole payload between page_write_begin and page_write_end. bytes: a multiple of 8;
 * both pointers: 8-byte aligned. */
void page_write(struct page_lock *lock, void *payload, const void *from, size_t bytes);

/* Stores one word of the payload, between page_write_begin and page_write_end. The release pairs
 * with the acquire in page_read: a reader that sees this word also sees the odd sequence stored
 * before it, and discards its copy. */
static inline void page_store(uint64_t *word, uint64_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
}
