/* The limit of open files (RLIMIT_NOFILE). Each connection takes one, and so do a process's files
 * and shared regions. */
#pragma once

#include "shared/base/error.h"

#include <stdint.h>

/* The limit in force. */
uint64_t descriptors_limit(void);

/* Raises the soft limit to the hard one. -EMFILE, with both numbers, when that is less than
 * LIMIT_DESCRIPTORS + more. more: files and threads beyond one of each; threads hold a descriptor
 * too. */
int descriptors_need(const char *process, uint64_t more, struct error *err);
