/*
 * A grammar before it is compiled: rules, each of which is a tree of expressions over bytes. The
 * front ends (gbnf.c, regex.c, schema.c, parts.c) write it, lower.c reads it.
 *
 * An expression is an index. The functions report no errors of their own: when memory or a limit is
 * exceeded, the builder keeps the first error, and every later call returns EXPR_NEVER. Check
 * builder.rc at the end. One thread.
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
	EXPR_KIND_REPEAT, /* kid `first`, min to max times */
	EXPR_KIND_RULE, /* rule `first` */
	EXPR_KIND_AND, /* what both kids match; both must be regular */
	/* what the first kid matches and the second does not; both must be regular */
	EXPR_KIND_BUT,
	EXPR_KIND_GRAPH, /* n arcs, from `first` on, between `min` states */
};

/* A repetition without an upper bound. */
#define EXPR_MANY UINT32_MAX

struct expr {
	uint8_t kind, lo, hi;
	uint32_t first, n;
	uint32_t min, max;
	uint32_t cost; /* roughly how many states it takes; a rule counts as one */
};

/* An arc of EXPR_KIND_GRAPH. The graph begins in state 0 and ends in state 1. */
struct expr_arc {
	uint32_t from, expr, to;
};

struct rule {
	char *name;
	uint32_t expr;
	bool defined;
	bool whole; /* never put in the place of its calls, because it is repeated too often */
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
	/* what is built now becomes part of an EXPR_KIND_AND or _BUT, so it may not name rules */
	bool regular;
	int rc; /* the first failure, or 0 */
	struct error err;
};

/* Initialises the builder, with rule 0. */
void rules_init(struct rules *builder);
void rules_exit(struct rules *builder);
/* Records the error if it is the first. Returns EXPR_NEVER. */
uint32_t rules_fail(struct rules *builder, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Makes room for entry n of an array, or records a failure. For the arrays of this directory. */
bool rules_grow(struct rules *builder, void *array, uint32_t *capacity, uint32_t n, size_t each);

uint32_t expr_range(struct rules *builder, uint8_t lo, uint8_t hi);
uint32_t expr_bytes(struct rules *builder, const void *bytes, size_t n);
uint32_t expr_text(struct rules *builder, const char *text);
uint32_t expr_seq(struct rules *builder, const uint32_t *kids, uint32_t n);
uint32_t expr_alt(struct rules *builder, const uint32_t *kids, uint32_t n);
uint32_t expr_seq2(struct rules *builder, uint32_t a, uint32_t b);
uint32_t expr_alt2(struct rules *builder, uint32_t a, uint32_t b);
/* max: EXPR_MANY for no bound. With max < min it matches nothing. */
uint32_t expr_repeat(struct rules *builder, uint32_t kid, uint32_t min, uint32_t max);
uint32_t expr_optional(struct rules *builder, uint32_t kid);
uint32_t expr_and(struct rules *builder, uint32_t a, uint32_t b);
uint32_t expr_but(struct rules *builder, uint32_t a, uint32_t b);
uint32_t expr_rule(struct rules *builder, uint32_t rule);
uint32_t expr_graph(
	struct rules *builder, uint32_t n_states, const struct expr_arc *arcs, uint32_t n);

/* Adds a rule without a definition. Returns its index. The name is copied. */
uint32_t rules_add(struct rules *builder, const char *name, size_t bytes);
void rules_define(struct rules *builder, uint32_t rule, uint32_t expr);

/* A growing list of expressions. */
struct expr_list {
	uint32_t *items;
	uint32_t n, capacity;
};
void expr_list_add(struct rules *builder, struct expr_list *list, uint32_t expr);
/* An expression for all of the list in sequence, or for one of it; both free the list. */
uint32_t expr_list_seq(struct rules *builder, struct expr_list *list);
uint32_t expr_list_alt(struct rules *builder, struct expr_list *list);
