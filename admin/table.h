/* A table of texts whose columns are as wide as what is in them: heads above, numbers to the right. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { TABLE_COLUMNS_MAX = 16, TABLE_CELL_BYTES = 24 };

struct table {
	const char *const *heads; /* borrowed, ended by NULL */
	int n_columns, width[TABLE_COLUMNS_MAX];
	char (*cells)[TABLE_CELL_BYTES]; /* row by row */
	size_t n, room;
	bool failed; /* no memory: what came after is left out */
};

void table_init(struct table *table, const char *const *heads);
void table_exit(struct table *table);

/* The next cell, from left to right and from above; what is longer than a cell is cut. */
void table_add(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* When all cells are in it. */
void table_print_heads(const struct table *table);
void table_print_row(const struct table *table, size_t row);
