#include "shared/model/text/template/strings.h"

#include <string.h>

static void begin(struct render *r, struct builder *b)
{
	builder_init(b, &r->arena, r->limits->output_bytes);
}

static struct string *finish(struct builder *b, const struct string *like)
{
	struct string *s = builder_finish(b);
	s->markup = like->markup;
	return s;
}

int64_t argument_int(struct render *r, struct value v, int64_t otherwise, const char *name)
{
	if (v.kind == VALUE_MISSING)
		return otherwise;
	render_need_defined(r, v);
	if (!value_is_int(v))
		render_fail(r, "%s is an integer, not '%s'", name, value_type(v));
	return value_as_int(v);
}

struct string *argument_string(struct render *r, struct value v, const char *name)
{
	if (v.kind == VALUE_MISSING || v.kind == VALUE_NONE)
		return NULL;
	render_need_defined(r, v);
	if (v.kind != VALUE_STRING)
		render_fail(r, "%s is a string, not '%s'", name, value_type(v));
	return v.s;
}

struct string *strings_strip(
	struct render *r, const struct string *s, const struct string *chars, bool left, bool right)
{
	/* Every character of s is looked for among chars. */
	render_charge(r, 1 + s->bytes * (1 + (chars ? chars->bytes : 0)) / 64);
	return text_strip(&r->arena, s, chars, left, right);
}

ptrdiff_t strings_find_last(
	struct render *r, const struct string *s, const struct string *needle, size_t to)
{
	if (needle->bytes > to)
		return -1;
	if (!needle->bytes)
		return (ptrdiff_t)to;
	const char *at = s->data + (to - needle->bytes + 1);
	while ((at = memrchr(s->data, needle->data[0], (size_t)(at - s->data)))) {
		render_charge(r, 1 + needle->bytes / 64);
		if (memcmp(at, needle->data, needle->bytes) == 0)
			return at - s->data;
	}
	return -1;
}

/* An empty old string is found before every character and at the end. */
static struct string *insert_between(
	struct render *r, struct string *s, const struct string *new, int64_t max)
{
	struct builder b;
	size_t at = 0, n;
	uint32_t code;
	begin(r, &b);
	for (; max != 0; max--) {
		render_charge(r, 1);
		builder_string(&b, new);
		if (at == s->bytes)
			break;
		n = text_char(s->data + at, s->bytes - at, &code);
		builder_slice(&b, s, at, at + n);
		at += n;
	}
	builder_slice(&b, s, at, s->bytes);
	return finish(&b, s);
}

struct string *strings_replace(struct render *r, struct string *s, const struct string *old,
	const struct string *new, int64_t max)
{
	struct builder b;
	size_t from = 0;
	ptrdiff_t at;
	render_charge_text(r, s->bytes);
	if (!old->bytes)
		return insert_between(r, s, new, max);
	begin(r, &b);
	for (; max != 0 && (at = text_find(s, old, from)) >= 0; max--) {
		render_charge(r, 1);
		builder_slice(&b, s, from, (size_t)at);
		builder_string(&b, new);
		from = (size_t)at + old->bytes;
	}
	if (!from)
		return s;
	builder_slice(&b, s, from, s->bytes);
	return finish(&b, s);
}

static void add_part(struct render *r, struct list *list, struct string *s, size_t from, size_t to)
{
	list_add(r, list, value_string(text_slice(&r->arena, s, from, to)));
}

static size_t skip(const struct string *s, size_t at, bool spaces)
{
	uint32_t code;
	while (at < s->bytes) {
		size_t n = text_char(s->data + at, s->bytes - at, &code);
		if (text_is_space(code) != spaces)
			break;
		at += n;
	}
	return at;
}

static struct list *split_words(struct render *r, struct string *s, int64_t max)
{
	struct list *list = list_new(r, 0);
	for (size_t at = skip(s, 0, true); at < s->bytes;) {
		if (max-- == 0) {
			add_part(r, list, s, at, s->bytes);
			break;
		}
		size_t end = skip(s, at, false);
		add_part(r, list, s, at, end);
		at = skip(s, end, true);
	}
	return list;
}

struct list *strings_split(
	struct render *r, struct string *s, const struct string *separator, int64_t max)
{
	render_charge_text(r, s->bytes);
	if (!separator)
		return split_words(r, s, max);
	if (!separator->bytes)
		render_fail(r, "the separator of split is empty");
	struct list *list = list_new(r, 0);
	size_t from = 0;
	ptrdiff_t at;
	for (; max != 0 && (at = text_find(s, separator, from)) >= 0; max--) {
		add_part(r, list, s, from, (size_t)at);
		from = (size_t)at + separator->bytes;
	}
	add_part(r, list, s, from, s->bytes);
	return list;
}

static void turn_round(struct list *list)
{
	for (size_t i = 0; i < list->n / 2; i++) {
		struct value v = list->items[i];
		list->items[i] = list->items[list->n - 1 - i];
		list->items[list->n - 1 - i] = v;
	}
}

static struct list *split_words_last(struct render *r, struct string *s, int64_t max)
{
	struct list *words = split_words(r, s, -1), *list = list_new(r, 0);
	size_t first = max >= 0 && words->n > (size_t)max ? words->n - (size_t)max : 0;
	if (first) {
		/* The words before the last ones stay together, with the space between and before
		 * them. */
		const struct string *last = words->items[first - 1].s;
		size_t end = (size_t)(last->data - s->data) + last->bytes;
		add_part(r, list, s, 0, end);
	}
	for (size_t i = first; i < words->n; i++)
		list_add(r, list, words->items[i]);
	return list;
}

struct list *strings_split_last(
	struct render *r, struct string *s, const struct string *separator, int64_t max)
{
	render_charge_text(r, s->bytes);
	if (!separator)
		return split_words_last(r, s, max);
	if (!separator->bytes)
		render_fail(r, "the separator of rsplit is empty");
	struct list *list = list_new(r, 0);
	size_t to = s->bytes;
	ptrdiff_t at;
	for (; max != 0 && (at = strings_find_last(r, s, separator, to)) >= 0; max--) {
		add_part(r, list, s, (size_t)at + separator->bytes, to);
		to = (size_t)at;
	}
	add_part(r, list, s, 0, to);
	turn_round(list);
	return list;
}

static bool is_line_end(uint32_t c)
{
	return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
	       c == 0x2029;
}

struct list *strings_lines(struct render *r, struct string *s, bool keep_ends)
{
	struct list *list = list_new(r, 0);
	size_t from = 0, n;
	uint32_t code;
	render_charge_text(r, s->bytes);
	for (size_t at = 0; at < s->bytes; at += n) {
		n = text_char(s->data + at, s->bytes - at, &code);
		if (!is_line_end(code))
			continue;
		size_t end = at;
		if (code == '\r' && at + 1 < s->bytes && s->data[at + 1] == '\n')
			n = 2;
		add_part(r, list, s, from, keep_ends ? at + n : end);
		from = at + n;
	}
	if (from < s->bytes)
		add_part(r, list, s, from, s->bytes);
	return list;
}

struct string *strings_case(struct render *r, struct string *s, enum unicode_case how)
{
	struct builder b;
	begin(r, &b);
	unicode_add(r, &b, s, 0, s->bytes, how);
	return finish(&b, s);
}

struct string *strings_capitalize(struct render *r, struct string *s)
{
	struct builder b;
	uint32_t code;
	size_t first = s->bytes ? text_char(s->data, s->bytes, &code) : 0;
	begin(r, &b);
	unicode_add(r, &b, s, 0, first, UNICODE_TITLE);
	unicode_add(r, &b, s, first, s->bytes, UNICODE_LOWER);
	return finish(&b, s);
}

struct string *strings_title(struct render *r, struct string *s)
{
	struct builder b;
	bool within = false;
	uint32_t code;
	begin(r, &b);
	for (size_t at = 0, n; at < s->bytes; at += n) {
		n = text_char(s->data + at, s->bytes - at, &code);
		unicode_add(r, &b, s, at, at + n, within ? UNICODE_LOWER : UNICODE_TITLE);
		within = unicode_is_upper(r, code) || unicode_is_lower(r, code);
	}
	return finish(&b, s);
}

struct string *strings_pad(
	struct render *r, struct string *s, int64_t left, int64_t right, const struct string *fill)
{
	struct builder b;
	if (left <= 0 && right <= 0)
		return s;
	render_charge_text(r, (size_t)(left > 0 ? left : 0) + (size_t)(right > 0 ? right : 0));
	begin(r, &b);
	for (int64_t i = 0; i < left; i++)
		builder_string(&b, fill);
	builder_string(&b, s);
	for (int64_t i = 0; i < right; i++)
		builder_string(&b, fill);
	return finish(&b, s);
}

struct string *strings_join(
	struct render *r, const struct string *separator, const struct list *items)
{
	struct builder b;
	begin(r, &b);
	for (size_t i = 0; i < items->n; i++) {
		render_charge(r, 1);
		if (i)
			builder_string(&b, separator);
		print_to(r, &b, items->items[i]);
	}
	return builder_finish(&b);
}

struct string *strings_escape(struct render *r, const struct string *s)
{
	static const char special[] = "&<>'\"";
	static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
	struct builder b;
	begin(r, &b);
	render_charge_text(r, s->bytes);
	for (size_t i = 0; i < s->bytes; i++) {
		const char *at = s->data[i] ? strchr(special, s->data[i]) : NULL;
		if (at)
			builder_add(&b, names[at - special], strlen(names[at - special]),
				text_literal_at(s, i));
		else
			builder_slice(&b, s, i, i + 1);
	}
	struct string *escaped = builder_finish(&b);
	escaped->markup = true;
	return escaped;
}
