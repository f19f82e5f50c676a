#include "shared/model/text/template/value.h"

#include "shared/model/text/template/render.h"

#include <string.h>

const char *value_type(struct value v)
{
	switch (v.kind) {
	case VALUE_MISSING:
	case VALUE_UNDEFINED:
		return "Undefined";
	case VALUE_NONE:
		return "NoneType";
	case VALUE_BOOL:
		return "bool";
	case VALUE_INT:
		return "int";
	case VALUE_FLOAT:
		return "float";
	case VALUE_STRING:
		return "str";
	case VALUE_LIST:
		return "list";
	case VALUE_TUPLE:
		return "tuple";
	case VALUE_RANGE:
		return "range";
	case VALUE_VIEW:
		return v.list->view;
	case VALUE_ITERATOR:
		return "generator";
	case VALUE_DICT:
		return "dict";
	case VALUE_NAMESPACE:
		return "Namespace";
	case VALUE_LOOP:
		return "LoopContext";
	case VALUE_MACRO:
		return "Macro";
	case VALUE_FUNCTION:
		return "function";
	case VALUE_METHOD:
		return "method";
	}
	return "object";
}

bool value_truth(struct value v)
{
	switch (v.kind) {
	case VALUE_MISSING:
	case VALUE_UNDEFINED:
	case VALUE_NONE:
		return false;
	case VALUE_BOOL:
		return v.b;
	case VALUE_INT:
		return v.i != 0;
	case VALUE_FLOAT:
		return v.f != 0;
	case VALUE_STRING:
		return v.s->bytes != 0;
	case VALUE_LIST:
	case VALUE_TUPLE:
	case VALUE_RANGE:
	case VALUE_VIEW:
		return v.list->n != 0;
	case VALUE_DICT:
		return v.dict->n != 0;
	default:
		return true;
	}
}

static bool lists_equal(struct render *r, const struct list *a, const struct list *b)
{
	bool equal = a->n == b->n;
	render_enter(r);
	for (size_t i = 0; equal && i < a->n; i++)
		equal = value_equal(r, a->items[i], b->items[i]);
	render_leave(r);
	return equal;
}

static bool dicts_equal(struct render *r, const struct dict *a, const struct dict *b)
{
	bool equal = a->n == b->n;
	render_enter(r);
	for (size_t i = 0; equal && i < a->n; i++) {
		const struct pair *other = dict_find(r, b, a->pairs[i].key);
		equal = other && value_equal(r, a->pairs[i].value, other->value);
	}
	render_leave(r);
	return equal;
}

bool value_equal(struct render *r, struct value a, struct value b)
{
	render_charge(r, 1);
	if (value_is_number(a) && value_is_number(b)) {
		if (value_is_int(a) && value_is_int(b))
			return value_as_int(a) == value_as_int(b);
		return value_as_float(a) == value_as_float(b);
	}
	if (a.kind != b.kind)
		return false;
	switch (a.kind) {
	case VALUE_MISSING:
	case VALUE_UNDEFINED:
	case VALUE_NONE:
		return true;
	case VALUE_STRING:
		render_charge(r, a.s->bytes / 64);
		return text_equal(a.s, b.s);
	case VALUE_LIST:
	case VALUE_TUPLE:
	case VALUE_RANGE:
		return a.list == b.list || lists_equal(r, a.list, b.list);
	case VALUE_DICT:
		return a.dict == b.dict || dicts_equal(r, a.dict, b.dict);
	case VALUE_NAMESPACE:
		return a.dict == b.dict;
	case VALUE_VIEW:
		return strcmp(a.list->view, "dict_values") != 0 && lists_equal(r, a.list, b.list);
	case VALUE_METHOD:
		return a.method->function == b.method->function &&
		       value_equal(r, a.method->self, b.method->self);
	default:
		return (const void *)a.list == (const void *)b.list;
	}
}

int value_compare(struct render *r, struct value a, struct value b, const char *operator)
{
	render_charge(r, 1);
	render_need_defined(r, a);
	render_need_defined(r, b);
	if (value_is_int(a) && value_is_int(b)) {
		int64_t x = value_as_int(a), y = value_as_int(b);
		return (x > y) - (x < y);
	}
	if (value_is_number(a) && value_is_number(b)) {
		double x = value_as_float(a), y = value_as_float(b);
		return (x > y) - (x < y);
	}
	if (a.kind == VALUE_STRING && b.kind == VALUE_STRING) {
		render_charge(r, a.s->bytes / 64);
		return text_compare(a.s, b.s);
	}
	if (a.kind != b.kind || (a.kind != VALUE_LIST && a.kind != VALUE_TUPLE))
		render_fail(r, "'%s' is not supported between '%s' and '%s'", operator,
			value_type(a), value_type(b));
	int order = 0;
	size_t n = a.list->n < b.list->n ? a.list->n : b.list->n;
	render_enter(r);
	for (size_t i = 0; !order && i < n; i++)
		if (!value_equal(r, a.list->items[i], b.list->items[i]))
			order = value_compare(r, a.list->items[i], b.list->items[i], operator);
	render_leave(r);
	return order ? order : (a.list->n > b.list->n) - (a.list->n < b.list->n);
}

bool value_contains(struct render *r, struct value container, struct value item)
{
	switch (container.kind) {
	case VALUE_STRING:
		if (item.kind != VALUE_STRING) {
			render_need_defined(r, item);
			render_fail(r, "'in <string>' needs a string on the left, not '%s'",
				value_type(item));
		}
		render_charge_text(r, container.s->bytes);
		return text_find(container.s, item.s, 0) >= 0;
	case VALUE_DICT:
		return dict_find(r, container.dict, item) != NULL;
	case VALUE_UNDEFINED:
		return false;
	default: {
		const struct list *items = value_items(r, container);
		for (size_t i = 0; i < items->n; i++)
			if (value_equal(r, items->items[i], item))
				return true;
		return false;
	}
	}
}

int64_t value_length(struct render *r, struct value v)
{
	switch (v.kind) {
	case VALUE_UNDEFINED:
		return 0;
	case VALUE_STRING:
		render_charge(r, v.s->bytes / 64);
		return (int64_t)text_chars(v.s);
	case VALUE_LIST:
	case VALUE_TUPLE:
	case VALUE_RANGE:
	case VALUE_VIEW:
		return (int64_t)v.list->n;
	case VALUE_DICT:
		return (int64_t)v.dict->n;
	case VALUE_LOOP:
		return (int64_t)v.loop->items->n;
	default:
		render_fail(r, "object of type '%s' has no length", value_type(v));
	}
}

static struct list *characters(struct render *r, const struct string *s)
{
	struct list *list = list_new(r, s->bytes);
	uint32_t code;
	for (size_t at = 0, n; at < s->bytes; at += n) {
		n = text_char(s->data + at, s->bytes - at, &code);
		struct string *c = text_slice(&r->arena, s, at, at + n);
		c->markup = false;
		list_add(r, list, value_string(c));
	}
	return list;
}

static struct list *rest_of(struct render *r, struct list *iterator)
{
	struct list *rest = list_new(r, 0);
	if (iterator->next == iterator->n)
		return rest;
	rest->items = iterator->items + iterator->next;
	rest->n = rest->capacity = iterator->n - iterator->next;
	iterator->next = iterator->n;
	return rest;
}

struct list *value_items(struct render *r, struct value v)
{
	struct list *list;
	switch (v.kind) {
	case VALUE_UNDEFINED:
		return list_new(r, 0);
	case VALUE_STRING:
		return characters(r, v.s);
	case VALUE_LIST:
	case VALUE_TUPLE:
	case VALUE_RANGE:
	case VALUE_VIEW:
		return v.list;
	case VALUE_ITERATOR:
		return rest_of(r, v.list);
	case VALUE_DICT:
		list = list_new(r, v.dict->n);
		for (size_t i = 0; i < v.dict->n; i++)
			list_add(r, list, v.dict->pairs[i].key);
		return list;
	default:
		render_fail(r, "'%s' object is not iterable", value_type(v));
	}
}

struct list *list_new(struct render *r, size_t capacity)
{
	struct list *list = arena_alloc(&r->arena, sizeof(*list));
	if (capacity)
		list->items = arena_array(&r->arena, capacity, sizeof(*list->items));
	list->capacity = capacity;
	return list;
}

void list_add(struct render *r, struct list *list, struct value item)
{
	render_charge(r, 1);
	if (list->n == list->capacity) {
		size_t capacity = list->capacity ? 2 * list->capacity : 8;
		list->items =
			arena_grow(&r->arena, list->items, list->n, capacity, sizeof(*list->items));
		list->capacity = capacity;
	}
	list->items[list->n++] = item;
}
