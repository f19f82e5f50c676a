/*
 * The knobs of the policy-controller. One table serves the configuration file, the command line and
 * the registry (daemon_knobs.h), so a value is refused with the same words wherever it comes from.
 * Plain data; every session has a copy.
 */
#pragma once

#include "services/knobs/policy.h"

/* Checks what the table cannot express: the policy's name and the relations between knobs. 0, or
 * -ENOEXEC with the allowed range. */
int settings_check(const struct settings *settings, struct error *err);
