/* Texts in the columns of a table: UTF-8, a column for each character. */
#pragma once

#include <stddef.h>

/* How many columns the text takes. */
int columns_of(const char *text);

/* The text as it is, or, where it takes more than so many columns (at least 6), without its middle: a third is its beginning, the
 * rest, which of a path says most, its end. out has room for bytes, 4 for each column and the NUL. Returns out. */
const char *columns_shorten(const char *text, int columns, char *out, size_t bytes);
