/*
 * Regular expressions as defined by ECMA-262, which JSON Schema uses, without what no automaton can
 * do (back references, look-around, word boundaries). Supported: . [..] [^..] \d \D \w \W \s \S \n
 * \t \r \f \v \0 \cX \xHH \uHHHH \u{H..}, \p{L} and the other general categories, ( ), (?: ),
 * (?<name> ), |, * + ? {n} {n,} {n,m}, and ^ and $ where a text begins and ends. A quantifier may
 * be lazy, which makes no difference here.
 */
#pragma once

#include "shared/model/grammar/charset.h"

enum regex_search {
	REGEX_WHOLE, /* matches the whole text; ^ and $ are allowed and make no difference */
	/* matches somewhere in the text, as JSON Schema's `pattern` does; ^ and $ bind it to the
	 * ends */
	REGEX_PART,
};

/* The expression of a source. Failures are recorded by the builder, with "byte N: ...". */
uint32_t regex_expr(struct rules *builder, const char *source, size_t bytes,
	enum regex_search search, enum charset_coding coding);
