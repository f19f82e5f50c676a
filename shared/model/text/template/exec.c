/* Executes statements. */
#include "shared/model/text/template/render.h"

#include <string.h>

static enum flow exec(struct render *r, const struct node *node);

enum flow exec_body(struct render *r, struct node *const *body, size_t n)
{
	enum flow flow = FLOW_NEXT;
	render_enter(r);
	for (size_t i = 0; flow == FLOW_NEXT && i < n; i++)
		flow = exec(r, body[i]);
	render_leave(r);
	return flow;
}

static void assign_tuple(struct render *r, const struct node *target, struct value value)
{
	const struct list *items = value_items(r, value);
	if (items->n != target->args.n)
		render_fail(r, "%zu values cannot be unpacked into %zu names", items->n,
			target->args.n);
	for (size_t i = 0; i < items->n; i++)
		exec_assign(r, target->args.items[i], items->items[i]);
}

void exec_assign(struct render *r, const struct node *target, struct value value)
{
	if (target->kind == NODE_NAME) {
		scope_set(r, r->scope, target->text, value);
	} else if (target->kind == NODE_TUPLE) {
		assign_tuple(r, target, value);
	} else {
		struct value namespace = scope_get(r, target->text);
		struct string *name = target->named->name;
		if (namespace.kind != VALUE_NAMESPACE)
			render_fail(r, "an attribute can only be set in a namespace, not in '%s'",
				value_type(namespace));
		if (name->bytes && name->data[0] == '_')
			render_fail(r, "a namespace takes no names that begin with '_'");
		dict_set(r, namespace.dict, value_string(name), value);
	}
}

/* What the body prints, in a scope of its own. */
static struct value capture(struct render *r, const struct node *node)
{
	struct builder b, *out = r->out;
	struct scope *scope = r->scope;
	builder_init(&b, &r->arena, r->limits->output_bytes);
	r->out = &b;
	r->scope = scope_push(r, scope);
	exec_body(r, node->body.items, node->body.n);
	r->scope = scope;
	r->out = out;
	return value_string(builder_finish(&b));
}

/* A chain of filters whose innermost value is v. */
static struct value filter_chain(struct render *r, const struct node *node, struct value v)
{
	struct call call;
	if (!node)
		return v;
	render_enter(r);
	v = filter_chain(r, node->a, v);
	render_leave(r);
	call_evaluate(r, node, &call);
	return call_filter(r, node->text, v, &call);
}

/* The items that the loop's condition lets through. */
static struct list *select_items(struct render *r, const struct node *node, struct list *items)
{
	struct list *chosen = list_new(r, 0);
	struct scope *scope = r->scope;
	r->scope = scope_push(r, scope);
	for (size_t i = 0; i < items->n; i++) {
		exec_assign(r, node->a, items->items[i]);
		if (value_truth(eval(r, node->c)))
			list_add(r, chosen, items->items[i]);
	}
	r->scope = scope;
	return chosen;
}

static void run_loop(struct render *r, const struct node *node, struct value items, int64_t depth)
{
	static const struct string name = {
		.data = "loop", .bytes = 4, .n_chars = 4, .literal = true};
	struct scope *scope = r->scope;
	struct loop *loop = arena_alloc(&r->arena, sizeof(*loop));
	loop->items = value_items(r, items);
	if (node->c)
		loop->items = select_items(r, node, loop->items);
	loop->depth = depth;
	loop->node = node->flag ? node : NULL;
	loop->scope = scope;
	/* As in jinja2, `else` runs when no turn of the loop came to its end. */
	bool any = false;
	struct scope *inner = NULL;
	for (size_t i = 0; i < loop->items->n; i++) {
		loop->index = i;
		/* The names of a turn end with it, unless a macro still needs them. */
		if (!inner || inner->captured)
			inner = scope_push(r, scope);
		inner->n = 0;
		r->scope = inner;
		scope_set(r, r->scope, &name, (struct value){.kind = VALUE_LOOP, .loop = loop});
		exec_assign(r, node->a, loop->items->items[i]);
		enum flow flow = exec_body(r, node->body.items, node->body.n);
		any |= flow == FLOW_NEXT;
		if (flow == FLOW_BREAK)
			break;
	}
	if (!any) {
		r->scope = scope_push(r, scope);
		exec_body(r, node->others.items, node->others.n);
	}
	r->scope = scope;
}

struct value exec_loop(struct render *r, const struct node *node, struct value items,
	struct scope *scope, int64_t depth)
{
	struct builder b, *out = r->out;
	struct scope *before = r->scope;
	builder_init(&b, &r->arena, r->limits->output_bytes);
	r->out = &b;
	r->scope = scope;
	run_loop(r, node, items, depth);
	r->scope = before;
	r->out = out;
	return value_string(builder_finish(&b));
}

static enum flow exec_if(struct render *r, const struct node *node)
{
	for (;;) {
		r->at = node->at;
		if (value_truth(eval(r, node->a)))
			return exec_body(r, node->body.items, node->body.n);
		if (node->others.n != 1 || !node->others.items[0]->flag ||
			node->others.items[0]->kind != NODE_IF)
			return exec_body(r, node->others.items, node->others.n);
		node = node->others.items[0];
	}
}

/* The current scope, which then stays as it is for as long as the rendering. */
static struct scope *capture_scope(struct render *r)
{
	for (struct scope *scope = r->scope; scope && !scope->captured; scope = scope->parent)
		scope->captured = true;
	return r->scope;
}

static void exec_call_block(struct render *r, const struct node *node)
{
	struct macro *macro = arena_alloc(&r->arena, sizeof(*macro));
	*macro = (struct macro){.node = node, .scope = capture_scope(r)};
	struct pair caller = {value_string(text_literal(&r->arena, "caller")),
		{.kind = VALUE_MACRO, .macro = macro}};
	print_to(r, r->out, call_node(r, node->a, &caller));
}

static enum flow exec_scope(struct render *r, const struct node *node)
{
	struct scope *scope = r->scope, *inner = scope_push(r, scope);
	/* The values of {% with %} are those outside of it. */
	for (size_t i = 0; i < node->args.n; i++) {
		struct value v = eval(r, node->defaults.items[i]);
		r->scope = inner;
		exec_assign(r, node->args.items[i], v);
		r->scope = scope;
	}
	r->scope = inner;
	enum flow flow = exec_body(r, node->body.items, node->body.n);
	r->scope = scope;
	return flow;
}

static void exec_macro(struct render *r, const struct node *node)
{
	struct macro *macro = arena_alloc(&r->arena, sizeof(*macro));
	*macro = (struct macro){.node = node, .scope = capture_scope(r), .name = node->text};
	scope_set(r, r->scope, node->text, (struct value){.kind = VALUE_MACRO, .macro = macro});
}

static enum flow exec(struct render *r, const struct node *node)
{
	render_charge(r, 1);
	r->at = node->at;
	switch (node->kind) {
	case NODE_DATA:
		builder_string(r->out, node->text);
		break;
	case NODE_OUTPUT:
		print_to(r, r->out, eval(r, node->a));
		break;
	case NODE_FOR:
		run_loop(r, node, eval(r, node->b), 0);
		break;
	case NODE_IF:
		return exec_if(r, node);
	case NODE_SET:
		exec_assign(r, node->a, eval(r, node->b));
		break;
	case NODE_SET_BLOCK:
		exec_assign(r, node->a, filter_chain(r, node->b, capture(r, node)));
		break;
	case NODE_MACRO:
		exec_macro(r, node);
		break;
	case NODE_CALL_BLOCK:
		exec_call_block(r, node);
		break;
	case NODE_FILTER_BLOCK:
		print_to(r, r->out, filter_chain(r, node->a, capture(r, node)));
		break;
	case NODE_WITH:
	case NODE_SCOPE:
		return exec_scope(r, node);
	case NODE_BREAK:
		return FLOW_BREAK;
	case NODE_CONTINUE:
		return FLOW_CONTINUE;
	default:
		render_fail(r, "this is not a statement");
	}
	return FLOW_NEXT;
}
