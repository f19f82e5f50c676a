/*
 * From a JSON schema to rules. What a value must satisfy is a set of schemas (those that $ref and
 * allOf bring together), and each set becomes one rule; so a recursive schema is a rule that names
 * itself. anyOf multiplies a set out; the rest is merged keyword by keyword.
 *
 * A generated document has its properties in the schema's order, then the additional ones; no space
 * before , and :, and the shortest escapes in strings that a pattern, format or enum describes.
 */
#pragma once

#include "shared/model/grammar/charset.h"
#include "shared/model/grammar/tables.h"

#include <jansson.h>

/* The keywords of a schema whose content was taken out of it and added to the set on its own. */
enum { WITHOUT_REF = 1, WITHOUT_ALL = 2, WITHOUT_ANY = 4, WITHOUT_ONE = 8 };

struct schema_item {
	const json_t *node; /* an object, or false */
	uint32_t without;
};

struct schema_set {
	struct schema_item *items;
	uint32_t n, capacity;
	uint32_t rule; /* the rule that it became */
	uint32_t next; /* the next with the same hash, plus one */
};

enum { SCHEMA_SETS_MAX = 20000, SCHEMA_SLOTS = 4096 };

struct schema {
	struct rules *builder;
	const json_t *root;
	struct schema_set *sets; /* in the order of their definition */
	uint32_t n_sets, sets_capacity;
	uint32_t *slots; /* [SCHEMA_SLOTS] index of a set, plus one */
	uint32_t space, string, key, value, object; /* rules; 0: not made yet */
};

enum schema_type {
	TYPE_NULL = 1,
	TYPE_BOOLEAN = 2,
	TYPE_OBJECT = 4,
	TYPE_ARRAY = 8,
	TYPE_STRING = 16,
	TYPE_INTEGER = 32,
	TYPE_FRACTION = 64, /* a number that is no integer */
	TYPE_NUMBER = TYPE_INTEGER | TYPE_FRACTION,
	TYPE_ANY = 127
};

enum { SCHEMA_CONDITIONS = 16 }; /* most patterns, formats or factors of one value */

/* What all schemas of a set say together, except for properties and items. */
struct schema_merged {
	uint32_t types;
	/* arrays: one of each (enum), or the single value (const) */
	const json_t *values[SCHEMA_CONDITIONS];
	bool value_is[SCHEMA_CONDITIONS]; /* the entry of values is a const */
	uint32_t n_values;
	const json_t *minimum[SCHEMA_CONDITIONS], *maximum[SCHEMA_CONDITIONS];
	bool above[SCHEMA_CONDITIONS], below[SCHEMA_CONDITIONS]; /* the bound is exclusive */
	const json_t *multiple[SCHEMA_CONDITIONS];
	uint32_t n_minimum, n_maximum, n_multiple;
	const char *patterns[SCHEMA_CONDITIONS], *formats[SCHEMA_CONDITIONS];
	const json_t *pattern_nodes[SCHEMA_CONDITIONS];
	uint32_t n_patterns, n_formats;
	uint32_t min_length, max_length, min_items, max_items, min_properties, max_properties;
};

/* Records a failure at the builder, with "#/where/the/node/is: ...". */
uint32_t schema_fail(struct schema *schema, const json_t *node, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Adds a schema to a set under construction; `true` adds nothing. False: nothing can satisfy the
 * set (the schema `false`). */
bool schema_add(
	struct schema *schema, struct schema_set *set, const json_t *node, uint32_t without);
/* The expression of the set; frees its items. An empty set allows any value. */
uint32_t schema_expr(struct schema *schema, struct schema_set *set);
const json_t *schema_resolve(struct schema *schema, const json_t *node, const char *ref);

/* Adds the keywords of one schema to merged; refuses those that are not supported. */
void schema_merge(struct schema *schema, const json_t *node, struct schema_merged *merged);
/* The types that a schema allows; it may allow fewer. */
uint32_t schema_types(struct schema *schema, const json_t *node, uint32_t depth);
/* Whether no value can satisfy both, as far as is easily seen. */
bool schema_disjoint(struct schema *schema, const json_t *a, const json_t *b);

/* Expressions for values of each type. */
uint32_t schema_string(struct schema *schema, const struct schema_merged *merged);
/* The text between the quotes. *any: any text is allowed, and the result is 0. */
uint32_t schema_string_inner(struct schema *schema, const struct schema_merged *merged, bool *any);
uint32_t schema_number(
	struct schema *schema, const json_t *node, const struct schema_merged *merged);
uint32_t schema_object(
	struct schema *schema, const struct schema_set *set, const struct schema_merged *merged);
uint32_t schema_array(
	struct schema *schema, const struct schema_set *set, const struct schema_merged *merged);
/* One given value; conditions of merged on strings and numbers apply. */
uint32_t schema_constant(struct schema *schema, const json_t *node, const json_t *value,
	const struct schema_merged *merged);

/* Writes a number with an exponent, with as many digits as distinguish it from its neighbours: one
 * before the point, *precision behind it. */
enum { SCHEMA_NUMBER_BYTES = 64 };
void schema_shortest(double value, int *precision, char out[static SCHEMA_NUMBER_BYTES]);

/* The regular expression of a format; NULL: not known. */
const char *schema_format(const char *name);
/* Whether the pattern matches somewhere in the text. */
bool schema_pattern_matches(struct schema *schema, const json_t *node, const char *pattern,
	const char *text, size_t bytes);
/* An expression for a regular expression within quotes; failures name the node. */
uint32_t schema_pattern(struct schema *schema, const json_t *node, const char *pattern, bool whole);

uint32_t schema_space(struct schema *schema); /* a rule */
uint32_t schema_key_string(struct schema *schema);
uint32_t schema_any_string(struct schema *schema);
uint32_t schema_any_value(struct schema *schema);
uint32_t schema_any_object(struct schema *schema);
/* What comes after a key. */
uint32_t schema_colon(struct schema *schema);
