/* "..." % values and "...".format(): Python's two ways to fill in a text. */
#include "shared/model/text/template/strings.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH_MAX = 1 << 20, PRECISION_MAX = 300 };

struct spec {
	const struct string *fill; /* one character; NULL: a space */
	char align; /* < > ^ = or 0 */
	char sign; /* + - space or 0 */
	bool alternative, zero, comma;
	int64_t width; /* -1: none */
	int precision; /* -1: none */
	char type; /* 0: by the value */
};

static int64_t read_int(
	struct render *r, const struct string *s, size_t *at, int64_t max, int64_t otherwise)
{
	int64_t n = 0;
	size_t start = *at;
	while (*at < s->bytes && s->data[*at] >= '0' && s->data[*at] <= '9') {
		n = n * 10 + (s->data[(*at)++] - '0');
		if (n > max)
			render_fail(
				r, "a width or precision of a format is over %lld", (long long)max);
	}
	return *at > start ? n : otherwise;
}

/* body (the number's digits or a text, n_sign of its first bytes a sign or prefix) in its width. */
static void pad(struct render *r, struct builder *b, const struct spec *spec, struct string *body,
	size_t n_sign, char default_align)
{
	const struct string *fill =
		spec->fill ? spec->fill : text_literal(&r->arena, spec->zero ? "0" : " ");
	char align = spec->align ? spec->align : spec->zero ? '=' : default_align;
	render_charge_text(r, body->bytes);
	int64_t missing = spec->width - (int64_t)text_chars(body);
	if (missing > 0)
		render_charge_text(r, (size_t)missing);
	int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
	size_t first = align == '=' ? n_sign : 0;
	builder_slice(b, body, 0, first);
	for (int64_t i = 0; i < left; i++)
		builder_string(b, fill);
	builder_slice(b, body, first, body->bytes);
	for (int64_t i = left; i < missing; i++)
		builder_string(b, fill);
}

/* Digits with a comma between thousands; what follows them (a fraction) stays. */
static void add_digits(struct builder *b, const char *digits, bool comma)
{
	size_t n = strspn(digits, "0123456789");
	for (size_t i = 0; i < n; i++) {
		if (comma && i && (n - i) % 3 == 0)
			builder_char(b, ',');
		builder_char(b, digits[i]);
	}
	builder_text(b, digits + n);
}

static void put_number(struct render *r, struct builder *b, const struct spec *spec, bool negative,
	const char *prefix, const char *digits, const char *suffix)
{
	struct builder body;
	builder_init(&body, &r->arena, r->limits->output_bytes);
	if (negative)
		builder_char(&body, '-');
	else if (spec->sign == '+' || spec->sign == ' ')
		builder_char(&body, spec->sign);
	builder_text(&body, prefix);
	size_t n_sign = body.bytes;
	add_digits(&body, digits, spec->comma);
	builder_text(&body, suffix);
	pad(r, b, spec, builder_finish(&body), n_sign, '>');
}

static void put_int(struct render *r, struct builder *b, const struct spec *spec, int64_t i)
{
	char digits[80], *at = digits + sizeof(digits) - 1;
	char type = spec->type ? spec->type : 'd';
	uint64_t base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
	uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
	*at = '\0';
	do {
		*--at = (type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[u % base];
		u /= base;
	} while (u);
	const char prefix[3] = {'0', type, '\0'};
	put_number(r, b, spec, i < 0, spec->alternative && base != 10 ? prefix : "", at, "");
}

/* Like %g, but with at least one digit behind the dot; without a precision, with as many digits as
 * are needed. */
static void put_float(struct render *r, struct builder *b, const struct spec *spec, double f)
{
	char digits[800];
	bool negative = signbit(f) && !isnan(f);
	char type = spec->type;
	struct builder plain;
	const char *text = digits;
	f = fabs(f);
	render_charge(r, RENDER_FORMAT);
	if (!isfinite(f)) {
		bool upper = type == 'F' || type == 'E' || type == 'G';
		text = isnan(f) ? (upper ? "NAN" : "nan") : upper ? "INF" : "inf";
	} else if (!type && spec->precision < 0) {
		builder_init(&plain, &r->arena, 64);
		print_float(r, &plain, f);
		builder_char(&plain, '\0');
		text = plain.data;
	} else {
		int precision = spec->precision < 0 ? 6 : spec->precision;
		/* Without a type: like g, but with a digit behind the dot. */
		char format[] = {'%', '.', '*', type == '%' ? 'f' : type ? type : 'g', '\0'};
		if (type == '%')
			f *= 100;
		if (type == 'g' || type == 'G' || !type)
			precision = precision ? precision : 1;
		snprintf(digits, sizeof(digits), format, precision, f);
		if (!type && !strpbrk(digits, ".e"))
			memcpy(digits + strlen(digits), ".0", 3);
	}
	put_number(r, b, spec, negative, "", text, type == '%' ? "%" : "");
}

static void put_string(
	struct render *r, struct builder *b, const struct spec *spec, struct string *s)
{
	if (spec->precision >= 0 && (size_t)spec->precision < text_chars(s))
		s = text_slice(&r->arena, s, 0, text_offset(s, (size_t)spec->precision));
	pad(r, b, spec, s, 0, '<');
}

static void read_spec(struct render *r, struct string *s, struct spec *spec)
{
	size_t at = 0;
	uint32_t code;
	*spec = (struct spec){.width = -1, .precision = -1};
	size_t first = s->bytes ? text_char(s->data, s->bytes, &code) : 0;
	if (first && first < s->bytes && s->data[first] && strchr("<>=^", s->data[first])) {
		spec->fill = text_slice(&r->arena, s, 0, first);
		spec->align = s->data[first];
		at = first + 1;
	} else if (s->bytes && s->data[0] && strchr("<>=^", s->data[0])) {
		spec->align = s->data[at++];
	}
	if (at < s->bytes && s->data[at] && strchr("+- ", s->data[at]))
		spec->sign = s->data[at++];
	if (at < s->bytes && s->data[at] == '#') {
		spec->alternative = true;
		at++;
	}
	if (at < s->bytes && s->data[at] == '0') {
		spec->zero = true;
		at++;
	}
	spec->width = read_int(r, s, &at, WIDTH_MAX, -1);
	if (at < s->bytes && s->data[at] == ',') {
		spec->comma = true;
		at++;
	}
	if (at < s->bytes && s->data[at] == '.') {
		at++;
		spec->precision = (int)read_int(r, s, &at, PRECISION_MAX, -2);
	}
	if (at < s->bytes && spec->precision != -2)
		spec->type = s->data[at++];
	if (at < s->bytes || spec->precision == -2)
		render_fail(r, "the format \"%s\" is not supported", shown(s).text);
}

static void put_value(struct render *r, struct builder *b, struct value v, struct string *text)
{
	struct spec spec;
	if (!text->bytes) {
		print_to(r, b, v);
		return;
	}
	read_spec(r, text, &spec);
	bool of_int = spec.type && strchr("dxXob", spec.type);
	bool of_float = spec.type && strchr("eEfFgG%", spec.type);
	if (v.kind == VALUE_BOOL && !spec.type)
		v = value_string(print_text(r, v));
	if (value_is_int(v) && (of_int || !spec.type) && spec.precision < 0)
		put_int(r, b, &spec, value_as_int(v));
	else if (value_is_number(v) && (of_float || (v.kind == VALUE_FLOAT && !spec.type)))
		put_float(r, b, &spec, value_as_float(v));
	else if (v.kind == VALUE_STRING && (!spec.type || spec.type == 's') && spec.align != '=')
		put_string(r, b, &spec, v.s);
	else
		render_fail(
			r, "the format \"%s\" does not fit '%s'", shown(text).text, value_type(v));
}

/* "0.name[key]": an argument by position or name, then its attributes and elements. */
static struct value read_field(
	struct render *r, struct string *field, const struct call *call, size_t *automatic)
{
	size_t at = 0;
	while (at < field->bytes && field->data[at] != '.' && field->data[at] != '[')
		at++;
	struct string *first = text_slice(&r->arena, field, 0, at);
	size_t digits = 0;
	int64_t number =
		first->bytes ? read_int(r, first, &digits, 1 << 20, -1) : (int64_t)(*automatic)++;
	struct value v = {.kind = VALUE_MISSING};
	if (digits == first->bytes && number >= 0 && (size_t)number < call->n_args)
		v = call->args[number];
	render_charge(r, call->n_named * (8 + first->bytes) / 64);
	for (size_t i = 0; digits < first->bytes && i < call->n_named; i++)
		if (text_equal(call->named[i].key.s, first))
			v = call->named[i].value;
	if (v.kind == VALUE_MISSING)
		render_fail(r, "format has no argument \"%s\"", shown(first).text);
	while (at < field->bytes) {
		bool bracket = field->data[at++] == '[';
		size_t end = at;
		while (end < field->bytes &&
			(bracket ? field->data[end] != ']'
				 : field->data[end] != '.' && field->data[end] != '['))
			end++;
		struct string *name = text_slice(&r->arena, field, at, end);
		size_t used = 0;
		int64_t index = read_int(r, name, &used, INT32_MAX, -1);
		if (!bracket)
			v = attribute_get(r, v, name);
		else
			v = attribute_item(r, v,
				used == name->bytes && index >= 0 ? value_int(index)
								  : value_string(name));
		at = end + bracket;
	}
	return v;
}

/* Puts the field between { and }, at from..to-1. */
static void put_field(struct render *r, struct builder *b, struct string *s, size_t from, size_t to,
	const struct call *call, size_t *automatic)
{
	size_t colon = from;
	while (colon < to && s->data[colon] != ':')
		colon++;
	size_t name_end = colon;
	char conversion = '\0';
	if (colon >= from + 2 && s->data[colon - 2] == '!') {
		conversion = s->data[colon - 1];
		name_end = colon - 2;
	}
	struct value v = read_field(r, text_slice(&r->arena, s, from, name_end), call, automatic);
	if (conversion == 'r') {
		struct builder repr;
		builder_init(&repr, &r->arena, r->limits->output_bytes);
		print_repr(r, &repr, v);
		v = value_string(builder_finish(&repr));
	} else if (conversion == 's') {
		v = value_string(print_text(r, v));
	} else if (conversion) {
		render_fail(r, "the conversion !%c is not supported", conversion);
	}
	put_value(r, b, v, text_slice(&r->arena, s, colon < to ? colon + 1 : to, to));
}

struct value format_braces(struct render *r, struct string *s, const struct call *call)
{
	struct builder b;
	size_t automatic = 0;
	render_charge_text(r, s->bytes);
	builder_init(&b, &r->arena, r->limits->output_bytes);
	for (size_t at = 0; at < s->bytes; at++) {
		char c = s->data[at];
		if (c != '{' && c != '}') {
			builder_slice(&b, s, at, at + 1);
			continue;
		}
		render_charge(r, 1);
		if (at + 1 < s->bytes && s->data[at + 1] == c) {
			builder_slice(&b, s, at, at + 1);
			at++;
			continue;
		}
		size_t end = at + 1;
		while (end < s->bytes && s->data[end] != '}' && s->data[end] != '{')
			end++;
		if (c == '}' || end == s->bytes)
			render_fail(r, "format: a brace has no partner");
		if (s->data[end] == '{')
			render_fail(r, "format: a field within a field is not supported");
		put_field(r, &b, s, at + 1, end, call, &automatic);
		at = end;
	}
	struct string *out = builder_finish(&b);
	out->markup = s->markup;
	return value_string(out);
}

struct percent {
	struct value values;
	size_t next; /* of a tuple */
	bool used; /* the values as one */
};

static struct value next_value(struct render *r, struct percent *p)
{
	if (p->values.kind == VALUE_TUPLE) {
		if (p->next == p->values.list->n)
			render_fail(r, "not enough values for the format");
		return p->values.list->items[p->next++];
	}
	if (p->used)
		render_fail(r, "not enough values for the format");
	p->used = true;
	return p->values;
}

/* "%(name)" at *at. */
static struct value named_value(
	struct render *r, struct percent *p, const struct string *s, size_t *at)
{
	size_t end = *at;
	while (end < s->bytes && s->data[end] != ')')
		end++;
	if (end == s->bytes || p->values.kind != VALUE_DICT)
		render_fail(r, "%%(name) needs a mapping");
	struct string *name = text_slice(&r->arena, s, *at + 1, end);
	const struct pair *pair = dict_find(r, p->values.dict, value_string(name));
	*at = end + 1;
	p->used = true;
	if (pair)
		return pair->value;
	render_fail(r, "the format has no value for \"%s\"", shown(name).text);
}

static void put_percent(struct render *r, struct builder *b, struct spec *spec, struct value v)
{
	struct builder text;
	char type = spec->type;
	switch (type) {
	case 's':
	case 'r':
		builder_init(&text, &r->arena, r->limits->output_bytes);
		if (type == 's')
			print_to(r, &text, v);
		else
			print_repr(r, &text, v);
		spec->zero = false;
		spec->align = spec->align ? spec->align : '>';
		put_string(r, b, spec, builder_finish(&text));
		return;
	case 'd':
	case 'i':
	case 'u':
	case 'x':
	case 'X':
	case 'o':
		spec->type = type == 'i' || type == 'u' ? 'd' : type;
		if (v.kind == VALUE_FLOAT && spec->type == 'd' && fabs(v.f) < 9e18)
			v = value_int((int64_t)v.f);
		if (!value_is_int(v) || spec->precision >= 0)
			render_fail(r, "%%%c does not fit '%s'", type, value_type(v));
		put_int(r, b, spec, value_as_int(v));
		return;
	case 'e':
	case 'E':
	case 'f':
	case 'F':
	case 'g':
	case 'G':
		if (!value_is_number(v))
			render_fail(r, "%%%c does not fit '%s'", type, value_type(v));
		put_float(r, b, spec, value_as_float(v));
		return;
	default:
		render_fail(r, "the format %%%c is not supported", type >= 0x20 ? type : '?');
	}
}

/* The conversion at `at`, behind its %; returns where the text goes on. */
static size_t percent_field(
	struct render *r, struct builder *b, struct percent *p, struct string *s, size_t at)
{
	struct spec spec = {.width = -1, .precision = -1};
	struct value v = {.kind = VALUE_MISSING};
	if (at < s->bytes && s->data[at] == '(')
		v = named_value(r, p, s, &at);
	for (; at < s->bytes && s->data[at] && strchr("-+ #0", s->data[at]); at++) {
		char c = s->data[at];
		if (c == '-')
			spec.align = '<';
		else if (c == '#')
			spec.alternative = true;
		else if (c == '0')
			spec.zero = true;
		else
			spec.sign = c;
	}
	spec.width = read_int(r, s, &at, WIDTH_MAX, -1);
	if (at < s->bytes && s->data[at] == '.') {
		at++;
		spec.precision = (int)read_int(r, s, &at, PRECISION_MAX, 0);
	}
	if (at == s->bytes)
		render_fail(r, "the format ends within a conversion");
	spec.type = s->data[at++];
	if (spec.align)
		spec.zero = false;
	if (spec.type == '%')
		builder_char(b, '%');
	else
		put_percent(r, b, &spec, v.kind == VALUE_MISSING ? next_value(r, p) : v);
	return at;
}

struct value format_percent(struct render *r, struct string *s, struct value values)
{
	struct builder b;
	struct percent p = {.values = values};
	render_charge_text(r, s->bytes);
	builder_init(&b, &r->arena, r->limits->output_bytes);
	for (size_t at = 0; at < s->bytes;) {
		if (s->data[at] != '%') {
			builder_slice(&b, s, at, at + 1);
			at++;
			continue;
		}
		render_charge(r, 1);
		at = percent_field(r, &b, &p, s, at + 1);
	}
	/* A value that could be a mapping need not be used. */
	bool all = values.kind == VALUE_TUPLE
			   ? p.next == values.list->n
			   : p.used || values.kind == VALUE_DICT || values.kind == VALUE_LIST ||
				     values.kind == VALUE_UNDEFINED;
	if (!all)
		render_fail(r, "not all values of the format are used");
	struct string *out = builder_finish(&b);
	out->markup = s->markup;
	return value_string(out);
}
