/*
 * From tokens to the syntax tree, by recursive descent. parser.c has the statements,
 * parser_expression.c and parser_primary.c the expressions. Only template.c calls parser_run; the
 * other functions are for the parser's own files. Errors end the work with the position of the
 * token (arena_fail).
 */
#pragma once

#include "shared/model/text/template/lexer.h"
#include "shared/model/text/template/node.h"

struct parser {
	struct arena *arena;
	const struct source *source;
	const struct token *token; /* the current one */
	uint32_t depth; /* how deep statements and expressions are nested */
	uint32_t loops; /* number of loops around the current statement, within its macro */
	/* the innermost macro around; while it is parsed, its field c holds the next outer one */
	struct node *macro;
};

void parser_run(struct arena *arena, const struct source *source, const struct tokens *tokens,
	struct node_list *body);

void parser_fail(struct parser *p, const struct token *at, const char *format, ...)
	__attribute__((noreturn, format(printf, 3, 4)));
/* Call both around everything that recurses: they bound the depth. */
void parser_enter(struct parser *p);
void parser_leave(struct parser *p);
struct node *parser_node(struct parser *p, enum node_kind kind, const struct token *at);
void parser_list_add(struct parser *p, struct node_list *list, struct node *node);
/* at: true when the current token is this one. skip: also goes on to the next token. */
bool parser_at_name(const struct parser *p, const char *name);
bool parser_skip(struct parser *p, enum token_type type);
bool parser_skip_name(struct parser *p, const char *name);
/* Fails with a message of what was expected here and what was found. */
void parser_unexpected(struct parser *p, const char *what) __attribute__((noreturn));
/* Skips a token of this type and returns it; fails if the current token is another. */
const struct token *parser_expect(struct parser *p, enum token_type type, const char *what);

struct node *parser_expression(struct parser *p, bool with_condition);
/* One expression, or several with commas between them as a tuple. end_name: a name that ends it, or
 * NULL. */
struct node *parser_tuple(
	struct parser *p, bool with_condition, const char *end_name, bool in_parentheses);
/* The left side of = or in: names, ns.attribute, tuples of them. */
struct node *parser_target(struct parser *p, const char *end_name, bool with_attributes);
/* "| filter | filter"; value NULL for the block that the filters are around. without_pipe: there is
 * no "|" before the first. */
struct node *parser_filters(struct parser *p, struct node *value, bool without_pipe);

/* A name, a literal or an expression in parentheses; parser_postfix then reads what follows one:
 * .name, [index], (arguments). */
struct node *parser_primary(struct parser *p);
struct node *parser_postfix(struct parser *p, struct node *node);
struct node *parser_call(struct parser *p, struct node *of);
/* Reads (a, b=c, *d, **e) into the node. */
void parser_arguments(struct parser *p, struct node *node);
