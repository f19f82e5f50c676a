/* Numbers in ranges, and multiples. Bounds are compared digit by digit, as decimal texts, so that
 * nothing is rounded. */
#include "shared/model/grammar/regex.h"
#include "shared/model/grammar/schema_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS = 400, MULTIPLE_MAX = 4096 };

/* A number as text, without zeros before the whole part (which may be "0") or after the fraction.
 */
struct digits {
	bool negative;
	char whole[DIGITS], fraction[DIGITS];
};

void schema_shortest(double value, int *precision, char out[static SCHEMA_NUMBER_BYTES])
{
	for (*precision = 0; *precision < 17; ++*precision) {
		snprintf(out, SCHEMA_NUMBER_BYTES, "%.*e", *precision, value);
		if (strtod(out, NULL) == value)
			return;
	}
}

static void digits_of(const json_t *number, struct digits *out)
{
	char text[SCHEMA_NUMBER_BYTES], *e;
	int precision;
	size_t n = 0;
	long exponent;

	memset(out, 0, sizeof(*out));
	if (json_is_integer(number)) {
		json_int_t v = json_integer_value(number);

		out->negative = v < 0;
		snprintf(out->whole, sizeof(out->whole), "%llu",
			v < 0 ? 0ull - (unsigned long long)v : (unsigned long long)v);
		return;
	}
	double v = json_real_value(number);
	out->negative = v < 0;
	schema_shortest(fabs(v), &precision, text);
	e = strchr(text, 'e');
	exponent = strtol(e + 1, NULL, 10);
	/* One digit stands before the point. */
	for (long i = exponent; i < 0; i++)
		out->fraction[n++] = '0';
	if (exponent < 0)
		n--;
	size_t whole = 0;
	for (const char *c = text; c < e; c++) {
		if (*c == '.')
			continue;
		if (exponent-- >= 0)
			out->whole[whole++] = *c;
		else
			out->fraction[n++] = *c;
	}
	for (; exponent >= 0; exponent--)
		out->whole[whole++] = '0';
	if (whole == 0)
		out->whole[0] = '0';
	while (n > 0 && out->fraction[n - 1] == '0')
		n--;
	out->fraction[n] = 0;
}

static bool is_zero(const struct digits *d)
{
	return strcmp(d->whole, "0") == 0 && d->fraction[0] == 0;
}

static uint32_t digit(struct rules *b, int lo, int hi)
{
	return lo > hi ? EXPR_NEVER : expr_range(b, (uint8_t)lo, (uint8_t)hi);
}

static uint32_t any_digits(struct rules *b, uint32_t min, uint32_t max)
{
	return expr_repeat(b, digit(b, '0', '9'), min, max);
}

static uint32_t any_fraction(struct rules *b)
{
	return expr_optional(b, expr_seq2(b, expr_text(b, "."), any_digits(b, 1, EXPR_MANY)));
}

/* Digits that first differ from `of` at some place, where they are smaller or greater; then `rest`
 * more digits. */
static void differ(struct rules *b, struct expr_list *list, const char *before, const char *of,
	bool less, bool same_length, uint32_t behind)
{
	size_t n = strlen(of);

	for (size_t i = 0; i < n; i++) {
		uint32_t one = less ? digit(b, '0', of[i] - 1) : digit(b, of[i] + 1, '9'),
			 rest = same_length ? (uint32_t)(n - i - 1) : 0;

		if (one == EXPR_NEVER)
			continue;
		expr_list_add(b, list,
			expr_seq(b,
				(uint32_t[]){expr_text(b, before), expr_bytes(b, of, i), one,
					any_digits(b, rest, same_length ? rest : EXPR_MANY),
					behind},
				5));
	}
}

/* Unsigned texts of numbers that are less or greater than the bound without its sign; or equal. */
static uint32_t compared(struct rules *b, const struct digits *bound, bool less, bool equal)
{
	uint32_t n = (uint32_t)strlen(bound->whole), n_fraction = (uint32_t)strlen(bound->fraction);
	uint32_t fraction = any_fraction(b),
		 zeros = expr_repeat(b, digit(b, '0', '0'), 0, EXPR_MANY);
	char point[DIGITS + 1];
	struct expr_list list = {0};

	if (less && n > 1)
		expr_list_add(b, &list, expr_seq2(b, any_digits(b, 1, n - 1), fraction));
	if (!less)
		expr_list_add(b, &list, expr_seq2(b, any_digits(b, n + 1, EXPR_MANY), fraction));
	differ(b, &list, "", bound->whole, less, true, fraction);
	snprintf(point, sizeof(point), "%.398s.", bound->whole);
	differ(b, &list, point, bound->fraction, less, false, EXPR_EMPTY);
	if (n_fraction > 0 && less) {
		/* A prefix of the fraction is less, because the digits left out are not all zeros.
		 */
		expr_list_add(b, &list, expr_text(b, bound->whole));
		for (uint32_t i = 1; i < n_fraction; i++)
			expr_list_add(b, &list,
				expr_seq2(
					b, expr_text(b, point), expr_bytes(b, bound->fraction, i)));
	} else if (!less) {
		/* The same with more digits behind it is greater, if one of them is not zero. */
		expr_list_add(b, &list,
			expr_seq(b,
				(uint32_t[]){expr_text(b, point), expr_text(b, bound->fraction),
					zeros, digit(b, '1', '9'), any_digits(b, 0, EXPR_MANY)},
				5));
	}
	if (equal && n_fraction > 0)
		expr_list_add(b, &list,
			expr_seq(b,
				(uint32_t[]){
					expr_text(b, point), expr_text(b, bound->fraction), zeros},
				3));
	else if (equal)
		expr_list_add(b, &list,
			expr_seq2(b, expr_text(b, bound->whole),
				expr_optional(b, expr_seq(b,
							 (uint32_t[]){expr_text(b, "."),
								 digit(b, '0', '0'), zeros},
							 3))));
	return expr_list_alt(b, &list);
}

/* Texts of numbers, with their sign, on one side of the bound. */
static uint32_t bounded(struct rules *b, const json_t *bound, bool at_most, bool equal)
{
	struct digits d;

	digits_of(bound, &d);
	uint32_t all = expr_seq2(b, any_digits(b, 1, EXPR_MANY), any_fraction(b)),
		 minus = expr_text(b, "-");
	if (is_zero(&d)) {
		/* -0 is zero, so the sign alone decides nothing. */
		uint32_t zero = compared(b, &d, true, true), more = compared(b, &d, false, false);
		uint32_t out = at_most ? expr_seq2(b, minus, more) : more;

		return equal ? expr_alt2(b, out, expr_seq2(b, expr_optional(b, minus), zero)) : out;
	}
	if (d.negative == at_most) {
		/* Further from zero than the bound. */
		uint32_t out = compared(b, &d, false, equal);

		return d.negative ? expr_seq2(b, minus, out) : out;
	}
	uint32_t out = compared(b, &d, true, equal);
	return d.negative ? expr_alt2(b, expr_seq2(b, minus, out), all)
			  : expr_alt2(b, out, expr_seq2(b, minus, all));
}

struct multiple {
	uint32_t of, decimals; /* of / 10^decimals */
};

static bool multiple_of(const json_t *number, struct multiple *out)
{
	struct digits d;

	digits_of(number, &d);
	out->decimals = (uint32_t)strlen(d.fraction);
	if (d.negative || is_zero(&d) || strlen(d.whole) > 6 || out->decimals > 6)
		return false;
	out->of = (uint32_t)strtoul(d.whole, NULL, 10);
	for (const char *c = d.fraction; *c != 0; c++)
		out->of = out->of > MULTIPLE_MAX ? out->of : out->of * 10 + (uint32_t)(*c - '0');
	return out->of <= MULTIPLE_MAX;
}

/* Unsigned texts of the multiples. State 2 is behind a leading 0; from 3 on there is one state for
 * each remainder and number of decimals. */
static uint32_t multiples(struct rules *b, struct multiple m, bool whole)
{
	struct expr_arc *arcs = NULL;
	uint32_t n = 0, capacity = 0, levels = whole ? 1 : m.decimals + 1;
#define ARC(from, expr, to)                                            \
	do {                                                           \
		if (rules_grow(b, &arcs, &capacity, n, sizeof(*arcs))) \
			arcs[n++] = (struct expr_arc){from, expr, to}; \
	} while (0)
#define LEVEL(level, remainder) (3 + (level)*m.of + (remainder))
	uint32_t digits[10], point = expr_text(b, ".");

	for (int i = 0; i < 10; i++)
		digits[i] = digit(b, '0' + i, '0' + i);
	ARC(0, digits[0], 2);
	ARC(2, EXPR_EMPTY, 1);
	for (uint32_t i = 1; i < 10; i++)
		ARC(0, digits[i], LEVEL(0, i % m.of));
	for (uint32_t level = 0; level < levels; level++) {
		uint64_t scale = 1;

		for (uint32_t i = level; i < m.decimals; i++)
			scale *= 10;
		for (uint32_t r = 0; r < m.of; r++) {
			if (r * scale % m.of == 0)
				ARC(LEVEL(level, r), EXPR_EMPTY, 1);
			for (uint32_t i = 0; i < 10 && (level == 0 || level + 1 < levels); i++)
				ARC(LEVEL(level, r), digits[i],
					LEVEL(level == 0 ? 0 : level + 1, (r * 10 + i) % m.of));
			for (uint32_t i = 0; i < 10 && level == 0 && levels > 1; i++)
				ARC(LEVEL(0, r), expr_seq2(b, point, digits[i]),
					LEVEL(1, (r * 10 + i) % m.of));
		}
	}
	for (uint32_t i = 0; i < 10 && levels > 1; i++)
		ARC(2, expr_seq2(b, point, digits[i]), LEVEL(1, i % m.of));
	uint32_t expr = expr_graph(b, 3 + levels * m.of, arcs, n);
	free(arcs);
	return expr;
#undef LEVEL
#undef ARC
}

uint32_t schema_number(
	struct schema *schema, const json_t *node, const struct schema_merged *merged)
{
	static const char whole[] = "-?(0|[1-9][0-9]*)",
			  fraction[] = "-?(0|[1-9][0-9]*)(\\.[0-9]+)?",
			  any[] = "-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?";
	struct rules *b = schema->builder;
	bool integer = (merged->types & TYPE_FRACTION) == 0;
	bool limited = merged->n_minimum + merged->n_maximum + merged->n_multiple > 0;
	const char *text = integer ? whole : limited ? fraction : any;
	uint32_t expr = regex_expr(b, text, strlen(text), REGEX_WHOLE, CHARSET_UTF8);

	for (uint32_t i = 0; i < merged->n_minimum; i++)
		expr = expr_and(b, expr, bounded(b, merged->minimum[i], false, !merged->above[i]));
	for (uint32_t i = 0; i < merged->n_maximum; i++)
		expr = expr_and(b, expr, bounded(b, merged->maximum[i], true, !merged->below[i]));
	for (uint32_t i = 0; i < merged->n_multiple; i++) {
		struct multiple m;

		if (!multiple_of(merged->multiple[i], &m))
			return schema_fail(schema, node,
				"multipleOf is supported for numbers above 0 of up to 6 decimals "
				"whose digits make at most %d",
				MULTIPLE_MAX);
		expr = expr_and(b, expr,
			expr_seq2(
				b, expr_optional(b, expr_text(b, "-")), multiples(b, m, integer)));
	}
	return expr;
}
