/* Calls: arguments, macros, and the functions of the tables. */
#include "shared/model/text/template/render.h"

#include <string.h>

static struct value *evaluate_args(struct render *r, const struct node *node, size_t *n)
{
	const struct list *rest = node->rest ? value_items(r, eval(r, node->rest)) : NULL;
	size_t n_rest = rest ? rest->n : 0;
	struct value *args = arena_array(&r->arena, node->args.n + n_rest, sizeof(*args));
	for (size_t i = 0; i < node->args.n; i++)
		args[i] = eval(r, node->args.items[i]);
	if (n_rest)
		memcpy(args + node->args.n, rest->items, n_rest * sizeof(*args));
	*n = node->args.n + n_rest;
	return args;
}

void call_evaluate(struct render *r, const struct node *node, struct call *call)
{
	memset(call, 0, sizeof(*call));
	if (node->args.n || node->rest)
		call->args = evaluate_args(r, node, &call->n_args);
	if (!node->n_named && !node->named_rest)
		return;
	struct dict *named = dict_new(r);
	for (size_t i = 0; i < node->n_named; i++)
		dict_set(
			r, named, value_string(node->named[i].name), eval(r, node->named[i].value));
	if (node->named_rest) {
		struct value rest = eval(r, node->named_rest);
		if (rest.kind != VALUE_DICT)
			render_fail(r, "** needs a dict, not '%s'", value_type(rest));
		for (size_t i = 0; i < rest.dict->n; i++) {
			if (rest.dict->pairs[i].key.kind != VALUE_STRING)
				render_fail(r, "the names of arguments must be strings");
			dict_set(r, named, rest.dict->pairs[i].key, rest.dict->pairs[i].value);
		}
	}
	call->named = named->pairs;
	call->n_named = named->n;
}

/* Finds the index of a name in "a,b,c". */
static bool find_parameter(const char *parameters, const struct string *name, size_t *index)
{
	*index = 0;
	for (const char *at = parameters; *at; (*index)++) {
		size_t n = strcspn(at, ",");
		if (n == name->bytes && memcmp(at, name->data, n) == 0)
			return true;
		at += n + (at[n] == ',');
	}
	return false;
}

static int count_parameters(const char *parameters)
{
	int n = *parameters != '\0';
	for (; *parameters; parameters++)
		n += *parameters == ',';
	return n;
}

static void bind(struct render *r, const struct function *function, const struct call *call,
	struct value args[PARAMETERS_MAX])
{
	int n = count_parameters(function->parameters);
	if (call->n_args > (size_t)n)
		render_fail(r, "%s takes at most %d arguments, %zu are given", function->name, n,
			call->n_args);
	for (int i = 0; i < PARAMETERS_MAX; i++)
		args[i] = (size_t)i < call->n_args ? call->args[i]
						   : (struct value){.kind = VALUE_MISSING};
	for (size_t i = 0; i < call->n_named; i++) {
		const struct string *name = call->named[i].key.s;
		size_t at;
		if (!find_parameter(function->parameters, name, &at))
			render_fail(r, "%s has no argument '%s'", function->name, shown(name).text);
		if (args[at].kind != VALUE_MISSING)
			render_fail(r, "%s: the argument '%s' is given twice", function->name,
				shown(name).text);
		args[at] = call->named[i].value;
	}
	for (int i = 0; i < function->n_needed; i++)
		if (args[i].kind == VALUE_MISSING)
			render_fail(r, "%s needs %d argument%s (%s)", function->name,
				function->n_needed, function->n_needed > 1 ? "s" : "",
				function->parameters);
}

struct value call_function(struct render *r, const struct function *function, struct value self,
	const struct call *call)
{
	struct value args[PARAMETERS_MAX], v;
	render_enter(r);
	if (function->parameters)
		bind(r, function, call, args);
	v = function->fn(r, self, args, call);
	render_leave(r);
	return v;
}

const struct function *filter_find(const struct string *name)
{
	static const struct function *const tables[] = {
		filters_text, filters_list, filters_any, filters_select};
	const struct function *found = NULL;
	for (size_t i = 0; !found && i < sizeof(tables) / sizeof(tables[0]); i++)
		found = function_find(tables[i], name->data, name->bytes);
	return found;
}

const struct function *test_find(const struct string *name)
{
	return function_find(tests, name->data, name->bytes);
}

struct value call_filter(
	struct render *r, const struct string *name, struct value v, const struct call *call)
{
	const struct function *filter = filter_find(name);
	render_charge(r, 2); /* four tables */
	if (filter)
		return call_function(r, filter, v, call);
	render_fail(r, "the filter \"%s\" is not supported", shown(name).text);
}

bool call_test(struct render *r, const struct string *name, struct value v, const struct call *call)
{
	const struct function *test = test_find(name);
	if (test)
		return value_truth(call_function(r, test, v, call));
	render_fail(r, "the test \"%s\" is not supported", shown(name).text);
}

/* Binds named arguments of a macro that are none of its parameters. */
static void bind_extra(struct render *r, const struct macro *macro, const struct call *call,
	const bool *used, struct scope *scope)
{
	const struct node *node = macro->node;
	struct dict *kwargs = dict_new(r);
	struct value caller = {.kind = VALUE_MISSING};
	for (size_t i = 0; i < call->n_named; i++) {
		const struct pair *named = &call->named[i];
		if (used[i])
			continue;
		if (text_is(named->key.s, "caller") && node->uses_caller)
			caller = named->value;
		else if (node->uses_kwargs)
			dict_set(r, kwargs, named->key, named->value);
		else
			render_fail(r, "the macro %s has no argument '%s'",
				macro->name ? shown(macro->name).text : "caller",
				shown(named->key.s).text);
	}
	if (node->uses_kwargs)
		scope_set(r, scope, text_literal(&r->arena, "kwargs"), value_dict(kwargs));
	if (caller.kind == VALUE_MISSING)
		caller = render_undefined_hint(r, "no caller is defined");
	if (node->uses_caller)
		scope_set(r, scope, text_literal(&r->arena, "caller"), caller);
	size_t n_args = call->n_args < node->args.n ? call->n_args : node->args.n;
	struct list *rest = list_new(r, 0);
	for (size_t i = n_args; i < call->n_args; i++)
		list_add(r, rest, call->args[i]);
	if (node->uses_varargs)
		scope_set(r, scope, text_literal(&r->arena, "varargs"),
			value_list(VALUE_TUPLE, rest));
	else if (rest->n)
		render_fail(r, "the macro %s takes at most %zu arguments, %zu are given",
			macro->name ? shown(macro->name).text : "caller", node->args.n,
			call->n_args);
}

/* Binds the parameters in their order, so that a default may use the parameters before it. r->scope
 * is the macro's. */
static void bind_parameters(
	struct render *r, const struct macro *macro, const struct call *call, bool *used)
{
	const struct node *node = macro->node;
	size_t first_default = node->args.n - node->defaults.n;
	for (size_t i = 0; i < node->args.n; i++) {
		struct string *name = node->args.items[i]->text;
		struct value v = {.kind = VALUE_MISSING};
		if (i < call->n_args)
			v = call->args[i];
		render_charge(r, call->n_named * (8 + name->bytes) / 64);
		for (size_t k = 0; v.kind == VALUE_MISSING && k < call->n_named; k++)
			if (text_equal(call->named[k].key.s, name)) {
				v = call->named[k].value;
				used[k] = true;
			}
		if (v.kind == VALUE_MISSING && i >= first_default)
			v = eval(r, node->defaults.items[i - first_default]);
		if (v.kind == VALUE_MISSING)
			v = render_undefined(r, NULL, value_string(name));
		scope_set(r, r->scope, name, v);
	}
}

static struct value call_macro(struct render *r, const struct macro *macro, const struct call *call)
{
	struct builder b, *out = r->out;
	struct scope *scope = r->scope;
	bool *used = arena_array(&r->arena, call->n_named, sizeof(*used));
	render_enter(r);
	builder_init(&b, &r->arena, r->limits->output_bytes);
	r->scope = scope_push(r, macro->scope);
	bind_parameters(r, macro, call, used);
	bind_extra(r, macro, call, used, r->scope);
	r->out = &b;
	exec_body(r, macro->node->body.items, macro->node->body.n);
	r->out = out;
	r->scope = scope;
	render_leave(r);
	return value_string(builder_finish(&b));
}

static struct value call_loop(struct render *r, struct loop *loop, const struct call *call)
{
	if (!loop->node)
		render_fail(r, "this loop cannot be called: it is not recursive");
	if (call->n_args != 1 || call->n_named)
		render_fail(r, "a recursive loop must be called with the items");
	return exec_loop(r, loop->node, call->args[0], loop->scope, loop->depth + 1);
}

struct value call_value(struct render *r, struct value callee, const struct call *call)
{
	switch (callee.kind) {
	case VALUE_MACRO:
		return call_macro(r, callee.macro, call);
	case VALUE_FUNCTION:
		return call_function(r, callee.function, value_none(), call);
	case VALUE_METHOD:
		return call_function(r, callee.method->function, callee.method->self, call);
	case VALUE_LOOP:
		return call_loop(r, callee.loop, call);
	default:
		render_need_defined(r, callee);
		render_fail(r, "'%s' object cannot be called", value_type(callee));
	}
}

struct value call_node(struct render *r, const struct node *node, const struct pair *extra)
{
	struct value callee = eval(r, node->a);
	struct call call;
	call_evaluate(r, node, &call);
	if (extra) {
		struct pair *named = arena_grow(
			&r->arena, call.named, call.n_named, call.n_named + 1, sizeof(*named));
		named[call.n_named++] = *extra;
		call.named = named;
	}
	r->at = node->at;
	return call_value(r, callee, &call);
}
