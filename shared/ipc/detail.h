/* Helpers for programs that print the "key=value" lines of a Status (daemon_detail) as JSON. */
#pragma once

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* True when the value is a count (digits only, below 2^63), which JSON shows as a number. Texts,
 * such as names and absolute paths, never are. */
static inline bool detail_number(const char *value, int64_t *number)
{
	if (!*value || strspn(value, "0123456789") != strlen(value))
		return false;
	errno = 0;
	*number = strtoimax(value, NULL, 10);
	return errno == 0;
}
