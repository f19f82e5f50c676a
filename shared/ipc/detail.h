/* The "key=value" lines of a Status (daemon_detail), as those who print them as JSON read them. */
#pragma once

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Whether the value is a count: digits alone, below 2^63, so that JSON has it as a number. Texts (names, paths from the root on)
 * are never that. */
static inline bool detail_number(const char *value, int64_t *number)
{
	if (!*value || strspn(value, "0123456789") != strlen(value))
		return false;
	errno = 0;
	*number = strtoimax(value, NULL, 10);
	return errno == 0;
}
