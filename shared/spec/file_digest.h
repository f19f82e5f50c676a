/*
 * The region "digest": a digest of every block of a model's files, which the expert-cache makes in the background
 * (services/expert-cache/digest.h) and keeps for its successor and for the verifier. A sample of the weights does not see a
 * change of a few bytes; this does. It is against accidents: XXH3 is no cryptographic hash.
 *
 * The expert-cache fills digest[0..n_done) in the order of the files. When something has touched the files it compares all
 * of these, then stores the new state, or the block that differs. A verifier that has seen the region in the state in which
 * it knows its own weights to be whole may believe what the region says of later states, as long as origin stays.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/model/gguf/gguf.h"

#include <stdatomic.h>

#define DIGEST_REGION "digest"
#define DIGEST_LAYOUT 1
#define DIGEST_BLOCK_BYTES ((uint64_t)1 << 20)

struct block_digest {
	uint64_t low, high; /* XXH3, 128 bits */
};

struct file_digest {
	uint64_t files; /* gguf_files */
	uint64_t n_blocks;
	_Atomic uint64_t n_done;
	/* gguf_state: all done blocks are as they were in it, and all of the file since origin. */
	_Atomic uint64_t state, origin;
	_Atomic uint64_t differs; /* 1 + a block that is not what it was; 0: none. Stays. */
	struct block_digest digest[];
};

/* A block, which lies in one part. */
struct digest_block {
	size_t part;
	uint64_t offset; /* in the part's file */
	size_t bytes;
};

uint64_t file_digest_blocks(const struct gguf *gguf);
/* block < file_digest_blocks. */
struct digest_block file_digest_block(const struct gguf *gguf, uint64_t block);
size_t file_digest_bytes(const struct gguf *gguf); /* of the region's payload */
/* The owner, on zeros. */
void file_digest_format(struct file_digest *digest, const struct gguf *gguf);
/* Whether a payload of so many bytes is about the files that gguf has open. -ESTALE: it is about others. */
int file_digest_check(const struct file_digest *digest, size_t payload_bytes,
	const struct gguf *gguf, struct error *err);
struct block_digest file_digest_of(const void *data, size_t bytes);
