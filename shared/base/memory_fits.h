/*
 * Whether memory that is had when it is touched will be there: then it is too late to ask. Called by whoever maps much at once,
 * at its start; owns nothing.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/memory.h"

/* Whether so many bytes more fit in what is available: -ENOMEM says what takes them ("packed weights take"), what is short of
 * how much, and what to do instead ("leave out --pack"; NULL: nothing). */
int memory_fits(const struct memory_limit *limit, uint64_t bytes, const char *takes,
	const char *instead, struct error *err);
