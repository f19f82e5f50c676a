/* Writes GGUF files for tests, right or wrong: every function appends bytes, nothing is checked. */
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct build {
	unsigned char bytes[1 << 16];
	size_t n;
};

static inline void build_bytes(struct build *b, const void *data, size_t n)
{
	if (b->n + n > sizeof(b->bytes))
		abort();
	memcpy(b->bytes + b->n, data, n);
	b->n += n;
}

static inline void build_u32(struct build *b, uint32_t v)
{
	build_bytes(b, &v, sizeof(v));
}

static inline void build_u64(struct build *b, uint64_t v)
{
	build_bytes(b, &v, sizeof(v));
}

static inline void build_string(struct build *b, const char *s)
{
	build_u64(b, strlen(s));
	build_bytes(b, s, strlen(s));
}

static inline void build_header(
	struct build *b, uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
	b->n = 0;
	build_bytes(b, "GGUF", 4);
	build_u32(b, version);
	build_u64(b, n_tensors);
	build_u64(b, n_keys);
}

/* A key and its type; the value follows. */
static inline void build_key(struct build *b, const char *name, uint32_t type)
{
	build_string(b, name);
	build_u32(b, type);
}

static inline void build_key_string(struct build *b, const char *name, const char *value)
{
	build_key(b, name, 8);
	build_string(b, value);
}

static inline void build_key_u32(struct build *b, const char *name, uint32_t value)
{
	build_key(b, name, 4);
	build_u32(b, value);
}

static inline void build_tensor(struct build *b, const char *name, uint32_t n_dims,
	const uint64_t *ne, uint32_t type, uint64_t offset)
{
	build_string(b, name);
	build_u32(b, n_dims);
	for (uint32_t i = 0; i < n_dims && i < 8; i++)
		build_u64(b, ne[i]);
	build_u32(b, type);
	build_u64(b, offset);
}

static inline void build_pad(struct build *b, size_t alignment)
{
	static const unsigned char zero;
	while (b->n % alignment)
		build_bytes(b, &zero, 1);
}

static inline void build_zeros(struct build *b, size_t n)
{
	static const unsigned char zero;
	while (n--)
		build_bytes(b, &zero, 1);
}
