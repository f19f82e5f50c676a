/*
 * What the processes of a service say of themselves (outrider_status), looked up and as JSON. For the programs of this project; it is
 * no part of the library's interface.
 */
#pragma once

#include "client/include/outrider.h"

#include <jansson.h>

/* The process of this name, if it answers; else NULL. */
const struct outrider_process *process_find(const struct outrider_status *status, const char *name);
/* The value of its "key=value" line, borrowed, or NULL. A process that is NULL has none. */
const char *process_detail(const struct outrider_process *process, const char *key);
/* The same as a number; 0 without one. */
uint64_t process_number(const struct outrider_process *process, const char *key);
/* The last part of a path that is such a value; NULL without one. */
const char *process_file(const struct outrider_process *process, const char *key);

/* An array with an object for each process. What a process that does not answer has not said is null. A new reference. */
json_t *processes_json(const struct outrider_status *status);
