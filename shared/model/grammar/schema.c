#include "shared/model/grammar/schema_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POINTER_BYTES = 200, PATH_DEPTH = 512 };

/* Writes the JSON pointer of a node that is below `at`; false: it is not. */
static bool path_to(const json_t *at, const json_t *node, char *out, size_t room, uint32_t depth)
{
	const char *key;
	json_t *kid;
	size_t i;

	if (at == node) {
		*out = 0;
		return true;
	}
	if (room < 40 || depth > PATH_DEPTH)
		return false;
	if (json_is_array(at))
		json_array_foreach(at, i, kid)
		{
			int n = snprintf(out, room, "/%zu", i);

			if (path_to(kid, node, out + n, room - (size_t)n, depth + 1))
				return true;
		}
	json_t *object = json_is_object(at) ? (json_t *)(uintptr_t)at : NULL;
	json_object_foreach(object, key, kid)
	{
		int n = snprintf(out, room, "/%.*s", (int)(room < 80 ? 0 : 32), key);

		if (path_to(kid, node, out + n, room - (size_t)n, depth + 1))
			return true;
	}
	return false;
}

uint32_t schema_fail(struct schema *schema, const json_t *node, const char *format, ...)
{
	char path[POINTER_BYTES] = "", what[400];
	va_list args;

	if (schema->builder->rc != 0)
		return EXPR_NEVER;
	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	if (node != NULL && !path_to(schema->root, node, path, sizeof(path), 0))
		snprintf(path, sizeof(path), "/...");
	rules_fail(schema->builder, EINVAL, "#%s: %s", path, what);
	error_tame(schema->builder->err.text);
	return EXPR_NEVER;
}

static int hex_digit(char c)
{
	return c >= '0' && c <= '9'			? c - '0'
	       : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
							: -1;
}

/* Reads one part of a pointer, with ~0, ~1 and %XX decoded. Returns what follows it. */
static const char *pointer_part(const char *at, char *out, size_t room)
{
	size_t n = 0;

	for (; *at != 0 && *at != '/'; at++) {
		char c = *at;

		if (c == '%' && hex_digit(at[1]) >= 0 && hex_digit(at[2]) >= 0) {
			c = (char)(hex_digit(at[1]) * 16 + hex_digit(at[2]));
			at += 2;
		}
		if (c == '~' && (at[1] == '0' || at[1] == '1')) {
			c = at[1] == '0' ? '~' : '/';
			at++;
		}
		if (n + 1 < room)
			out[n++] = c;
	}
	out[n] = 0;
	return at;
}

const json_t *schema_resolve(struct schema *schema, const json_t *node, const char *ref)
{
	const json_t *at = schema->root;
	char part[512];

	if (*ref != '#' || (ref[1] != 0 && ref[1] != '/')) {
		schema_fail(schema, node,
			"$ref \"%.100s\" is not supported: only \"#\" and \"#/...\" are", ref);
		return NULL;
	}
	for (ref++; *ref == '/' && at != NULL;) {
		ref = pointer_part(ref + 1, part, sizeof(part));
		if (json_is_array(at))
			at = json_array_get(at, (size_t)strtoul(part, NULL, 10));
		else
			at = json_object_get(at, part);
	}
	if (at == NULL)
		schema_fail(schema, node, "$ref: there is nothing at \"%.100s\"", part);
	return at;
}

static bool append(
	struct schema *schema, struct schema_set *set, const json_t *node, uint32_t without)
{
	for (uint32_t i = 0; i < set->n; i++)
		if (set->items[i].node == node)
			return true;
	if (!rules_grow(schema->builder, &set->items, &set->capacity, set->n, sizeof(*set->items)))
		return true;
	set->items[set->n++] = (struct schema_item){node, without};
	return true;
}

bool schema_add(struct schema *schema, struct schema_set *set, const json_t *node, uint32_t without)
{
	if (json_is_true(node))
		return true;
	if (json_is_false(node))
		return false;
	if (!json_is_object(node)) {
		schema_fail(schema, node, "a schema must be an object, true or false");
		return true;
	}
	return append(schema, set, node, without);
}

/* Adds the schemas that $ref and allOf name. False: one of them is `false`. */
static bool bring_in(struct schema *schema, struct schema_set *set)
{
	for (uint32_t i = 0; i < set->n && schema->builder->rc == 0; i++) {
		const json_t *node = set->items[i].node;
		const json_t *ref = json_object_get(node, "$ref"),
			     *all = json_object_get(node, "allOf"), *one;
		uint32_t without = set->items[i].without;
		size_t k;

		set->items[i].without |= WITHOUT_REF | WITHOUT_ALL;
		if (ref != NULL && (without & WITHOUT_REF) == 0) {
			if (!json_is_string(ref)) {
				schema_fail(schema, ref, "$ref must be a string");
				return true;
			}
			one = schema_resolve(schema, node, json_string_value(ref));
			if (one != NULL && !schema_add(schema, set, one, 0))
				return false;
		}
		if (all == NULL || (without & WITHOUT_ALL) != 0)
			continue;
		if (!json_is_array(all) || json_array_size(all) == 0)
			schema_fail(schema, all, "allOf must be an array of schemas");
		json_array_foreach(all, k, one) if (!schema_add(schema, set, one, 0)) return false;
	}
	return true;
}

static int by_address(const void *a, const void *b)
{
	const struct schema_item *x = a, *y = b;
	uintptr_t p = (uintptr_t)x->node, q = (uintptr_t)y->node;

	return (p > q) - (p < q);
}

static uint32_t hash_of(const struct schema_set *set)
{
	uint64_t hash = set->n;

	for (uint32_t i = 0; i < set->n; i++)
		hash = (hash ^ (uintptr_t)set->items[i].node ^ set->items[i].without) *
		       0x9E3779B97F4A7C15u;
	return (uint32_t)(hash >> 40) % SCHEMA_SLOTS;
}

static bool same(const struct schema_set *a, const struct schema_set *b)
{
	if (a->n != b->n)
		return false;
	for (uint32_t i = 0; i < a->n; i++)
		if (a->items[i].node != b->items[i].node ||
			a->items[i].without != b->items[i].without)
			return false;
	return true;
}

uint32_t schema_expr(struct schema *schema, struct schema_set *set)
{
	struct rules *b = schema->builder;
	struct schema_set mine = *set, sorted = {0};

	*set = (struct schema_set){0};
	if (!bring_in(schema, &mine) || b->rc != 0) {
		free(mine.items);
		return EXPR_NEVER;
	}
	if (mine.n == 0)
		return schema_any_value(schema);
	/* The order of properties is that in which the schemas came; the identity of a set does not
	 * depend on it. */
	sorted.items = malloc(mine.n * sizeof(*sorted.items));
	sorted.n = mine.n;
	if (sorted.items == NULL || !rules_grow(b, &schema->sets, &schema->sets_capacity,
					    schema->n_sets, sizeof(*schema->sets))) {
		free(mine.items);
		free(sorted.items);
		return rules_fail(b, ENOMEM, "no memory for the schema");
	}
	memcpy(sorted.items, mine.items, mine.n * sizeof(*sorted.items));
	qsort(sorted.items, sorted.n, sizeof(*sorted.items), by_address);
	uint32_t *slot = &schema->slots[hash_of(&sorted)];
	for (uint32_t i = *slot; i != 0; i = schema->sets[i - 1].next) {
		struct schema_set other = schema->sets[i - 1];
		bool found;

		other.items = malloc(other.n * sizeof(*other.items));
		if (other.items == NULL)
			break;
		memcpy(other.items, schema->sets[i - 1].items, other.n * sizeof(*other.items));
		qsort(other.items, other.n, sizeof(*other.items), by_address);
		found = same(&other, &sorted);
		free(other.items);
		if (found) {
			free(mine.items);
			free(sorted.items);
			return expr_rule(b, schema->sets[i - 1].rule);
		}
	}
	free(sorted.items);
	if (schema->n_sets >= SCHEMA_SETS_MAX)
		rules_fail(b, E2BIG,
			"the schema is too large: its parts combine in more than %d ways",
			SCHEMA_SETS_MAX);
	mine.rule = rules_add(b, "schema", strlen("schema"));
	mine.next = *slot;
	schema->sets[schema->n_sets++] = mine;
	*slot = schema->n_sets;
	return expr_rule(b, mine.rule);
}

/* The set with one of the alternatives of its schema number `at`, instead of all. */
static uint32_t with_one(struct schema *schema, const struct schema_set *set, uint32_t at,
	uint32_t without, const json_t *one)
{
	struct schema_set next = {0};

	for (uint32_t i = 0; i < set->n; i++)
		append(schema, &next, set->items[i].node,
			set->items[i].without | (i == at ? without : 0));
	if (!schema_add(schema, &next, one, 0)) {
		free(next.items);
		return EXPR_NEVER;
	}
	return schema_expr(schema, &next);
}

static void check_one_of(struct schema *schema, const json_t *all)
{
	size_t n = json_array_size(all);

	for (size_t i = 0; i < n; i++)
		for (size_t k = i + 1; k < n && schema->builder->rc == 0; k++)
			if (!schema_disjoint(
				    schema, json_array_get(all, i), json_array_get(all, k)))
				schema_fail(schema, all,
					"oneOf is supported where no value can match two "
					"alternatives, "
					"and %zu and %zu might have one in common; with anyOf it "
					"may",
					i, k);
}

/* Multiplies the first anyOf or oneOf of the set out; false: it has none. */
static bool multiply_out(struct schema *schema, const struct schema_set *set, uint32_t *out)
{
	static const char *const names[] = {"anyOf", "oneOf"};

	for (uint32_t i = 0; i < set->n; i++)
		for (uint32_t k = 0; k < 2; k++) {
			const json_t *all = json_object_get(set->items[i].node, names[k]), *one;
			uint32_t without = k == 0 ? WITHOUT_ANY : WITHOUT_ONE;
			struct expr_list list = {0};
			size_t n;

			if (all == NULL || (set->items[i].without & without) != 0)
				continue;
			if (!json_is_array(all) || json_array_size(all) == 0)
				schema_fail(
					schema, all, "%s must be an array of schemas", names[k]);
			else if (k == 1)
				check_one_of(schema, all);
			json_array_foreach(all, n, one)
			{
				uint32_t expr = schema->builder->rc == 0
							? with_one(schema, set, i, without, one)
							: EXPR_NEVER;

				if (expr != EXPR_NEVER)
					expr_list_add(schema->builder, &list, expr);
			}
			*out = expr_list_alt(schema->builder, &list);
			return true;
		}
	return false;
}

/* Whether a schema of the set has a keyword about the parts of a value. */
static const json_t *about_parts(const struct schema_set *set)
{
	static const char *const names[] = {"properties", "required", "additionalProperties",
		"patternProperties", "items", "prefixItems", "additionalItems"};

	for (uint32_t i = 0; i < set->n; i++)
		for (size_t k = 0; k < sizeof(names) / sizeof(*names); k++)
			if (json_object_get(set->items[i].node, names[k]) != NULL)
				return set->items[i].node;
	return NULL;
}

static uint32_t constants(
	struct schema *schema, const struct schema_set *set, const struct schema_merged *merged)
{
	const json_t *node = set->items[0].node, *parts = about_parts(set);
	struct rules *b = schema->builder;
	struct expr_list list = {0};
	const json_t *first = merged->values[0];
	size_t n = merged->value_is[0] ? 1 : json_array_size(first);

	for (size_t i = 0; i < n; i++) {
		const json_t *value = merged->value_is[0] ? first : json_array_get(first, i);
		bool in_all = true;

		for (uint32_t k = 1; k < merged->n_values && in_all; k++) {
			const json_t *other = merged->values[k], *one;
			size_t at;

			in_all = merged->value_is[k] && json_equal(value, other);
			if (!merged->value_is[k])
				json_array_foreach(other, at, one) in_all |= json_equal(value, one);
		}
		if (parts != NULL && (json_is_object(value) || json_is_array(value)))
			return schema_fail(schema, parts,
				"enum and const of objects and arrays exclude other keywords");
		uint32_t expr = in_all ? schema_constant(schema, node, value, merged) : EXPR_NEVER;
		if (expr != EXPR_NEVER)
			expr_list_add(b, &list, expr);
	}
	return expr_list_alt(b, &list);
}

static uint32_t by_type(
	struct schema *schema, const struct schema_set *set, const struct schema_merged *merged)
{
	struct rules *b = schema->builder;
	struct expr_list list = {0};

	if (merged->types & TYPE_NULL)
		expr_list_add(b, &list, expr_text(b, "null"));
	if (merged->types & TYPE_BOOLEAN)
		expr_list_add(b, &list, expr_alt2(b, expr_text(b, "true"), expr_text(b, "false")));
	if (merged->types & TYPE_NUMBER)
		expr_list_add(b, &list,
			schema_number(schema, set->n > 0 ? set->items[0].node : NULL, merged));
	if (merged->types & TYPE_STRING)
		expr_list_add(b, &list, schema_string(schema, merged));
	if (merged->types & TYPE_ARRAY)
		expr_list_add(b, &list, schema_array(schema, set, merged));
	if (merged->types & TYPE_OBJECT)
		expr_list_add(b, &list, schema_object(schema, set, merged));
	return expr_list_alt(b, &list);
}

/* set is a copy, because the list of sets grows in the meantime. */
static void define(struct schema *schema, struct schema_set set)
{
	struct schema_merged merged = {.types = TYPE_ANY,
		.max_length = EXPR_MANY,
		.max_items = EXPR_MANY,
		.max_properties = EXPR_MANY};
	uint32_t expr;

	for (uint32_t i = 0; i < set.n && schema->builder->rc == 0; i++)
		schema_merge(schema, set.items[i].node, &merged);
	if (schema->builder->rc != 0)
		return;
	if (!multiply_out(schema, &set, &expr))
		expr = merged.n_values > 0 ? constants(schema, &set, &merged)
					   : by_type(schema, &set, &merged);
	rules_define(schema->builder, set.rule, expr);
}

uint32_t schema_any_value(struct schema *schema)
{
	struct rules *b = schema->builder;
	bool fresh = schema->value == 0;

	if (fresh) {
		struct schema_merged merged = {.types = TYPE_ANY,
			.max_length = EXPR_MANY,
			.max_items = EXPR_MANY,
			.max_properties = EXPR_MANY};
		struct schema_set set = {0};

		schema->value = rules_add(b, "value", strlen("value"));
		rules_define(b, schema->value, by_type(schema, &set, &merged));
	}
	return expr_rule(b, schema->value);
}

static void finish(struct schema *schema)
{
	for (uint32_t i = 0; i < schema->n_sets && schema->builder->rc == 0; i++)
		define(schema, schema->sets[i]);
	for (uint32_t i = 0; i < schema->n_sets; i++)
		free(schema->sets[i].items);
	free(schema->sets);
	free(schema->slots);
}

uint32_t grammar_schema_expr(struct rules *builder, const json_t *root)
{
	struct schema schema = {.builder = builder, .root = root};
	struct schema_set set = {0};
	uint32_t expr = EXPR_NEVER;

	schema.slots = calloc(SCHEMA_SLOTS, sizeof(*schema.slots));
	if (schema.slots == NULL)
		rules_fail(builder, ENOMEM, "no memory for the schema");
	else if (!schema_add(&schema, &set, root, 0))
		schema_fail(&schema, root, "the schema is false: no value matches it");
	if (builder->rc == 0)
		expr = schema_expr(&schema, &set);
	free(set.items);
	finish(&schema);
	return expr;
}

void grammar_read_schema(struct rules *builder, const char *source, size_t bytes)
{
	json_error_t at;
	json_t *root = json_loadb(
		source, bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &at);

	if (root == NULL) {
		rules_fail(builder, EINVAL, "line %d, column %d: %s", at.line, at.column, at.text);
		error_tame(builder->err.text);
		return;
	}
	rules_define(builder, 0, grammar_schema_expr(builder, root));
	json_decref(root);
}

void grammar_read_object(struct rules *builder)
{
	struct schema schema = {.builder = builder};

	rules_define(builder, 0, schema_any_object(&schema));
}
