#include "shared/model/grammar/charset.h"

#include "shared/base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SURROGATES_LO = 0xD800, SURROGATES_HI = 0xDFFF, CONTROLS = 0x20 };

void charset_add(struct rules *builder, struct charset *set, uint32_t lo, uint32_t hi)
{
	if (lo <= hi && builder->rc == 0 &&
		rules_grow(builder, &set->ranges, &set->capacity, set->n, sizeof(*set->ranges)))
		set->ranges[set->n++] = (struct charset_range){lo, hi};
}

static int by_lo(const void *a, const void *b)
{
	const struct charset_range *x = a, *y = b;

	return (x->lo > y->lo) - (x->lo < y->lo);
}

void charset_tidy(struct charset *set)
{
	uint32_t n = 0;

	if (set->n > 0)
		qsort(set->ranges, set->n, sizeof(*set->ranges), by_lo);
	for (uint32_t i = 0; i < set->n; i++) {
		struct charset_range range = set->ranges[i];

		if (n > 0 && range.lo <= set->ranges[n - 1].hi + 1) {
			if (range.hi > set->ranges[n - 1].hi)
				set->ranges[n - 1].hi = range.hi;
		} else {
			set->ranges[n++] = range;
		}
	}
	set->n = n;
}

void charset_negate(struct rules *builder, struct charset *set)
{
	struct charset out = {0};
	uint32_t next = 0;

	charset_tidy(set);
	for (uint32_t i = 0; i < set->n; i++) {
		if (set->ranges[i].lo > next)
			charset_add(builder, &out, next, set->ranges[i].lo - 1);
		next = set->ranges[i].hi + 1;
	}
	if (next <= CHARSET_LAST)
		charset_add(builder, &out, next, CHARSET_LAST);
	free(set->ranges);
	*set = out;
}

void charset_fold(struct rules *builder, struct charset *set)
{
	uint32_t n = set->n;

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t c = 'A'; c <= 'Z'; c++) {
			struct charset_range range = set->ranges[i];

			if (range.lo <= c && c <= range.hi)
				charset_add(builder, set, c | 0x20, c | 0x20);
			if (range.lo <= (c | 0x20) && (c | 0x20) <= range.hi)
				charset_add(builder, set, c, c);
		}
}

uint32_t charset_encode(uint32_t code, uint8_t out[static 4])
{
	if (code < 0x80) {
		out[0] = (uint8_t)code;
		return 1;
	}
	uint32_t n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
	for (uint32_t i = n; i-- > 1; code >>= 6)
		out[i] = (uint8_t)(0x80 | (code & 0x3F));
	out[0] = (uint8_t)((0xF00u >> n & 0xFF) | code);
	return n;
}

uint32_t charset_decode(const char *text, size_t bytes, size_t *n)
{
	const uint8_t *t = (const uint8_t *)text;
	static const uint8_t first[] = {0, 0x7F, 0x1F, 0x0F, 0x07};

	*n = utf8_sequence(text, bytes);
	if (*n == 0)
		return 0;
	uint32_t code = t[0] & first[*n];
	for (size_t i = 1; i < *n; i++)
		code = code << 6 | (t[i] & 0x3F);
	return code;
}

/* All encodings between lo and hi have n bytes, of which the first `same` are equal. If the
 * remaining bytes cover their whole range, that is one sequence of byte ranges; otherwise the range
 * is cut where they do not. */
static void add_utf8(struct rules *builder, struct expr_list *list, uint32_t lo, uint32_t hi)
{
	static const uint32_t last_of[] = {0x7F, 0x7FF, 0xFFFF};
	uint8_t from[4] = {0}, to[4] = {0};
	uint32_t kids[4];

	for (uint32_t i = 0; i < 3; i++)
		if (lo <= last_of[i] && hi > last_of[i]) {
			add_utf8(builder, list, lo, last_of[i]);
			add_utf8(builder, list, last_of[i] + 1, hi);
			return;
		}
	for (uint32_t i = 1; i < 4 && hi >= 0x80; i++) {
		uint32_t mask = (1u << (6 * i)) - 1;

		if ((lo & ~mask) == (hi & ~mask))
			continue;
		if ((lo & mask) != 0) {
			add_utf8(builder, list, lo, lo | mask);
			add_utf8(builder, list, (lo | mask) + 1, hi);
			return;
		}
		if ((hi & mask) != mask) {
			add_utf8(builder, list, lo, (hi & ~mask) - 1);
			add_utf8(builder, list, hi & ~mask, hi);
			return;
		}
	}
	uint32_t n = charset_encode(lo, from);
	charset_encode(hi, to);
	for (uint32_t i = 0; i < n; i++)
		kids[i] = expr_range(builder, from[i], to[i]);
	expr_list_add(builder, list, expr_seq(builder, kids, n));
}

/* The escape of a code point that JSON requires to be escaped. */
static uint32_t escape(struct rules *builder, uint32_t code)
{
	static const char plain[] = "\"\"\\\\b\bf\fn\nr\rt\t";
	char text[16];

	for (size_t i = 0; i + 1 < sizeof(plain); i += 2)
		if ((uint32_t)plain[i + 1] == code) {
			snprintf(text, sizeof(text), "\\%c", plain[i]);
			return expr_text(builder, text);
		}
	snprintf(text, sizeof(text), "\\u00%u", code >> 4);
	uint32_t digit = code & 15;
	if (digit < 10)
		return expr_seq2(builder, expr_text(builder, text),
			expr_range(builder, (uint8_t)('0' + digit), (uint8_t)('0' + digit)));
	uint8_t lower = (uint8_t)('a' + digit - 10), upper = (uint8_t)('A' + digit - 10);
	return expr_seq2(builder, expr_text(builder, text),
		expr_alt2(builder, expr_range(builder, lower, lower),
			expr_range(builder, upper, upper)));
}

static bool must_escape(uint32_t code)
{
	return code < CONTROLS || code == '"' || code == '\\';
}

static void add_json(struct rules *builder, struct expr_list *list, uint32_t lo, uint32_t hi)
{
	uint32_t from = lo;

	for (uint32_t code = lo; code <= hi && code <= '\\'; code++) {
		if (!must_escape(code))
			continue;
		expr_list_add(builder, list, escape(builder, code));
		if (from < code)
			add_utf8(builder, list, from, code - 1);
		from = code + 1;
	}
	if (from <= hi)
		add_utf8(builder, list, from, hi);
}

uint32_t charset_expr(struct rules *builder, struct charset *set, enum charset_coding coding)
{
	void (*add)(struct rules *, struct expr_list *, uint32_t, uint32_t) =
		coding == CHARSET_JSON ? add_json : add_utf8;
	struct expr_list list = {0};

	charset_tidy(set);
	for (uint32_t i = 0; i < set->n; i++) {
		uint32_t lo = set->ranges[i].lo, hi = set->ranges[i].hi;

		if (hi > CHARSET_LAST)
			hi = CHARSET_LAST;
		if (lo > hi)
			continue;
		if (lo < SURROGATES_LO)
			add(builder, &list, lo, hi < SURROGATES_LO ? hi : SURROGATES_LO - 1);
		if (hi > SURROGATES_HI)
			add(builder, &list, lo > SURROGATES_HI ? lo : SURROGATES_HI + 1, hi);
	}
	free(set->ranges);
	*set = (struct charset){0};
	return expr_list_alt(builder, &list);
}

uint32_t charset_text(
	struct rules *builder, const char *text, size_t bytes, enum charset_coding coding)
{
	struct expr_list list = {0};
	size_t from = 0;

	if (coding == CHARSET_UTF8)
		return expr_bytes(builder, text, bytes);
	for (size_t i = 0; i < bytes; i++) {
		if (!must_escape((uint8_t)text[i]))
			continue;
		if (from < i)
			expr_list_add(builder, &list, expr_bytes(builder, text + from, i - from));
		expr_list_add(builder, &list, escape(builder, (uint8_t)text[i]));
		from = i + 1;
	}
	if (from < bytes)
		expr_list_add(builder, &list, expr_bytes(builder, text + from, bytes - from));
	return expr_list_seq(builder, &list);
}
