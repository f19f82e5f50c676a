/*
 * Strings of the template language, and the builder that composes them, in an arena. Each byte
 * keeps its origin: the template or the conversation (struct string in value.h). Characters are
 * code points; a byte that is not UTF-8 counts as one.
 */
#pragma once

#include "shared/model/text/template/arena.h"
#include "shared/model/text/template/value.h"

struct builder {
	struct arena *arena;
	size_t max_bytes; /* beyond it the work fails */
	char *data;
	uint8_t *mask;
	size_t bytes, capacity;
	bool any_literal, any_data;
};

void builder_init(struct builder *b, struct arena *arena, size_t max_bytes);
/* Makes room for this many more bytes; fails beyond max_bytes. */
void builder_reserve(struct builder *b, size_t bytes);
void builder_add(struct builder *b, const char *data, size_t bytes, bool literal);
void builder_text(struct builder *b, const char *text); /* the template's own */
void builder_char(struct builder *b, char c); /* the template's own */
void builder_string(struct builder *b, const struct string *s);
void builder_slice(struct builder *b, const struct string *s, size_t from, size_t to);
void builder_code_point(struct builder *b, uint32_t code, bool literal);
struct string *builder_finish(struct builder *b);

/* Borrows data. */
struct string *text_borrow(struct arena *arena, const char *data, size_t bytes, bool literal);
struct string *text_literal(struct arena *arena, const char *text);
/* Bytes from..to-1; borrows. */
struct string *text_slice(struct arena *arena, const struct string *s, size_t from, size_t to);

bool text_equal(const struct string *a, const struct string *b);
bool text_is(const struct string *s, const char *text);
/* < 0, 0, > 0, by code points, which for UTF-8 is by bytes. */
int text_compare(const struct string *a, const struct string *b);
/* True when the template wrote byte i. */
bool text_literal_at(const struct string *s, size_t i);

/* The number of bytes of the character at data (bytes > 0), and its code point; for an invalid byte
 * that is the byte + 0xDC00, as in Python. */
size_t text_char(const char *data, size_t bytes, uint32_t *code);
size_t text_chars(struct string *s);
/* Offset at which character i begins; i up to text_chars(s). */
size_t text_offset(struct string *s, size_t i);
size_t text_encode(uint32_t code, char out[4]);
bool text_is_space(uint32_t code); /* Python's str.isspace */
/* The first occurrence of needle in s from byte `from` on, or -1. */
ptrdiff_t text_find(const struct string *s, const struct string *needle, size_t from);
/* s without the characters of `chars` (NULL: spaces) at its ends. */
struct string *text_strip(struct arena *arena, const struct string *s, const struct string *chars,
	bool left, bool right);
