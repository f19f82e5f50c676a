/*
 * Memory in huge pages. From the pool of the kernel (vm.nr_hugepages) where it has room for all of it; else in normal
 * pages that the kernel is asked to join (transparent huge pages); else in small ones. Which it became is told, once, by
 * who maps. Any thread.
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum huge_kind {
	HUGE_POOL, /* reserved in the pool: cannot fail when touched */
	HUGE_TRANSPARENT, /* madvise(MADV_HUGEPAGE) was taken */
	HUGE_NONE, /* small pages */
};

struct huge_pages {
	enum huge_kind kind;
	bool shared; /* a memfd */
	size_t bytes; /* what was asked for, rounded up to whole pages of the kind */
	size_t page_bytes; /* of the pool; 0 when the kernel has none */
	uint64_t needed, free; /* pages of the pool that it takes, and that were free */
	int refused; /* errno: the pool had enough, and did not give them */
};

/* Private zeroed memory, read and write; -ENOMEM. To be given back with munmap(*address, out->bytes). */
int huge_pages_map(size_t bytes, struct huge_pages *out, void **address, struct error *err);

/* Memory to be given back with free(), NULL when there is none, from the start of a cache line on: much of it in transparent
 * huge pages as far as it fills them and the kernel has them. Never from the pool. */
void *huge_pages_alloc(size_t bytes);

/* A memfd of bytes that may be sealed, and its first mapping (shared, read and write). Others who map *fd call
 * huge_pages_advise on what they mapped. Of kind HUGE_POOL, out->bytes must be mapped, and offsets are multiples of
 * page_bytes. -errno. */
int huge_pages_memfd(const char *name, size_t bytes, struct huge_pages *out, int *fd,
	void **address, struct error *err);
/* Asks for transparent huge pages in a mapping of a memfd that is not of kind HUGE_POOL, or of private memory. */
enum huge_kind huge_pages_advise(void *address, size_t bytes, bool shared);

/* A sentence for the log, under 384 bytes, on what was not had and what would give it; empty for HUGE_POOL. */
void huge_pages_notice(const struct huge_pages *pages, char *out, size_t out_bytes);
