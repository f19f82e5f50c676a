/*
 * The official test suite of JSON Schema (tests/data/json-schema): a schema is compiled or refused by name; of one that is
 * compiled, no invalid instance matches, and each valid one does, in some order of its properties.
 */
#include "tests/grammar/rig.h"

#include <jansson.h>

enum {
	ORDERS = 300, /* of the properties of an instance that are tried */
	REFUSED = 84, /* schemas of these files: not, if, contains, references to other files ... */
};

#define WHOLE "a number without a fraction is written without one"
#define FORMAT "a format is a condition here, and not a note"
#define SUBSET "a part of the format that is left out"
/* Valid instances that no text we make has, and why. */
static const struct {
	const char *file, *group, *test, *why;
} departures[] = {
	{"const", "const with 0 does not match other zero-like types", "float zero is valid",
		WHOLE},
	{"const", "const with 1 does not match true", "float one is valid", WHOLE},
	{"const", "const with -2.0 matches integer and float types", "float -2.0 is valid", WHOLE},
	{"const", "float and integers are equal up to 64-bit representation limits",
		"float is valid", WHOLE},
	{"enum", "enum with 0 does not match false", "float zero is valid", WHOLE},
	{"enum", "enum with [0] does not match [false]", "[0.0] is valid", WHOLE},
	{"enum", "enum with 1 does not match true", "float one is valid", WHOLE},
	{"enum", "enum with [1] does not match [true]", "[1.0] is valid", WHOLE},
	{"format", "email format", "invalid email string is only an annotation by default", FORMAT},
	{"format", "ipv4 format", "invalid ipv4 string is only an annotation by default", FORMAT},
	{"format", "ipv6 format", "invalid ipv6 string is only an annotation by default", FORMAT},
	{"format", "hostname format", "invalid hostname string is only an annotation by default",
		FORMAT},
	{"format", "date format", "invalid date string is only an annotation by default", FORMAT},
	{"format", "date-time format", "invalid date-time string is only an annotation by default",
		FORMAT},
	{"format", "time format", "invalid time string is only an annotation by default", FORMAT},
	{"format", "json-pointer format",
		"invalid json-pointer string is only an annotation by default", FORMAT},
	{"format", "uri format", "invalid uri string is only an annotation by default", FORMAT},
	{"format", "uuid format", "invalid uuid string is only an annotation by default", FORMAT},
	{"format", "duration format", "invalid duration string is only an annotation by default",
		FORMAT},
	{"type", "integer type matches integers", "a float with zero fractional part is an integer",
		WHOLE},
	{"format-date-time", "validation of date-time strings",
		"a valid date-time with a leap second, with minus offset", SUBSET},
	{"format-date-time", "validation of date-time strings", "case-insensitive T and Z", SUBSET},
	{"format-email", "validation of e-mail addresses",
		"a quoted string with a space in the local part is valid", SUBSET},
	{"format-email", "validation of e-mail addresses",
		"a quoted string with a double dot in the local part is valid", SUBSET},
	{"format-email", "validation of e-mail addresses",
		"a quoted string with a @ in the local part is valid", SUBSET},
	{"format-email", "validation of e-mail addresses",
		"an IPv4-address-literal after the @ is valid", SUBSET},
	{"format-email", "validation of e-mail addresses",
		"an IPv6-address-literal after the @ is valid", SUBSET},
	{"format-time", "validation of time strings", "valid leap second, positive time-offset",
		SUBSET},
	{"format-time", "validation of time strings",
		"valid leap second, large positive time-offset", SUBSET},
	{"format-time", "validation of time strings", "valid leap second, negative time-offset",
		SUBSET},
	{"format-time", "validation of time strings",
		"valid leap second, large negative time-offset", SUBSET},
	{"format-time", "validation of time strings", "a valid time string with case-insensitive Z",
		SUBSET},
	{"format-uri", "validation of URIs", "a valid URL ", SUBSET},
};

static uint32_t n_groups, n_refused, n_valid, n_invalid, n_departures;

static json_t *shuffled(const json_t *value, unsigned *seed)
{
	json_t *out, *kid;
	const char *key, *keys[64];
	size_t n = 0, i;

	if (json_is_array(value)) {
		out = json_array();
		json_array_foreach(value, i, kid) json_array_append_new(out, shuffled(kid, seed));
		return out;
	}
	if (!json_is_object(value))
		return json_deep_copy(value);
	json_object_foreach((json_t *)(uintptr_t)value, key, kid) keys[n++] = key;
	for (i = n; i > 1; i--) {
		size_t k = (size_t)rand_r(seed) % i;
		const char *swap = keys[k];

		keys[k] = keys[i - 1];
		keys[i - 1] = swap;
	}
	out = json_object();
	for (i = 0; i < n; i++)
		json_object_set_new(out, keys[i], shuffled(json_object_get(value, keys[i]), seed));
	return out;
}

static bool matches_in_an_order(struct rig *rig, const json_t *instance)
{
	unsigned seed = 1;

	for (int i = 0; i < ORDERS; i++) {
		json_t *one = i == 0 ? json_deep_copy(instance) : shuffled(instance, &seed);
		char *text = json_dumps(one, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15) |
						     (i % 2 ? JSON_INDENT(2) : JSON_COMPACT));
		bool matches;

		assert_non_null(text);
		matches = rig_matches(rig, text);
		free(text);
		json_decref(one);
		if (matches)
			return true;
		if (i > 0 && !json_is_object(instance) && !json_is_array(instance))
			return false;
	}
	return false;
}

static bool departs(const char *file, const char *group, const char *test)
{
	for (size_t i = 0; i < sizeof(departures) / sizeof(*departures); i++)
		if (strcmp(departures[i].file, file) == 0 &&
			strcmp(departures[i].group, group) == 0 &&
			strcmp(departures[i].test, test) == 0)
			return true;
	return false;
}

/* A refusal names what is not supported, or says that nothing matches, which is so then. */
static bool refused_rightly(const json_t *group, const char *why)
{
	json_t *test;
	size_t i;

	if (strstr(why, "matches no text") == NULL && strstr(why, "no value matches") == NULL)
		return strstr(why, "supported") != NULL && why[0] == '#';
	json_array_foreach(json_object_get(group, "tests"), i,
		test) if (json_is_true(json_object_get(test, "valid"))) return false;
	return true;
}

static uint32_t run_group(const char *file, const json_t *group)
{
	const char *name = json_string_value(json_object_get(group, "description"));
	char *source = json_dumps(
		json_object_get(group, "schema"), JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
	struct error err = {""};
	struct rig rig;
	uint32_t wrong = 0;
	json_t *test;
	size_t i;

	n_groups++;
	if (rig_try(&rig, GRAMMAR_JSON_SCHEMA, source, &err) != 0) {
		n_refused++;
		wrong = !refused_rightly(group, err.text);
		if (wrong)
			print_message("# %s: %s: %s\n", file, name, err.text);
		free(source);
		return wrong;
	}
	json_array_foreach(json_object_get(group, "tests"), i, test)
	{
		const char *what = json_string_value(json_object_get(test, "description"));
		bool valid = json_is_true(json_object_get(test, "valid"));
		bool matches = matches_in_an_order(&rig, json_object_get(test, "data"));

		n_valid += valid && matches;
		n_invalid += !valid && !matches;
		if (matches == valid)
			continue;
		if (valid && departs(file, name, what)) {
			n_departures++;
			continue;
		}
		wrong++;
		print_message("# %s: %s: %s %s\n", file, name, what,
			valid ? "does not match" : "matches and is invalid");
	}
	rig_close(&rig);
	free(source);
	return wrong;
}

static void each_schema_is_followed_or_refused(void **state)
{
	static const char *const files[] = {"additionalProperties", "allOf", "anyOf",
		"boolean_schema", "const", "default", "defs", "enum", "exclusiveMaximum",
		"exclusiveMinimum", "format", "items", "maxItems", "maxLength", "maxProperties",
		"maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf",
		"oneOf", "pattern", "patternProperties", "prefixItems", "properties", "ref",
		"required", "type", "infinite-loop-detection", "not", "uniqueItems", "if-then-else",
		"dependentRequired", "contains", "propertyNames", "format-date-time", "format-date",
		"format-duration", "format-email", "format-hostname", "format-ipv4", "format-ipv6",
		"format-json-pointer", "format-time", "format-uri", "format-uuid",
		"ecmascript-regex"};
	uint32_t wrong = 0;

	(void)state;
	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		char path[128];
		json_error_t at;
		json_t *groups, *group;
		size_t k;

		snprintf(path, sizeof(path), "tests/data/json-schema/%s.json", files[i]);
		groups = json_load_file(path, JSON_ALLOW_NUL, &at);
		if (groups == NULL)
			fail_msg("%s: %s", path, at.text);
		json_array_foreach(groups, k, group) wrong += run_group(files[i], group);
		json_decref(groups);
	}
	print_message("# %u schemas, %u refused; %u valid and %u invalid instances right, %u "
		      "departures\n",
		n_groups, n_refused, n_valid, n_invalid, n_departures);
	assert_int_equal(wrong, 0);
	assert_int_equal(n_refused, REFUSED);
	assert_int_equal(n_departures, sizeof(departures) / sizeof(*departures));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(each_schema_is_followed_or_refused)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
