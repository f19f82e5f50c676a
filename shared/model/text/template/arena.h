/*
 * Memory of one parse or one rendering: allocated piece by piece, freed all at once, never more
 * than a limit. Work that fails jumps back to where it began (longjmp). All that it holds is in the
 * arena, so nothing in between has to be undone, and an interpreter of which every step may fail
 * stays readable. Only the files of this folder use it; one thread at a time.
 */
#pragma once

#include "shared/base/error.h"

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

struct arena_block;

struct arena {
	struct arena_block *blocks; /* newest first */
	size_t used_bytes, max_bytes;
	jmp_buf unwind; /* set by the function that began the work; arena_fail jumps there */
	int rc; /* -errno of the failure */
	struct error *err;
};

void arena_init(struct arena *arena, size_t max_bytes, struct error *err);
void arena_exit(struct arena *arena);

/* Never NULL; zeroed, aligned for any type. Fails when the limit is exceeded. */
void *arena_alloc(struct arena *arena, size_t bytes);
void *arena_array(struct arena *arena, size_t n, size_t element_bytes);
/* A larger copy. The old one stays until the end, so arrays should grow by doubling. */
void *arena_grow(
	struct arena *arena, const void *old, size_t n, size_t new_n, size_t element_bytes);

/* Ends the work with rc. The message must be in arena->err already. */
void arena_fail(struct arena *arena, int rc) __attribute__((noreturn));
