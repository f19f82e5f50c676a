/*
 * The knobs of the policy-controller: one table for the file, the command line and the registry (daemon_knobs.h), so
 * that a value is refused with the same words wherever it comes from. Plain data; every session
 * carries a copy.
 */
#pragma once

#include "services/knobs/policy.h"

/* What the table cannot say: the policy's name and the relations between knobs. 0 or -ENOEXEC
 * with the allowed range. */
int settings_check(const struct settings *settings, struct error *err);
