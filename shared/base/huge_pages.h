/*
 * Memory in huge pages: from the kernel's pool (vm.nr_hugepages) if it has room for all of it;
 * otherwise in normal pages that the kernel is asked to join (transparent huge pages); otherwise in
 * small pages. The mapping process logs once which kind it got. Any thread.
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum huge_kind {
	HUGE_POOL, /* reserved in the pool: touching it cannot fail */
	HUGE_TRANSPARENT, /* the kernel accepted madvise(MADV_HUGEPAGE) */
	HUGE_NONE, /* small pages */
};

struct huge_pages {
	enum huge_kind kind;
	bool shared; /* it is a memfd */
	size_t bytes; /* the requested size, rounded up to whole pages of this kind */
	size_t page_bytes; /* page size of the pool; 0 when the kernel has none */
	uint64_t needed, free; /* pages of the pool that it needs, and that were free */
	int refused; /* errno: the pool had enough pages, but refused them */
};

/* Maps private zeroed memory for reading and writing. -ENOMEM. Unmap it with munmap(*address,
 * out->bytes). */
int huge_pages_map(size_t bytes, struct huge_pages *out, void **address, struct error *err);

/* Allocates memory to be freed with free(), aligned to a cache line; NULL when there is none. Large
 * blocks use transparent huge pages as far as the kernel provides them; never the pool. */
void *huge_pages_alloc(size_t bytes);

/* Creates a memfd of `bytes` bytes that can be sealed, and its first mapping (shared, for reading
 * and writing). Other processes that map *fd call huge_pages_advise on their mapping. With
 * HUGE_POOL, a mapping must have out->bytes bytes, and offsets are multiples of page_bytes. -errno.
 */
int huge_pages_memfd(const char *name, size_t bytes, struct huge_pages *out, int *fd,
	void **address, struct error *err);
/* Asks for transparent huge pages in private memory, or in a mapping of a memfd that is not
 * HUGE_POOL. */
enum huge_kind huge_pages_advise(void *address, size_t bytes, bool shared);

/* A sentence for the log, under 384 bytes, that says what was not available and how to provide it;
 * empty for HUGE_POOL. */
void huge_pages_notice(const struct huge_pages *pages, char *out, size_t out_bytes);
