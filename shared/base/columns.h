/* Texts in the columns of a table. A text is UTF-8, and each character takes one column. */
#pragma once

#include <stddef.h>
#include <stdio.h>

/* Columns that a line of text should fit in. */
enum { COLUMNS_LINE = 100 };

/* Number of columns that the text takes. */
int columns_of(const char *text);

/* Returns out with the text, shortened to `columns` columns (at least 6) if it is longer: the
 * middle is left out, a third of the space shows the beginning, and the rest the end, which tells
 * most about a path. bytes: room in out, 4 for each column and the NUL. */
const char *columns_shorten(const char *text, int columns, char *out, size_t bytes);

/* Prints the text, folded at its spaces into lines of at most COLUMNS_LINE columns, and a newline.
 * A longer word stays whole. at: the cursor's column; indent: blanks before each line but the
 * first. */
void columns_fold(FILE *to, const char *text, int at, int indent);
/* Where to fold the text to fit `columns` columns (at least 1): the bytes before that space, or the
 * whole length. */
size_t columns_fit(const char *text, int columns);
