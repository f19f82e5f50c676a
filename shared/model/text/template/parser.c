#include "shared/model/text/template/parser.h"

#include <string.h>

enum { DEPTH_MAX = 400 };

void parser_fail(struct parser *p, const struct token *at, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	int rc = source_error(p->arena, p->source, at->at, EINVAL, format, args);
	va_end(args);
	arena_fail(p->arena, rc);
}

void parser_enter(struct parser *p)
{
	if (++p->depth > DEPTH_MAX)
		parser_fail(p, p->token, "nested more than %d deep", DEPTH_MAX);
}

void parser_leave(struct parser *p)
{
	p->depth--;
}

struct node *parser_node(struct parser *p, enum node_kind kind, const struct token *at)
{
	struct node *node = arena_alloc(p->arena, sizeof(*node));
	node->kind = kind;
	node->at = at->at;
	return node;
}

void parser_list_add(struct parser *p, struct node_list *list, struct node *node)
{
	if (list->n == list->capacity) {
		size_t capacity = list->capacity ? 2 * list->capacity : 4;
		list->items =
			arena_grow(p->arena, list->items, list->n, capacity, sizeof(*list->items));
		list->capacity = capacity;
	}
	list->items[list->n++] = node;
}

bool parser_at_name(const struct parser *p, const char *name)
{
	return p->token->type == TOKEN_NAME && text_is(p->token->text, name);
}

bool parser_skip(struct parser *p, enum token_type type)
{
	if (p->token->type != type)
		return false;
	p->token++;
	return true;
}

bool parser_skip_name(struct parser *p, const char *name)
{
	if (!parser_at_name(p, name))
		return false;
	p->token++;
	return true;
}

void parser_unexpected(struct parser *p, const char *what)
{
	if (p->token->type == TOKEN_END)
		parser_fail(p, p->token, "the template ends where %s is expected", what);
	parser_fail(p, p->token, "expected %s, got \"%.*s\"", what,
		(int)(p->token->bytes < 40 ? p->token->bytes : 40), p->source->text + p->token->at);
}

const struct token *parser_expect(struct parser *p, enum token_type type, const char *what)
{
	if (p->token->type != type)
		parser_unexpected(p, what);
	return p->token++;
}

static struct node *statement(struct parser *p);

static bool at_end_name(const struct parser *p, const char *const ends[])
{
	for (; *ends; ends++)
		if (parser_at_name(p, *ends))
			return true;
	return false;
}

/* Data, prints and statements up to a tag with one of these names, whose name is then the current
 * token. start: the tag that it ends, for the message. */
static void body(struct parser *p, struct node_list *list, const char *const ends[],
	const struct token *start)
{
	for (;;) {
		const struct token *token = p->token;
		struct node *node;
		switch (token->type) {
		case TOKEN_DATA:
			node = parser_node(p, NODE_DATA, token);
			node->text = token->text;
			p->token++;
			break;
		case TOKEN_PRINT_BEGIN:
			p->token++;
			node = parser_node(p, NODE_OUTPUT, token);
			node->a = parser_tuple(p, true, NULL, false);
			parser_expect(p, TOKEN_PRINT_END, "\"}}\"");
			break;
		case TOKEN_BLOCK_BEGIN:
			p->token++;
			if (ends && at_end_name(p, ends))
				return;
			node = statement(p);
			parser_expect(p, TOKEN_BLOCK_END, "\"%}\"");
			break;
		default:
			if (ends && start)
				parser_fail(p, start, "\"%.*s\" has no {%% %s %%}",
					(int)start->bytes, p->source->text + start->at, ends[0]);
			return;
		}
		if (node)
			parser_list_add(p, list, node);
	}
}

/* "%}", then the body up to one of the names. */
static void block(struct parser *p, struct node_list *list, const char *const ends[],
	const struct token *start)
{
	parser_skip(p, TOKEN_COLON);
	parser_expect(p, TOKEN_BLOCK_END, "\"%}\"");
	parser_enter(p);
	body(p, list, ends, start);
	parser_leave(p);
}

static const char *const ends_for[] = {"endfor", "else", NULL};
static const char *const ends_for_else[] = {"endfor", NULL};
static const char *const ends_if[] = {"endif", "elif", "else", NULL};
static const char *const ends_if_else[] = {"endif", NULL};
static const char *const ends_set[] = {"endset", NULL};
static const char *const ends_macro[] = {"endmacro", NULL};
static const char *const ends_call[] = {"endcall", NULL};
static const char *const ends_filter[] = {"endfilter", NULL};
static const char *const ends_with[] = {"endwith", NULL};
static const char *const ends_generation[] = {"endgeneration", NULL};

static struct node *parse_for(struct parser *p, const struct token *start)
{
	struct node *node = parser_node(p, NODE_FOR, start);
	node->a = parser_target(p, "in", false);
	if (!parser_skip_name(p, "in"))
		parser_unexpected(p, "\"in\"");
	node->b = parser_tuple(p, false, "recursive", false);
	if (parser_skip_name(p, "if"))
		node->c = parser_expression(p, true);
	node->flag = parser_skip_name(p, "recursive");
	p->loops++;
	block(p, &node->body, ends_for, start);
	p->loops--;
	bool with_else = parser_at_name(p, "else");
	p->token++;
	if (with_else) {
		block(p, &node->others, ends_for_else, start);
		p->token++;
	}
	return node;
}

static struct node *parse_if(struct parser *p, const struct token *start)
{
	struct node *first = parser_node(p, NODE_IF, start), *node = first;
	for (;;) {
		node->a = parser_tuple(p, false, NULL, false);
		block(p, &node->body, ends_if, start);
		const struct token *token = p->token++;
		if (text_is(token->text, "endif"))
			return first;
		if (text_is(token->text, "else")) {
			block(p, &node->others, ends_if_else, start);
			p->token++;
			return first;
		}
		struct node *next = parser_node(p, NODE_IF, token);
		next->flag = true;
		parser_list_add(p, &node->others, next);
		node = next;
	}
}

static struct node *parse_set(struct parser *p, const struct token *start)
{
	struct node *target = parser_target(p, NULL, true);
	bool simple = parser_skip(p, TOKEN_ASSIGN);
	struct node *node = parser_node(p, simple ? NODE_SET : NODE_SET_BLOCK, start);
	node->a = target;
	if (simple) {
		node->b = parser_tuple(p, true, NULL, false);
		return node;
	}
	node->b = parser_filters(p, NULL, false);
	block(p, &node->body, ends_set, start);
	p->token++;
	return node;
}

static void signature(struct parser *p, struct node *node)
{
	parser_expect(p, TOKEN_LEFT_PAREN, "\"(\"");
	while (p->token->type != TOKEN_RIGHT_PAREN) {
		if (node->args.n)
			parser_expect(p, TOKEN_COMMA, "\",\"");
		const struct token *token = parser_expect(p, TOKEN_NAME, "a parameter");
		struct node *name = parser_node(p, NODE_NAME, token);
		name->text = token->text;
		parser_list_add(p, &node->args, name);
		if (parser_skip(p, TOKEN_ASSIGN))
			parser_list_add(p, &node->defaults, parser_expression(p, true));
		else if (node->defaults.n)
			parser_fail(
				p, token, "a parameter without a default follows one that has one");
	}
	p->token++;
}

/* The body of a macro or call block: loops around it are not its own. */
static void macro_body(
	struct parser *p, struct node *node, const char *const ends[], const struct token *start)
{
	uint32_t loops = p->loops;
	p->loops = 0;
	node->c = p->macro;
	p->macro = node;
	block(p, &node->body, ends, start);
	p->token++;
	p->macro = node->c;
	node->c = NULL;
	p->loops = loops;
}

static struct node *parse_macro(struct parser *p, const struct token *start)
{
	struct node *node = parser_node(p, NODE_MACRO, start);
	node->text = parser_expect(p, TOKEN_NAME, "the name of the macro")->text;
	signature(p, node);
	macro_body(p, node, ends_macro, start);
	return node;
}

static struct node *parse_call(struct parser *p, const struct token *start)
{
	struct node *node = parser_node(p, NODE_CALL_BLOCK, start);
	node->text = text_literal(p->arena, "caller");
	if (p->token->type == TOKEN_LEFT_PAREN)
		signature(p, node);
	const struct token *at = p->token;
	node->a = parser_expression(p, true);
	if (node->a->kind != NODE_CALL)
		parser_fail(p, at, "a call is expected here");
	macro_body(p, node, ends_call, start);
	return node;
}

static struct node *parse_filter_block(struct parser *p, const struct token *start)
{
	struct node *node = parser_node(p, NODE_FILTER_BLOCK, start);
	node->a = parser_filters(p, NULL, true);
	block(p, &node->body, ends_filter, start);
	p->token++;
	return node;
}

static struct node *parse_with(struct parser *p, const struct token *start)
{
	struct node *node = parser_node(p, NODE_WITH, start);
	while (p->token->type != TOKEN_BLOCK_END) {
		if (node->args.n)
			parser_expect(p, TOKEN_COMMA, "\",\"");
		parser_list_add(p, &node->args, parser_target(p, NULL, false));
		parser_expect(p, TOKEN_ASSIGN, "\"=\"");
		parser_list_add(p, &node->defaults, parser_expression(p, true));
	}
	block(p, &node->body, ends_with, start);
	p->token++;
	return node;
}

static struct node *parse_generation(struct parser *p, const struct token *start)
{
	struct node *node = parser_node(p, NODE_SCOPE, start);
	block(p, &node->body, ends_generation, start);
	p->token++;
	return node;
}

static struct node *parse_print(struct parser *p, const struct token *start)
{
	struct node *node = parser_node(p, NODE_SCOPE, start);
	while (p->token->type != TOKEN_BLOCK_END) {
		if (node->body.n)
			parser_expect(p, TOKEN_COMMA, "\",\"");
		struct node *output = parser_node(p, NODE_OUTPUT, p->token);
		output->a = parser_expression(p, true);
		parser_list_add(p, &node->body, output);
	}
	return node;
}

static struct node *parse_jump(struct parser *p, const struct token *start)
{
	if (!p->loops)
		parser_fail(p, start, "%.*s outside of a loop", (int)start->bytes,
			p->source->text + start->at);
	return parser_node(p, text_is(start->text, "break") ? NODE_BREAK : NODE_CONTINUE, start);
}

static const struct {
	const char *name;
	struct node *(*parse)(struct parser *p, const struct token *start);
} statements[] = {
	{"for", parse_for},
	{"if", parse_if},
	{"set", parse_set},
	{"macro", parse_macro},
	{"call", parse_call},
	{"filter", parse_filter_block},
	{"with", parse_with},
	{"generation", parse_generation},
	{"print", parse_print},
	{"break", parse_jump},
	{"continue", parse_jump},
};

static struct node *statement(struct parser *p)
{
	const struct token *start = parser_expect(p, TOKEN_NAME, "the name of a tag");
	for (size_t i = 0; i < sizeof(statements) / sizeof(statements[0]); i++) {
		if (!text_is(start->text, statements[i].name))
			continue;
		parser_enter(p);
		struct node *node = statements[i].parse(p, start);
		parser_leave(p);
		return node;
	}
	parser_fail(p, start, "the tag \"%.*s\" is not supported here",
		(int)(start->bytes < 40 ? start->bytes : 40), p->source->text + start->at);
}

void parser_run(struct arena *arena, const struct source *source, const struct tokens *tokens,
	struct node_list *list)
{
	struct parser p = {.arena = arena, .source = source, .token = tokens->items};
	body(&p, list, NULL, NULL);
}
