#include "kernels/pick.h"

#include <errno.h>

static int check(const struct pick_row *rows, uint32_t row)
{
	uint32_t length = 0, at = row;
	if (rows[row].n_best > PICK_BEST_MAX || rows[row].n_top > LIMIT_TOP_LOGPROBS)
		return -EINVAL;
	while (rows[at].parent >= 0) {
		if ((uint32_t)rows[at].parent >= at || ++length > PICK_PATH_MAX)
			return -EINVAL;
		at = (uint32_t)rows[at].parent;
	}
	return 0;
}

int pick_check(const struct pick_row *rows, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (check(rows, first + i) < 0)
			return -EINVAL;
	return 0;
}
