/* UTF-8 as RFC 3629 defines it. Any thread. */
#pragma once

#include <stddef.h>

/* Length of the valid sequence at text (no overlong forms, no surrogates, nothing beyond U+10FFFF).
 * 0 when it is invalid or cut off, or when bytes is 0. */
size_t utf8_sequence(const char *text, size_t bytes);
/* For text where utf8_sequence returns 0: the number of bytes that one U+FFFD replaces, which is
 * the longest beginning of a sequence that could have become valid, or one byte (the Unicode
 * Standard, section 3.9, "U+FFFD Substitution of Maximal Subparts"). 0 when bytes is 0. */
size_t utf8_ill_formed(const char *text, size_t bytes);
/* A malloc'd copy in which U+FFFD replaces invalid bytes, as text in JSON must have it; NULL
 * without memory. */
char *utf8_clean(const char *text, size_t bytes, size_t *out_bytes);
