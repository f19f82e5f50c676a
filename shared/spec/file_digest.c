#include "shared/spec/file_digest.h"

#include "shared/model/gguf/gguf_watch.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

static uint64_t blocks_of(const struct gguf_part *part)
{
	return (part->bytes + DIGEST_BLOCK_BYTES - 1) / DIGEST_BLOCK_BYTES;
}

uint64_t file_digest_blocks(const struct gguf *gguf)
{
	uint64_t n = 0;
	for (size_t i = 0; i < gguf_n_parts(gguf); i++)
		n += blocks_of(gguf_part_at(gguf, i));
	return n;
}

struct digest_block file_digest_block(const struct gguf *gguf, uint64_t block)
{
	size_t part = 0;
	while (block >= blocks_of(gguf_part_at(gguf, part)))
		block -= blocks_of(gguf_part_at(gguf, part++));
	uint64_t offset = block * DIGEST_BLOCK_BYTES;
	uint64_t left = gguf_part_at(gguf, part)->bytes - offset;
	return (struct digest_block){.part = part,
		.offset = offset,
		.bytes = (size_t)(left < DIGEST_BLOCK_BYTES ? left : DIGEST_BLOCK_BYTES)};
}

size_t file_digest_bytes(const struct gguf *gguf)
{
	return sizeof(struct file_digest) +
	       (size_t)file_digest_blocks(gguf) * sizeof(struct block_digest);
}

void file_digest_format(struct file_digest *digest, const struct gguf *gguf)
{
	digest->files = gguf_files(gguf);
	digest->n_blocks = file_digest_blocks(gguf);
	atomic_store_explicit(&digest->origin, gguf_state(gguf), memory_order_relaxed);
	atomic_store_explicit(&digest->state, gguf_state(gguf), memory_order_release);
}

int file_digest_check(const struct file_digest *digest, size_t payload_bytes,
	const struct gguf *gguf, struct error *err)
{
	if (payload_bytes < file_digest_bytes(gguf) || digest->files != gguf_files(gguf) ||
		digest->n_blocks != file_digest_blocks(gguf))
		return error_set(err, ESTALE, "digest region: it is about another file than %s",
			gguf_path(gguf));
	return 0;
}

struct block_digest file_digest_of(const void *data, size_t bytes)
{
	XXH128_hash_t hash = XXH3_128bits(data, bytes);
	return (struct block_digest){hash.low64, hash.high64};
}
