/* The drafter's settings: the keys of config/drafter.conf. */
#pragma once

#include "services/knobs/drafter.h"

/* Checks what the table of keys cannot express and fills in what depends on the machine. -ENOEXEC
 * with the allowed range. */
int drafter_config_resolve(struct drafter_config *config, struct error *err);
/* The same check for the changed copy of a running process's settings, a struct drafter_config
 * (daemon_knobs.check). */
int drafter_config_check(const void *config, struct error *err);
