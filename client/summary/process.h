/*
 * What the processes of a service report about themselves (outrider_status): look-ups, and the
 * report as JSON. For this project's programs; not part of the library's interface.
 */
#pragma once

#include "client/include/outrider.h"

#include <jansson.h>

/* The process of this name if it answers, else NULL. */
const struct outrider_process *process_find(const struct outrider_status *status, const char *name);
/* The value of the process's "key=value" line, borrowed, or NULL. process may be NULL. */
const char *process_detail(const struct outrider_process *process, const char *key);
/* The same as a number; 0 if there is none. */
uint64_t process_number(const struct outrider_process *process, const char *key);
/* The last component of a path that is such a value; NULL if there is none. */
const char *process_file(const struct outrider_process *process, const char *key);

/* An array with one object per process; values that a process did not report are null. A new
 * reference. */
json_t *processes_json(const struct outrider_status *status);
