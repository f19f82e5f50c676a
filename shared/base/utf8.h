/* UTF-8 as RFC 3629 has it. Any thread. */
#pragma once

#include <stddef.h>

/* Length of the sequence at text (no overlong forms, no surrogates, nothing beyond U+10FFFF); 0 when it is none, is cut off, or
 * bytes is 0. */
size_t utf8_sequence(const char *text, size_t bytes);
/* A malloc'd copy, as JSON's text must be: each byte that is no part of a valid sequence became U+FFFD; NULL without memory. */
char *utf8_clean(const char *text, size_t bytes, size_t *out_bytes);
