/* Sets of code points, and the bytes that spell them. One thread, as expr.h. */
#pragma once

#include "shared/model/grammar/expr.h"

/* What a text is written in. */
enum charset_coding {
	CHARSET_UTF8, /* as it is */
	/* Inside a JSON string, as the shortest text that means it: ", \ and controls escaped (\b \f \n \r \t, else \u00xx),
	 * everything else as it is. So each string has one spelling. */
	CHARSET_JSON,
};

struct charset_range {
	uint32_t lo, hi;
};

/* Ranges in any order, overlapping or not. */
struct charset {
	struct charset_range *ranges;
	uint32_t n, capacity;
};

enum { CHARSET_LAST = 0x10FFFF };

void charset_add(struct rules *builder, struct charset *set, uint32_t lo, uint32_t hi);
/* Makes the ranges sorted and disjoint. */
void charset_tidy(struct charset *set);
/* All code points that are not in it. */
void charset_negate(struct rules *builder, struct charset *set);
/* Upper and lower case of ASCII letters too. */
void charset_fold(struct rules *builder, struct charset *set);
/* One code point of the set; surrogates are left out, as no UTF-8 text has them. Frees the set. */
uint32_t charset_expr(struct rules *builder, struct charset *set, enum charset_coding coding);
/* A text of valid UTF-8, spelled so. */
uint32_t charset_text(
	struct rules *builder, const char *text, size_t bytes, enum charset_coding coding);
/* Writes one code point; returns its bytes, at most 4. */
uint32_t charset_encode(uint32_t code, uint8_t out[static 4]);
/* The code point at text, and its bytes in *n; *n = 0 where no valid UTF-8 is. */
uint32_t charset_decode(const char *text, size_t bytes, size_t *n);
