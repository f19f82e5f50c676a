/* UTF-8 as RFC 3629 has it. Any thread. */
#pragma once

#include <stddef.h>

/* Length of the sequence at text (no overlong forms, no surrogates, nothing beyond U+10FFFF); 0 when it is none, is cut off, or
 * bytes is 0. */
size_t utf8_sequence(const char *text, size_t bytes);
/* Where utf8_sequence gives 0: how many bytes one U+FFFD replaces. They are the longest beginning of a sequence that could have
 * become valid, or one byte (the Unicode Standard, section 3.9, "U+FFFD Substitution of Maximal Subparts"). 0 when bytes is 0. */
size_t utf8_ill_formed(const char *text, size_t bytes);
/* A malloc'd copy in which U+FFFD replaces what is not valid, as JSON's text must be; NULL without memory. */
char *utf8_clean(const char *text, size_t bytes, size_t *out_bytes);
