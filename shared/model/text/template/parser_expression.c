#include "shared/model/text/template/parser.h"

#include <string.h>

static struct node *parse_unary(struct parser *p, bool with_filters);

static struct node *binary(
	struct parser *p, enum node_op op, struct node *a, struct node *b, const struct token *at)
{
	struct node *node = parser_node(p, NODE_BINARY, at);
	node->op = op;
	node->a = a;
	node->b = b;
	return node;
}

/* The name of a filter or test, which may have dots. */
static struct string *dotted_name(struct parser *p, const char *what)
{
	const struct token *name = parser_expect(p, TOKEN_NAME, what);
	struct builder b;
	if (p->token->type != TOKEN_DOT)
		return name->text;
	builder_init(&b, p->arena, p->source->bytes);
	builder_string(&b, name->text);
	while (parser_skip(p, TOKEN_DOT)) {
		builder_char(&b, '.');
		builder_string(&b, parser_expect(p, TOKEN_NAME, "a name after \".\"")->text);
	}
	return builder_finish(&b);
}

struct node *parser_filters(struct parser *p, struct node *value, bool without_pipe)
{
	while (without_pipe || p->token->type == TOKEN_PIPE) {
		p->token += !without_pipe;
		without_pipe = false;
		struct node *node = parser_node(p, NODE_FILTER, p->token);
		node->a = value;
		node->text = dotted_name(p, "the name of a filter");
		if (p->token->type == TOKEN_LEFT_PAREN)
			parser_arguments(p, node);
		value = node;
	}
	return value;
}

/* "is [not] name [argument]" */
static struct node *parse_test(struct parser *p, struct node *value)
{
	const struct token *at = p->token++;
	bool negated = parser_skip_name(p, "not");
	struct node *node = parser_node(p, NODE_TEST, p->token);
	node->a = value;
	node->text = dotted_name(p, "the name of a test");
	enum token_type type = p->token->type;
	if (type == TOKEN_LEFT_PAREN) {
		parser_arguments(p, node);
	} else if (type == TOKEN_STRING || type == TOKEN_INT || type == TOKEN_FLOAT ||
		   type == TOKEN_LEFT_BRACKET || type == TOKEN_LEFT_BRACE ||
		   (type == TOKEN_NAME && !parser_at_name(p, "else") && !parser_at_name(p, "or") &&
			   !parser_at_name(p, "and"))) {
		if (parser_at_name(p, "is"))
			parser_fail(p, p->token, "tests cannot be chained with \"is\"");
		parser_list_add(p, &node->args, parser_postfix(p, parser_primary(p)));
	}
	if (!negated)
		return node;
	struct node *not = parser_node(p, NODE_UNARY, at);
	not ->op = OP_NOT;
	not ->a = node;
	return not ;
}

static struct node *parse_filters_and_tests(struct parser *p, struct node *node)
{
	for (;;) {
		if (p->token->type == TOKEN_PIPE)
			node = parser_filters(p, node, false);
		else if (parser_at_name(p, "is"))
			node = parse_test(p, node);
		else if (p->token->type == TOKEN_LEFT_PAREN)
			node = parser_call(p, node);
		else
			return node;
	}
}

static struct node *parse_unary(struct parser *p, bool with_filters)
{
	const struct token *token = p->token;
	struct node *node;
	parser_enter(p);
	if (token->type == TOKEN_SUB || token->type == TOKEN_ADD) {
		p->token++;
		node = parser_node(p, NODE_UNARY, token);
		node->op = token->type == TOKEN_SUB ? OP_NEGATE : OP_PLUS;
		node->a = parse_unary(p, false);
	} else {
		node = parser_primary(p);
	}
	node = parser_postfix(p, node);
	if (with_filters)
		node = parse_filters_and_tests(p, node);
	parser_leave(p);
	return node;
}

static struct node *parse_power(struct parser *p)
{
	struct node *left = parse_unary(p, true);
	while (p->token->type == TOKEN_POW) {
		const struct token *at = p->token++;
		left = binary(p, OP_POW, left, parse_unary(p, true), at);
	}
	return left;
}

static struct node *parse_product(struct parser *p)
{
	struct node *left = parse_power(p);
	for (;;) {
		enum token_type type = p->token->type;
		if (type != TOKEN_MUL && type != TOKEN_DIV && type != TOKEN_FLOORDIV &&
			type != TOKEN_MOD)
			return left;
		const struct token *at = p->token++;
		enum node_op op = type == TOKEN_MUL	   ? OP_MUL
				  : type == TOKEN_DIV	   ? OP_DIV
				  : type == TOKEN_FLOORDIV ? OP_FLOORDIV
							   : OP_MOD;
		left = binary(p, op, left, parse_power(p), at);
	}
}

static struct node *parse_concat(struct parser *p)
{
	struct node *first = parse_product(p);
	if (p->token->type != TOKEN_TILDE)
		return first;
	struct node *node = parser_node(p, NODE_CONCAT, p->token);
	parser_list_add(p, &node->args, first);
	while (parser_skip(p, TOKEN_TILDE))
		parser_list_add(p, &node->args, parse_product(p));
	return node;
}

static struct node *parse_sum(struct parser *p)
{
	struct node *left = parse_concat(p);
	while (p->token->type == TOKEN_ADD || p->token->type == TOKEN_SUB) {
		const struct token *at = p->token++;
		enum node_op op = at->type == TOKEN_ADD ? OP_ADD : OP_SUB;
		left = binary(p, op, left, parse_concat(p), at);
	}
	return left;
}

/* The comparison at the current token, which is then skipped. */
static bool skip_comparison(struct parser *p, enum node_op *op)
{
	switch (p->token->type) {
	case TOKEN_EQ:
	case TOKEN_NE:
	case TOKEN_LT:
	case TOKEN_LE:
	case TOKEN_GT:
	case TOKEN_GE: {
		static const enum node_op ops[] = {[TOKEN_EQ] = OP_EQ,
			[TOKEN_NE] = OP_NE,
			[TOKEN_LT] = OP_LT,
			[TOKEN_LE] = OP_LE,
			[TOKEN_GT] = OP_GT,
			[TOKEN_GE] = OP_GE};
		*op = ops[p->token++->type];
		return true;
	}
	default:
		break;
	}
	if (parser_skip_name(p, "in")) {
		*op = OP_IN;
		return true;
	}
	if (parser_at_name(p, "not") && p->token[1].type == TOKEN_NAME &&
		text_is(p->token[1].text, "in")) {
		p->token += 2;
		*op = OP_NOT_IN;
		return true;
	}
	return false;
}

static struct node *parse_comparison(struct parser *p)
{
	const struct token *at = p->token;
	struct node *left = parse_sum(p), *node = NULL;
	enum node_op op;
	while (skip_comparison(p, &op)) {
		if (!node) {
			node = parser_node(p, NODE_COMPARE, at);
			node->a = left;
		}
		node->ops = arena_grow(
			p->arena, node->ops, node->args.n, node->args.n + 1, sizeof(*node->ops));
		node->ops[node->args.n] = op;
		parser_list_add(p, &node->args, parse_sum(p));
	}
	return node ? node : left;
}

static struct node *parse_not(struct parser *p)
{
	const struct token *at = p->token;
	if (!parser_skip_name(p, "not"))
		return parse_comparison(p);
	struct node *node = parser_node(p, NODE_UNARY, at);
	node->op = OP_NOT;
	parser_enter(p);
	node->a = parse_not(p);
	parser_leave(p);
	return node;
}

static struct node *parse_and(struct parser *p)
{
	struct node *left = parse_not(p);
	const struct token *at = p->token;
	while (parser_skip_name(p, "and")) {
		left = binary(p, OP_AND, left, parse_not(p), at);
		at = p->token;
	}
	return left;
}

static struct node *parse_or(struct parser *p)
{
	struct node *left = parse_and(p);
	const struct token *at = p->token;
	while (parser_skip_name(p, "or")) {
		left = binary(p, OP_OR, left, parse_and(p), at);
		at = p->token;
	}
	return left;
}

struct node *parser_expression(struct parser *p, bool with_condition)
{
	parser_enter(p);
	struct node *value = parse_or(p);
	const struct token *at = p->token;
	while (with_condition && parser_skip_name(p, "if")) {
		struct node *node = parser_node(p, NODE_CONDITION, at);
		node->a = parse_or(p);
		node->b = value;
		if (parser_skip_name(p, "else"))
			node->c = parser_expression(p, true);
		value = node;
		at = p->token;
	}
	parser_leave(p);
	return value;
}

static bool at_tuple_end(const struct parser *p, const char *end_name)
{
	enum token_type type = p->token->type;
	return type == TOKEN_PRINT_END || type == TOKEN_BLOCK_END || type == TOKEN_RIGHT_PAREN ||
	       (end_name && parser_at_name(p, end_name));
}

struct node *parser_tuple(
	struct parser *p, bool with_condition, const char *end_name, bool in_parentheses)
{
	const struct token *at = p->token;
	if (at_tuple_end(p, end_name)) {
		if (!in_parentheses)
			parser_unexpected(p, "an expression");
		return parser_node(p, NODE_TUPLE, at);
	}
	struct node *first = parser_expression(p, with_condition);
	if (p->token->type != TOKEN_COMMA)
		return first;
	struct node *node = parser_node(p, NODE_TUPLE, at);
	parser_list_add(p, &node->args, first);
	while (parser_skip(p, TOKEN_COMMA) && !at_tuple_end(p, end_name))
		parser_list_add(p, &node->args, parser_expression(p, with_condition));
	return node;
}

static struct node *parse_one_target(struct parser *p, bool with_attributes)
{
	const struct token *token = p->token;
	struct node *node;
	if (parser_skip(p, TOKEN_LEFT_PAREN)) {
		parser_enter(p);
		node = parser_target(p, NULL, with_attributes);
		parser_leave(p);
		parser_expect(p, TOKEN_RIGHT_PAREN, "\")\"");
		return node;
	}
	parser_expect(p, TOKEN_NAME, "a name to assign to");
	if (with_attributes && parser_skip(p, TOKEN_DOT)) {
		node = parser_node(p, NODE_ATTRIBUTE, token);
		node->named = arena_alloc(p->arena, sizeof(*node->named));
		node->named->name = parser_expect(p, TOKEN_NAME, "an attribute")->text;
		node->n_named = 1;
	} else {
		p->token = token;
		node = parser_primary(p);
		if (node->kind != NODE_NAME)
			parser_fail(p, token, "a constant cannot be assigned to");
	}
	node->text = token->text;
	return node;
}

struct node *parser_target(struct parser *p, const char *end_name, bool with_attributes)
{
	const struct token *at = p->token;
	struct node *first = parse_one_target(p, with_attributes);
	if (p->token->type != TOKEN_COMMA)
		return first;
	struct node *node = parser_node(p, NODE_TUPLE, at);
	parser_list_add(p, &node->args, first);
	while (parser_skip(p, TOKEN_COMMA) && p->token->type != TOKEN_ASSIGN &&
		!at_tuple_end(p, end_name))
		parser_list_add(p, &node->args, parse_one_target(p, with_attributes));
	return node;
}
