/* Values as text, as Python's str() and repr() give it. */
#include "shared/model/text/template/render.h"

#include "shared/model/text/template/unicode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The fewest digits that read back as f, without the dot, and the exponent of the first. */
static int shortest_digits(double f, char digits[24], int *exponent)
{
	char text[40];
	for (int precision = 0; precision < 17; precision++) {
		snprintf(text, sizeof(text), "%.*e", precision, f);
		if (strtod(text, NULL) == f || precision == 16)
			break;
	}
	int n = 0;
	const char *at = text;
	for (; *at && *at != 'e'; at++)
		if (*at != '.')
			digits[n++] = *at;
	*exponent = *at ? (int)strtol(at + 1, NULL, 10) : 0;
	while (n > 1 && digits[n - 1] == '0')
		n--;
	digits[n] = '\0';
	return n;
}

void print_float(struct render *r, struct builder *b, double f)
{
	char digits[24], text[64];
	int exponent;
	render_charge(r, RENDER_FORMAT);
	if (isnan(f) || isinf(f)) {
		builder_text(b, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
		return;
	}
	if (signbit(f)) {
		builder_char(b, '-');
		f = -f;
	}
	int n = shortest_digits(f, digits, &exponent);
	if (exponent < -4 || exponent >= 16) {
		builder_char(b, digits[0]);
		if (n > 1)
			builder_char(b, '.');
		builder_text(b, digits + 1);
		snprintf(text, sizeof(text), "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
		builder_text(b, text);
		return;
	}
	for (int i = exponent < 0 ? exponent : 0; i < n || i <= exponent + 1; i++) {
		if (i == exponent + 1)
			builder_char(b, '.');
		if (i < n || i == exponent + 1 || i <= exponent)
			builder_char(b, i >= 0 && i < n ? digits[i] : '0');
	}
}

/* True for message content in text parts: a list of objects of the type "text". */
static bool is_text_parts(struct render *r, const struct list *list)
{
	for (size_t i = 0; i < list->n; i++) {
		const struct pair *type = list->items[i].kind == VALUE_DICT
						  ? dict_find_text(r, list->items[i].dict, "type")
						  : NULL;
		if (!type || type->value.kind != VALUE_STRING || type->value.s->bytes != 4 ||
			memcmp(type->value.s->data, "text", 4) != 0)
			return false;
	}
	return list->n > 0;
}

static void print_list(struct render *r, struct builder *b, struct value v)
{
	bool tuple = v.kind == VALUE_TUPLE;
	r->wrote_parts |= is_text_parts(r, v.list);
	builder_char(b, tuple ? '(' : '[');
	for (size_t i = 0; i < v.list->n; i++) {
		if (i)
			builder_text(b, ", ");
		print_repr(r, b, v.list->items[i]);
	}
	if (tuple && v.list->n == 1)
		builder_char(b, ',');
	builder_char(b, tuple ? ')' : ']');
}

static void print_dict(struct render *r, struct builder *b, const struct dict *dict)
{
	builder_char(b, '{');
	for (size_t i = 0; i < dict->n; i++) {
		if (i)
			builder_text(b, ", ");
		print_repr(r, b, dict->pairs[i].key);
		builder_text(b, ": ");
		print_repr(r, b, dict->pairs[i].value);
	}
	builder_char(b, '}');
}

static void print_range(struct builder *b, const struct list *range)
{
	char text[100];
	if (range->step == 1)
		snprintf(text, sizeof(text), "range(%lld, %lld)", (long long)range->start,
			(long long)range->stop);
	else
		snprintf(text, sizeof(text), "range(%lld, %lld, %lld)", (long long)range->start,
			(long long)range->stop, (long long)range->step);
	builder_text(b, text);
}

static void print_escape(struct builder *b, uint32_t code, bool literal)
{
	char text[16];
	const char *short_form = code == '\n'	? "\\n"
				 : code == '\r' ? "\\r"
				 : code == '\t' ? "\\t"
						: NULL;
	if (short_form)
		snprintf(text, sizeof(text), "%s", short_form);
	else
		snprintf(text, sizeof(text),
			code < 0x100	 ? "\\x%02x"
			: code < 0x10000 ? "\\u%04x"
					 : "\\U%08x",
			code);
	builder_add(b, text, strlen(text), literal);
}

static void print_quoted(struct render *r, struct builder *b, struct string *s)
{
	bool single = memchr(s->data, '\'', s->bytes) != NULL;
	bool both = single && memchr(s->data, '"', s->bytes);
	char quote = single && !both ? '"' : '\'';
	uint32_t code;
	render_charge_text(r, s->bytes);
	if (s->markup)
		builder_text(b, "Markup(");
	builder_char(b, quote);
	for (size_t at = 0, n; at < s->bytes; at += n) {
		n = text_char(s->data + at, s->bytes - at, &code);
		if (code == (uint32_t)quote || code == '\\') {
			builder_add(b, "\\", 1, text_literal_at(s, at));
			builder_slice(b, s, at, at + n);
		} else if (unicode_is_printable(r, code)) {
			builder_slice(b, s, at, at + n);
		} else {
			print_escape(b, code, text_literal_at(s, at));
		}
	}
	builder_char(b, quote);
	if (s->markup)
		builder_char(b, ')');
}

static void print_int(struct builder *b, int64_t i)
{
	char text[32];
	snprintf(text, sizeof(text), "%lld", (long long)i);
	builder_text(b, text);
}

static void print_loop(struct builder *b, const struct loop *loop)
{
	builder_text(b, "<LoopContext ");
	print_int(b, (int64_t)loop->index + 1);
	builder_char(b, '/');
	print_int(b, (int64_t)loop->items->n);
	builder_char(b, '>');
}

static void print_named(struct builder *b, const char *what, const struct string *name)
{
	builder_char(b, '<');
	builder_text(b, what);
	if (name) {
		builder_text(b, " '");
		builder_string(b, name);
		builder_char(b, '\'');
	}
	builder_char(b, '>');
}

/* repr(), and str(), of values that are not strings. */
static void print_other(struct render *r, struct builder *b, struct value v)
{
	switch (v.kind) {
	case VALUE_MISSING:
	case VALUE_UNDEFINED:
		builder_text(b, "Undefined");
		break;
	case VALUE_NONE:
		r->wrote_values = true;
		builder_text(b, "None");
		break;
	case VALUE_BOOL:
		builder_text(b, v.b ? "True" : "False");
		break;
	case VALUE_INT:
		print_int(b, v.i);
		break;
	case VALUE_FLOAT:
		print_float(r, b, v.f);
		break;
	case VALUE_STRING:
		print_quoted(r, b, v.s);
		break;
	case VALUE_LIST:
	case VALUE_TUPLE:
		print_list(r, b, v);
		break;
	case VALUE_RANGE:
		print_range(b, v.list);
		break;
	case VALUE_VIEW:
		builder_text(b, v.list->view);
		builder_char(b, '(');
		print_list(r, b, value_list(VALUE_LIST, v.list));
		builder_char(b, ')');
		break;
	case VALUE_DICT:
		r->wrote_values = true;
		print_dict(r, b, v.dict);
		break;
	case VALUE_NAMESPACE:
		builder_text(b, "<Namespace ");
		print_dict(r, b, v.dict);
		builder_char(b, '>');
		break;
	case VALUE_LOOP:
		print_loop(b, v.loop);
		break;
	case VALUE_MACRO:
		print_named(b, v.macro->name ? "Macro" : "Macro anonymous", v.macro->name);
		break;
	default:
		print_named(b, value_type(v), NULL);
	}
}

void print_repr(struct render *r, struct builder *b, struct value v)
{
	render_enter(r);
	print_other(r, b, v);
	render_leave(r);
}

void print_to(struct render *r, struct builder *b, struct value v)
{
	if (v.kind == VALUE_STRING)
		builder_string(b, v.s);
	else if (v.kind != VALUE_UNDEFINED)
		print_repr(r, b, v);
}

struct string *print_text(struct render *r, struct value v)
{
	struct builder b;
	if (v.kind == VALUE_STRING)
		return v.s;
	builder_init(&b, &r->arena, r->limits->output_bytes);
	print_to(r, &b, v);
	return builder_finish(&b);
}
