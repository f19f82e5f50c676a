/* Finds what the schema of a function's parameters allows for one value. */
#include "shared/model/calls/private.h"

#include <string.h>

enum { DEPTH_MAX = 8 };

static unsigned named(const char *type)
{
	static const struct {
		const char *name;
		unsigned types;
	} known[] = {{"string", CALLS_STRING}, {"null", 1 << JSON_NULL},
		{"object", 1 << JSON_OBJECT}, {"array", 1 << JSON_ARRAY},
		{"boolean", 1 << JSON_TRUE | 1 << JSON_FALSE}, {"integer", 1 << JSON_INTEGER},
		{"number", 1 << JSON_INTEGER | 1 << JSON_REAL}};

	for (size_t i = 0; type != NULL && i < sizeof known / sizeof known[0]; i++)
		if (strcmp(type, known[i].name) == 0)
			return known[i].types;
	return CALLS_ANY;
}

const json_t *calls_resolve(const json_t *root, const json_t *schema)
{
	for (unsigned depth = 0; depth < DEPTH_MAX; depth++) {
		const char *ref = json_string_value(json_object_get(schema, "$ref"));
		const json_t *at = root;

		if (ref == NULL || strncmp(ref, "#/", 2) != 0)
			return schema;
		for (ref += 2; at != NULL && *ref;) {
			size_t n = strcspn(ref, "/");

			at = json_object_getn(at, ref, n);
			ref += n + (ref[n] == '/');
		}
		schema = at;
	}
	return schema;
}

unsigned calls_types(const json_t *root, const json_t *schema, unsigned depth)
{
	const json_t *at = calls_resolve(root, schema), *list, *one;
	const json_t *type = json_object_get(at, "type");
	unsigned types = 0;
	size_t i;

	if (depth > DEPTH_MAX)
		return CALLS_ANY;
	if (json_is_string(type))
		return named(json_string_value(type));
	json_array_foreach(type, i, one) types |= named(json_string_value(one));
	if (types == 0 && (one = json_object_get(at, "const")) != NULL)
		return 1u << json_typeof(one);
	list = json_object_get(at, "enum");
	if (types == 0)
		json_array_foreach(list, i, one) types |= 1u << json_typeof(one);
	list = json_object_get(at, "anyOf");
	if (list == NULL)
		list = json_object_get(at, "oneOf");
	if (types == 0)
		json_array_foreach(list, i, one) types |= calls_types(root, one, depth + 1);
	return types ? types : CALLS_ANY;
}
