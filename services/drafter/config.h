/* The drafter's settings: the keys of config/drafter.conf. */
#pragma once

#include "services/knobs/drafter.h"

/* Checks what the table cannot say and fills in what depends on the machine. -ENOEXEC with the
 * allowed range. */
int drafter_config_resolve(struct drafter_config *config, struct error *err);
/* The same of a copy that was changed while the process runs (a struct drafter_config;
 * daemon_knobs.check). */
int drafter_config_check(const void *config, struct error *err);
