/*
 * Checks in advance whether memory will be available that is allocated only when touched; then it
 * is too late to ask. Called at the start by programs that map much memory. Owns nothing.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/memory.h"

/* Checks that `bytes` more bytes fit in what is available. -ENOMEM; the message says what needs
 * them (takes: "packed weights take"), how much is missing, and what to do instead (instead: "leave
 * out --pack"; NULL: nothing). */
int memory_fits(const struct memory_limit *limit, uint64_t bytes, const char *takes,
	const char *instead, struct error *err);
