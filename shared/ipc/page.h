/*
 * A page: single writer, many readers, seqlock (Lameter, "Effective synchronization on Linux/NUMA systems", 2005;
 * the fence placement follows Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012).
 * A writer that dies inside leaves an odd sequence; readers then fail after bounded tries and keep what
 * they last read; page_recover, by the writer's successor, makes it even.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct page_lock {
	_Atomic uint32_t sequence;
};

void page_write_begin(struct page_lock *lock);
void page_write_end(struct page_lock *lock);
void page_recover(struct page_lock *lock);

/* Copies bytes (a multiple of 8, both 8-aligned) of payload to out; false when no stable copy was had in bounded
 * tries. */
bool page_read(const struct page_lock *lock, const void *payload, void *out, size_t bytes);
/* Writes the payload under the lock, with relaxed atomic words so that concurrent readers are race-free. */
void page_write(struct page_lock *lock, void *payload, const void *from, size_t bytes);
