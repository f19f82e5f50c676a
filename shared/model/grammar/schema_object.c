/* Values with parts: objects, arrays and given values. */
#include "shared/model/grammar/schema_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLACES_MAX = 1 << 16, PATTERNS = 4 };

/* The states of an object or array: after how many parts, of which how many count. */
struct chain {
	struct schema *schema;
	struct expr_arc *arcs;
	uint32_t n, capacity;
};

static void arc(struct chain *chain, uint32_t from, uint32_t expr, uint32_t to)
{
	if (expr != EXPR_NEVER && rules_grow(chain->schema->builder, &chain->arcs, &chain->capacity,
					  chain->n, sizeof(*chain->arcs)))
		chain->arcs[chain->n++] = (struct expr_arc){from, expr, to};
}

static uint32_t chain_expr(struct chain *chain, uint32_t n_states)
{
	uint32_t expr = expr_graph(chain->schema->builder, n_states, chain->arcs, chain->n);

	free(chain->arcs);
	return expr;
}

/* A comma, and what separates values. */
static uint32_t comma(struct schema *schema, uint32_t part)
{
	struct rules *b = schema->builder;

	return expr_seq(b, (uint32_t[]){expr_text(b, ","), schema_space(schema), part}, 3);
}

/* A property that the schema names. */
struct property {
	const char *name;
	size_t bytes;
	bool required;
	uint32_t expr; /* key, colon and value; EXPR_NEVER: it must be absent */
};

struct object {
	struct schema *schema;
	const struct schema_set *set;
	struct property *properties;
	uint32_t n, capacity;
	const char *patterns[PATTERNS];
	const json_t *pattern_nodes[PATTERNS];
	uint32_t n_patterns;
};

static void name_property(struct object *o, const char *name, size_t bytes, bool required)
{
	for (uint32_t i = 0; i < o->n; i++)
		if (o->properties[i].bytes == bytes &&
			memcmp(o->properties[i].name, name, bytes) == 0) {
			o->properties[i].required |= required;
			return;
		}
	if (rules_grow(
		    o->schema->builder, &o->properties, &o->capacity, o->n, sizeof(*o->properties)))
		o->properties[o->n++] = (struct property){name, bytes, required, EXPR_NEVER};
}

static void name_pattern(struct object *o, const json_t *node, const char *pattern)
{
	for (uint32_t i = 0; i < o->n_patterns; i++)
		if (strcmp(o->patterns[i], pattern) == 0)
			return;
	if (o->n_patterns == PATTERNS) {
		schema_fail(o->schema, node, "more than %d patterns of properties of one object",
			PATTERNS);
		return;
	}
	o->pattern_nodes[o->n_patterns] = node;
	o->patterns[o->n_patterns++] = pattern;
}

static void name_all(struct object *o)
{
	const char *key;
	json_t *value;
	size_t at;

	for (uint32_t i = 0; i < o->set->n; i++) {
		const json_t *node = o->set->items[i].node;
		json_t *properties = json_object_get(node, "properties"),
		       *patterns = json_object_get(node, "patternProperties");

		if ((properties != NULL && !json_is_object(properties)) ||
			(patterns != NULL && !json_is_object(patterns)))
			schema_fail(o->schema, node,
				"properties and patternProperties must be objects");
		json_object_foreach(properties, key, value)
			name_property(o, key, strlen(key), false);
		json_object_foreach(patterns, key, value) name_pattern(o, patterns, key);
	}
	for (uint32_t i = 0; i < o->set->n; i++) {
		const json_t *required = json_object_get(o->set->items[i].node, "required");

		if (required != NULL && !json_is_array(required))
			schema_fail(o->schema, required, "required must be an array of names");
		json_array_foreach(required, at, value)
		{
			if (json_is_string(value))
				name_property(o, json_string_value(value),
					json_string_length(value), true);
			else
				schema_fail(
					o->schema, required, "required must be an array of names");
		}
	}
}

/* What a property must satisfy: the schemas for its name (NULL: a name that no schema has), and
 * those for the patterns that it matches. */
static uint32_t value_of(struct object *o, const struct property *property, uint32_t matched)
{
	struct schema_set set = {0};
	bool possible = true;

	for (uint32_t i = 0; i < o->set->n && possible; i++) {
		const json_t *node = o->set->items[i].node, *one = NULL;
		const json_t *patterns = json_object_get(node, "patternProperties"),
			     *rest = json_object_get(node, "additionalProperties");
		bool seen = false;

		if (property != NULL)
			one = json_object_get(json_object_get(node, "properties"), property->name);
		if (one != NULL) {
			seen = true;
			possible = schema_add(o->schema, &set, one, 0);
		}
		for (uint32_t k = 0; k < o->n_patterns && possible; k++) {
			one = json_object_get(patterns, o->patterns[k]);
			if (one == NULL || (matched >> k & 1) == 0)
				continue;
			seen = true;
			possible = schema_add(o->schema, &set, one, 0);
		}
		if (!seen && rest != NULL && possible)
			possible = schema_add(o->schema, &set, rest, 0);
	}
	if (!possible) {
		free(set.items);
		return EXPR_NEVER;
	}
	return schema_expr(o->schema, &set);
}

static uint32_t keyed(struct schema *schema, uint32_t inner, uint32_t value)
{
	struct rules *b = schema->builder;

	return expr_seq(b,
		(uint32_t[]){
			expr_text(b, "\""), inner, expr_text(b, "\""), schema_colon(schema), value},
		5);
}

static void read_properties(struct object *o)
{
	struct rules *b = o->schema->builder;

	for (uint32_t i = 0; i < o->n && b->rc == 0; i++) {
		struct property *p = &o->properties[i];
		uint32_t matched = 0;

		for (uint32_t k = 0; k < o->n_patterns; k++)
			matched |= (uint32_t)schema_pattern_matches(o->schema, o->pattern_nodes[k],
					   o->patterns[k], p->name, p->bytes)
				   << k;
		uint32_t value = value_of(o, p, matched);
		if (value != EXPR_NEVER)
			p->expr = keyed(
				o->schema, charset_text(b, p->name, p->bytes, CHARSET_JSON), value);
	}
}

/* Any property whose name no schema has. */
static uint32_t additional(struct object *o)
{
	struct rules *b = o->schema->builder;
	struct expr_list names = {0}, all = {0};

	for (uint32_t i = 0; i < o->n; i++)
		expr_list_add(b, &names,
			charset_text(
				b, o->properties[i].name, o->properties[i].bytes, CHARSET_JSON));
	uint32_t named = expr_list_alt(b, &names);
	for (uint32_t matched = 0; matched >> o->n_patterns == 0 && b->rc == 0; matched++) {
		uint32_t value = value_of(o, NULL, matched);

		if (value == EXPR_NEVER)
			continue;
		if (o->n == 0 && o->n_patterns == 0) {
			expr_list_add(b, &all,
				expr_seq(b,
					(uint32_t[]){schema_any_string(o->schema),
						schema_colon(o->schema), value},
					3));
			continue;
		}
		uint32_t key = schema_key_string(o->schema);
		key = o->n > 0 ? expr_but(b, key, named) : key;
		for (uint32_t k = 0; k < o->n_patterns; k++) {
			uint32_t one = schema_pattern(
				o->schema, o->pattern_nodes[k], o->patterns[k], false);

			key = (matched >> k & 1) != 0 ? expr_and(b, key, one)
						      : expr_but(b, key, one);
		}
		expr_list_add(b, &all, keyed(o->schema, key, value));
	}
	return expr_list_alt(b, &all);
}

/* Properties in their order: after n of them, c were present. Without an upper bound, counts above
 * `most` are treated as `most`. */
static uint32_t object_graph(struct object *o, const struct schema_merged *merged, uint32_t rest)
{
	struct rules *b = o->schema->builder;
	struct chain chain = {.schema = o->schema};
	bool bounded = merged->max_properties < PLACES_MAX;
	uint32_t most = bounded ? merged->max_properties : merged->min_properties;

	if (bounded && o->n + 1 < most && rest == EXPR_NEVER)
		most = o->n + 1;
	if (!bounded && most == 0)
		most = 1;
	if (merged->min_properties > merged->max_properties ||
		(uint64_t)(most + 1) * (o->n + 1) > PLACES_MAX)
		return schema_fail(o->schema, o->set->n > 0 ? o->set->items[0].node : NULL,
			"minProperties and maxProperties allow nothing, or count too far");
#define PLACE(n, c) (2 + (n) * (most + 1) + (c))
	arc(&chain, 0, expr_seq2(b, expr_text(b, "{"), schema_space(o->schema)), PLACE(0, 0));
	for (uint32_t i = 0; i <= o->n; i++)
		for (uint32_t c = 0; c <= most; c++) {
			uint32_t part = i < o->n ? o->properties[i].expr : rest,
				 next = c < most ? c + 1 : most;

			if (i < o->n && !o->properties[i].required)
				arc(&chain, PLACE(i, c), EXPR_EMPTY, PLACE(i + 1, c));
			if (part != EXPR_NEVER && (c < most || !bounded))
				arc(&chain, PLACE(i, c), c == 0 ? part : comma(o->schema, part),
					PLACE(i < o->n ? i + 1 : i, next));
			if (i == o->n && c >= merged->min_properties)
				arc(&chain, PLACE(i, c),
					c == 0 ? expr_text(b, "}")
					       : expr_seq2(b, schema_space(o->schema),
							 expr_text(b, "}")),
					1);
		}
	return chain_expr(&chain, PLACE(o->n, most) + 1);
#undef PLACE
}

uint32_t schema_object(
	struct schema *schema, const struct schema_set *set, const struct schema_merged *merged)
{
	struct object o = {.schema = schema, .set = set};
	uint32_t expr = EXPR_NEVER;

	if (set->n == 0)
		return schema_any_object(schema);
	name_all(&o);
	if (schema->builder->rc == 0)
		read_properties(&o);
	if (schema->builder->rc == 0)
		expr = object_graph(&o, merged, additional(&o));
	free(o.properties);
	return expr;
}

uint32_t schema_any_object(struct schema *schema)
{
	struct schema_merged merged = {.max_properties = EXPR_MANY};
	struct rules *b = schema->builder;
	bool fresh = schema->object == 0;

	if (fresh) {
		struct object o = {.schema = schema};

		schema->object = rules_add(b, "object", strlen("object"));
		uint32_t rest = expr_seq(b,
			(uint32_t[]){schema_any_string(schema), schema_colon(schema),
				schema_any_value(schema)},
			3);
		rules_define(b, schema->object, object_graph(&o, &merged, rest));
	}
	return expr_rule(b, schema->object);
}

/* The element at an index. */
static uint32_t element(struct schema *schema, const struct schema_set *set, uint32_t index)
{
	struct schema_set one = {0};
	bool possible = true;

	for (uint32_t i = 0; i < set->n && possible; i++) {
		const json_t *node = set->items[i].node;
		const json_t *prefix = json_object_get(node, "prefixItems"),
			     *items = json_object_get(node, "items");

		/* Before draft 2020-12 the list was in `items`, and what follows it in
		 * `additionalItems`. */
		if (prefix == NULL && json_is_array(items)) {
			prefix = items;
			items = json_object_get(node, "additionalItems");
		}
		if (prefix != NULL && !json_is_array(prefix))
			schema_fail(schema, prefix, "prefixItems must be an array of schemas");
		if (index < json_array_size(prefix))
			items = json_array_get(prefix, index);
		if (items != NULL)
			possible = schema_add(schema, &one, items, 0);
	}
	if (possible)
		return schema_expr(schema, &one);
	free(one.items);
	return EXPR_NEVER;
}

static uint32_t prefix_of(const struct schema_set *set)
{
	size_t most = 0;

	for (uint32_t i = 0; i < set->n; i++) {
		const json_t *prefix = json_object_get(set->items[i].node, "prefixItems"),
			     *items = json_object_get(set->items[i].node, "items");
		size_t n = json_array_size(prefix != NULL ? prefix : items);

		most = n > most ? n : most;
	}
	return (uint32_t)most;
}

uint32_t schema_array(
	struct schema *schema, const struct schema_set *set, const struct schema_merged *merged)
{
	struct rules *b = schema->builder;
	struct chain chain = {.schema = schema};
	bool bounded = merged->max_items < PLACES_MAX;
	uint32_t prefix = prefix_of(set),
		 least = prefix > merged->min_items ? prefix : merged->min_items,
		 most = bounded ? merged->max_items : least + 1, rest, close = expr_text(b, "]");

	if (merged->min_items > merged->max_items)
		return EXPR_NEVER;
	if (least > PLACES_MAX)
		return schema_fail(schema, set->items[0].node, "minItems is above %d", PLACES_MAX);
	rest = element(schema, set, prefix);
	arc(&chain, 0, expr_seq2(b, expr_text(b, "["), schema_space(schema)), 2);
	for (uint32_t c = 0; c <= most && b->rc == 0; c++) {
		uint32_t part = c < prefix ? element(schema, set, c) : rest,
			 next = c < most ? c + 1 : most;

		if (part != EXPR_NEVER && (c < most || !bounded))
			arc(&chain, 2 + c, c == 0 ? part : comma(schema, part), 2 + next);
		if (c >= merged->min_items)
			arc(&chain, 2 + c,
				c == 0 ? close : expr_seq2(b, schema_space(schema), close), 1);
		if (part == EXPR_NEVER)
			break;
	}
	return chain_expr(&chain, 3 + most);
}

static uint32_t number_text(struct schema *schema, const json_t *value)
{
	char text[SCHEMA_NUMBER_BYTES];
	struct rules *b = schema->builder;
	int precision;

	if (json_is_integer(value)) {
		snprintf(text, sizeof(text), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
		return expr_text(b, text);
	}
	/* In the form %g, which printers of JSON use. */
	schema_shortest(json_real_value(value), &precision, text);
	snprintf(text, sizeof(text), "%.*g", precision + 1, json_real_value(value));
	uint32_t expr = expr_text(b, text);
	double v = json_real_value(value);
	if (v > -1e15 && v < 1e15 && v == (double)(long long)v) {
		snprintf(text, sizeof(text), "%lld", (long long)v);
		expr = expr_alt2(b, expr_text(b, text), expr);
	}
	return expr;
}

/* The value as it is; the JSON parser limits its depth. */
static uint32_t spelled(struct schema *schema, const json_t *value)
{
	struct rules *b = schema->builder;
	struct expr_list list = {0};
	const char *key;
	json_t *kid;
	size_t i;

	switch (json_typeof(value)) {
	case JSON_STRING:
		return expr_seq(b,
			(uint32_t[]){expr_text(b, "\""),
				charset_text(b, json_string_value(value), json_string_length(value),
					CHARSET_JSON),
				expr_text(b, "\"")},
			3);
	case JSON_INTEGER:
	case JSON_REAL:
		return number_text(schema, value);
	case JSON_TRUE:
		return expr_text(b, "true");
	case JSON_FALSE:
		return expr_text(b, "false");
	case JSON_NULL:
		return expr_text(b, "null");
	case JSON_ARRAY:
		expr_list_add(b, &list, expr_text(b, "["));
		json_array_foreach(value, i, kid)
		{
			uint32_t one = spelled(schema, kid);

			expr_list_add(b, &list, schema_space(schema));
			expr_list_add(b, &list, one);
			if (i + 1 < json_array_size(value))
				expr_list_add(b, &list, expr_text(b, ","));
		}
		if (json_array_size(value) > 0)
			expr_list_add(b, &list, schema_space(schema));
		expr_list_add(b, &list, expr_text(b, "]"));
		return expr_list_seq(b, &list);
	case JSON_OBJECT:
		break;
	}
	i = 0;
	expr_list_add(b, &list, expr_text(b, "{"));
	json_object_foreach((json_t *)(uintptr_t)value, key, kid)
	{
		uint32_t one = spelled(schema, kid);

		expr_list_add(b, &list, schema_space(schema));
		expr_list_add(b, &list,
			keyed(schema, charset_text(b, key, strlen(key), CHARSET_JSON), one));
		if (++i < json_object_size(value))
			expr_list_add(b, &list, expr_text(b, ","));
	}
	if (i > 0)
		expr_list_add(b, &list, schema_space(schema));
	expr_list_add(b, &list, expr_text(b, "}"));
	return expr_list_seq(b, &list);
}

static bool is_whole(const json_t *value)
{
	double v = json_number_value(value);

	return json_is_integer(value) || (v > -1e15 && v < 1e15 && v == (double)(long long)v);
}

uint32_t schema_constant(struct schema *schema, const json_t *node, const json_t *value,
	const struct schema_merged *merged)
{
	static const uint32_t type_of[] = {[JSON_OBJECT] = TYPE_OBJECT,
		[JSON_ARRAY] = TYPE_ARRAY,
		[JSON_STRING] = TYPE_STRING,
		[JSON_INTEGER] = TYPE_INTEGER,
		[JSON_REAL] = TYPE_FRACTION,
		[JSON_TRUE] = TYPE_BOOLEAN,
		[JSON_FALSE] = TYPE_BOOLEAN,
		[JSON_NULL] = TYPE_NULL};
	struct rules *b = schema->builder;
	uint32_t type = type_of[json_typeof(value)], expr;
	bool any;

	if (json_is_number(value))
		type = is_whole(value) ? TYPE_INTEGER : TYPE_FRACTION;
	if ((merged->types & type) == 0)
		return EXPR_NEVER;
	expr = spelled(schema, value);
	if (json_is_string(value)) {
		uint32_t inner = schema_string_inner(schema, merged, &any);

		if (!any)
			expr = expr_seq(b,
				(uint32_t[]){expr_text(b, "\""),
					expr_and(b,
						charset_text(b, json_string_value(value),
							json_string_length(value), CHARSET_JSON),
						inner),
					expr_text(b, "\"")},
				3);
	} else if (json_is_number(value) &&
		   merged->n_minimum + merged->n_maximum + merged->n_multiple > 0) {
		expr = expr_and(b, expr, schema_number(schema, node, merged));
	} else if ((json_is_object(value) || json_is_array(value)) &&
		   (merged->min_items > 0 || merged->max_items != EXPR_MANY ||
			   merged->min_properties > 0 || merged->max_properties != EXPR_MANY)) {
		return schema_fail(schema, node,
			"enum and const of objects and arrays exclude other keywords");
	}
	return expr;
}
