#include "shared/model/text/template/text.h"

#include "shared/base/utf8.h"

#include <string.h>

void builder_init(struct builder *b, struct arena *arena, size_t max_bytes)
{
	memset(b, 0, sizeof(*b));
	b->arena = arena;
	b->max_bytes = max_bytes;
}

void builder_reserve(struct builder *b, size_t bytes)
{
	if (bytes > b->max_bytes - b->bytes)
		arena_fail(b->arena,
			error_set(b->arena->err, E2BIG, "a text of the template is over %zu bytes",
				b->max_bytes));
	if (bytes <= b->capacity - b->bytes)
		return;
	size_t capacity = b->capacity ? 2 * b->capacity : 64;
	if (capacity < b->bytes + bytes)
		capacity = b->bytes + bytes;
	b->data = arena_grow(b->arena, b->data, b->bytes, capacity, 1);
	if (b->mask)
		b->mask = arena_grow(b->arena, b->mask, b->bytes, capacity, 1);
	b->capacity = capacity;
}

/* There is a mask from the first byte on whose origin differs from that of the bytes before it. */
static void note_origin(struct builder *b, size_t bytes, const uint8_t *mask, bool literal)
{
	bool mixed = mask || (literal ? b->any_data : b->any_literal);
	if (mixed && !b->mask) {
		b->mask = arena_array(b->arena, b->capacity, 1);
		memset(b->mask, b->any_literal, b->bytes);
	}
	if (mask)
		memcpy(b->mask + b->bytes, mask, bytes);
	else if (b->mask)
		memset(b->mask + b->bytes, literal, bytes);
	b->any_literal |= mask || literal;
	b->any_data |= mask || !literal;
}

static void add(
	struct builder *b, const char *data, size_t bytes, const uint8_t *mask, bool literal)
{
	if (!bytes)
		return;
	builder_reserve(b, bytes);
	memcpy(b->data + b->bytes, data, bytes);
	note_origin(b, bytes, mask, literal);
	b->bytes += bytes;
}

void builder_add(struct builder *b, const char *data, size_t bytes, bool literal)
{
	add(b, data, bytes, NULL, literal);
}

void builder_text(struct builder *b, const char *text)
{
	add(b, text, strlen(text), NULL, true);
}

void builder_char(struct builder *b, char c)
{
	add(b, &c, 1, NULL, true);
}

void builder_string(struct builder *b, const struct string *s)
{
	add(b, s->data, s->bytes, s->mask, s->literal);
}

void builder_slice(struct builder *b, const struct string *s, size_t from, size_t to)
{
	add(b, s->data + from, to - from, s->mask ? s->mask + from : NULL, s->literal);
}

void builder_code_point(struct builder *b, uint32_t code, bool literal)
{
	char out[4] = "";
	size_t bytes = text_encode(code, out);
	add(b, out, bytes, NULL, literal);
}

struct string *builder_finish(struct builder *b)
{
	struct string *s = arena_alloc(b->arena, sizeof(*s));
	*s = (struct string){
		.data = b->data ? b->data : "",
		.bytes = b->bytes,
		.mask = b->any_literal && b->any_data ? b->mask : NULL,
		.n_chars = SIZE_MAX,
		.literal = !b->any_data,
	};
	return s;
}

struct string *text_borrow(struct arena *arena, const char *data, size_t bytes, bool literal)
{
	struct string *s = arena_alloc(arena, sizeof(*s));
	*s = (struct string){.data = data, .bytes = bytes, .n_chars = SIZE_MAX, .literal = literal};
	return s;
}

struct string *text_literal(struct arena *arena, const char *text)
{
	return text_borrow(arena, text, strlen(text), true);
}

struct string *text_slice(struct arena *arena, const struct string *s, size_t from, size_t to)
{
	struct string *part = text_borrow(arena, s->data + from, to - from, s->literal);
	part->mask = s->mask && to > from ? s->mask + from : NULL;
	part->markup = s->markup;
	return part;
}

bool text_equal(const struct string *a, const struct string *b)
{
	return a->bytes == b->bytes && memcmp(a->data, b->data, a->bytes) == 0;
}

bool text_is(const struct string *s, const char *text)
{
	return s->bytes == strlen(text) && memcmp(s->data, text, s->bytes) == 0;
}

int text_compare(const struct string *a, const struct string *b)
{
	int order = memcmp(a->data, b->data, a->bytes < b->bytes ? a->bytes : b->bytes);
	return order ? order : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

bool text_literal_at(const struct string *s, size_t i)
{
	return s->mask && i < s->bytes ? s->mask[i] : s->literal;
}

size_t text_char(const char *data, size_t bytes, uint32_t *code)
{
	const unsigned char *s = (const unsigned char *)data;
	*code = s[0];
	if (s[0] < 0x80)
		return 1;
	size_t n = utf8_sequence(data, bytes);
	if (!n) {
		*code = 0xDC00 + s[0];
		return 1;
	}
	*code = s[0] & (0x7Fu >> n);
	for (size_t i = 1; i < n; i++)
		*code = *code << 6 | (s[i] & 0x3F);
	return n;
}

size_t text_chars(struct string *s)
{
	if (s->n_chars == SIZE_MAX) {
		size_t n = 0;
		uint32_t code;
		for (size_t at = 0; at < s->bytes; n++)
			at += text_char(s->data + at, s->bytes - at, &code);
		s->n_chars = n;
	}
	return s->n_chars;
}

size_t text_offset(struct string *s, size_t i)
{
	if (text_chars(s) == s->bytes)
		return i;
	size_t at = 0;
	uint32_t code;
	while (i--)
		at += text_char(s->data + at, s->bytes - at, &code);
	return at;
}

size_t text_encode(uint32_t code, char out[4])
{
	if (code < 0x80) {
		out[0] = (char)code;
		return 1;
	}
	if (code >= 0xDC80 && code <= 0xDCFF) { /* an invalid byte, see text_char */
		out[0] = (char)(code - 0xDC00);
		return 1;
	}
	size_t n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
	for (size_t i = n - 1; i > 0; i--, code >>= 6)
		out[i] = (char)(0x80 | (code & 0x3F));
	out[0] = (char)((0xF00u >> n) | code);
	return n;
}

bool text_is_space(uint32_t c)
{
	return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
	       c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
	       c == 0x202F || c == 0x205F || c == 0x3000;
}

ptrdiff_t text_find(const struct string *s, const struct string *needle, size_t from)
{
	if (from > s->bytes || needle->bytes > s->bytes - from)
		return -1;
	if (!needle->bytes)
		return (ptrdiff_t)from;
	const char *at = memmem(s->data + from, s->bytes - from, needle->data, needle->bytes);
	return at ? at - s->data : -1;
}

static bool stripped(uint32_t code, const struct string *chars)
{
	if (!chars)
		return text_is_space(code);
	uint32_t other;
	for (size_t at = 0; at < chars->bytes;) {
		at += text_char(chars->data + at, chars->bytes - at, &other);
		if (other == code)
			return true;
	}
	return false;
}

struct string *text_strip(struct arena *arena, const struct string *s, const struct string *chars,
	bool left, bool right)
{
	size_t from = 0, to = s->bytes;
	uint32_t code;
	while (left && from < to) {
		size_t n = text_char(s->data + from, to - from, &code);
		if (!stripped(code, chars))
			break;
		from += n;
	}
	while (right && to > from) {
		/* Goes back to the beginning of a character that ends here; if there is none, the
		 * last byte is a character of its own. */
		size_t start = to - 1;
		while (start > from && to - start < 4 && (s->data[start] & 0xC0) == 0x80)
			start--;
		if (text_char(s->data + start, to - start, &code) != to - start) {
			start = to - 1;
			text_char(s->data + start, 1, &code);
		}
		if (!stripped(code, chars))
			break;
		to = start;
	}
	return text_slice(arena, s, from, to);
}
