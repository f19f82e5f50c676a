#include "shared/model/text/template/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Roles that a template may put between its own brackets, as in "<|" + role + "|>". No other text
 * of a conversation can become part of a special token. */
static bool is_usual_role(const json_t *json)
{
	static const char *const roles[] = {"system", "user", "assistant", "tool", "developer",
		"function", "ipython", "model", "observation", "documents", "context"};
	for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
		if (json_string_length(json) == strlen(roles[i]) &&
			memcmp(json_string_value(json), roles[i], strlen(roles[i])) == 0)
			return true;
	return false;
}

static struct value load(struct render *r, const json_t *json, bool trusted)
{
	struct value v = value_none();
	size_t i;
	const json_t *item;
	render_enter(r);
	switch (json_typeof(json)) {
	case JSON_OBJECT:
		v = value_dict(dict_new(r));
		json_load_members(r, v.dict, json, trusted);
		break;
	case JSON_ARRAY:
		v = value_list(VALUE_LIST, list_new(r, json_array_size(json)));
		json_array_foreach(json, i, item) list_add(r, v.list, load(r, item, trusted));
		break;
	case JSON_STRING:
		v = value_string(text_borrow(
			&r->arena, json_string_value(json), json_string_length(json), trusted));
		break;
	case JSON_INTEGER:
		v = value_int(json_integer_value(json));
		break;
	case JSON_REAL:
		v = value_float(json_real_value(json));
		break;
	case JSON_TRUE:
	case JSON_FALSE:
		v = value_bool(json_is_true(json));
		break;
	case JSON_NULL:
		break;
	}
	render_leave(r);
	return v;
}

void json_load_members(struct render *r, struct dict *dict, const json_t *object, bool trusted)
{
	/* jansson's iterators are not const, but nothing is changed. */
	json_t *mutable = (json_t *)object;
	for (void *at = json_object_iter(mutable); at; at = json_object_iter_next(mutable, at)) {
		const char *key = json_object_iter_key(at);
		size_t bytes = json_object_iter_key_len(at);
		const json_t *value = json_object_iter_value(at);
		bool is_role = bytes == 4 && memcmp(key, "role", 4) == 0 && json_is_string(value) &&
			       is_usual_role(value);
		dict_set(r, dict, value_string(text_borrow(&r->arena, key, bytes, trusted)),
			load(r, value, trusted || is_role));
	}
}

struct dump {
	struct builder *b;
	bool ascii, sort, lines;
	const struct string *indent; /* of one level */
	const struct string *comma, *colon;
	size_t level;
};

static void dump_escape(struct builder *b, uint32_t code, bool literal)
{
	char text[16];
	const char *at = code ? strchr("\"\\\n\r\t\b\f", (int)(code < 0x80 ? code : 1)) : NULL;
	if (at && *at)
		snprintf(text, sizeof(text), "\\%c", "\"\\nrtbf"[at - "\"\\\n\r\t\b\f"]);
	else if (code >= 0x10000)
		snprintf(text, sizeof(text), "\\u%04x\\u%04x", 0xD800 + ((code - 0x10000) >> 10),
			0xDC00 + (code & 0x3FF));
	else
		snprintf(text, sizeof(text), "\\u%04x", code);
	builder_add(b, text, strlen(text), literal);
}

static void dump_string(struct render *r, struct dump *d, const struct string *s)
{
	size_t plain = 0;
	uint32_t code;
	render_charge_text(r, s->bytes);
	builder_char(d->b, '"');
	for (size_t at = 0, n; at < s->bytes; at += n) {
		n = text_char(s->data + at, s->bytes - at, &code);
		if (code >= 0x20 && code != '"' && code != '\\' && (code < 0x7F || !d->ascii))
			continue;
		builder_slice(d->b, s, plain, at);
		dump_escape(d->b, code, text_literal_at(s, at));
		plain = at + n;
	}
	builder_slice(d->b, s, plain, s->bytes);
	builder_char(d->b, '"');
}

static void dump_float(struct render *r, struct builder *b, double f)
{
	if (isfinite(f))
		print_float(r, b, f);
	else
		builder_text(b, isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
}

static void dump_break(struct dump *d)
{
	if (!d->lines)
		return;
	builder_char(d->b, '\n');
	for (size_t i = 0; d->indent->bytes && i < d->level; i++)
		builder_string(d->b, d->indent);
}

static void dump_value(struct render *r, struct dump *d, struct value v);

static void dump_list(struct render *r, struct dump *d, const struct list *list)
{
	builder_char(d->b, '[');
	d->level++;
	for (size_t i = 0; i < list->n; i++) {
		if (i)
			builder_string(d->b, d->comma);
		dump_break(d);
		dump_value(r, d, list->items[i]);
	}
	d->level--;
	if (list->n)
		dump_break(d);
	builder_char(d->b, ']');
}

/* Keys that are numbers, booleans or none become strings. */
static void dump_key(struct render *r, struct dump *d, struct value key)
{
	if (key.kind == VALUE_STRING) {
		dump_string(r, d, key.s);
		return;
	}
	if (!value_is_number(key) && key.kind != VALUE_NONE)
		render_fail(r, "keys of JSON must be strings, not '%s'", value_type(key));
	builder_char(d->b, '"');
	dump_value(r, d, key);
	builder_char(d->b, '"');
}

static const struct pair *sorted_pairs(struct render *r, const struct dict *dict)
{
	struct list *keys = list_new(r, dict->n), *values = list_new(r, dict->n);
	struct pair *pairs = arena_array(&r->arena, dict->n, sizeof(*pairs));
	for (size_t i = 0; i < dict->n; i++) {
		list_add(r, keys, dict->pairs[i].key);
		list_add(r, values, value_int((int64_t)i));
	}
	list_sort(r, keys, values, false);
	for (size_t i = 0; i < dict->n; i++)
		pairs[i] = dict->pairs[values->items[i].i];
	return pairs;
}

static void dump_dict(struct render *r, struct dump *d, const struct dict *dict)
{
	const struct pair *pairs = d->sort ? sorted_pairs(r, dict) : dict->pairs;
	builder_char(d->b, '{');
	d->level++;
	for (size_t i = 0; i < dict->n; i++) {
		if (i)
			builder_string(d->b, d->comma);
		dump_break(d);
		dump_key(r, d, pairs[i].key);
		builder_string(d->b, d->colon);
		dump_value(r, d, pairs[i].value);
	}
	d->level--;
	if (dict->n)
		dump_break(d);
	builder_char(d->b, '}');
}

static void dump_value(struct render *r, struct dump *d, struct value v)
{
	render_enter(r);
	switch (v.kind) {
	case VALUE_NONE:
		builder_text(d->b, "null");
		break;
	case VALUE_BOOL:
		builder_text(d->b, v.b ? "true" : "false");
		break;
	case VALUE_INT:
		print_to(r, d->b, v);
		break;
	case VALUE_FLOAT:
		dump_float(r, d->b, v.f);
		break;
	case VALUE_STRING:
		dump_string(r, d, v.s);
		break;
	case VALUE_LIST:
	case VALUE_TUPLE:
		dump_list(r, d, v.list);
		break;
	case VALUE_DICT:
		dump_dict(r, d, v.dict);
		break;
	default:
		render_fail(r, "a value of type %s has no JSON", value_type(v));
	}
	render_leave(r);
}

static void read_indent(struct render *r, struct dump *d, struct value indent)
{
	struct builder spaces;
	if (indent.kind == VALUE_MISSING || indent.kind == VALUE_NONE)
		return;
	d->lines = true;
	d->indent = text_literal(&r->arena, "");
	if (indent.kind == VALUE_STRING) {
		d->indent = indent.s;
		return;
	}
	if (!value_is_int(indent))
		render_fail(
			r, "indent must be an integer or a string, not '%s'", value_type(indent));
	builder_init(&spaces, &r->arena, 1024);
	for (int64_t i = 0; i < value_as_int(indent); i++)
		builder_char(&spaces, ' ');
	d->indent = builder_finish(&spaces);
}

/* Arguments: ensure_ascii, indent, separators, sort_keys. */
struct value json_dump(struct render *r, struct value v, const struct value *args)
{
	struct builder b;
	struct dump d = {.b = &b, .ascii = value_truth(args[0]), .sort = value_truth(args[3])};
	builder_init(&b, &r->arena, r->limits->output_bytes);
	read_indent(r, &d, args[1]);
	d.comma = text_literal(&r->arena, d.lines ? "," : ", ");
	d.colon = text_literal(&r->arena, ": ");
	if (args[2].kind != VALUE_MISSING && args[2].kind != VALUE_NONE) {
		const struct list *both = value_items(r, args[2]);
		if (both->n != 2 || both->items[0].kind != VALUE_STRING ||
			both->items[1].kind != VALUE_STRING)
			render_fail(r, "separators must be two strings");
		d.comma = both->items[0].s;
		d.colon = both->items[1].s;
	}
	dump_value(r, &d, v);
	return value_string(builder_finish(&b));
}
