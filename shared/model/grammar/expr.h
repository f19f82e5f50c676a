/*
 * A grammar before it is compiled: rules, each a tree of expressions over bytes. The front ends (gbnf.c, regex.c, schema.c)
 * write it, nfa.c reads it.
 *
 * An expression is an index. The functions never fail one by one: when memory or a limit runs out, the builder keeps the
 * first error, and everything after it gives EXPR_NEVER. Who is done looks at builder.rc. One thread.
 */
#pragma once

#include "shared/base/error.h"

#include <stddef.h>
#include <stdint.h>

enum {
	EXPR_NEVER = 0, /* matches nothing */
	EXPR_EMPTY = 1, /* matches the empty text */
};

enum expr_kind {
	EXPR_KIND_NEVER,
	EXPR_KIND_EMPTY,
	EXPR_KIND_RANGE, /* one byte, lo..hi */
	EXPR_KIND_BYTES, /* n bytes of the pool, from `first` on */
	EXPR_KIND_SEQ, /* n kids, from `first` on */
	EXPR_KIND_ALT,
	EXPR_KIND_REPEAT, /* kid `first`, min..max times */
	EXPR_KIND_RULE, /* rule `first` */
	EXPR_KIND_AND, /* what both kids match; regular ones only */
	EXPR_KIND_BUT, /* what the first kid matches and the second does not; regular ones only */
	EXPR_KIND_GRAPH, /* n arcs, from `first` on, between `min` states */
};

/* No upper bound of a repetition. */
#define EXPR_MANY UINT32_MAX

struct expr {
	uint8_t kind, lo, hi;
	uint32_t first, n;
	uint32_t min, max;
	uint32_t cost; /* how many states it takes, roughly; a rule counts as one */
};

/* An arc of EXPR_KIND_GRAPH. State 0 is where it begins, state 1 where it ends. */
struct expr_arc {
	uint32_t from, expr, to;
};

struct rule {
	char *name;
	uint32_t expr;
	bool defined;
	bool whole; /* never lowered where it is called: it is repeated too often */
};

struct rules {
	struct expr *exprs;
	uint32_t n_exprs, exprs_capacity;
	uint32_t *kids;
	uint32_t n_kids, kids_capacity;
	uint8_t *bytes;
	uint32_t n_bytes, bytes_capacity;
	struct expr_arc *arcs;
	uint32_t n_arcs, arcs_capacity;
	struct rule *rules; /* rule 0 is the root */
	uint32_t n_rules, rules_capacity;
	bool regular; /* what is built now may not name rules: it goes into EXPR_KIND_AND or _BUT */
	int rc; /* the first failure, or 0 */
	struct error err;
};

/* Makes rule 0. */
void rules_init(struct rules *builder);
void rules_exit(struct rules *builder);
/* Keeps the error if it is the first; returns EXPR_NEVER. */
uint32_t rules_fail(struct rules *builder, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Makes room for entry n of an array, or fails. For the room's own arrays. */
bool rules_grow(struct rules *builder, void *array, uint32_t *capacity, uint32_t n, size_t each);

uint32_t expr_range(struct rules *builder, uint8_t lo, uint8_t hi);
uint32_t expr_bytes(struct rules *builder, const void *bytes, size_t n);
uint32_t expr_text(struct rules *builder, const char *text);
uint32_t expr_seq(struct rules *builder, const uint32_t *kids, uint32_t n);
uint32_t expr_alt(struct rules *builder, const uint32_t *kids, uint32_t n);
uint32_t expr_seq2(struct rules *builder, uint32_t a, uint32_t b);
uint32_t expr_alt2(struct rules *builder, uint32_t a, uint32_t b);
/* max: EXPR_MANY for no bound; below min it matches nothing. */
uint32_t expr_repeat(struct rules *builder, uint32_t kid, uint32_t min, uint32_t max);
uint32_t expr_optional(struct rules *builder, uint32_t kid);
uint32_t expr_and(struct rules *builder, uint32_t a, uint32_t b);
uint32_t expr_but(struct rules *builder, uint32_t a, uint32_t b);
uint32_t expr_rule(struct rules *builder, uint32_t rule);
uint32_t expr_graph(
	struct rules *builder, uint32_t n_states, const struct expr_arc *arcs, uint32_t n);

/* A new rule, not defined yet; its index. The name is copied. */
uint32_t rules_add(struct rules *builder, const char *name, size_t bytes);
void rules_define(struct rules *builder, uint32_t rule, uint32_t expr);

/* A list of expressions that grows. */
struct expr_list {
	uint32_t *items;
	uint32_t n, capacity;
};
void expr_list_add(struct rules *builder, struct expr_list *list, uint32_t expr);
/* Frees the list. */
uint32_t expr_list_seq(struct rules *builder, struct expr_list *list);
uint32_t expr_list_alt(struct rules *builder, struct expr_list *list);
