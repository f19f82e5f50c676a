/* Filters that apply another filter or a test to every item: map, select and their kin. */
#include "shared/model/text/template/render.h"

#define FILTER(name)                                                                         \
	static struct value name(struct render *r, struct value v, const struct value *args, \
		const struct call *call)

static const struct value *named(const struct call *call, const char *name)
{
	for (size_t i = 0; i < call->n_named; i++)
		if (text_is(call->named[i].key.s, name))
			return &call->named[i].value;
	return NULL;
}

static struct value map_attribute(struct render *r, const struct list *items,
	const struct value *attribute, const struct value *otherwise, const struct call *call)
{
	struct list *out = list_new(r, items->n);
	if (call->n_named > 1 + (size_t)(otherwise != NULL))
		render_fail(r, "map with attribute takes default and nothing else");
	for (size_t i = 0; i < items->n; i++) {
		struct value item = attribute_path(r, items->items[i], *attribute);
		bool use_default =
			otherwise && otherwise->kind != VALUE_NONE && item.kind == VALUE_UNDEFINED;
		list_add(r, out, use_default ? *otherwise : item);
	}
	return value_list(VALUE_ITERATOR, out);
}

FILTER(map)
{
	(void)args;
	const struct value *attribute = named(call, "attribute");
	/* An iterator is true even when it gives nothing; a false value is not looked into. */
	if (!value_truth(v))
		return value_list(VALUE_ITERATOR, list_new(r, 0));
	const struct list *items = value_items(r, v);
	if (!call->n_args && attribute)
		return map_attribute(r, items, attribute, named(call, "default"), call);
	if (!call->n_args || call->args[0].kind != VALUE_STRING)
		render_fail(r, "map needs the name of a filter, or attribute=");
	struct call inner = *call;
	inner.args++;
	inner.n_args--;
	struct list *out = list_new(r, items->n);
	for (size_t i = 0; i < items->n; i++)
		list_add(r, out, call_filter(r, call->args[0].s, items->items[i], &inner));
	return value_list(VALUE_ITERATOR, out);
}

static struct value choose(
	struct render *r, struct value v, const struct call *call, bool by_attribute, bool wanted)
{
	struct list *chosen = list_new(r, 0);
	if (!value_truth(v))
		return value_list(VALUE_ITERATOR, chosen);
	const struct list *items = value_items(r, v);
	struct call inner = *call;
	if (by_attribute && !call->n_args)
		render_fail(r, "the name of the attribute is missing");
	if (by_attribute) {
		inner.args++;
		inner.n_args--;
	}
	const struct string *test = NULL;
	if (inner.n_args) {
		if (inner.args[0].kind != VALUE_STRING)
			render_fail(r, "the name of a test must be a string");
		test = inner.args[0].s;
		inner.args++;
		inner.n_args--;
	}
	for (size_t i = 0; i < items->n; i++) {
		struct value item = items->items[i];
		if (by_attribute)
			item = attribute_path(r, item, call->args[0]);
		bool is = test ? call_test(r, test, item, &inner) : value_truth(item);
		if (is == wanted)
			list_add(r, chosen, items->items[i]);
	}
	return value_list(VALUE_ITERATOR, chosen);
}

FILTER(select_items)
{
	(void)args;
	return choose(r, v, call, false, true);
}

FILTER(reject)
{
	(void)args;
	return choose(r, v, call, false, false);
}

FILTER(selectattr)
{
	(void)args;
	return choose(r, v, call, true, true);
}

FILTER(rejectattr)
{
	(void)args;
	return choose(r, v, call, true, false);
}

const struct function filters_select[] = {
	{"map", map, NULL, 0},
	{"select", select_items, NULL, 0},
	{"reject", reject, NULL, 0},
	{"selectattr", selectattr, NULL, 0},
	{"rejectattr", rejectattr, NULL, 0},
	{NULL, NULL, NULL, 0},
};
