/* v.name, v[name], v[a:b:c]. As in jinja2, a dot looks for a method first and brackets for an
 * element first. */
#include "shared/model/text/template/render.h"

#include <string.h>

/* Python's methods that change their object: the sandbox does not let templates call them. */
static const char *const mutators[] = {"append", "clear", "extend", "insert", "pop", "popitem",
	"remove", "reverse", "setdefault", "sort", "update", NULL};
static const char *const string_methods_missing[] = {"expandtabs", "format_map", "istitle",
	"maketrans", "translate", "isprintable", "isidentifier", NULL};

static bool is_one_of(const struct string *name, const char *const *names)
{
	for (; *names; names++)
		if (text_is(name, *names))
			return true;
	return false;
}

static struct value bound(struct render *r, struct value self, const struct function *function)
{
	struct method *method = arena_alloc(&r->arena, sizeof(*method));
	*method = (struct method){self, function};
	return (struct value){.kind = VALUE_METHOD, .method = method};
}

static const struct function *methods_of(struct value v)
{
	switch (v.kind) {
	case VALUE_STRING:
		return methods_string;
	case VALUE_DICT:
		return methods_dict;
	case VALUE_LIST:
	case VALUE_TUPLE:
	case VALUE_RANGE:
		return methods_list;
	case VALUE_LOOP:
		return methods_loop;
	default:
		return NULL;
	}
}

static struct value loop_neighbour(struct render *r, const struct loop *loop, bool next)
{
	if (next && loop->index + 1 < loop->items->n)
		return loop->items->items[loop->index + 1];
	if (!next && loop->index > 0)
		return loop->items->items[loop->index - 1];
	return render_undefined_hint(
		r, next ? "there is no next item" : "there is no previous item");
}

static bool loop_attribute(
	struct render *r, const struct loop *loop, const struct string *name, struct value *out)
{
	int64_t n = (int64_t)loop->items->n, i = (int64_t)loop->index;
	if (text_is(name, "index"))
		*out = value_int(i + 1);
	else if (text_is(name, "index0"))
		*out = value_int(i);
	else if (text_is(name, "revindex"))
		*out = value_int(n - i);
	else if (text_is(name, "revindex0"))
		*out = value_int(n - i - 1);
	else if (text_is(name, "first"))
		*out = value_bool(i == 0);
	else if (text_is(name, "last"))
		*out = value_bool(i + 1 == n);
	else if (text_is(name, "length"))
		*out = value_int(n);
	else if (text_is(name, "depth"))
		*out = value_int(loop->depth + 1);
	else if (text_is(name, "depth0"))
		*out = value_int(loop->depth);
	else if (text_is(name, "nextitem") || text_is(name, "previtem"))
		*out = loop_neighbour(r, loop, text_is(name, "nextitem"));
	else
		return false;
	return true;
}

/* A method, or an attribute of a loop, a range or a macro. */
static bool own_attribute(
	struct render *r, struct value v, const struct string *name, struct value *out)
{
	const struct function *table = methods_of(v), *method;
	if (table && (method = function_find(table, name->data, name->bytes)) &&
		(v.kind == VALUE_LIST || v.kind == VALUE_DICT || !text_is(name, "copy"))) {
		*out = bound(r, v, method);
		return true;
	}
	if ((v.kind == VALUE_DICT || v.kind == VALUE_LIST) && is_one_of(name, mutators) &&
		!(v.kind == VALUE_DICT &&
			(text_is(name, "append") || text_is(name, "extend") ||
				text_is(name, "insert") || text_is(name, "sort") ||
				text_is(name, "remove") || text_is(name, "reverse"))) &&
		!(v.kind == VALUE_LIST && (text_is(name, "update") || text_is(name, "popitem") ||
						  text_is(name, "setdefault")))) {
		*out = render_undefined_hint(
			r, "templates may not change lists and dicts (append, pop, update, ...)");
		return true;
	}
	if (v.kind == VALUE_STRING && is_one_of(name, string_methods_missing))
		render_fail(r, "the string method \"%s\" is not supported", shown(name).text);
	if (v.kind == VALUE_TUPLE && v.list->view &&
		(text_is(name, "grouper") || text_is(name, "list"))) {
		*out = v.list->items[text_is(name, "list")];
		return true;
	}
	if (v.kind == VALUE_LOOP)
		return loop_attribute(r, v.loop, name, out);
	if (v.kind == VALUE_MACRO && text_is(name, "name")) {
		*out = v.macro->name ? value_string((struct string *)v.macro->name) : value_none();
		return true;
	}
	if (v.kind == VALUE_RANGE &&
		(text_is(name, "start") || text_is(name, "stop") || text_is(name, "step"))) {
		*out = value_int(text_is(name, "start")	 ? v.list->start
				 : text_is(name, "stop") ? v.list->stop
							 : v.list->step);
		return true;
	}
	return false;
}

/* The element, or VALUE_MISSING. */
static struct value element(struct render *r, struct value v, struct value index)
{
	const struct value missing = {.kind = VALUE_MISSING};
	const struct pair *pair;
	if (v.kind == VALUE_DICT) {
		if (index.kind == VALUE_LIST || index.kind == VALUE_DICT)
			return missing;
		pair = dict_find(r, v.dict, index);
		return pair ? pair->value : missing;
	}
	if ((v.kind != VALUE_STRING && !value_is_sequence(v)) || !value_is_int(index))
		return missing;
	int64_t n = value_length(r, v), i = value_as_int(index);
	i += i < 0 ? n : 0;
	if (i < 0 || i >= n)
		return missing;
	if (v.kind != VALUE_STRING)
		return v.list->items[i];
	size_t from = text_offset(v.s, (size_t)i);
	uint32_t code;
	render_charge(r, v.s->bytes == (size_t)n ? 0 : from / 64);
	return value_string(text_slice(&r->arena, v.s, from,
		from + text_char(v.s->data + from, v.s->bytes - from, &code)));
}

struct value attribute_get(struct render *r, struct value v, const struct string *name)
{
	struct value out, index = value_string((struct string *)name);
	const struct pair *pair;
	render_need_defined(r, v);
	if (v.kind == VALUE_NAMESPACE) {
		pair = dict_find(r, v.dict, index);
		return pair ? pair->value : render_undefined(r, value_type(v), index);
	}
	if (name->bytes > 1 && name->data[0] == '_' && name->data[1] == '_' && v.kind != VALUE_DICT)
		return render_undefined_hint(
			r, "templates may not use names that begin with \"__\"");
	if (own_attribute(r, v, name, &out))
		return out;
	out = element(r, v, index);
	return out.kind == VALUE_MISSING ? render_undefined(r, value_type(v), index) : out;
}

struct value attribute_item(struct render *r, struct value v, struct value index)
{
	struct value out;
	render_need_defined(r, v);
	out = element(r, v, index);
	if (out.kind != VALUE_MISSING)
		return out;
	if (index.kind == VALUE_STRING) {
		if (v.kind == VALUE_NAMESPACE)
			return attribute_get(r, v, index.s);
		if (own_attribute(r, v, index.s, &out))
			return out;
	}
	return render_undefined(r, value_type(v), index);
}

struct value attribute_path(struct render *r, struct value v, struct value path)
{
	if (path.kind != VALUE_STRING)
		return attribute_item(r, v, path);
	struct string *s = path.s;
	for (size_t from = 0; from <= s->bytes;) {
		const char *dot = memchr(s->data + from, '.', s->bytes - from);
		size_t to = dot ? (size_t)(dot - s->data) : s->bytes;
		struct string *part = text_slice(&r->arena, s, from, to);
		bool digits = to > from && to - from < 18;
		int64_t number = 0;
		for (size_t i = from; digits && i < to; i++) {
			digits = s->data[i] >= '0' && s->data[i] <= '9';
			number = number * 10 + (s->data[i] - '0');
		}
		v = attribute_item(r, v, digits ? value_int(number) : value_string(part));
		from = to + 1;
	}
	return v;
}

static int64_t bound_of(
	struct render *r, struct value v, int64_t n, int64_t low, int64_t high, int64_t otherwise)
{
	if (v.kind == VALUE_NONE)
		return otherwise;
	if (!value_is_int(v)) {
		render_need_defined(r, v);
		render_fail(r, "the bounds of a slice must be integers or none, not '%s'",
			value_type(v));
	}
	int64_t i = value_as_int(v);
	if (i < 0)
		i = i < -n ? low : i + n;
	return i < low ? low : i > high ? high : i;
}

static struct value slice_string(
	struct render *r, struct string *s, int64_t start, int64_t stop, int64_t step)
{
	struct builder b;
	if (step == 1) {
		size_t from = text_offset(s, (size_t)start);
		size_t to = stop > start ? text_offset(s, (size_t)stop) : from;
		render_charge(r, s->bytes / 64);
		return value_string(text_slice(&r->arena, s, from, to));
	}
	/* The offset at which each character begins. */
	size_t n = text_chars(s), *offsets = arena_array(&r->arena, n + 1, sizeof(*offsets));
	uint32_t code;
	render_charge(r, n / 8);
	for (size_t i = 0; i < n; i++)
		offsets[i + 1] =
			offsets[i] + text_char(s->data + offsets[i], s->bytes - offsets[i], &code);
	builder_init(&b, &r->arena, r->limits->output_bytes);
	for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step)
		builder_slice(&b, s, offsets[i], offsets[i + 1]);
	return value_string(builder_finish(&b));
}

struct value attribute_slice(struct render *r, struct value v, const struct value bounds[3])
{
	render_need_defined(r, v);
	if (v.kind != VALUE_STRING && !value_is_sequence(v))
		render_fail(r, "'%s' object cannot be sliced", value_type(v));
	int64_t n = value_length(r, v), step = 1;
	if (bounds[2].kind != VALUE_NONE) {
		if (!value_is_int(bounds[2]))
			render_fail(r, "the step of a slice must be an integer or none");
		step = value_as_int(bounds[2]);
		if (step == 0)
			render_fail(r, "the step of a slice cannot be 0");
		/* Beyond the length all steps are the same, and i + step cannot overflow. */
		step = step > n ? n + 1 : step < -n ? -n - 1 : step;
	}
	int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
	int64_t start = bound_of(r, bounds[0], n, low, high, step > 0 ? low : high);
	int64_t stop = bound_of(r, bounds[1], n, low, high, step > 0 ? high : low);
	if (v.kind == VALUE_STRING)
		return slice_string(r, v.s, start, stop, step);
	struct list *list = list_new(r, 0);
	for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step)
		list_add(r, list, v.list->items[i]);
	if (v.kind == VALUE_RANGE) {
		/* Unsigned: one bound may lie beyond 64 bits, which is only shown. */
		uint64_t first = (uint64_t)v.list->start, by = (uint64_t)v.list->step;
		list->step = (int64_t)(by * (uint64_t)step);
		list->start = (int64_t)(first + (uint64_t)start * by);
		list->stop = (int64_t)(first + (uint64_t)stop * by);
	}
	return value_list(v.kind, list);
}
