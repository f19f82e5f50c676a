/* Texts in the columns of a table: UTF-8, a column for each character. */
#pragma once

#include <stddef.h>
#include <stdio.h>

/* What a line of text should fit in. */
enum { COLUMNS_LINE = 100 };

/* How many columns the text takes. */
int columns_of(const char *text);

/* The text as it is, or, where it takes more than so many columns (at least 6), without its middle: a third is its beginning, the
 * rest, which of a path says most, its end. out has room for bytes, 4 for each column and the NUL. Returns out. */
const char *columns_shorten(const char *text, int columns, char *out, size_t bytes);

/* The text folded at its spaces into lines of at most COLUMNS_LINE columns, a longer word whole, and the end of the
 * last. at: the column that the cursor is in; indent: blanks before each line but the first. */
void columns_fold(FILE *to, const char *text, int at, int indent);
/* Where the text is to be folded that so many columns (at least 1) have room for: bytes before the space, or all of it. */
size_t columns_fit(const char *text, int columns);
