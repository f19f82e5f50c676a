/*
 * Before `outrider up` starts anything every process looks at its own settings and files (--check), so that what is wrong is
 * said once and by who takes it, and nothing has to be ended again. What only shows while it runs, as memory, is no part of it.
 * One that does not come to an end (it reads files, of a server that is gone perhaps) is not waited for without a limit.
 */
#pragma once

#include "client/cli/supervisor.h"

/* 0, or the status of the first child whose settings are wrong, after saying of each that is what its own words are;
 * EX_UNAVAILABLE of one that took more than a minute, after killing it and saying so. */
int up_check(const struct supervisor *supervisor);
