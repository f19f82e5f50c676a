/*
 * The syntax tree of a template, in the template's arena. parser.c makes it, and the interpreter
 * reads it. It is constant after parsing, so any number of threads may render it.
 */
#pragma once

#include "shared/model/text/template/value.h"

/*
 * The fields that each kind uses:
 *   DATA           text
 *   OUTPUT         a: expression to print
 *   FOR            a: target, b: items, c: condition or NULL; body, others (else); flag: recursive
 *   IF             a: condition; body, others (an elif is an IF of its own in there, with flag)
 *   SET            a: target, b: value
 *   SET_BLOCK      a: target, b: filter around it or NULL; body
 *   MACRO          text: name, args: parameters (NAME), defaults: of the last ones; body; uses_*
 *   CALL_BLOCK     a: the call; args, defaults, body as of a macro
 *   FILTER_BLOCK   a: filter chain around the body
 *   WITH           args: targets, defaults: values; body
 *   SCOPE          body (generation)
 *   NAME           text
 *   CONST          constant
 *   MEMBER         a . text
 *   ITEM           a [ b ]
 *   SLICE          a [ args[0] : args[1] : args[2] ], NULL if left out
 *   CALL           a ( args, named, rest: *rest, named_rest: **named_rest )
 *   FILTER, TEST   a | text ( the same ); a is NULL for the block that a filter is around
 *   UNARY, BINARY  op; a, b
 *   COMPARE        a; args: right-hand sides, ops: their operators
 *   CONDITION      b if a else c (or NULL)
 *   LIST, TUPLE    args
 *   DICT           args: keys, defaults: values
 *   ATTRIBUTE      text . named[0].name: namespace attribute as a target
 *   CONCAT         args
 */
enum node_kind {
	NODE_DATA,
	NODE_OUTPUT,
	NODE_FOR,
	NODE_IF,
	NODE_SET,
	NODE_SET_BLOCK,
	NODE_MACRO,
	NODE_CALL_BLOCK,
	NODE_FILTER_BLOCK,
	NODE_WITH,
	NODE_SCOPE,
	NODE_BREAK,
	NODE_CONTINUE,
	NODE_NAME,
	NODE_CONST,
	NODE_MEMBER,
	NODE_ITEM,
	NODE_SLICE,
	NODE_CALL,
	NODE_FILTER,
	NODE_TEST,
	NODE_UNARY,
	NODE_BINARY,
	NODE_COMPARE,
	NODE_CONDITION,
	NODE_LIST,
	NODE_TUPLE,
	NODE_DICT,
	NODE_ATTRIBUTE,
	NODE_CONCAT,
};

enum node_op {
	OP_ADD,
	OP_SUB,
	OP_MUL,
	OP_DIV,
	OP_FLOORDIV,
	OP_MOD,
	OP_POW,
	OP_AND,
	OP_OR,
	OP_NOT,
	OP_NEGATE,
	OP_PLUS,
	OP_EQ,
	OP_NE,
	OP_LT,
	OP_LE,
	OP_GT,
	OP_GE,
	OP_IN,
	OP_NOT_IN,
};

struct named_node {
	struct string *name;
	struct node *value;
};

struct node_list {
	struct node **items;
	size_t n, capacity;
};

struct node {
	enum node_kind kind;
	enum node_op op;
	uint32_t at; /* offset in the source */
	bool flag, uses_varargs, uses_kwargs, uses_caller;
	struct string *text;
	struct value constant;
	struct node *a, *b, *c;
	struct node *rest, *named_rest;
	struct node_list args, defaults, body, others;
	enum node_op *ops;
	struct named_node *named;
	size_t n_named;
};
