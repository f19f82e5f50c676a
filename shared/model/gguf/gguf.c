/* Parsing. A struct reader goes through the bytes once, from the front; nothing is used before
 * take() has checked it. */
#include "shared/model/gguf/gguf_internal.h"
#include "shared/model/gguf/gguf_tensors.h"

#include <stdlib.h>
#include <string.h>

/* Far more than any real file has. These limits bound what a hostile header can make us allocate.
 */
enum {
	KEYS_MAX = 1 << 16,
	STRINGS_MAX = 1 << 23, /* in all arrays together: each string takes 8 bytes of index */
	ALIGNMENT_MAX = 1 << 24,
	KEY_BYTES_MAX = 65535, /* the limit in the specification */
};

struct reader {
	const struct gguf *gguf;
	const unsigned char *data;
	size_t bytes, at;
	uint64_t n_strings; /* of arrays, so far */
	struct error *err;
};

static size_t left(const struct reader *r)
{
	return r->bytes - r->at;
}

/* The next n bytes, or NULL with a message that names what was read and where the file ends. */
static const unsigned char *take(struct reader *r, uint64_t n, const char *what)
{
	if (n > left(r)) {
		error_set(r->err, EBADMSG,
			"%s at offset %zu needs %llu bytes, but the file ends at offset %zu", what,
			r->at, (unsigned long long)n, r->bytes);
		return NULL;
	}
	const unsigned char *p = r->data + r->at;
	r->at += (size_t)n;
	return p;
}

static int read_u32(struct reader *r, uint32_t *out, const char *what)
{
	const unsigned char *p = take(r, 4, what);
	if (!p)
		return -EBADMSG;
	*out = gguf_load_u32(p);
	return 0;
}

static int read_u64(struct reader *r, uint64_t *out, const char *what)
{
	const unsigned char *p = take(r, 8, what);
	if (!p)
		return -EBADMSG;
	*out = gguf_load_u64(p);
	return 0;
}

static int read_string(struct reader *r, struct gguf_string *out, const char *what)
{
	uint64_t n;
	int rc = read_u64(r, &n, what);
	if (rc)
		return rc;
	const unsigned char *p = take(r, n, what);
	if (!p)
		return -EBADMSG;
	*out = (struct gguf_string){(const char *)p, (size_t)n};
	return 0;
}

static int read_header(struct gguf *g, struct reader *r, uint64_t *n_tensors, uint64_t *n_keys)
{
	const unsigned char *magic = take(r, 4, "the magic \"GGUF\"");
	if (!magic)
		return -EBADMSG;
	if (memcmp(magic, "GGUF", 4) != 0)
		return error_set(
			r->err, EBADMSG, "not a GGUF file: the magic at offset 0 is not \"GGUF\"");
	int rc = read_u32(r, &g->version, "the version");
	if (rc)
		return rc;
	if (g->version != 0 && (g->version & 0xffff) == 0)
		return error_set(r->err, ENOTSUP,
			"the file is big-endian (version field 0x%08x at offset 4); only "
			"little-endian files can be read",
			g->version);
	if (g->version < 2 || g->version > 3)
		return error_set(r->err, ENOTSUP,
			"GGUF version %u at offset 4; versions 2 and 3 can be read", g->version);
	rc = read_u64(r, n_tensors, "the tensor count n_tensors");
	if (rc)
		return rc;
	/* A key takes at least 8 + 1 + 4 + 1 bytes, a tensor 8 + 1 + 4 + 8 + 4 + 8. */
	if (*n_tensors > GGUF_TENSORS_MAX || *n_tensors > left(r) / 33)
		return error_set(r->err, EBADMSG,
			"n_tensors at offset 8 is %llu; a file of %zu bytes can hold at most %zu "
			"(limit %d)",
			(unsigned long long)*n_tensors, r->bytes, left(r) / 33, GGUF_TENSORS_MAX);
	rc = read_u64(r, n_keys, "the key count n_kv");
	if (rc)
		return rc;
	if (*n_keys > KEYS_MAX || *n_keys > left(r) / 14)
		return error_set(r->err, EBADMSG,
			"n_kv at offset 16 is %llu; a file of %zu bytes can hold at most %zu "
			"(limit "
			"%d)",
			(unsigned long long)*n_keys, r->bytes, left(r) / 14, KEYS_MAX);
	return 0;
}

static int read_string_array(struct reader *r, struct gguf_key *key, const char *name)
{
	if (key->n > left(r) / 8)
		return error_set(r->err, EBADMSG,
			"key %s: an array of %llu strings at offset %zu cannot fit in the %zu "
			"bytes that remain; is the file complete?",
			name, (unsigned long long)key->n, r->at, left(r));
	if (key->n > STRINGS_MAX - r->n_strings)
		return error_set(r->err, EBADMSG,
			"key %s: an array of %llu strings at offset %zu; %d in all arrays together "
			"are supported",
			name, (unsigned long long)key->n, r->at, STRINGS_MAX);
	r->n_strings += key->n;
	key->strings = malloc((size_t)key->n * sizeof(*key->strings) + 1);
	if (!key->strings)
		return error_set(r->err, ENOMEM, "no memory to index key %s", name);
	for (uint64_t i = 0; i < key->n; i++) {
		struct gguf_string s;
		key->strings[i] = r->at;
		int rc = read_string(r, &s, name);
		if (rc)
			return error_prefix(
				r->err, rc, "string %llu of an array", (unsigned long long)i);
	}
	return 0;
}

static int read_array(struct reader *r, struct gguf_key *key, const char *name)
{
	uint32_t element;
	int rc = read_u32(r, &element, name);
	if (!rc)
		rc = read_u64(r, &key->n, name);
	if (rc)
		return rc;
	key->value = r->data + r->at;
	key->element = (enum gguf_value_type)element;
	if (element == GGUF_STRING)
		return read_string_array(r, key, name);
	if (element == GGUF_ARRAY)
		return error_set(r->err, ENOTSUP,
			"key %s: an array of arrays at offset %zu is not supported", name, r->at);
	size_t size = gguf_element_bytes(element);
	if (!size)
		return error_set(r->err, EBADMSG,
			"key %s: array element type %u before offset %zu is unknown (0 to 12)",
			name, element, r->at);
	if (key->n > left(r) / size)
		return error_set(r->err, EBADMSG,
			"key %s: an array of %llu elements of %zu bytes at offset %zu cannot fit "
			"in the %zu bytes that remain",
			name, (unsigned long long)key->n, size, r->at, left(r));
	return take(r, key->n * size, name) ? 0 : -EBADMSG;
}

static int read_value(struct reader *r, struct gguf_key *key, const char *name)
{
	key->n = 1;
	key->value = r->data + r->at;
	if (key->type == GGUF_ARRAY)
		return read_array(r, key, name);
	if (key->type == GGUF_STRING) {
		struct gguf_string s = {0};
		int rc = read_string(r, &s, name);
		key->value = (const unsigned char *)s.data;
		key->n = s.bytes;
		return rc;
	}
	if (!take(r, gguf_element_bytes(key->type), name))
		return -EBADMSG;
	if (key->type == GGUF_BOOL && *key->value > 1)
		return gguf_problem(r->gguf,
			error_set(r->err, EBADMSG,
				"key %s: a bool before offset %zu is %u; 0 or 1 are valid", name,
				r->at, *key->value),
			r->err);
	return 0;
}

static int read_key(struct gguf *g, struct reader *r, uint64_t index)
{
	size_t start = r->at;
	struct gguf_key key = {0};
	int rc = read_string(r, &key.name, "a key's name");
	if (rc)
		return error_prefix(r->err, rc, "key %llu", (unsigned long long)index);
	if (key.name.bytes == 0 || key.name.bytes > KEY_BYTES_MAX)
		return error_set(r->err, EBADMSG,
			"key %llu at offset %zu has a name of %zu bytes; 1 to %d are valid",
			(unsigned long long)index, start, key.name.bytes, KEY_BYTES_MAX);
	struct gguf_name_text name = gguf_name_text(key.name);
	uint32_t type;
	rc = read_u32(r, &type, name.text);
	if (rc)
		return rc;
	if (type > GGUF_F64)
		return error_set(r->err, EBADMSG,
			"key %s: value type %u at offset %zu is unknown (0 to 12)", name.text, type,
			r->at - 4);
	key.type = (enum gguf_value_type)type;
	rc = read_value(r, &key, name.text);
	if (rc) {
		free(key.strings);
		return rc;
	}
	if (g->n_keys == g->keys_capacity) {
		/* Grows as keys are found, so a count alone allocates nothing. */
		size_t capacity = g->keys_capacity ? 2 * g->keys_capacity : 64;
		struct gguf_key *keys = realloc(g->keys, capacity * sizeof(*keys));
		if (!keys) {
			free(key.strings);
			return error_set(r->err, ENOMEM, "no memory for %zu keys", capacity);
		}
		g->keys = keys;
		g->keys_capacity = capacity;
	}
	g->keys[g->n_keys++] = key;
	return 0;
}

static int compare_keys(const void *a, const void *b, void *arg)
{
	const struct gguf *g = arg;
	return gguf_string_compare(
		g->keys[*(const uint32_t *)a].name, g->keys[*(const uint32_t *)b].name);
}

/* Sorted rather than hashed, so that no choice of names makes this slow. */
static int index_keys(struct gguf *g, struct error *err)
{
	int rc = 0;
	g->keys_by_name = malloc(g->n_keys * sizeof(*g->keys_by_name) + 1);
	if (!g->keys_by_name)
		return error_set(err, ENOMEM, "no memory to index %zu keys", g->n_keys);
	for (size_t i = 0; i < g->n_keys; i++)
		g->keys_by_name[i] = (uint32_t)i;
	qsort_r(g->keys_by_name, g->n_keys, sizeof(*g->keys_by_name), compare_keys, g);
	for (size_t i = 1; !rc && i < g->n_keys; i++) {
		struct gguf_string name = g->keys[g->keys_by_name[i]].name;
		if (gguf_string_compare(g->keys[g->keys_by_name[i - 1]].name, name) == 0)
			rc = gguf_problem(g,
				error_set(err, EBADMSG, "key %s occurs twice (at offset %zu)",
					gguf_name_text(name).text,
					(size_t)((const unsigned char *)name.data - g->data)),
				err);
	}
	return rc;
}

static int read_alignment(struct gguf *g, struct error *err)
{
	g->alignment = 32;
	const struct gguf_key *key = gguf_key_find(g, "general.alignment");
	if (!key)
		return 0;
	if (key->type != GGUF_U32)
		return error_set(err, EBADMSG,
			"key general.alignment is of type %s; it must be u32",
			gguf_value_type_name(key->type));
	g->alignment = gguf_load_u32(key->value);
	if (!g->alignment || (g->alignment & (g->alignment - 1)) || g->alignment > ALIGNMENT_MAX)
		return error_set(err, EBADMSG,
			"key general.alignment is %llu; it must be a power of two up to %d",
			(unsigned long long)g->alignment, ALIGNMENT_MAX);
	return 0;
}

int gguf_parse(struct gguf *g, struct error *err)
{
	struct reader r = {.gguf = g, .data = g->data, .bytes = g->bytes, .err = err};
	uint64_t n_tensors = 0, n_keys = 0;
	int rc = read_header(g, &r, &n_tensors, &n_keys);
	for (uint64_t i = 0; !rc && i < n_keys; i++)
		rc = read_key(g, &r, i);
	if (!rc)
		rc = index_keys(g, err);
	if (!rc)
		rc = read_alignment(g, err);
	if (rc && g->keys_by_name) {
		/* A file that is checked is read on as if the key were absent. */
		rc = gguf_problem(g, rc, err);
		g->alignment = 32;
	}
	if (!rc)
		rc = gguf_read_tensors(g, n_tensors, r.at, err);
	return rc;
}
