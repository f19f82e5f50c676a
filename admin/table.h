/* A table of texts whose columns are as wide as their content, with heads above and numbers at the
 * right. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { TABLE_COLUMNS_MAX = 16, TABLE_CELL_BYTES = 24 };

struct table {
	const char *const *heads; /* borrowed; the last is NULL */
	int n_columns, width[TABLE_COLUMNS_MAX];
	char (*cells)[TABLE_CELL_BYTES]; /* row by row */
	size_t n, room;
	bool failed; /* memory was exhausted, and what came after is missing */
};

void table_init(struct table *table, const char *const *heads);
void table_exit(struct table *table);

/* Adds the next cell, row by row from left to right; a text that is too long is cut. */
void table_add(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Call when all cells were added. */
void table_print_heads(const struct table *table);
void table_print_row(const struct table *table, size_t row);
