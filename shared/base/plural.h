/* The ending of an English noun after a number. */
#pragma once

#include <stdint.h>

/* "s", but for one: "%u token%s". */
static inline const char *plural(uint64_t n)
{
	return n == 1 ? "" : "s";
}
