/* Filters of sequences and dicts. */
#include "shared/model/text/template/strings.h"

#include <string.h>

#define FILTER(name)                                                                         \
	static struct value name(struct render *r, struct value v, const struct value *args, \
		const struct call *call)
#define UNUSED ((void)args, (void)call)

static struct value iterator(struct list *list)
{
	return value_list(VALUE_ITERATOR, list);
}

static struct list *copy(struct render *r, const struct list *list)
{
	struct list *new = list_new(r, list->n);
	for (size_t i = 0; i < list->n; i++)
		list_add(r, new, list->items[i]);
	return new;
}

/* The key by which an item is sorted or grouped: an attribute of it, or the item itself; text in
 * lower case. */
static struct value key_of(
	struct render *r, struct value item, struct value attribute, bool case_sensitive)
{
	if (attribute.kind != VALUE_MISSING && attribute.kind != VALUE_NONE)
		item = attribute_path(r, item, attribute);
	if (item.kind == VALUE_STRING && !case_sensitive)
		return value_string(strings_case(r, item.s, UNICODE_LOWER));
	return item;
}

FILTER(length)
{
	UNUSED;
	return value_int(value_length(r, v));
}

FILTER(first)
{
	UNUSED;
	if (v.kind == VALUE_ITERATOR && v.list->next < v.list->n)
		return v.list->items[v.list->next++];
	const struct list *items = value_items(r, v);
	return items->n ? items->items[0]
			: render_undefined_hint(r, "the sequence is empty: it has no first item");
}

FILTER(last)
{
	UNUSED;
	if (v.kind == VALUE_ITERATOR)
		render_fail(r, "last: '%s' object cannot be reversed", value_type(v));
	const struct list *items = value_items(r, v);
	return items->n ? items->items[items->n - 1]
			: render_undefined_hint(r, "the sequence is empty: it has no last item");
}

FILTER(list)
{
	UNUSED;
	return value_list(VALUE_LIST, copy(r, value_items(r, v)));
}

FILTER(join)
{
	(void)call;
	const struct list *items = value_items(r, v);
	const struct string *separator = args[0].kind == VALUE_MISSING ? text_literal(&r->arena, "")
								       : print_text(r, args[0]);
	if (args[1].kind != VALUE_MISSING && args[1].kind != VALUE_NONE) {
		struct list *attributes = list_new(r, items->n);
		for (size_t i = 0; i < items->n; i++)
			list_add(r, attributes, attribute_path(r, items->items[i], args[1]));
		items = attributes;
	}
	return value_string(strings_join(r, separator, items));
}

FILTER(reverse)
{
	UNUSED;
	if (v.kind == VALUE_STRING) {
		const struct value bounds[3] = {value_none(), value_none(), value_int(-1)};
		return attribute_slice(r, v, bounds);
	}
	const struct list *items = value_items(r, v);
	struct list *reversed = list_new(r, items->n);
	for (size_t i = items->n; i-- > 0;)
		list_add(r, reversed, items->items[i]);
	return iterator(reversed);
}

/* Keys are lists, as in jinja2: what is equal needs no order. "a,b" sorts by a, then by b. */
FILTER(sort)
{
	(void)call;
	struct list *items = copy(r, value_items(r, v)), *keys = list_new(r, items->n);
	struct list *parts = list_new(r, 1);
	if (args[2].kind == VALUE_STRING)
		parts = strings_split(r, args[2].s, text_literal(&r->arena, ","), -1);
	else
		list_add(r, parts, args[2]);
	for (size_t i = 0; i < items->n; i++) {
		struct list *key = list_new(r, parts->n);
		for (size_t k = 0; k < parts->n; k++)
			list_add(r, key,
				key_of(r, items->items[i], parts->items[k], value_truth(args[1])));
		list_add(r, keys, value_list(VALUE_LIST, key));
	}
	list_sort(r, keys, items, value_truth(args[0]));
	return value_list(VALUE_LIST, items);
}

FILTER(unique)
{
	(void)call;
	const struct list *items = value_items(r, v);
	struct list *chosen = list_new(r, 0);
	struct dict *seen = dict_new(r);
	for (size_t i = 0; i < items->n; i++) {
		struct value key = key_of(r, items->items[i], args[1], value_truth(args[0]));
		if (dict_find(r, seen, key))
			continue;
		dict_set(r, seen, key, value_none());
		list_add(r, chosen, items->items[i]);
	}
	return iterator(chosen);
}

static struct value extreme(
	struct render *r, struct value v, const struct value *args, bool largest)
{
	const struct list *items = value_items(r, v);
	if (!items->n)
		return render_undefined_hint(r, "the sequence is empty");
	size_t best = 0;
	struct value best_key = key_of(r, items->items[0], args[1], value_truth(args[0]));
	for (size_t i = 1; i < items->n; i++) {
		struct value key = key_of(r, items->items[i], args[1], value_truth(args[0]));
		int order = value_compare(r, key, best_key, largest ? ">" : "<");
		if (largest ? order > 0 : order < 0) {
			best = i;
			best_key = key;
		}
	}
	return items->items[best];
}

FILTER(min)
{
	(void)call;
	return extreme(r, v, args, false);
}

FILTER(max)
{
	(void)call;
	return extreme(r, v, args, true);
}

FILTER(sum)
{
	(void)call;
	const struct list *items = value_items(r, v);
	struct value total = args[1].kind == VALUE_MISSING ? value_int(0) : args[1];
	for (size_t i = 0; i < items->n; i++) {
		struct value item = items->items[i];
		if (args[0].kind != VALUE_MISSING && args[0].kind != VALUE_NONE)
			item = attribute_path(r, item, args[0]);
		if (total.kind == VALUE_STRING)
			render_fail(r, "sum does not add strings");
		total = operator_binary(r, OP_ADD, total, item);
	}
	return total;
}

FILTER(batch)
{
	(void)call;
	const struct list *items = value_items(r, v);
	int64_t n = argument_int(r, args[0], 1, "linecount");
	struct list *lines = list_new(r, 0), *line = NULL;
	for (size_t i = 0; i < items->n; i++) {
		if (!line || (int64_t)line->n == n) {
			line = list_new(r, 0);
			list_add(r, lines, value_list(VALUE_LIST, line));
		}
		list_add(r, line, items->items[i]);
	}
	bool fill = args[1].kind != VALUE_MISSING && args[1].kind != VALUE_NONE;
	while (line && fill && (int64_t)line->n < n)
		list_add(r, line, args[1]);
	return iterator(lines);
}

FILTER(slice)
{
	(void)call;
	const struct list *items = value_items(r, v);
	int64_t slices = argument_int(r, args[0], 1, "slices");
	if (slices == 0)
		render_fail(r, "division by zero");
	struct list *out = list_new(r, 0);
	size_t at = 0;
	for (int64_t i = 0; i < slices; i++) {
		size_t n = items->n / (size_t)slices + ((size_t)i < items->n % (size_t)slices);
		struct list *part = list_new(r, 0);
		for (size_t k = 0; k < n; k++)
			list_add(r, part, items->items[at++]);
		if (args[1].kind != VALUE_MISSING && args[1].kind != VALUE_NONE &&
			(size_t)i >= items->n % (size_t)slices)
			list_add(r, part, args[1]);
		list_add(r, out, value_list(VALUE_LIST, part));
	}
	return iterator(out);
}

static struct list *pairs_of(struct render *r, const struct dict *dict)
{
	struct list *list = list_new(r, dict->n);
	for (size_t i = 0; i < dict->n; i++) {
		struct list *pair = list_new(r, 2);
		list_add(r, pair, dict->pairs[i].key);
		list_add(r, pair, dict->pairs[i].value);
		list_add(r, list, value_list(VALUE_TUPLE, pair));
	}
	return list;
}

FILTER(items)
{
	UNUSED;
	if (v.kind == VALUE_UNDEFINED)
		return iterator(list_new(r, 0));
	if (v.kind != VALUE_DICT)
		render_fail(r, "items is for mappings, not '%s'", value_type(v));
	return iterator(pairs_of(r, v.dict));
}

FILTER(dictsort)
{
	(void)call;
	if (v.kind != VALUE_DICT) {
		render_need_defined(r, v);
		render_fail(r, "dictsort is for mappings, not '%s'", value_type(v));
	}
	size_t by = 0;
	if (args[1].kind != VALUE_MISSING) {
		const struct string *name = print_text(r, args[1]);
		by = text_is(name, "value");
		if (!by && !text_is(name, "key"))
			render_fail(r, "dictsort sorts by \"key\" or \"value\"");
	}
	struct list *pairs = pairs_of(r, v.dict), *keys = list_new(r, pairs->n);
	const struct value no_attribute = {.kind = VALUE_MISSING};
	for (size_t i = 0; i < pairs->n; i++)
		list_add(r, keys,
			key_of(r, pairs->items[i].list->items[by], no_attribute,
				value_truth(args[0])));
	list_sort(r, keys, pairs, value_truth(args[2]));
	return value_list(VALUE_LIST, pairs);
}

FILTER(groupby)
{
	(void)call;
	struct list *items = copy(r, value_items(r, v)), *keys = list_new(r, items->n);
	struct list *groups = list_new(r, 0), *members = NULL;
	bool exact = value_truth(args[2]);
	for (size_t i = 0; i < items->n; i++) {
		struct value key = key_of(r, items->items[i], args[0], exact);
		if (key.kind == VALUE_UNDEFINED && args[1].kind != VALUE_MISSING)
			key = args[1];
		list_add(r, keys, key);
	}
	list_sort(r, keys, items, false);
	for (size_t i = 0; i < items->n; i++) {
		if (!i || !value_equal(r, keys->items[i], keys->items[i - 1])) {
			struct list *group = list_new(r, 2);
			struct value key = attribute_path(r, items->items[i], args[0]);
			if (key.kind == VALUE_UNDEFINED && args[1].kind != VALUE_MISSING)
				key = args[1];
			group->view = "group";
			members = list_new(r, 0);
			list_add(r, group, key);
			list_add(r, group, value_list(VALUE_LIST, members));
			list_add(r, groups, value_list(VALUE_TUPLE, group));
		}
		list_add(r, members, items->items[i]);
	}
	return value_list(VALUE_LIST, groups);
}

const struct function filters_list[] = {
	{"length", length, "", 0},
	{"count", length, "", 0},
	{"first", first, "", 0},
	{"last", last, "", 0},
	{"list", list, "", 0},
	{"join", join, "d,attribute", 0},
	{"reverse", reverse, "", 0},
	{"sort", sort, "reverse,case_sensitive,attribute", 0},
	{"unique", unique, "case_sensitive,attribute", 0},
	{"min", min, "case_sensitive,attribute", 0},
	{"max", max, "case_sensitive,attribute", 0},
	{"sum", sum, "attribute,start", 0},
	{"batch", batch, "linecount,fill_with", 1},
	{"slice", slice, "slices,fill_with", 1},
	{"items", items, "", 0},
	{"dictsort", dictsort, "case_sensitive,by,reverse", 0},
	{"groupby", groupby, "attribute,default,case_sensitive", 1},
	{NULL, NULL, NULL, 0},
};
