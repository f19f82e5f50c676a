/*
 * Region "digest": a digest of every block of a model's files. The expert-cache makes it in the
 * background (services/expert-cache/digest.h) and keeps it for its successor and for the verifier.
 * A sample of the weights does not notice a change of a few bytes; this does. It protects against
 * accidents: XXH3 is no cryptographic hash.
 *
 * The expert-cache fills digest[0..n_done) in the order of the files. When something has touched
 * the files, it compares all of these blocks and then stores either the new state or the block that
 * differs. A verifier that has seen the region in a state in which it knows its own weights to be
 * whole may trust the region about later states, as long as origin does not change.
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
	/* Values of gguf_state. state: all done blocks are as they were in it. origin: the state
	 * since which the whole file is unchanged. */
	_Atomic uint64_t state, origin;
	_Atomic uint64_t differs; /* 1 + the number of a block that changed; 0: none. Permanent. */
	struct block_digest digest[];
};

/* Where a block lies, which is within one part. */
struct digest_block {
	size_t part;
	uint64_t offset; /* in the part's file */
	size_t bytes;
};

uint64_t file_digest_blocks(const struct gguf *gguf);
/* block < file_digest_blocks. */
struct digest_block file_digest_block(const struct gguf *gguf, uint64_t block);
size_t file_digest_bytes(const struct gguf *gguf); /* of the region's payload */
/* For the owner, on zeroed memory. */
void file_digest_format(struct file_digest *digest, const struct gguf *gguf);
/* Checks that a payload of this size describes the files that gguf has open. -ESTALE: it describes
 * others. */
int file_digest_check(const struct file_digest *digest, size_t payload_bytes,
	const struct gguf *gguf, struct error *err);
struct block_digest file_digest_of(const void *data, size_t bytes);
