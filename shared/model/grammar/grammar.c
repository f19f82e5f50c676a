#include "shared/model/grammar/grammar.h"

#include "shared/model/grammar/regex.h"
#include "shared/model/grammar/tables.h"

#include <string.h>
#include <xxhash.h>

const char *const grammar_kind_names[] = {
	"none", "json-schema", "json-object", "regex", "gbnf", "parts", NULL};

static void read_source(
	struct rules *builder, enum grammar_kind kind, const char *source, size_t bytes)
{
	switch (kind) {
	case GRAMMAR_JSON_SCHEMA:
		grammar_read_schema(builder, source, bytes);
		break;
	case GRAMMAR_JSON_OBJECT:
		grammar_read_object(builder);
		break;
	case GRAMMAR_REGEX:
		rules_define(
			builder, 0, regex_expr(builder, source, bytes, REGEX_WHOLE, CHARSET_UTF8));
		break;
	case GRAMMAR_GBNF:
		grammar_read_gbnf(builder, source, bytes);
		break;
	case GRAMMAR_PARTS:
		grammar_read_parts(builder, source, bytes);
		break;
	case GRAMMAR_NONE:
	case GRAMMAR_KINDS:
		rules_fail(builder, EINVAL, "%d is not a kind of grammar", (int)kind);
	}
}

int grammar_compile(enum grammar_kind kind, const char *source, size_t bytes, struct grammar **out,
	struct error *err)
{
	struct rules builder;
	int rc;

	*out = NULL;
	if (bytes > LIMIT_GRAMMAR_BYTES)
		return error_set(err, E2BIG, "the grammar has %zu bytes; at most %d are allowed",
			bytes, LIMIT_GRAMMAR_BYTES);
	rules_init(&builder);
	read_source(&builder, kind, source, bytes);
	rc = builder.rc;
	if (rc == 0)
		rc = grammar_build(&builder, out, err);
	else if (err != NULL)
		*err = builder.err;
	rules_exit(&builder);
	return rc;
}

uint64_t grammar_digest(enum grammar_kind kind, const char *source, size_t bytes)
{
	return XXH3_64bits_withSeed(source, bytes, (XXH64_hash_t)kind);
}
