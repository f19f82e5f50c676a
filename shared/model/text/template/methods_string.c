/* Methods of strings. */
#include "shared/model/text/template/strings.h"

#include <string.h>

#define METHOD(name)                                                                            \
	static struct value name(struct render *r, struct value self, const struct value *args, \
		const struct call *call)
#define UNUSED ((void)r, (void)args, (void)call)

/* An argument that must be a string. */
static struct string *needed(struct render *r, struct value v, const char *what)
{
	struct string *s = argument_string(r, v, what);
	if (!s)
		render_fail(r, "%s is a string, not '%s'", what, value_type(v));
	return s;
}

static struct value strip(
	struct render *r, struct value self, struct value chars, bool left, bool right)
{
	return value_string(strings_strip(
		r, self.s, argument_string(r, chars, "what is stripped"), left, right));
}

METHOD(string_strip)
{
	(void)call;
	return strip(r, self, args[0], true, true);
}

METHOD(string_lstrip)
{
	(void)call;
	return strip(r, self, args[0], true, false);
}

METHOD(string_rstrip)
{
	(void)call;
	return strip(r, self, args[0], false, true);
}

static bool is_given(struct value v)
{
	return v.kind != VALUE_MISSING && v.kind != VALUE_NONE;
}

/* Start and end of a search, in characters as Python counts them, as bytes; false when they exclude
 * each other. */
static bool range_of(
	struct render *r, struct string *s, const struct value *bounds, size_t *from, size_t *to)
{
	*from = 0;
	*to = s->bytes;
	if (!is_given(bounds[0]) && !is_given(bounds[1]))
		return true;
	render_charge_text(r, s->bytes);
	int64_t n = (int64_t)text_chars(s), at[2] = {0, n};
	for (int i = 0; i < 2; i++) {
		if (!is_given(bounds[i]))
			continue;
		at[i] = argument_int(r, bounds[i], 0, "a bound");
		if (at[i] < 0)
			at[i] = at[i] < -n ? 0 : at[i] + n;
	}
	if (at[1] > n)
		at[1] = n;
	if (at[0] > at[1])
		return false;
	*from = text_offset(s, (size_t)at[0]);
	*to = text_offset(s, (size_t)at[1]);
	return true;
}

static bool has_affix(struct render *r, const struct string *s, const struct string *affix,
	size_t from, size_t to, bool at_end)
{
	if (affix->bytes > to - from)
		return false;
	size_t at = at_end ? to - affix->bytes : from;
	render_charge(r, 1 + affix->bytes / 64);
	return memcmp(s->data + at, affix->data, affix->bytes) == 0;
}

/* args: the affix or a tuple of them, start, end */
static struct value affixed(
	struct render *r, struct value self, const struct value *args, bool at_end)
{
	size_t from, to;
	bool found = false, in_range = range_of(r, self.s, args + 1, &from, &to);
	if (args[0].kind != VALUE_TUPLE) {
		const struct string *affix =
			needed(r, args[0], "startswith or endswith: the affix");
		return value_bool(in_range && has_affix(r, self.s, affix, from, to, at_end));
	}
	for (size_t i = 0; !found && i < args[0].list->n; i++) {
		const struct string *affix = needed(r, args[0].list->items[i], "an affix");
		render_charge(r, 1);
		found = in_range && has_affix(r, self.s, affix, from, to, at_end);
	}
	return value_bool(found);
}

METHOD(string_startswith)
{
	(void)call;
	return affixed(r, self, args, false);
}

METHOD(string_endswith)
{
	(void)call;
	return affixed(r, self, args, true);
}

static struct value split(struct render *r, struct value self, const struct value *args, bool last)
{
	const struct string *separator = argument_string(r, args[0], "the separator");
	int64_t max = argument_int(r, args[1], -1, "maxsplit");
	struct list *list = last ? strings_split_last(r, self.s, separator, max)
				 : strings_split(r, self.s, separator, max);
	return value_list(VALUE_LIST, list);
}

METHOD(string_split)
{
	(void)call;
	return split(r, self, args, false);
}

METHOD(string_rsplit)
{
	(void)call;
	return split(r, self, args, true);
}

METHOD(string_splitlines)
{
	(void)call;
	return value_list(VALUE_LIST, strings_lines(r, self.s, value_truth(args[0])));
}

METHOD(string_replace)
{
	(void)call;
	const struct string *old = needed(r, args[0], "what is replaced");
	const struct string *new = needed(r, args[1], "the replacement");
	if (self.s->markup && !new->markup)
		new = strings_escape(r, new);
	return value_string(
		strings_replace(r, self.s, old, new, argument_int(r, args[2], -1, "count")));
}

METHOD(string_upper)
{
	UNUSED;
	return value_string(strings_case(r, self.s, UNICODE_UPPER));
}

METHOD(string_lower)
{
	UNUSED;
	return value_string(strings_case(r, self.s, UNICODE_LOWER));
}

METHOD(string_casefold)
{
	UNUSED;
	return value_string(strings_case(r, self.s, UNICODE_FOLD));
}

METHOD(string_title)
{
	UNUSED;
	return value_string(strings_title(r, self.s));
}

METHOD(string_capitalize)
{
	UNUSED;
	return value_string(strings_capitalize(r, self.s));
}

METHOD(string_swapcase)
{
	UNUSED;
	struct builder b;
	uint32_t code;
	builder_init(&b, &r->arena, r->limits->output_bytes);
	for (size_t at = 0, n; at < self.s->bytes; at += n) {
		n = text_char(self.s->data + at, self.s->bytes - at, &code);
		unicode_add(r, &b, self.s, at, at + n,
			unicode_is_upper(r, code) ? UNICODE_LOWER : UNICODE_UPPER);
	}
	return value_string(builder_finish(&b));
}

/* Characters before byte `at`. */
static int64_t character_of(struct render *r, struct string *s, size_t at)
{
	return (int64_t)text_chars(text_slice(&r->arena, s, 0, at));
}

static int64_t find(struct render *r, struct value self, const struct value *args, bool last)
{
	const struct string *needle = needed(r, args[0], "what is looked for");
	size_t from, to;
	render_charge_text(r, self.s->bytes);
	if (!range_of(r, self.s, args + 1, &from, &to))
		return -1;
	struct string *within = text_slice(&r->arena, self.s, from, to);
	ptrdiff_t at = last ? strings_find_last(r, within, needle, within->bytes)
			    : text_find(within, needle, 0);
	return at < 0 ? -1 : character_of(r, self.s, from + (size_t)at);
}

METHOD(string_find)
{
	(void)call;
	return value_int(find(r, self, args, false));
}

METHOD(string_rfind)
{
	(void)call;
	return value_int(find(r, self, args, true));
}

static struct value index_of(
	struct render *r, struct value self, const struct value *args, bool last)
{
	int64_t at = find(r, self, args, last);
	if (at < 0)
		render_fail(r, "index: the substring is not found");
	return value_int(at);
}

METHOD(string_index)
{
	(void)call;
	return index_of(r, self, args, false);
}

METHOD(string_rindex)
{
	(void)call;
	return index_of(r, self, args, true);
}

METHOD(string_count)
{
	(void)call;
	const struct string *needle = needed(r, args[0], "what is counted");
	size_t from, to;
	int64_t n = 0;
	ptrdiff_t at;
	render_charge_text(r, self.s->bytes);
	if (!range_of(r, self.s, args + 1, &from, &to))
		return value_int(0);
	struct string *within = text_slice(&r->arena, self.s, from, to);
	if (!needle->bytes)
		return value_int((int64_t)text_chars(within) + 1);
	for (size_t next = 0; (at = text_find(within, needle, next)) >= 0; n++)
		next = (size_t)at + needle->bytes;
	return value_int(n);
}

METHOD(string_join)
{
	(void)call;
	const struct list *items = value_items(r, args[0]);
	for (size_t i = 0; i < items->n; i++)
		if (items->items[i].kind != VALUE_STRING)
			render_fail(r, "join: item %zu is '%s', not a string", i,
				value_type(items->items[i]));
	return value_string(strings_join(r, self.s, items));
}

METHOD(string_format)
{
	(void)args;
	return format_braces(r, self.s, call);
}

static struct value without_affix(
	struct render *r, struct value self, struct value affix, bool at_end)
{
	const struct string *s = needed(r, affix, "the affix");
	if (!has_affix(r, self.s, s, 0, self.s->bytes, at_end))
		return self;
	return value_string(text_slice(
		&r->arena, self.s, at_end ? 0 : s->bytes, self.s->bytes - (at_end ? s->bytes : 0)));
}

METHOD(string_removeprefix)
{
	(void)call;
	return without_affix(r, self, args[0], false);
}

METHOD(string_removesuffix)
{
	(void)call;
	return without_affix(r, self, args[0], true);
}

static struct value part(struct render *r, struct value self, struct value at_string, bool last)
{
	const struct string *separator = needed(r, at_string, "the separator");
	if (!separator->bytes)
		render_fail(r, "the separator is empty");
	render_charge_text(r, self.s->bytes);
	ptrdiff_t at = last ? strings_find_last(r, self.s, separator, self.s->bytes)
			    : text_find(self.s, separator, 0);
	size_t n = self.s->bytes, from = at < 0 ? (last ? 0 : n) : (size_t)at;
	size_t to = at < 0 ? from : from + separator->bytes;
	struct list *parts = list_new(r, 3);
	list_add(r, parts, value_string(text_slice(&r->arena, self.s, 0, from)));
	list_add(r, parts, value_string(text_slice(&r->arena, self.s, from, to)));
	list_add(r, parts, value_string(text_slice(&r->arena, self.s, to, n)));
	return value_list(VALUE_TUPLE, parts);
}

METHOD(string_partition)
{
	(void)call;
	return part(r, self, args[0], false);
}

METHOD(string_rpartition)
{
	(void)call;
	return part(r, self, args[0], true);
}

/* side: -1 text to the left, 0 in the middle, 1 to the right */
static struct value pad(struct render *r, struct value self, const struct value *args, int side)
{
	render_charge_text(r, self.s->bytes);
	int64_t width = argument_int(r, args[0], 0, "the width");
	int64_t n = (int64_t)text_chars(self.s), missing = width > n ? width - n : 0;
	struct string *fill = argument_string(r, args[1], "the filling");
	if (!fill)
		fill = text_literal(&r->arena, " ");
	if (text_chars(fill) != 1)
		render_fail(r, "the filling must be one character");
	int64_t left = side < 0 ? 0 : side > 0 ? missing : missing / 2 + (missing & width & 1);
	return value_string(strings_pad(r, self.s, left, missing - left, fill));
}

METHOD(string_ljust)
{
	(void)call;
	return pad(r, self, args, -1);
}

METHOD(string_center)
{
	(void)call;
	return pad(r, self, args, 0);
}

METHOD(string_rjust)
{
	(void)call;
	return pad(r, self, args, 1);
}

METHOD(string_zfill)
{
	(void)call;
	render_charge_text(r, self.s->bytes);
	int64_t width = argument_int(r, args[0], 0, "the width");
	int64_t n = (int64_t)text_chars(self.s), missing = width > n ? width - n : 0;
	struct builder b;
	size_t sign = self.s->bytes && (self.s->data[0] == '-' || self.s->data[0] == '+');
	builder_init(&b, &r->arena, r->limits->output_bytes);
	builder_slice(&b, self.s, 0, sign);
	for (int64_t i = 0; i < missing; i++)
		builder_char(&b, '0');
	builder_slice(&b, self.s, sign, self.s->bytes);
	return value_string(builder_finish(&b));
}

typedef bool class_test(struct render *r, uint32_t code);

static bool is_alnum(struct render *r, uint32_t code)
{
	return unicode_is_alpha(r, code) || unicode_is_digit(r, code);
}

static bool is_space(struct render *r, uint32_t code)
{
	(void)r;
	return text_is_space(code);
}

static bool is_ascii(struct render *r, uint32_t code)
{
	(void)r;
	return code < 0x80;
}

static struct value all(struct render *r, struct value self, class_test *test, bool empty)
{
	bool is = self.s->bytes || empty;
	uint32_t code;
	render_charge_text(r, self.s->bytes);
	for (size_t at = 0; is && at < self.s->bytes;) {
		at += text_char(self.s->data + at, self.s->bytes - at, &code);
		is = test(r, code);
	}
	return value_bool(is);
}

METHOD(string_isalpha)
{
	UNUSED;
	return all(r, self, unicode_is_alpha, false);
}

METHOD(string_isdigit)
{
	UNUSED;
	return all(r, self, unicode_is_digit, false);
}

METHOD(string_isalnum)
{
	UNUSED;
	return all(r, self, is_alnum, false);
}

METHOD(string_isspace)
{
	UNUSED;
	return all(r, self, is_space, false);
}

METHOD(string_isascii)
{
	UNUSED;
	return all(r, self, is_ascii, true);
}

static struct value in_case(struct render *r, struct value self, const char *test)
{
	const struct call none = {NULL, 0, NULL, 0};
	return value_bool(call_test(r, text_literal(&r->arena, test), self, &none));
}

METHOD(string_islower)
{
	UNUSED;
	return in_case(r, self, "lower");
}

METHOD(string_isupper)
{
	UNUSED;
	return in_case(r, self, "upper");
}

const struct function methods_string[] = {
	{"strip", string_strip, "chars", 0},
	{"lstrip", string_lstrip, "chars", 0},
	{"rstrip", string_rstrip, "chars", 0},
	{"startswith", string_startswith, "prefix,start,end", 1},
	{"endswith", string_endswith, "suffix,start,end", 1},
	{"split", string_split, "sep,maxsplit", 0},
	{"rsplit", string_rsplit, "sep,maxsplit", 0},
	{"splitlines", string_splitlines, "keepends", 0},
	{"replace", string_replace, "old,new,count", 2},
	{"upper", string_upper, "", 0},
	{"lower", string_lower, "", 0},
	{"casefold", string_casefold, "", 0},
	{"title", string_title, "", 0},
	{"capitalize", string_capitalize, "", 0},
	{"swapcase", string_swapcase, "", 0},
	{"find", string_find, "sub,start,end", 1},
	{"rfind", string_rfind, "sub,start,end", 1},
	{"index", string_index, "sub,start,end", 1},
	{"rindex", string_rindex, "sub,start,end", 1},
	{"count", string_count, "sub,start,end", 1},
	{"join", string_join, "iterable", 1},
	{"format", string_format, NULL, 0},
	{"removeprefix", string_removeprefix, "prefix", 1},
	{"removesuffix", string_removesuffix, "suffix", 1},
	{"partition", string_partition, "sep", 1},
	{"rpartition", string_rpartition, "sep", 1},
	{"ljust", string_ljust, "width,fillchar", 1},
	{"center", string_center, "width,fillchar", 1},
	{"rjust", string_rjust, "width,fillchar", 1},
	{"zfill", string_zfill, "width", 1},
	{"isalpha", string_isalpha, "", 0},
	{"isdigit", string_isdigit, "", 0},
	{"isdecimal", string_isdigit, "", 0},
	{"isnumeric", string_isdigit, "", 0},
	{"isalnum", string_isalnum, "", 0},
	{"isspace", string_isspace, "", 0},
	{"isascii", string_isascii, "", 0},
	{"islower", string_islower, "", 0},
	{"isupper", string_isupper, "", 0},
	{NULL, NULL, NULL, 0},
};
