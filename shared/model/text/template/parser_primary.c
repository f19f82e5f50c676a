/* The operands of operators: names and literals, with the attributes, indices and calls that follow
 * them. */
#include "shared/model/text/template/parser.h"

#include <string.h>

static struct node *constant(struct parser *p, struct value value, const struct token *at)
{
	struct node *node = parser_node(p, NODE_CONST, at);
	node->constant = value;
	return node;
}

/* Macros get varargs, kwargs and caller only when they use them. */
static void note_special_name(struct parser *p, const struct string *name)
{
	for (struct node *macro = p->macro; macro; macro = macro->c) {
		macro->uses_varargs |= text_is(name, "varargs");
		macro->uses_kwargs |= text_is(name, "kwargs");
		macro->uses_caller |= text_is(name, "caller");
	}
}

static struct node *parse_name(struct parser *p)
{
	static const struct {
		const char *name;
		struct value value;
	} words[] = {
		{"true", {.kind = VALUE_BOOL, .b = true}},
		{"True", {.kind = VALUE_BOOL, .b = true}},
		{"false", {.kind = VALUE_BOOL}},
		{"False", {.kind = VALUE_BOOL}},
		{"none", {.kind = VALUE_NONE}},
		{"None", {.kind = VALUE_NONE}},
	};
	const struct token *token = p->token++;
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (text_is(token->text, words[i].name))
			return constant(p, words[i].value, token);
	struct node *node = parser_node(p, NODE_NAME, token);
	node->text = token->text;
	note_special_name(p, token->text);
	return node;
}

/* Adjacent strings are joined. */
static struct node *parse_string(struct parser *p)
{
	const struct token *start = p->token++;
	if (p->token->type != TOKEN_STRING)
		return constant(p, value_string(start->text), start);
	struct builder b;
	builder_init(&b, p->arena, p->source->bytes);
	builder_string(&b, start->text);
	while (p->token->type == TOKEN_STRING)
		builder_string(&b, p->token++->text);
	return constant(p, value_string(builder_finish(&b)), start);
}

static struct node *parse_list(struct parser *p)
{
	struct node *node = parser_node(p, NODE_LIST, p->token++);
	while (p->token->type != TOKEN_RIGHT_BRACKET) {
		if (node->args.n)
			parser_expect(p, TOKEN_COMMA, "\",\" or \"]\"");
		if (p->token->type == TOKEN_RIGHT_BRACKET)
			break;
		parser_list_add(p, &node->args, parser_expression(p, true));
	}
	p->token++;
	return node;
}

static struct node *parse_dict(struct parser *p)
{
	struct node *node = parser_node(p, NODE_DICT, p->token++);
	while (p->token->type != TOKEN_RIGHT_BRACE) {
		if (node->args.n)
			parser_expect(p, TOKEN_COMMA, "\",\" or \"}\"");
		if (p->token->type == TOKEN_RIGHT_BRACE)
			break;
		parser_list_add(p, &node->args, parser_expression(p, true));
		parser_expect(p, TOKEN_COLON, "\":\"");
		parser_list_add(p, &node->defaults, parser_expression(p, true));
	}
	p->token++;
	return node;
}

struct node *parser_primary(struct parser *p)
{
	const struct token *token = p->token;
	struct node *node;
	switch (token->type) {
	case TOKEN_NAME:
		return parse_name(p);
	case TOKEN_STRING:
		return parse_string(p);
	case TOKEN_INT:
		p->token++;
		return constant(p, value_int(token->i), token);
	case TOKEN_FLOAT:
		p->token++;
		return constant(p, value_float(token->f), token);
	case TOKEN_LEFT_PAREN:
		p->token++;
		node = parser_tuple(p, true, NULL, true);
		parser_expect(p, TOKEN_RIGHT_PAREN, "\")\"");
		return node;
	case TOKEN_LEFT_BRACKET:
		return parse_list(p);
	case TOKEN_LEFT_BRACE:
		return parse_dict(p);
	default:
		parser_unexpected(p, "an expression");
	}
}

/* One thing between [ and ]: an expression or a slice. */
static struct node *parse_subscript(struct parser *p, struct node *of, const struct token *at)
{
	struct node *bounds[3] = {NULL, NULL, NULL};
	int n = 0;
	bool slice = false;
	for (;;) {
		enum token_type type = p->token->type;
		if (type == TOKEN_COLON && n < 2) {
			slice = true;
			n++;
			p->token++;
		} else if (type == TOKEN_RIGHT_BRACKET || type == TOKEN_COMMA || bounds[n]) {
			break;
		} else {
			bounds[n] = parser_expression(p, true);
		}
	}
	struct node *node = parser_node(p, slice ? NODE_SLICE : NODE_ITEM, at);
	node->a = of;
	if (!slice) {
		node->b = bounds[0];
		if (!node->b)
			parser_unexpected(p, "an index");
		return node;
	}
	for (int i = 0; i < 3; i++)
		parser_list_add(p, &node->args, bounds[i]);
	return node;
}

static struct node *parse_brackets(struct parser *p, struct node *of)
{
	const struct token *at = p->token++;
	struct node *node = parse_subscript(p, of, at);
	if (p->token->type == TOKEN_COMMA) {
		/* a[b, c]: the index is a tuple. */
		if (node->kind == NODE_SLICE)
			parser_fail(p, p->token, "a slice within a tuple is not supported");
		struct node *tuple = parser_node(p, NODE_TUPLE, at);
		parser_list_add(p, &tuple->args, node->b);
		while (parser_skip(p, TOKEN_COMMA) && p->token->type != TOKEN_RIGHT_BRACKET)
			parser_list_add(p, &tuple->args, parser_expression(p, true));
		node->b = tuple;
	}
	parser_expect(p, TOKEN_RIGHT_BRACKET, "\"]\"");
	return node;
}

static struct node *parse_member(struct parser *p, struct node *of)
{
	const struct token *at = p->token++, *token = p->token;
	if (token->type == TOKEN_INT) {
		struct node *node = parser_node(p, NODE_ITEM, at);
		p->token++;
		node->a = of;
		node->b = constant(p, value_int(token->i), token);
		return node;
	}
	struct node *node = parser_node(p, NODE_MEMBER, at);
	node->a = of;
	node->text = parser_expect(p, TOKEN_NAME, "a name or number after \".\"")->text;
	return node;
}

static void add_named(struct parser *p, struct node *node)
{
	/* Grows by one each time: calls have few named arguments. */
	node->named = arena_grow(
		p->arena, node->named, node->n_named, node->n_named + 1, sizeof(*node->named));
	struct named_node *named = &node->named[node->n_named];
	named->name = p->token->text;
	for (size_t i = 0; i < node->n_named; i++)
		if (text_equal(node->named[i].name, named->name))
			parser_fail(p, p->token, "this argument is given twice");
	p->token += 2;
	named->value = parser_expression(p, true);
	node->n_named++;
}

/* (a, b=c, *d, **e) into the node. */
void parser_arguments(struct parser *p, struct node *node)
{
	const struct token *start = p->token++;
	bool any = false;
	while (p->token->type != TOKEN_RIGHT_PAREN) {
		if (any) {
			parser_expect(p, TOKEN_COMMA, "\",\" or \")\"");
			if (p->token->type == TOKEN_RIGHT_PAREN)
				break;
		}
		any = true;
		bool in_order = !node->named_rest;
		if (p->token->type == TOKEN_MUL) {
			in_order &= !node->rest;
			p->token++;
			node->rest = parser_expression(p, true);
		} else if (p->token->type == TOKEN_POW) {
			p->token++;
			node->named_rest = parser_expression(p, true);
		} else if (p->token->type == TOKEN_NAME && p->token[1].type == TOKEN_ASSIGN) {
			add_named(p, node);
		} else {
			in_order &= !node->rest && !node->n_named;
			parser_list_add(p, &node->args, parser_expression(p, true));
		}
		if (!in_order)
			parser_fail(p, start, "the arguments are not in order");
	}
	p->token++;
}

struct node *parser_call(struct parser *p, struct node *of)
{
	struct node *node = parser_node(p, NODE_CALL, p->token);
	node->a = of;
	parser_arguments(p, node);
	return node;
}

struct node *parser_postfix(struct parser *p, struct node *node)
{
	for (;;) {
		if (p->token->type == TOKEN_DOT)
			node = parse_member(p, node);
		else if (p->token->type == TOKEN_LEFT_BRACKET)
			node = parse_brackets(p, node);
		else if (p->token->type == TOKEN_LEFT_PAREN)
			node = parser_call(p, node);
		else
			return node;
	}
}
