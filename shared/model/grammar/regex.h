/*
 * Regular expressions as ECMA-262 has them, which JSON Schema's are, less what no automaton can do (back references, look-around,
 * word boundaries). Understood: . [..] [^..] \d \D \w \W \s \S \n \t \r \f \v \0 \cX \xHH \uHHHH \u{H..}, \p{L} and the other
 * general categories, ( ), (?: ), (?<name> ), |, * + ? {n} {n,} {n,m}, ^ and $ where a text begins and ends. A quantifier may be
 * lazy, which changes nothing here.
 */
#pragma once

#include "shared/model/grammar/charset.h"

enum regex_search {
	REGEX_WHOLE, /* matches the whole text; ^ and $ are allowed, and change nothing */
	REGEX_PART, /* matches somewhere in the text, as JSON Schema's `pattern` does; ^ and $ fix it to the ends */
};

/* Fails at the builder, with "byte N: ...". */
uint32_t regex_expr(struct rules *builder, const char *source, size_t bytes,
	enum regex_search search, enum charset_coding coding);
