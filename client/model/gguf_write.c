#include "client/model/gguf_write.h"

#include <stdlib.h>
#include <string.h>

int gguf_write_init(struct gguf_write *w, struct error *err)
{
	*w = (struct gguf_write){.alignment = GGUF_WRITE_ALIGNMENT};
	w->keys_file = open_memstream(&w->keys, &w->keys_bytes);
	w->tensors_file = open_memstream(&w->tensors, &w->tensors_bytes);
	w->to = w->keys_file;
	return w->keys_file && w->tensors_file ? 0
					       : error_set(err, ENOMEM, "no memory for a header");
}

void gguf_write_exit(struct gguf_write *w)
{
	if (w->keys_file)
		fclose(w->keys_file);
	if (w->tensors_file)
		fclose(w->tensors_file);
	free(w->keys);
	free(w->tensors);
	*w = (struct gguf_write){0};
}

void gguf_write_u32(struct gguf_write *w, uint32_t value)
{
	fwrite(&value, sizeof(value), 1, w->to);
}

void gguf_write_u64(struct gguf_write *w, uint64_t value)
{
	fwrite(&value, sizeof(value), 1, w->to);
}

void gguf_write_string(struct gguf_write *w, const char *text)
{
	gguf_write_u64(w, strlen(text));
	fwrite(text, 1, strlen(text), w->to);
}

static void begin_key(struct gguf_write *w, const char *key, uint32_t type)
{
	gguf_write_string(w, key);
	gguf_write_u32(w, type);
	w->n_keys++;
}

void gguf_write_key_string(struct gguf_write *w, const char *key, const char *value)
{
	begin_key(w, key, GGUF_STRING);
	gguf_write_string(w, value);
}

void gguf_write_key_u32(struct gguf_write *w, const char *key, uint32_t value)
{
	begin_key(w, key, GGUF_U32);
	gguf_write_u32(w, value);
}

void gguf_write_key_u64(struct gguf_write *w, const char *key, uint64_t value)
{
	begin_key(w, key, GGUF_U64);
	gguf_write_u64(w, value);
}

void gguf_write_key_raw(struct gguf_write *w, const void *record, size_t bytes)
{
	fwrite(record, 1, bytes, w->to);
	w->n_keys++;
}

void gguf_write_align(struct gguf_write *w, uint32_t alignment)
{
	w->alignment = alignment;
	gguf_write_key_u32(w, "general.alignment", alignment);
}

void gguf_write_key_f32(struct gguf_write *w, const char *key, float value)
{
	begin_key(w, key, GGUF_F32);
	fwrite(&value, sizeof(value), 1, w->to);
}

void gguf_write_key_bool(struct gguf_write *w, const char *key, bool value)
{
	begin_key(w, key, GGUF_BOOL);
	putc(value ? 1 : 0, w->to);
}

void gguf_write_key_array(
	struct gguf_write *w, const char *key, enum gguf_value_type element, uint64_t n)
{
	begin_key(w, key, GGUF_ARRAY);
	gguf_write_u32(w, element);
	gguf_write_u64(w, n);
}

static uint64_t padding(const struct gguf_write *w, uint64_t bytes)
{
	return -bytes % w->alignment;
}

void gguf_write_tensor(struct gguf_write *w, const char *name, uint32_t n_dims, const uint64_t *ne,
	uint32_t type, uint64_t bytes)
{
	w->to = w->tensors_file;
	gguf_write_string(w, name);
	gguf_write_u32(w, n_dims);
	for (uint32_t d = 0; d < n_dims; d++)
		gguf_write_u64(w, ne[d]);
	gguf_write_u32(w, type);
	gguf_write_u64(w, w->data_bytes);
	w->to = w->keys_file;
	w->n_tensors++;
	w->data_bytes += bytes + padding(w, bytes);
}

int gguf_write_header(struct gguf_write *w, FILE *file, uint64_t *bytes, struct error *err)
{
	/* A stream in memory fails when memory is exhausted. */
	if (fflush(w->keys_file) || fflush(w->tensors_file) || ferror(w->keys_file) ||
		ferror(w->tensors_file))
		return error_set(err, ENOMEM, "no memory for a header");
	*bytes = 24 + w->keys_bytes + w->tensors_bytes;
	fwrite("GGUF\3\0\0", 1, 8, file);
	fwrite(&w->n_tensors, 8, 1, file);
	fwrite(&w->n_keys, 8, 1, file);
	fwrite(w->keys, 1, w->keys_bytes, file);
	fwrite(w->tensors, 1, w->tensors_bytes, file);
	for (; *bytes % w->alignment; ++*bytes)
		putc(0, file);
	return ferror(file)
		       ? error_set(err, errno ? errno : EIO, "cannot write: %s", strerror(errno))
		       : 0;
}
