/* Reads metadata that gguf.c has checked to be within the file. */
#include "shared/base/utf8.h"
#include "shared/model/gguf/gguf_internal.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>

static const struct {
	const char *name;
	size_t bytes;
} types[] = {
	[GGUF_U8] = {"u8", 1},
	[GGUF_I8] = {"i8", 1},
	[GGUF_U16] = {"u16", 2},
	[GGUF_I16] = {"i16", 2},
	[GGUF_U32] = {"u32", 4},
	[GGUF_I32] = {"i32", 4},
	[GGUF_F32] = {"f32", 4},
	[GGUF_BOOL] = {"bool", 1},
	[GGUF_STRING] = {"string", 0},
	[GGUF_ARRAY] = {"array", 0},
	[GGUF_U64] = {"u64", 8},
	[GGUF_I64] = {"i64", 8},
	[GGUF_F64] = {"f64", 8},
};

size_t gguf_element_bytes(uint32_t type)
{
	return type <= GGUF_F64 ? types[type].bytes : 0;
}

const char *gguf_value_type_name(uint32_t type)
{
	return type <= GGUF_F64 ? types[type].name : "unknown";
}

struct gguf_name_text gguf_name_text(struct gguf_string name)
{
	struct gguf_name_text out;
	size_t n = name.bytes < sizeof(out.text) - 1 ? name.bytes : sizeof(out.text) - 1;
	for (size_t i = 0; i < n; i++)
		out.text[i] = name.data[i] > ' ' && name.data[i] < 127 ? name.data[i] : '?';
	out.text[n] = '\0';
	return out;
}

int gguf_string_compare(struct gguf_string a, struct gguf_string b)
{
	size_t n = a.bytes < b.bytes ? a.bytes : b.bytes;
	int order = n ? memcmp(a.data, b.data, n) : 0;
	return order ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

uint32_t gguf_load_u32(const unsigned char *at)
{
	uint32_t v;
	memcpy(&v, at, sizeof(v));
	return le32toh(v);
}

uint64_t gguf_load_u64(const unsigned char *at)
{
	uint64_t v;
	memcpy(&v, at, sizeof(v));
	return le64toh(v);
}

int64_t gguf_load_integer(enum gguf_value_type type, const unsigned char *at)
{
	switch (type) {
	case GGUF_U8:
	case GGUF_BOOL:
		return at[0];
	case GGUF_I8:
		return (int8_t)at[0];
	case GGUF_U16:
		return (uint16_t)(at[0] | at[1] << 8);
	case GGUF_I16:
		return (int16_t)(uint16_t)(at[0] | at[1] << 8);
	case GGUF_U32:
		return gguf_load_u32(at);
	case GGUF_I32:
		return (int32_t)gguf_load_u32(at);
	case GGUF_U64:
	case GGUF_I64:
		return (int64_t)gguf_load_u64(at);
	default:
		return 0;
	}
}

double gguf_load_float(enum gguf_value_type type, const unsigned char *at)
{
	if (type == GGUF_F32) {
		uint32_t bits = gguf_load_u32(at);
		float v;
		memcpy(&v, &bits, sizeof(v));
		return (double)v;
	}
	uint64_t bits = gguf_load_u64(at);
	double v;
	memcpy(&v, &bits, sizeof(v));
	return v;
}

const struct gguf_key *gguf_key_find(const struct gguf *gguf, const char *key)
{
	struct gguf_string wanted = {key, strlen(key)};
	size_t low = 0, high = gguf->n_keys;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const struct gguf_key *k = &gguf->keys[gguf->keys_by_name[middle]];
		int order = gguf_string_compare(k->name, wanted);
		if (order == 0)
			return k;
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

bool gguf_has(const struct gguf *gguf, const char *key)
{
	return gguf_key_find(gguf, key) != NULL;
}

static int wrong_type(
	const struct gguf_key *k, const char *key, const char *wanted, struct error *err)
{
	return error_set(err, EINVAL, "key %s is of type %s; %s is wanted", key,
		gguf_value_type_name(k->type), wanted);
}

static bool is_integer(enum gguf_value_type type)
{
	switch (type) {
	case GGUF_U8:
	case GGUF_I8:
	case GGUF_U16:
	case GGUF_I16:
	case GGUF_U32:
	case GGUF_I32:
	case GGUF_U64:
	case GGUF_I64:
		return true;
	default:
		return false;
	}
}

int gguf_get_u64(const struct gguf *gguf, const char *key, uint64_t min, uint64_t max,
	uint64_t *out, struct error *err)
{
	const struct gguf_key *k = gguf_key_find(gguf, key);
	if (!k)
		return -ENOENT;
	if (!is_integer(k->type))
		return wrong_type(k, key, "an integer", err);
	int64_t value = gguf_load_integer(k->type, k->value);
	bool negative = value < 0 && k->type != GGUF_U64;
	if (negative || (uint64_t)value < min || (uint64_t)value > max)
		return error_set(err, EINVAL,
			negative ? "key %s is %lld; %llu to %llu are allowed"
				 : "key %s is %llu; %llu to %llu are allowed",
			key, (unsigned long long)value, (unsigned long long)min,
			(unsigned long long)max);
	*out = (uint64_t)value;
	return 0;
}

int gguf_get_f64(const struct gguf *gguf, const char *key, double *out, struct error *err)
{
	const struct gguf_key *k = gguf_key_find(gguf, key);
	if (!k)
		return -ENOENT;
	if (k->type != GGUF_F32 && k->type != GGUF_F64)
		return wrong_type(k, key, "f32 or f64", err);
	*out = gguf_load_float(k->type, k->value);
	return 0;
}

int gguf_get_bool(const struct gguf *gguf, const char *key, bool *out, struct error *err)
{
	const struct gguf_key *k = gguf_key_find(gguf, key);
	if (!k)
		return -ENOENT;
	if (k->type != GGUF_BOOL)
		return wrong_type(k, key, "bool", err);
	*out = k->value[0] != 0;
	return 0;
}

int gguf_get_string(
	const struct gguf *gguf, const char *key, struct gguf_string *out, struct error *err)
{
	const struct gguf_key *k = gguf_key_find(gguf, key);
	if (!k)
		return -ENOENT;
	if (k->type != GGUF_STRING)
		return wrong_type(k, key, "a string", err);
	*out = (struct gguf_string){(const char *)k->value, (size_t)k->n};
	return 0;
}

int gguf_get_array(const struct gguf *gguf, const char *key, enum gguf_value_type *type,
	uint64_t *n, struct error *err)
{
	const struct gguf_key *k = gguf_key_find(gguf, key);
	if (!k)
		return -ENOENT;
	if (k->type != GGUF_ARRAY)
		return wrong_type(k, key, "an array", err);
	*type = k->element;
	*n = k->n;
	return 0;
}

static struct gguf_string string_at(const struct gguf *gguf, const struct gguf_key *k, uint64_t i)
{
	const unsigned char *at = gguf->data + k->strings[i];
	return (struct gguf_string){(const char *)at + 8, (size_t)gguf_load_u64(at)};
}

struct gguf_string gguf_array_string(const struct gguf *gguf, const char *key, uint64_t i)
{
	const struct gguf_key *k = gguf_key_find(gguf, key);
	if (!k || !k->strings || i >= k->n)
		return (struct gguf_string){"", 0};
	return string_at(gguf, k, i);
}

static const unsigned char *element_at(const struct gguf_key *k, uint64_t i)
{
	if (!k || k->type != GGUF_ARRAY || k->strings || i >= k->n)
		return NULL;
	return k->value + i * gguf_element_bytes(k->element);
}

int64_t gguf_array_i64(const struct gguf *gguf, const char *key, uint64_t i)
{
	const struct gguf_key *k = gguf_key_find(gguf, key);
	const unsigned char *at = element_at(k, i);
	return at ? gguf_load_integer(k->element, at) : 0;
}

double gguf_array_f64(const struct gguf *gguf, const char *key, uint64_t i)
{
	const struct gguf_key *k = gguf_key_find(gguf, key);
	const unsigned char *at = element_at(k, i);
	if (!at)
		return 0;
	return k->element == GGUF_F32 || k->element == GGUF_F64 ? gguf_load_float(k->element, at)
								: 0;
}

const void *gguf_array_raw(const struct gguf *gguf, const char *key)
{
	const struct gguf_key *k = gguf_key_find(gguf, key);
	return k && k->type == GGUF_ARRAY && !k->strings ? k->value : NULL;
}

size_t gguf_n_keys(const struct gguf *gguf)
{
	return gguf->n_keys;
}

struct gguf_string gguf_key_at(const struct gguf *gguf, size_t i)
{
	return i < gguf->n_keys ? gguf->keys[i].name : (struct gguf_string){"", 0};
}

/* Whether the character of n bytes is a control character (C0, DEL or C1). */
static bool is_control(const char *text, size_t n)
{
	unsigned char first = (unsigned char)text[0];

	if (n == 1)
		return first < ' ' || first == 127;
	return n == 2 && first == 0xc2 && (unsigned char)text[1] < 0xa0;
}

/* Appends as much as fits. Control characters become spaces, so that a value stays on one line, and
 * bytes that are not UTF-8 question marks. A multi-byte character is not cut. */
static void append_string(char *out, size_t bytes, struct gguf_string s)
{
	size_t used = strlen(out);

	for (size_t i = 0; i < s.bytes;) {
		size_t n = utf8_sequence(s.data + i, s.bytes - i);
		const char *shown = n == 0 ? "?" : is_control(s.data + i, n) ? " " : s.data + i;
		size_t more = shown == s.data + i ? n : 1;

		if (used + more >= bytes)
			break;
		memcpy(out + used, shown, more);
		used += more;
		i += n ? n : 1;
	}
	out[used] = '\0';
}

static void append_scalar(
	char *out, size_t bytes, enum gguf_value_type type, const unsigned char *at)
{
	char text[40];
	if (type == GGUF_F32)
		snprintf(text, sizeof(text), "%.9g", gguf_load_float(type, at));
	else if (type == GGUF_F64)
		snprintf(text, sizeof(text), "%.17g", gguf_load_float(type, at));
	else if (type == GGUF_BOOL)
		snprintf(text, sizeof(text), "%s", at[0] ? "true" : "false");
	else if (type == GGUF_U64)
		snprintf(text, sizeof(text), "%llu", (unsigned long long)gguf_load_u64(at));
	else
		snprintf(text, sizeof(text), "%lld", (long long)gguf_load_integer(type, at));
	append_string(out, bytes, (struct gguf_string){text, strlen(text)});
}

static void append_text(char *out, size_t bytes, const char *text)
{
	append_string(out, bytes, (struct gguf_string){text, strlen(text)});
}

static void append_array(const struct gguf *gguf, const struct gguf_key *k, char *out, size_t bytes)
{
	enum { SHOWN = 8 };
	char head[64];
	snprintf(head, sizeof(head), "%s[%llu]: ", gguf_value_type_name(k->element),
		(unsigned long long)k->n);
	append_text(out, bytes, head);
	for (uint64_t i = 0; i < k->n && i < SHOWN; i++) {
		if (i)
			append_text(out, bytes, ", ");
		if (k->strings)
			append_string(out, bytes, string_at(gguf, k, i));
		else
			append_scalar(out, bytes, k->element, element_at(k, i));
	}
	if (k->n > SHOWN)
		append_text(out, bytes, ", ...");
}

void gguf_value_text(const struct gguf *gguf, size_t i, char *out, size_t out_bytes)
{
	if (!out_bytes)
		return;
	out[0] = '\0';
	if (i >= gguf->n_keys)
		return;
	const struct gguf_key *k = &gguf->keys[i];
	if (k->type == GGUF_STRING)
		append_string(
			out, out_bytes, (struct gguf_string){(const char *)k->value, (size_t)k->n});
	else if (k->type == GGUF_ARRAY)
		append_array(gguf, k, out, out_bytes);
	else
		append_scalar(out, out_bytes, k->type, k->value);
}

/* Where the value ends. */
static const unsigned char *value_end(const struct gguf *gguf, const struct gguf_key *key)
{
	if (key->type == GGUF_STRING)
		return key->value + key->n;
	if (key->type != GGUF_ARRAY)
		return key->value + gguf_element_bytes(key->type);
	if (!key->strings)
		return key->value + key->n * gguf_element_bytes(key->element);
	if (key->n == 0)
		return key->value;
	const unsigned char *last = gguf->data + key->strings[key->n - 1];
	return last + 8 + gguf_load_u64(last);
}

const void *gguf_key_raw(const struct gguf *gguf, size_t i, size_t *bytes)
{
	const struct gguf_key *key = &gguf->keys[i];
	const unsigned char *begin = (const unsigned char *)key->name.data - 8;
	*bytes = (size_t)(value_end(gguf, key) - begin);
	return begin;
}
