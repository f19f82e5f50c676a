#include "admin/table.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void table_init(struct table *table, const char *const *heads)
{
	*table = (struct table){.heads = heads};
	for (; heads[table->n_columns]; table->n_columns++) {
		assert(table->n_columns < TABLE_COLUMNS_MAX);
		table->width[table->n_columns] = (int)strlen(heads[table->n_columns]);
	}
}

void table_exit(struct table *table)
{
	free(table->cells);
	*table = (struct table){.cells = NULL};
}

static bool grow(struct table *table)
{
	size_t room = table->room ? 2 * table->room : 256;
	char(*cells)[TABLE_CELL_BYTES] = realloc(table->cells, room * sizeof *cells);

	if (!cells)
		return false;
	table->cells = cells;
	table->room = room;
	return true;
}

void table_add(struct table *table, const char *format, ...)
{
	int *width = &table->width[table->n % (size_t)table->n_columns];
	va_list args;

	table->failed = table->failed || (table->n == table->room && !grow(table));
	if (table->failed)
		return;
	char *cell = table->cells[table->n++];
	va_start(args, format);
	vsnprintf(cell, TABLE_CELL_BYTES, format, args);
	va_end(args);
	if ((int)strlen(cell) > *width)
		*width = (int)strlen(cell);
}

void table_print_heads(const struct table *table)
{
	for (int i = 0; i < table->n_columns; i++)
		printf("%s%*s", i ? " " : "", table->width[i], table->heads[i]);
	putchar('\n');
}

void table_print_row(const struct table *table, size_t row)
{
	size_t first = row * (size_t)table->n_columns;

	for (int i = 0; i < table->n_columns && first + (size_t)i < table->n; i++)
		printf("%s%*s", i ? " " : "", table->width[i], table->cells[first + (size_t)i]);
	putchar('\n');
}
