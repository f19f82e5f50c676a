/*
 * A page: single writer, many readers, seqlock (Lameter, "Effective synchronization on Linux/NUMA systems", 2005;
 * the orders follow Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012, in the variant
 * without fences: words of the payload are stored with release and loaded with acquire. On x86 both are plain moves,
 * readers need no write access, and the thread sanitizer understands it).
 * A writer that dies inside leaves an odd sequence; readers then fail after bounded tries and keep what they last read.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct page_lock {
	_Atomic uint32_t sequence;
};

/* Around stores to the payload by the one writer. Between them, words are stored with page_store. */
void page_write_begin(struct page_lock *lock);
void page_write_end(struct page_lock *lock);
/* By the writer's successor: makes an odd sequence even. The payload is what the dead writer left, old words mixed with
 * new ones; a successor that cannot live with the mixture writes all of it instead (page_write, which needs no recovery
 * before). */
void page_recover(struct page_lock *lock);

/* Copies bytes (a multiple of 8, both 8-aligned) of payload to out; false when no stable copy was had in bounded
 * tries: out is then undefined. */
bool page_read(const struct page_lock *lock, const void *payload, void *out, size_t bytes);
/* Writes the payload under the lock (a multiple of 8 bytes, both 8-aligned). */
void page_write(struct page_lock *lock, void *payload, const void *from, size_t bytes);

/* One word of a payload, between page_write_begin and page_write_end. Release pairs with page_read's acquire: a
 * reader that sees the word sees the odd sequence stored before it and throws its copy away. */
static inline void page_store(uint64_t *word, uint64_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
}
