/* Sets of code points, and the bytes that encode them. One thread, as expr.h. */
#pragma once

#include "shared/model/grammar/expr.h"

/* How a text is encoded. */
enum charset_coding {
	CHARSET_UTF8, /* unchanged */
	/* Inside a JSON string, as the shortest text for it: ", \ and controls are escaped (\b \f
	 * \n \r \t, else \u00xx), everything else is unchanged. So each string has exactly one
	 * encoding. */
	CHARSET_JSON,
};

struct charset_range {
	uint32_t lo, hi;
};

/* Ranges in any order; they may overlap. */
struct charset {
	struct charset_range *ranges;
	uint32_t n, capacity;
};

enum { CHARSET_LAST = 0x10FFFF };

void charset_add(struct rules *builder, struct charset *set, uint32_t lo, uint32_t hi);
/* Makes the ranges sorted and disjoint. */
void charset_tidy(struct charset *set);
/* Replaces the set with all code points that are not in it. */
void charset_negate(struct rules *builder, struct charset *set);
/* Adds the other case of each ASCII letter. */
void charset_fold(struct rules *builder, struct charset *set);
/* An expression for one code point of the set, without surrogates, which no UTF-8 text contains.
 * Frees the set. */
uint32_t charset_expr(struct rules *builder, struct charset *set, enum charset_coding coding);
/* An expression for a text of valid UTF-8. */
uint32_t charset_text(
	struct rules *builder, const char *text, size_t bytes, enum charset_coding coding);
/* Writes one code point as UTF-8. Returns the number of bytes, at most 4. */
uint32_t charset_encode(uint32_t code, uint8_t out[static 4]);
/* The code point at text, and in *n its bytes; *n = 0 if there is no valid UTF-8. */
uint32_t charset_decode(const char *text, size_t bytes, size_t *n);
