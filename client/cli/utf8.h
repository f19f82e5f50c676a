/* Text that must be valid UTF-8, as JSON's must. */
#pragma once

#include <stddef.h>

/* A malloc'd copy in which each byte that is no part of a valid sequence became U+FFFD; NULL without memory. */
char *utf8_clean(const char *text, size_t bytes, size_t *out_bytes);
