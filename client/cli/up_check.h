/*
 * Before `outrider up` starts anything every process looks at its own settings and files (--check), so that what is wrong is
 * said once and by who takes it, and nothing has to be ended again. What only shows while it runs, as memory, is no part of it.
 */
#pragma once

#include "client/cli/supervisor.h"

/* 0, or the status of the first child whose settings are wrong, after saying of each that is what its own words are. */
int up_check(const struct supervisor *supervisor);
