/* Evaluates expressions. */
#include "shared/model/text/template/render.h"

static struct value eval_list(struct render *r, const struct node *node)
{
	struct list *list = list_new(r, node->args.n);
	for (size_t i = 0; i < node->args.n; i++)
		list_add(r, list, eval(r, node->args.items[i]));
	return value_list(node->kind == NODE_LIST ? VALUE_LIST : VALUE_TUPLE, list);
}

static struct value eval_dict(struct render *r, const struct node *node)
{
	struct dict *dict = dict_new(r);
	for (size_t i = 0; i < node->args.n; i++) {
		struct value key = eval(r, node->args.items[i]);
		dict_set(r, dict, key, eval(r, node->defaults.items[i]));
	}
	return value_dict(dict);
}

static struct value eval_concat(struct render *r, const struct node *node)
{
	struct builder b;
	builder_init(&b, &r->arena, r->limits->output_bytes);
	for (size_t i = 0; i < node->args.n; i++)
		print_to(r, &b, eval(r, node->args.items[i]));
	return value_string(builder_finish(&b));
}

static struct value eval_slice(struct render *r, const struct node *node)
{
	struct value of = eval(r, node->a), bounds[3];
	for (int i = 0; i < 3; i++) {
		const struct node *bound = node->args.items[i];
		bounds[i] = bound ? eval(r, bound) : value_none();
	}
	return attribute_slice(r, of, bounds);
}

static bool compare(struct render *r, enum node_op op, struct value a, struct value b)
{
	switch (op) {
	case OP_EQ:
		return value_equal(r, a, b);
	case OP_NE:
		return !value_equal(r, a, b);
	case OP_LT:
		return value_compare(r, a, b, "<") < 0;
	case OP_LE:
		return value_compare(r, a, b, "<=") <= 0;
	case OP_GT:
		return value_compare(r, a, b, ">") > 0;
	case OP_GE:
		return value_compare(r, a, b, ">=") >= 0;
	case OP_IN:
		return value_contains(r, b, a);
	default:
		return !value_contains(r, b, a);
	}
}

/* a < b < c holds when both do; c is not looked at when the first does not. */
static struct value eval_compare(struct render *r, const struct node *node)
{
	struct value left = eval(r, node->a);
	for (size_t i = 0; i < node->args.n; i++) {
		struct value right = eval(r, node->args.items[i]);
		if (!compare(r, node->ops[i], left, right))
			return value_bool(false);
		left = right;
	}
	return value_bool(true);
}

static struct value eval_unary(struct render *r, const struct node *node)
{
	struct value v = eval(r, node->a);
	if (node->op == OP_NOT)
		return value_bool(!value_truth(v));
	if (node->op == OP_NEGATE)
		return operator_negate(r, v);
	render_need_defined(r, v);
	if (!value_is_number(v))
		render_fail(r, "bad operand for unary +: '%s'", value_type(v));
	return v.kind == VALUE_BOOL ? value_int(v.b) : v;
}

static struct value eval_binary(struct render *r, const struct node *node)
{
	struct value a = eval(r, node->a);
	if (node->op == OP_AND)
		return value_truth(a) ? eval(r, node->b) : a;
	if (node->op == OP_OR)
		return value_truth(a) ? a : eval(r, node->b);
	return operator_binary(r, node->op, a, eval(r, node->b));
}

static struct value eval_condition(struct render *r, const struct node *node)
{
	if (value_truth(eval(r, node->a)))
		return eval(r, node->b);
	if (node->c)
		return eval(r, node->c);
	return render_undefined_hint(r, "the condition is false and there is no else");
}

static struct value eval_filter(struct render *r, const struct node *node)
{
	struct value v = eval(r, node->a);
	struct call call;
	call_evaluate(r, node, &call);
	if (node->kind == NODE_TEST)
		return value_bool(call_test(r, node->text, v, &call));
	return call_filter(r, node->text, v, &call);
}

static struct value dispatch(struct render *r, const struct node *node)
{
	struct value v;
	switch (node->kind) {
	case NODE_NAME:
		return scope_get(r, node->text);
	case NODE_CONST:
		return node->constant;
	case NODE_MEMBER:
		return attribute_get(r, eval(r, node->a), node->text);
	case NODE_ITEM:
		v = eval(r, node->a);
		return attribute_item(r, v, eval(r, node->b));
	case NODE_SLICE:
		return eval_slice(r, node);
	case NODE_CALL:
		return call_node(r, node, NULL);
	case NODE_FILTER:
	case NODE_TEST:
		return eval_filter(r, node);
	case NODE_UNARY:
		return eval_unary(r, node);
	case NODE_BINARY:
		return eval_binary(r, node);
	case NODE_COMPARE:
		return eval_compare(r, node);
	case NODE_CONDITION:
		return eval_condition(r, node);
	case NODE_LIST:
	case NODE_TUPLE:
		return eval_list(r, node);
	case NODE_DICT:
		return eval_dict(r, node);
	case NODE_CONCAT:
		return eval_concat(r, node);
	default:
		render_fail(r, "this is not an expression");
	}
}

struct value eval(struct render *r, const struct node *node)
{
	uint32_t at = r->at;
	render_enter(r);
	r->at = node->at;
	struct value v = dispatch(r, node);
	r->at = at;
	render_leave(r);
	return v;
}
