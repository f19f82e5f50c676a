/* Methods of dicts, lists and loops. */
#include "shared/model/text/template/strings.h"

#define METHOD(name)                                                                            \
	static struct value name(struct render *r, struct value self, const struct value *args, \
		const struct call *call)
#define UNUSED ((void)args, (void)call)

static struct value view(struct render *r, const struct dict *dict, const char *type)
{
	struct list *list = list_new(r, dict->n);
	list->view = type;
	for (size_t i = 0; i < dict->n; i++) {
		const struct pair *pair = &dict->pairs[i];
		struct list *both;
		switch (type[5]) {
		case 'k':
			list_add(r, list, pair->key);
			break;
		case 'v':
			list_add(r, list, pair->value);
			break;
		default:
			both = list_new(r, 2);
			list_add(r, both, pair->key);
			list_add(r, both, pair->value);
			list_add(r, list, value_list(VALUE_TUPLE, both));
		}
	}
	return value_list(VALUE_VIEW, list);
}

METHOD(dict_keys)
{
	UNUSED;
	return view(r, self.dict, "dict_keys");
}

METHOD(dict_values)
{
	UNUSED;
	return view(r, self.dict, "dict_values");
}

METHOD(dict_items)
{
	UNUSED;
	return view(r, self.dict, "dict_items");
}

METHOD(dict_get)
{
	if (call->n_named)
		render_fail(r, "get takes no named arguments");
	const struct pair *pair = dict_find(r, self.dict, args[0]);
	return pair ? pair->value : args[1].kind == VALUE_MISSING ? value_none() : args[1];
}

METHOD(dict_copy)
{
	UNUSED;
	struct dict *dict = dict_new(r);
	for (size_t i = 0; i < self.dict->n; i++)
		dict_set(r, dict, self.dict->pairs[i].key, self.dict->pairs[i].value);
	return value_dict(dict);
}

const struct function methods_dict[] = {
	{"keys", dict_keys, "", 0},
	{"values", dict_values, "", 0},
	{"items", dict_items, "", 0},
	{"get", dict_get, "key,default", 1},
	{"copy", dict_copy, "", 0},
	{NULL, NULL, NULL, 0},
};

METHOD(list_index)
{
	(void)call;
	for (size_t i = 0; i < self.list->n; i++)
		if (value_equal(r, self.list->items[i], args[0]))
			return value_int((int64_t)i);
	render_fail(r, "index: the item is not in the list");
}

METHOD(list_count)
{
	(void)call;
	int64_t n = 0;
	for (size_t i = 0; i < self.list->n; i++)
		n += value_equal(r, self.list->items[i], args[0]);
	return value_int(n);
}

METHOD(list_copy)
{
	UNUSED;
	struct list *copy = list_new(r, self.list->n);
	for (size_t i = 0; i < self.list->n; i++)
		list_add(r, copy, self.list->items[i]);
	return value_list(self.kind, copy);
}

const struct function methods_list[] = {
	{"index", list_index, "value", 1},
	{"count", list_count, "value", 1},
	{"copy", list_copy, "", 0},
	{NULL, NULL, NULL, 0},
};

METHOD(loop_cycle)
{
	(void)args;
	if (!call->n_args || call->n_named)
		render_fail(r, "cycle needs the values to cycle through");
	return call->args[self.loop->index % call->n_args];
}

METHOD(loop_changed)
{
	(void)args;
	struct list *now = list_new(r, call->n_args);
	for (size_t i = 0; i < call->n_args; i++)
		list_add(r, now, call->args[i]);
	struct value tuple = value_list(VALUE_TUPLE, now);
	bool changed = self.loop->changed.kind != VALUE_TUPLE ||
		       !value_equal(r, self.loop->changed, tuple);
	self.loop->changed = tuple;
	return value_bool(changed);
}

const struct function methods_loop[] = {
	{"cycle", loop_cycle, NULL, 0},
	{"changed", loop_changed, NULL, 0},
	{NULL, NULL, NULL, 0},
};
