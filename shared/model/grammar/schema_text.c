/* Strings of a schema: any string, patterns, formats, lengths. */
#include "shared/model/grammar/regex.h"
#include "shared/model/grammar/schema_private.h"

#include "shared/model/grammar/matcher.h"

#include <string.h>

/* RFC 8259, with escapes of surrogates only in pairs. */
#define HEX "[0-9A-Fa-f]"
static const char any_character[] =
	"[^\"\\\\\\x00-\\x1f]|\\\\([\"\\\\/bfnrt]|u([0-9A-Ca-cEFef]" HEX "{3}|[Dd][0-7]" HEX
	"{2}|[Dd][89ABab]" HEX "{2}\\\\u[Dd][C-Fc-f]" HEX "{2}))";

/* Each allows less than its standard where that is long: every text that matches is valid. */
static const struct {
	const char *name, *pattern;
} formats[] = {
#define YEAR_LEAP "(\\d\\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
#define DATE                                                                                      \
	"(\\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[" \
	"1-9]|1\\d|2[0-8]))|" YEAR_LEAP "-02-29)"
#define OFFSET "(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
#define TIME \
	"(([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d+)?" OFFSET "|23:59:60(\\.\\d+)?(Z|[+-]00:00))"
#define BYTE "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4 BYTE "(\\." BYTE "){3}"
#define H16 "[0-9A-Fa-f]{1,4}"
#define LS32 "(" H16 ":" H16 "|" IPV4 ")"
#define LABEL "[0-9A-Za-z]([0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
	{"date", DATE},
	{"time", TIME},
	{"date-time", DATE "[Tt]" TIME},
	{"duration", "P(\\d+W|(\\d+Y(\\d+M(\\d+D)?)?|\\d+M(\\d+D)?|\\d+D)(T(\\d+H(\\d+M(\\d+S)?)?|"
		     "\\d+M(\\d+S)?|\\d+S))?|T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S))"},
	{"uuid", HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}"},
	{"ipv4", IPV4},
	{"ipv6",
		"((" H16 ":){6}" LS32 "|::(" H16 ":){5}" LS32 "|(" H16 ")?::(" H16 ":){4}" LS32
		"|((" H16 ":){0,1}" H16 ")?::(" H16 ":){3}" LS32 "|((" H16 ":){0,2}" H16 ")?::(" H16
		":){2}" LS32 "|((" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|((" H16 ":){0,4}" H16
		")?::" LS32 "|((" H16 ":){0,5}" H16 ")?::" H16 "|((" H16 ":){0,6}" H16 ")?::)"},
	{"hostname", LABEL "(\\." LABEL "){0,7}"},
	{"email", "[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]+(\\.[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]+)*@" LABEL
		  "(\\." LABEL "){0,7}"},
	{"uri", "[A-Za-z][0-9A-Za-z+.-]*:(//(([0-9A-Za-z._~!$&'()*+,;=:-]|%" HEX HEX
		")*@)?([0-9A-Za-z._~!$&'()*+,;=-]|%" HEX HEX
		")*(:\\d*)?(/([0-9A-Za-z._~!$&'()*+,;=:@-]|%" HEX HEX
		")*)*|/?([0-9A-Za-z._~!$&'()*+,;=:@-]|%" HEX HEX
		")+(/([0-9A-Za-z._~!$&'()*+,;=:@-]|%" HEX HEX
		")*)*)?(\\?([0-9A-Za-z._~!$&'()*+,;=:@/?-]|%" HEX HEX
		")*)?(#([0-9A-Za-z._~!$&'()*+,;=:@/?-]|%" HEX HEX ")*)?"},
	{"json-pointer", "(/([^/~]|~[01])*)*"},
};

const char *schema_format(const char *name)
{
	for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++)
		if (strcmp(formats[i].name, name) == 0)
			return formats[i].pattern;
	return NULL;
}

static uint32_t plain(struct schema *schema, const char *regex)
{
	return regex_expr(schema->builder, regex, strlen(regex), REGEX_WHOLE, CHARSET_UTF8);
}

/* A rule that is made when it is first needed. */
static uint32_t rule(struct schema *schema, uint32_t *number, const char *name)
{
	if (*number == 0)
		*number = rules_add(schema->builder, name, strlen(name));
	return expr_rule(schema->builder, *number);
}

uint32_t schema_space(struct schema *schema)
{
	bool fresh = schema->space == 0;
	uint32_t expr = rule(schema, &schema->space, "space");

	/* What printers of JSON write between values. It is bounded, so that a text cannot go on
	 * with spaces for ever. */
	if (fresh)
		rules_define(schema->builder, schema->space,
			plain(schema, "[ ]?|(\\r?\\n){1,2}[ \\t]{0,64}"));
	return expr;
}

uint32_t schema_colon(struct schema *schema)
{
	return expr_seq2(schema->builder, expr_text(schema->builder, ":"),
		expr_optional(schema->builder, expr_text(schema->builder, " ")));
}

static uint32_t quoted(struct schema *schema, uint32_t inner)
{
	struct rules *b = schema->builder;

	return expr_seq(b, (uint32_t[]){expr_text(b, "\""), inner, expr_text(b, "\"")}, 3);
}

uint32_t schema_any_string(struct schema *schema)
{
	struct rules *b = schema->builder;
	bool fresh = schema->string == 0;
	uint32_t expr = rule(schema, &schema->string, "string");

	if (fresh)
		rules_define(b, schema->string,
			quoted(schema, expr_repeat(b, plain(schema, any_character), 0, EXPR_MANY)));
	return expr;
}

static uint32_t shortest_strings(struct schema *schema, uint32_t min, uint32_t max)
{
	struct charset any = {0};

	charset_add(schema->builder, &any, 0, CHARSET_LAST);
	return expr_repeat(
		schema->builder, charset_expr(schema->builder, &any, CHARSET_JSON), min, max);
}

uint32_t schema_key_string(struct schema *schema)
{
	return shortest_strings(schema, 0, EXPR_MANY);
}

uint32_t schema_pattern(struct schema *schema, const json_t *node, const char *pattern, bool whole)
{
	struct rules *b = schema->builder;
	bool before = b->regular;
	int rc = b->rc;

	b->regular = true;
	uint32_t expr = regex_expr(
		b, pattern, strlen(pattern), whole ? REGEX_WHOLE : REGEX_PART, CHARSET_JSON);
	b->regular = before;
	if (rc == 0 && b->rc == -EINVAL) {
		struct error err = b->err;

		b->rc = 0;
		schema_fail(schema, node, "pattern, %.300s", err.text);
	}
	return expr;
}

uint32_t schema_string_inner(struct schema *schema, const struct schema_merged *merged, bool *any)
{
	struct rules *b = schema->builder;
	bool lengths = merged->min_length > 0 || merged->max_length != EXPR_MANY,
	     before = b->regular;
	uint32_t expr = EXPR_NEVER;

	*any = !lengths && merged->n_patterns == 0 && merged->n_formats == 0;
	for (uint32_t i = 0; i < merged->n_patterns; i++) {
		uint32_t one = schema_pattern(
			schema, merged->pattern_nodes[i], merged->patterns[i], false);
		expr = i == 0 ? one : expr_and(b, expr, one);
	}
	for (uint32_t i = 0; i < merged->n_formats; i++) {
		uint32_t one =
			schema_pattern(schema, NULL, schema_format(merged->formats[i]), true);
		expr = i == 0 && merged->n_patterns == 0 ? one : expr_and(b, expr, one);
	}
	if (lengths) {
		b->regular = true;
		uint32_t one = shortest_strings(schema, merged->min_length, merged->max_length);
		expr = merged->n_patterns + merged->n_formats == 0 ? one : expr_and(b, expr, one);
		b->regular = before;
	}
	return expr;
}

uint32_t schema_string(struct schema *schema, const struct schema_merged *merged)
{
	struct rules *b = schema->builder;
	bool any;

	if (merged->n_patterns + merged->n_formats == 0 &&
		(merged->min_length > 0 || merged->max_length != EXPR_MANY))
		return quoted(schema, expr_repeat(b, plain(schema, any_character),
					      merged->min_length, merged->max_length));
	uint32_t inner = schema_string_inner(schema, merged, &any);
	return any ? schema_any_string(schema) : quoted(schema, inner);
}

bool schema_pattern_matches(struct schema *schema, const json_t *node, const char *pattern,
	const char *text, size_t bytes)
{
	struct rules builder;
	struct grammar *grammar = NULL;
	struct matcher *matcher = NULL;
	struct error err = {""};
	bool matches = false;

	rules_init(&builder);
	rules_define(&builder, 0,
		regex_expr(&builder, pattern, strlen(pattern), REGEX_PART, CHARSET_UTF8));
	int rc = builder.rc;
	if (rc == 0)
		rc = grammar_build(&builder, &grammar, &err);
	else
		err = builder.err;
	rules_exit(&builder);
	if (rc == 0)
		rc = matcher_create(grammar, MATCHER_BYTES_DEFAULT, &matcher);
	if (rc == 0)
		matches = matcher_can_end(
			matcher, matcher_text(matcher, matcher_start(matcher), text, bytes));
	else
		schema_fail(schema, node, "pattern, %.300s", err.text);
	matcher_free(&matcher);
	grammar_free(&grammar);
	return matches;
}
