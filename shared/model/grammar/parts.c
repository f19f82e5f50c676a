/* Grammars composed of others (grammar.h): makes one expression of a JSON tree. */
#include "shared/model/grammar/regex.h"
#include "shared/model/grammar/schema_private.h"

#include <string.h>

static uint32_t read_part(struct rules *b, const json_t *part, uint32_t depth);

static uint32_t fail(struct rules *b, const char *expected)
{
	return rules_fail(b, EINVAL, "a part is a string, or an object with one of: %s", expected);
}

static uint32_t text(struct rules *b, const json_t *value)
{
	return expr_bytes(b, json_string_value(value), json_string_length(value));
}

/* A control token, or its text; it depends on the model which of the two it is. */
static uint32_t control(struct rules *b, const json_t *value)
{
	const uint8_t mark = GRAMMAR_CONTROL;
	uint32_t whole[] = {expr_bytes(b, &mark, 1), text(b, value), expr_bytes(b, &mark, 1)};

	return expr_alt2(b, expr_seq(b, whole, 3), text(b, value));
}

/* Any text that does not contain this one. */
static uint32_t until(struct rules *b, const json_t *value)
{
	struct charset set = {0};
	bool before = b->regular;
	uint32_t expr;

	b->regular = true;
	charset_add(b, &set, 0, CHARSET_LAST);
	uint32_t any = expr_repeat(b, charset_expr(b, &set, CHARSET_UTF8), 0, EXPR_MANY);
	uint32_t with[] = {any, text(b, value), any};
	expr = expr_but(b, any, expr_seq(b, with, 3));
	b->regular = before;
	return expr;
}

static uint32_t list(struct rules *b, const json_t *value, bool sequence, uint32_t depth)
{
	struct expr_list list = {0};
	size_t i;
	json_t *part;

	json_array_foreach(value, i, part) expr_list_add(b, &list, read_part(b, part, depth));
	return sequence ? expr_list_seq(b, &list) : expr_list_alt(b, &list);
}

/* {"repeat": PART, "min": 0, "max": 7}: without max there is no bound. */
static uint32_t repeat(struct rules *b, const json_t *part, const json_t *kid, uint32_t depth)
{
	json_int_t min = json_integer_value(json_object_get(part, "min"));
	const json_t *given = json_object_get(part, "max");
	json_int_t max = given ? json_integer_value(given) : EXPR_MANY;

	if (min < 0 || max < min || (given && max > GRAMMAR_REPEAT_MAX))
		return rules_fail(b, EINVAL, "repeat: min and max are 0 to %d", GRAMMAR_REPEAT_MAX);
	return expr_repeat(b, read_part(b, kid, depth), (uint32_t)min, (uint32_t)max);
}

/* Adds the name of what a schema or an expression is for to its error message. */
static uint32_t named(struct rules *b, const json_t *part, uint32_t expr, bool failed)
{
	const char *name = json_string_value(json_object_get(part, "name"));

	if (!failed && b->rc != 0 && name != NULL)
		error_prefix(&b->err, b->rc, "%.100s", name);
	return expr;
}

static uint32_t read_object(struct rules *b, const json_t *part, uint32_t depth)
{
	const json_t *value;
	bool failed = b->rc != 0;

	if ((value = json_object_get(part, "schema")) != NULL)
		return named(b, part, grammar_schema_expr(b, value), failed);
	if (json_is_string(value = json_object_get(part, "regex")))
		return named(b, part,
			regex_expr(b, json_string_value(value), json_string_length(value),
				REGEX_WHOLE, CHARSET_UTF8),
			failed);
	if (json_is_string(value = json_object_get(part, "control")))
		return control(b, value);
	if (json_is_string(value = json_object_get(part, "until")) && json_string_length(value) > 0)
		return until(b, value);
	if (json_is_array(value = json_object_get(part, "sequence")))
		return list(b, value, true, depth);
	if (json_is_array(value = json_object_get(part, "choice")))
		return list(b, value, false, depth);
	if ((value = json_object_get(part, "repeat")) != NULL)
		return repeat(b, part, value, depth);
	return fail(b, "schema, regex, control, until, sequence, choice, repeat");
}

static uint32_t read_part(struct rules *b, const json_t *part, uint32_t depth)
{
	if (depth > GRAMMAR_NESTING_MAX)
		return rules_fail(
			b, E2BIG, "parts within parts more than %d deep", GRAMMAR_NESTING_MAX);
	if (json_is_string(part))
		return text(b, part);
	return read_object(b, part, depth + 1);
}

void grammar_read_parts(struct rules *builder, const char *source, size_t bytes)
{
	json_error_t at;
	json_t *root = json_loadb(
		source, bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &at);

	if (root == NULL) {
		rules_fail(builder, EINVAL, "line %d, column %d: %s", at.line, at.column, at.text);
		error_tame(builder->err.text);
		return;
	}
	uint32_t expr = read_part(builder, root, 0);
	rules_define(builder, 0, expr);
	json_decref(root);
}
