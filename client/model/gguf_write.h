/* Writing GGUF files: a header that is composed in memory, then the tensors' bytes one after the
 * other. */
#pragma once

#include "shared/base/error.h"
#include "shared/model/gguf/gguf.h"

#include <stdio.h>

struct gguf_write {
	FILE *to; /* where the next data go */
	char *keys, *tensors; /* the two halves of the header in memory; freed by gguf_write_exit */
	size_t keys_bytes, tensors_bytes;
	FILE *keys_file, *tensors_file;
	uint64_t n_keys, n_tensors, data_bytes;
	uint64_t alignment; /* GGUF_WRITE_ALIGNMENT, or as set by gguf_write_align */
};

#define GGUF_WRITE_ALIGNMENT 32

int gguf_write_init(struct gguf_write *w, struct error *err);
void gguf_write_exit(struct gguf_write *w);

/* Sets the alignment of each tensor's data, a power of two; writes general.alignment. Before the
 * first tensor. */
void gguf_write_align(struct gguf_write *w, uint32_t alignment);

void gguf_write_u32(struct gguf_write *w, uint32_t value);
void gguf_write_u64(struct gguf_write *w, uint64_t value);
void gguf_write_string(struct gguf_write *w, const char *text);
void gguf_write_key_string(struct gguf_write *w, const char *key, const char *value);
void gguf_write_key_u32(struct gguf_write *w, const char *key, uint32_t value);
void gguf_write_key_u64(struct gguf_write *w, const char *key, uint64_t value);
/* A key with its type and value, as read from another file (gguf_key_raw). */
void gguf_write_key_raw(struct gguf_write *w, const void *record, size_t bytes);
void gguf_write_key_f32(struct gguf_write *w, const char *key, float value);
void gguf_write_key_bool(struct gguf_write *w, const char *key, bool value);
/* n elements must follow, written by gguf_write_string or gguf_write_u32. */
void gguf_write_key_array(
	struct gguf_write *w, const char *key, enum gguf_value_type element, uint64_t n);
/* The record of a tensor. Its data, of `bytes` bytes, will come after the data of earlier tensors,
 * each padded to the alignment. */
void gguf_write_tensor(struct gguf_write *w, const char *name, uint32_t n_dims, const uint64_t *ne,
	uint32_t type, uint64_t bytes);
/* Writes the header to a file, with the padding before the data; *bytes is its length. */
int gguf_write_header(struct gguf_write *w, FILE *file, uint64_t *bytes, struct error *err);
