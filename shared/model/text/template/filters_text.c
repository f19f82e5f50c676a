/* Filters of text. */
#include "shared/model/text/template/strings.h"

#include <string.h>

#define FILTER(name)                                                                         \
	static struct value name(struct render *r, struct value v, const struct value *args, \
		const struct call *call)

/* For filters that look at no arguments. */
#define UNUSED ((void)args, (void)call)

FILTER(upper)
{
	UNUSED;
	return value_string(strings_case(r, print_text(r, v), UNICODE_UPPER));
}

FILTER(lower)
{
	UNUSED;
	return value_string(strings_case(r, print_text(r, v), UNICODE_LOWER));
}

FILTER(capitalize)
{
	UNUSED;
	return value_string(strings_capitalize(r, print_text(r, v)));
}

/* Unlike the method: a word begins after white space, "-" or an opening bracket only. */
FILTER(title)
{
	UNUSED;
	struct string *s = print_text(r, v);
	struct builder b;
	bool start = true;
	uint32_t code;
	builder_init(&b, &r->arena, r->limits->output_bytes);
	for (size_t at = 0, n; at < s->bytes; at += n) {
		n = text_char(s->data + at, s->bytes - at, &code);
		unicode_add(r, &b, s, at, at + n, start ? UNICODE_UPPER : UNICODE_LOWER);
		start = text_is_space(code) || (code && code < 0x80 && strchr("-({[<", (int)code));
	}
	return value_string(builder_finish(&b));
}

FILTER(trim)
{
	(void)call;
	struct string *chars = argument_string(r, args[0], "chars");
	return value_string(strings_strip(r, print_text(r, v), chars, true, true));
}

FILTER(replace)
{
	(void)call;
	int64_t max = args[2].kind == VALUE_NONE ? -1 : argument_int(r, args[2], -1, "count");
	struct string *s = strings_replace(
		r, print_text(r, v), print_text(r, args[0]), print_text(r, args[1]), max);
	struct string *plain = text_slice(&r->arena, s, 0, s->bytes);
	plain->markup = false;
	return value_string(plain);
}

FILTER(string)
{
	UNUSED;
	return value_string(print_text(r, v));
}

static struct string *mark(struct render *r, const struct string *s)
{
	struct string *safe = text_slice(&r->arena, s, 0, s->bytes);
	safe->markup = true;
	return safe;
}

FILTER(safe)
{
	UNUSED;
	return value_string(mark(r, print_text(r, v)));
}

FILTER(escape)
{
	UNUSED;
	struct string *s = print_text(r, v);
	return value_string(s->markup ? s : strings_escape(r, s));
}

FILTER(forceescape)
{
	UNUSED;
	return value_string(strings_escape(r, print_text(r, v)));
}

FILTER(indent)
{
	(void)call;
	struct builder b;
	if (v.kind != VALUE_STRING) {
		render_need_defined(r, v);
		render_fail(r, "indent is for strings, not '%s'", value_type(v));
	}
	const struct string *indention = args[0].kind == VALUE_STRING
						 ? args[0].s
						 : strings_pad(r, text_literal(&r->arena, ""),
							   argument_int(r, args[0], 4, "width"), 0,
							   text_literal(&r->arena, " "));
	bool first = value_truth(args[1]), blank = value_truth(args[2]);
	/* The newline that the filter adds makes the last line a whole one. */
	struct builder whole;
	builder_init(&whole, &r->arena, r->limits->output_bytes);
	builder_string(&whole, v.s);
	builder_char(&whole, '\n');
	const struct list *lines = strings_lines(r, builder_finish(&whole), false);
	builder_init(&b, &r->arena, r->limits->output_bytes);
	if (first)
		builder_string(&b, indention);
	for (size_t i = 0; i < lines->n; i++) {
		const struct string *line = lines->items[i].s;
		if (i) {
			builder_char(&b, '\n');
			if (blank || line->bytes)
				builder_string(&b, indention);
		}
		builder_string(&b, line);
	}
	return value_string(builder_finish(&b));
}

FILTER(center)
{
	(void)call;
	struct string *s = print_text(r, v);
	render_charge_text(r, s->bytes);
	int64_t width = argument_int(r, args[0], 80, "width"), n = (int64_t)text_chars(s);
	int64_t missing = width > n ? width - n : 0;
	int64_t left = missing / 2 + (missing & width & 1);
	return value_string(strings_pad(r, s, left, missing - left, text_literal(&r->arena, " ")));
}

FILTER(truncate)
{
	(void)call;
	struct string *end = argument_string(r, args[2], "end");
	struct builder b;
	if (!end)
		end = text_literal(&r->arena, "...");
	int64_t length = argument_int(r, args[0], 255, "length");
	int64_t leeway = args[3].kind == VALUE_NONE ? 5 : argument_int(r, args[3], 5, "leeway");
	int64_t n_end = (int64_t)text_chars(end);
	if (length < n_end || leeway < 0)
		render_fail(r, "truncate: the length must be at least that of the end");
	int64_t n = value_length(r, v);
	if (n <= length || n - length <= leeway)
		return v;
	if (v.kind != VALUE_STRING)
		render_fail(r, "truncate is for strings, not '%s'", value_type(v));
	render_charge_text(r, v.s->bytes);
	struct string *kept =
		text_slice(&r->arena, v.s, 0, text_offset(v.s, (size_t)(length - n_end)));
	ptrdiff_t space = strings_find_last(r, kept, text_literal(&r->arena, " "), kept->bytes);
	if (!value_truth(args[1]) && space >= 0)
		kept = text_slice(&r->arena, kept, 0, (size_t)space);
	builder_init(&b, &r->arena, r->limits->output_bytes);
	builder_string(&b, kept);
	builder_string(&b, end);
	return value_string(builder_finish(&b));
}

FILTER(wordcount)
{
	UNUSED;
	struct string *s = print_text(r, v);
	int64_t words = 0;
	bool within = false;
	uint32_t code;
	render_charge_text(r, s->bytes);
	for (size_t at = 0; at < s->bytes;) {
		at += text_char(s->data + at, s->bytes - at, &code);
		bool word = code == '_' || unicode_is_digit(r, code) || unicode_is_alpha(r, code);
		words += word && !within;
		within = word;
	}
	return value_int(words);
}

FILTER(format)
{
	(void)args;
	struct list *list = list_new(r, 0);
	struct dict *dict = dict_new(r);
	for (size_t i = 0; i < call->n_args; i++)
		list_add(r, list, call->args[i]);
	for (size_t i = 0; i < call->n_named; i++)
		dict_set(r, dict, call->named[i].key, call->named[i].value);
	if (list->n && dict->n)
		render_fail(r, "format takes arguments by position or by name, not both");
	return format_percent(
		r, print_text(r, v), dict->n ? value_dict(dict) : value_list(VALUE_TUPLE, list));
}

static bool is_unreserved(char c)
{
	return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
	       (c && strchr("_.-~/", c));
}

FILTER(urlencode)
{
	UNUSED;
	struct string *s = print_text(r, v);
	struct builder b;
	if (v.kind == VALUE_DICT || value_is_sequence(v))
		render_fail(r, "urlencode is supported for strings only");
	render_charge_text(r, s->bytes);
	builder_init(&b, &r->arena, r->limits->output_bytes);
	for (size_t i = 0; i < s->bytes; i++) {
		static const char hex[] = "0123456789ABCDEF";
		unsigned char c = (unsigned char)s->data[i];
		const char quoted[3] = {'%', hex[c >> 4], hex[c & 15]};
		if (is_unreserved(s->data[i]))
			builder_slice(&b, s, i, i + 1);
		else
			builder_add(&b, quoted, 3, text_literal_at(s, i));
	}
	return value_string(builder_finish(&b));
}

const struct function filters_text[] = {
	{"upper", upper, "", 0},
	{"lower", lower, "", 0},
	{"capitalize", capitalize, "", 0},
	{"title", title, "", 0},
	{"trim", trim, "chars", 0},
	{"replace", replace, "old,new,count", 2},
	{"string", string, "", 0},
	{"safe", safe, "", 0},
	{"escape", escape, "", 0},
	{"e", escape, "", 0},
	{"forceescape", forceescape, "", 0},
	{"indent", indent, "width,first,blank", 0},
	{"center", center, "width", 0},
	{"truncate", truncate, "length,killwords,end,leeway", 0},
	{"wordcount", wordcount, "", 0},
	{"format", format, NULL, 0},
	{"urlencode", urlencode, "", 0},
	{NULL, NULL, NULL, 0},
};
