#include "shared/base/nearest.h"

#include <stdint.h>
#include <string.h>

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

size_t nearest_distance(const char *a, const char *b)
{
	size_t n = strlen(a), m = strlen(b);
	/* Rows i - 2, i - 1 and i of the table of distances between prefixes. */
	size_t rows[3][NEAREST_BYTES + 1];
	if (n > NEAREST_BYTES || m > NEAREST_BYTES)
		return SIZE_MAX;
	for (size_t j = 0; j <= m; j++)
		rows[0][j] = j;
	for (size_t i = 1; i <= n; i++) {
		size_t *row = rows[i % 3];
		const size_t *above = rows[(i - 1) % 3], *twice = rows[(i + 1) % 3];
		row[0] = i;
		for (size_t j = 1; j <= m; j++) {
			row[j] = least(least(above[j], row[j - 1]) + 1,
				above[j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				row[j] = least(row[j], twice[j - 2] + 1);
		}
	}
	return rows[n % 3][m];
}

bool nearest_worth(const char *written, size_t distance)
{
	size_t third = strlen(written) / 3;
	return distance <= (third > 1 ? third : 1);
}

const char *nearest_of(const char *written, const char *(*at)(size_t i))
{
	size_t best_distance = SIZE_MAX;
	const char *best = NULL, *name;
	for (size_t i = 0; (name = at(i)) != NULL; i++) {
		size_t distance = nearest_distance(written, name);
		if (distance >= best_distance)
			continue;
		best_distance = distance;
		best = name;
	}
	return best && nearest_worth(written, best_distance) ? best : NULL;
}
