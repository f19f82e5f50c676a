/* The limit of open files (RLIMIT_NOFILE): each connection is one, and so are a process's files and shared regions. */
#pragma once

#include "shared/base/error.h"

#include <stdint.h>

/* The limit that is in force. */
uint64_t descriptors_limit(void);

/* Raises the soft limit to the hard one, and refuses (-EMFILE, with both numbers) where even that is less than
 * LIMIT_DESCRIPTORS and `more`: files and threads beyond one of each, which hold a descriptor too. */
int descriptors_need(const char *process, uint64_t more, struct error *err);
