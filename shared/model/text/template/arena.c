#include "shared/model/text/template/arena.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 64 << 10, ALIGNMENT = 16 };

struct arena_block {
	struct arena_block *next;
	size_t used, bytes;
	_Alignas(ALIGNMENT) unsigned char data[];
};

void arena_init(struct arena *arena, size_t max_bytes, struct error *err)
{
	memset(arena, 0, sizeof(*arena));
	arena->max_bytes = max_bytes;
	arena->err = err;
}

void arena_exit(struct arena *arena)
{
	while (arena->blocks) {
		struct arena_block *next = arena->blocks->next;
		free(arena->blocks);
		arena->blocks = next;
	}
	arena->used_bytes = 0;
}

void arena_fail(struct arena *arena, int rc)
{
	arena->rc = rc;
	longjmp(arena->unwind, 1);
}

static struct arena_block *add_block(struct arena *arena, size_t bytes)
{
	size_t room = bytes > BLOCK_BYTES / 4 ? bytes : BLOCK_BYTES;
	if (room > arena->max_bytes - arena->used_bytes)
		arena_fail(arena, error_set(arena->err, E2BIG,
					  "the template needs more than %zu bytes of memory",
					  arena->max_bytes));
	struct arena_block *block = malloc(sizeof(*block) + room);
	if (!block)
		arena_fail(arena, error_set(arena->err, ENOMEM, "no memory for a template"));
	block->used = 0;
	block->bytes = room;
	arena->used_bytes += room;
	/* A large piece gets a block of its own, which is put behind the block that still has room.
	 */
	if (room > BLOCK_BYTES && arena->blocks) {
		block->next = arena->blocks->next;
		arena->blocks->next = block;
	} else {
		block->next = arena->blocks;
		arena->blocks = block;
	}
	return block;
}

void *arena_alloc(struct arena *arena, size_t bytes)
{
	if (bytes > arena->max_bytes)
		bytes = arena->max_bytes + 1; /* refused below, and does not overflow here */
	bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	struct arena_block *block = arena->blocks;
	if (!block || block->bytes - block->used < bytes)
		block = add_block(arena, bytes);
	void *p = block->data + block->used;
	block->used += bytes;
	memset(p, 0, bytes);
	return p;
}

void *arena_array(struct arena *arena, size_t n, size_t element_bytes)
{
	size_t bytes;
	if (__builtin_mul_overflow(n, element_bytes, &bytes))
		bytes = SIZE_MAX;
	return arena_alloc(arena, bytes);
}

void *arena_grow(struct arena *arena, const void *old, size_t n, size_t new_n, size_t element_bytes)
{
	void *p = arena_array(arena, new_n, element_bytes);
	if (n)
		memcpy(p, old, n * element_bytes);
	return p;
}
