/* Identifies a model by a part of its bytes, because a file of hundreds of GB cannot be read for
 * that. */
#include "shared/model/gguf/gguf_internal.h"

#include <inttypes.h>
#include <stdio.h>

/* A tensor's bytes are read at PLACES_MAX places of PLACE_BYTES each, and at fewer where there are
 * many tensors. So a file that is not in memory costs at most about READS_MAX small reads, which
 * are all started before the first is waited for. */
enum { PLACES_MAX = 8, PLACE_BYTES = 64, READS_MAX = 8192 };

/* FNV-1a */
static uint64_t hash_bytes(uint64_t hash, const unsigned char *p, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		hash = (hash ^ p[i]) * 0x100000001b3u;
	return hash;
}

static uint64_t n_places(const struct gguf *gguf)
{
	uint64_t n = READS_MAX / (gguf->n_tensors + 1);
	return n < 1 ? 1 : n > PLACES_MAX ? PLACES_MAX : n;
}

/* The bytes of the tensor at place i of n, in the mapping. A tensor no larger than all places
 * together is one place. */
static const unsigned char *place(const struct gguf *gguf, const struct gguf_tensor *t, uint64_t i,
	uint64_t n, uint64_t *bytes)
{
	const unsigned char *data = gguf->data + t->offset;
	if (t->bytes <= n * PLACE_BYTES) {
		*bytes = i == 0 ? t->bytes : 0;
		return data;
	}
	*bytes = PLACE_BYTES;
	/* In the middle of each n-th part: the ends are more often alike. */
	return data + t->bytes / n * i + (t->bytes / n - PLACE_BYTES) / 2;
}

static void ask_for_places(const struct gguf *gguf, uint64_t n)
{
	for (size_t t = 0; t < gguf->n_tensors; t++)
		for (uint64_t i = 0; i < n; i++) {
			uint64_t bytes;
			const unsigned char *from = place(gguf, &gguf->tensors[t], i, n, &bytes);
			if (bytes > 0)
				gguf_advise(gguf, from, bytes, true);
		}
}

static uint64_t hash_weights(uint64_t hash, const struct gguf *gguf)
{
	uint64_t n = n_places(gguf), bytes;
	gguf_expect_scattered(gguf, true);
	ask_for_places(gguf, n);
	for (size_t t = 0; t < gguf->n_tensors; t++)
		for (uint64_t i = 0; i < n; i++) {
			const unsigned char *from = place(gguf, &gguf->tensors[t], i, n, &bytes);
			hash = hash_bytes(hash, from, bytes);
		}
	gguf_expect_scattered(gguf, false);
	return hash;
}

/* Hashes what precedes the weights in a part, and its size. */
static uint64_t hash_header(uint64_t hash, const struct gguf *gguf, const struct gguf_part *part)
{
	uint64_t end = part->base + part->bytes;
	for (size_t t = 0; t < gguf->n_tensors; t++) {
		uint64_t offset = gguf->tensors[t].offset;
		if (offset >= part->base && offset < end)
			end = offset;
	}
	hash = hash_bytes(hash, gguf->data + part->base, end - part->base);
	for (int b = 0; b < 8; b++)
		hash = (hash ^ ((part->bytes >> (8 * b)) & 0xff)) * 0x100000001b3u;
	return hash;
}

uint64_t gguf_fingerprint(const struct gguf *gguf)
{
	uint64_t hash = 0xcbf29ce484222325u;
	for (size_t i = 0; i < gguf_n_parts(gguf); i++)
		hash = hash_header(hash, gguf, gguf_part_at(gguf, i));
	hash = hash_weights(hash, gguf);
	/* A const gguf protects the content of the file; the fingerprint only describes it. */
	uint64_t none = 0;
	atomic_compare_exchange_strong_explicit((_Atomic uint64_t *)(uintptr_t)&gguf->fingerprint,
		&none, hash, memory_order_relaxed, memory_order_relaxed);
	return hash;
}

const char *gguf_sample_text(const struct gguf *gguf, char out[static GGUF_SAMPLE_TEXT])
{
	uint64_t n = n_places(gguf), looked = 0, all = 0, bytes;
	for (size_t t = 0; t < gguf->n_tensors; t++) {
		all += gguf->tensors[t].bytes;
		for (uint64_t i = 0; i < n; i++) {
			(void)place(gguf, &gguf->tensors[t], i, n, &bytes);
			looked += bytes;
		}
	}
	/* "One byte in so many", rounded up, so that it never claims to be more than it is. */
	uint64_t in = looked > 0 ? (all + looked - 1) / looked : 0;
	snprintf(out, GGUF_SAMPLE_TEXT,
		"its size, its header and up to %" PRIu64
		" places of %d bytes in each tensor (1 byte in "
		"%" PRIu64 " of its weights)",
		n, PLACE_BYTES, in);
	return out;
}
