/* Merges one schema, keyword by keyword, with the others of its set. */
#include "shared/model/grammar/schema_private.h"

#include <string.h>

static const struct {
	const char *name;
	uint32_t types;
} types[] = {{"null", TYPE_NULL}, {"boolean", TYPE_BOOLEAN}, {"object", TYPE_OBJECT},
	{"array", TYPE_ARRAY}, {"string", TYPE_STRING}, {"integer", TYPE_INTEGER},
	{"number", TYPE_NUMBER}};

static uint32_t type_named(struct schema *schema, const json_t *name)
{
	for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
		if (json_is_string(name) && strcmp(types[i].name, json_string_value(name)) == 0)
			return types[i].types;
	schema_fail(schema, name,
		"type must be null, boolean, object, array, string, integer or number, or an array "
		"of them");
	return 0;
}

static uint32_t types_named(struct schema *schema, const json_t *type)
{
	const json_t *one;
	uint32_t all = 0;
	size_t i;

	if (!json_is_array(type))
		return type_named(schema, type);
	json_array_foreach(type, i, one) all |= type_named(schema, one);
	return all;
}

static void merge_type(struct schema *schema, const json_t *value, struct schema_merged *merged)
{
	merged->types &= types_named(schema, value);
}

static bool room(struct schema *schema, const json_t *value, uint32_t n)
{
	if (n < SCHEMA_CONDITIONS)
		return true;
	schema_fail(schema, value, "more than %d conditions of one kind on one value",
		SCHEMA_CONDITIONS);
	return false;
}

static void merge_enum(struct schema *schema, const json_t *value, struct schema_merged *merged)
{
	if (!json_is_array(value) || json_array_size(value) == 0)
		schema_fail(schema, value, "enum must be an array of values");
	else if (room(schema, value, merged->n_values))
		merged->values[merged->n_values++] = value;
}

static void merge_const(struct schema *schema, const json_t *value, struct schema_merged *merged)
{
	if (!room(schema, value, merged->n_values))
		return;
	merged->value_is[merged->n_values] = true;
	merged->values[merged->n_values++] = value;
}

static void bound(struct schema *schema, const json_t *value, const json_t **list, bool *strict,
	uint32_t *n, bool is_strict)
{
	if (!json_is_number(value)) {
		schema_fail(schema, value, "a bound must be a number");
	} else if (room(schema, value, *n)) {
		strict[*n] = is_strict;
		list[(*n)++] = value;
	}
}

static void merge_minimum(struct schema *schema, const json_t *value, struct schema_merged *m)
{
	bound(schema, value, m->minimum, m->above, &m->n_minimum, false);
}

static void merge_above(struct schema *schema, const json_t *value, struct schema_merged *m)
{
	bound(schema, value, m->minimum, m->above, &m->n_minimum, true);
}

static void merge_maximum(struct schema *schema, const json_t *value, struct schema_merged *m)
{
	bound(schema, value, m->maximum, m->below, &m->n_maximum, false);
}

static void merge_below(struct schema *schema, const json_t *value, struct schema_merged *m)
{
	bound(schema, value, m->maximum, m->below, &m->n_maximum, true);
}

static void merge_multiple(struct schema *schema, const json_t *value, struct schema_merged *m)
{
	bool strict[SCHEMA_CONDITIONS];

	bound(schema, value, m->multiple, strict, &m->n_multiple, false);
}

static void count(struct schema *schema, const json_t *value, uint32_t *out, bool at_most)
{
	double n = json_number_value(value);

	if (!json_is_number(value) || n < 0 || n != (double)(int64_t)(n < 1e18 ? n : 0)) {
		schema_fail(schema, value, "a count must be a whole number from 0 on");
		return;
	}
	uint32_t whole = n > 4e9 ? EXPR_MANY - 1 : (uint32_t)n;
	if (at_most ? whole < *out : whole > *out)
		*out = whole;
}

#define COUNT(keyword, field, at_most)                                                    \
	static void merge_##keyword(                                                      \
		struct schema *schema, const json_t *value, struct schema_merged *merged) \
	{                                                                                 \
		count(schema, value, &merged->field, at_most);                            \
	}
COUNT(min_length, min_length, false)
COUNT(max_length, max_length, true)
COUNT(min_items, min_items, false)
COUNT(max_items, max_items, true)
COUNT(min_properties, min_properties, false)
COUNT(max_properties, max_properties, true)

static void merge_pattern(struct schema *schema, const json_t *value, struct schema_merged *merged)
{
	if (!json_is_string(value)) {
		schema_fail(schema, value, "pattern must be a string");
	} else if (strlen(json_string_value(value)) != json_string_length(value)) {
		schema_fail(schema, value, "a pattern with a NUL is not supported; write \\u0000");
	} else if (room(schema, value, merged->n_patterns)) {
		merged->pattern_nodes[merged->n_patterns] = value;
		merged->patterns[merged->n_patterns++] = json_string_value(value);
	}
}

static void merge_format(struct schema *schema, const json_t *value, struct schema_merged *merged)
{
	const char *name = json_is_string(value) ? json_string_value(value) : "";

	if (schema_format(name) == NULL)
		schema_fail(schema, value,
			"format \"%.40s\" is not supported; supported are date-time, date, time, "
			"duration, uuid, email, hostname, ipv4, ipv6, uri, json-pointer",
			name);
	else if (room(schema, value, merged->n_formats))
		merged->formats[merged->n_formats++] = name;
}

static void merge_unique(struct schema *schema, const json_t *value, struct schema_merged *merged)
{
	(void)merged;
	if (!json_is_false(value))
		schema_fail(schema, value,
			"uniqueItems is not supported: no grammar can remember all earlier items");
}

static void merge_id(struct schema *schema, const json_t *value, struct schema_merged *merged)
{
	(void)merged;
	if (json_object_get(schema->root, "$id") != value)
		schema_fail(schema, value, "$id is supported only at the top");
}

/* Keywords that are read elsewhere, or have no effect on what matches. */
static const char *const elsewhere[] = {"$ref", "allOf", "anyOf", "oneOf", "properties", "required",
	"additionalProperties", "patternProperties", "items", "prefixItems", "additionalItems",
	"$defs", "definitions", "$schema", "$comment", "$anchor", "$vocabulary", "title",
	"description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly",
	"discriminator", "contentEncoding", "contentMediaType", "contentSchema", "minContains",
	"maxContains", NULL};

static const struct {
	const char *name;
	void (*merge)(struct schema *schema, const json_t *value, struct schema_merged *merged);
} keywords[] = {{"type", merge_type}, {"enum", merge_enum}, {"const", merge_const},
	{"minimum", merge_minimum}, {"exclusiveMinimum", merge_above}, {"maximum", merge_maximum},
	{"exclusiveMaximum", merge_below}, {"multipleOf", merge_multiple},
	{"minLength", merge_min_length}, {"maxLength", merge_max_length},
	{"pattern", merge_pattern}, {"format", merge_format}, {"minItems", merge_min_items},
	{"maxItems", merge_max_items}, {"minProperties", merge_min_properties},
	{"maxProperties", merge_max_properties}, {"uniqueItems", merge_unique}, {"$id", merge_id}};

void schema_merge(struct schema *schema, const json_t *node, struct schema_merged *merged)
{
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)(uintptr_t)node, key, value)
	{
		size_t i = 0, n = sizeof(keywords) / sizeof(*keywords);

		while (i < n && strcmp(keywords[i].name, key) != 0)
			i++;
		if (i < n) {
			keywords[i].merge(schema, value, merged);
			continue;
		}
		for (i = 0; elsewhere[i] != NULL && strcmp(elsewhere[i], key) != 0;)
			i++;
		if (elsewhere[i] == NULL && strncmp(key, "x-", 2) != 0)
			schema_fail(schema, node, "the keyword \"%.60s\" is not supported", key);
	}
}

static uint32_t type_of_value(const json_t *value)
{
	switch (json_typeof(value)) {
	case JSON_OBJECT:
		return TYPE_OBJECT;
	case JSON_ARRAY:
		return TYPE_ARRAY;
	case JSON_STRING:
		return TYPE_STRING;
	case JSON_INTEGER:
		return TYPE_INTEGER;
	case JSON_REAL:
		return TYPE_NUMBER;
	case JSON_TRUE:
	case JSON_FALSE:
		return TYPE_BOOLEAN;
	case JSON_NULL:
		return TYPE_NULL;
	}
	return TYPE_ANY;
}

enum { TYPES_DEPTH = 16 };

static uint32_t types_of_all(struct schema *schema, const json_t *all, uint32_t depth, bool each)
{
	uint32_t found = each ? TYPE_ANY : 0;
	const json_t *one;
	size_t i;

	json_array_foreach(all, i, one)
	{
		uint32_t mine = schema_types(schema, one, depth + 1);

		found = each ? found & mine : found | mine;
	}
	return found;
}

uint32_t schema_types(struct schema *schema, const json_t *node, uint32_t depth)
{
	const json_t *type = json_object_get(node, "type"), *values = json_object_get(node, "enum"),
		     *value = json_object_get(node, "const"), *ref = json_object_get(node, "$ref");
	uint32_t found = json_is_false(node) ? 0 : TYPE_ANY, some = 0;
	size_t i;

	if (depth > TYPES_DEPTH || schema->builder->rc != 0)
		return TYPE_ANY;
	if (type != NULL)
		found &= types_named(schema, type);
	if (value != NULL)
		found &= type_of_value(value);
	if (json_is_array(values)) {
		json_array_foreach(values, i, value) some |= type_of_value(value);
		found &= some;
	}
	if (json_is_string(ref))
		found &= schema_types(
			schema, schema_resolve(schema, node, json_string_value(ref)), depth + 1);
	if (json_is_array(json_object_get(node, "anyOf")))
		found &= types_of_all(schema, json_object_get(node, "anyOf"), depth, false);
	if (json_is_array(json_object_get(node, "oneOf")))
		found &= types_of_all(schema, json_object_get(node, "oneOf"), depth, false);
	return found & types_of_all(schema, json_object_get(node, "allOf"), depth, true);
}

/* Follows $ref if the other keywords of the schema do not matter here. */
static const json_t *followed(struct schema *schema, const json_t *node)
{
	for (uint32_t i = 0; i < TYPES_DEPTH && json_is_string(json_object_get(node, "$ref")); i++)
		node = schema_resolve(
			schema, node, json_string_value(json_object_get(node, "$ref")));
	return node;
}

/* The values to which a schema is restricted, as an array or one value; NULL: it lists none. */
static const json_t *listed(const json_t *node, bool *one)
{
	const json_t *value = json_object_get(node, "const");

	*one = value != NULL;
	return value != NULL ? value : json_object_get(node, "enum");
}

static bool lists_disjoint(const json_t *a, const json_t *b)
{
	bool one_a, one_b;
	const json_t *x = listed(a, &one_a), *y = listed(b, &one_b);

	if (x == NULL || y == NULL)
		return false;
	for (size_t i = 0; i < (one_a ? 1 : json_array_size(x)); i++)
		for (size_t k = 0; k < (one_b ? 1 : json_array_size(y)); k++) {
			const json_t *p = one_a ? x : json_array_get(x, i),
				     *q = one_b ? y : json_array_get(y, k);

			if (json_equal(p, q) ||
				(json_is_number(p) && json_is_number(q) &&
					json_number_value(p) == json_number_value(q)))
				return false;
		}
	return true;
}

static bool requires(const json_t *node, const char *name)
{
	const json_t *one;
	size_t i;

	json_array_foreach(json_object_get(node, "required"), i,
		one) if (json_is_string(one) &&
			 strcmp(json_string_value(one), name) == 0) return true;
	return false;
}

/* Whether a requires a property that b does not allow, or that has other values in b. */
static bool property_apart(struct schema *schema, const json_t *a, const json_t *b)
{
	const json_t *mine = json_object_get(a, "properties"),
		     *other = json_object_get(b, "properties"), *one;
	size_t i;

	json_array_foreach(json_object_get(a, "required"), i, one)
	{
		const char *name = json_is_string(one) ? json_string_value(one) : "";
		const json_t *p = followed(schema, json_object_get(mine, name)),
			     *q = followed(schema, json_object_get(other, name));

		if (q == NULL && json_is_false(json_object_get(b, "additionalProperties")) &&
			json_object_get(b, "patternProperties") == NULL)
			return true;
		if (q != NULL && requires(b, name) && p != NULL &&
			(lists_disjoint(p, q) ||
				(schema_types(schema, p, 0) & schema_types(schema, q, 0)) == 0))
			return true;
	}
	return false;
}

bool schema_disjoint(struct schema *schema, const json_t *a, const json_t *b)
{
	uint32_t both = schema_types(schema, a, 0) & schema_types(schema, b, 0);

	a = followed(schema, a);
	b = followed(schema, b);
	if (both == 0 || lists_disjoint(a, b))
		return true;
	return both == TYPE_OBJECT &&
	       (property_apart(schema, a, b) || property_apart(schema, b, a));
}
