/*
 * Before `outrider up` starts anything, every process checks its own settings and files (--check).
 * So an error is reported once, by the process that it concerns, and nothing has to be ended again.
 * Problems that only show while it runs, such as lack of memory, are not found. A check that does
 * not end (it may read files of a server that is gone) has a time limit.
 */
#pragma once

#include "client/cli/supervisor.h"

/* 0, or the status of the first child whose settings are wrong, after printing the messages of
 * every child; EX_UNAVAILABLE for a check that took more than a minute, after killing it and saying
 * so. */
int up_check(const struct supervisor *supervisor);
