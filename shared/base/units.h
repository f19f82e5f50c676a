/* Sizes and times as the programs' tables and sentences show them, always in the same way and with
 * the unit. Pure. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Room for a size or a time. */
enum { UNITS_BYTES = 32 };

/* "320.5 MiB", from 10 GiB on "15.2 GiB". Returns out. */
const char *units_size(uint64_t bytes, char out[static UNITS_BYTES]);
/* Like units_size, for the memory of a process, which is never 0: 0 becomes "unknown", for a
 * process that could not read it (no /proc). */
const char *units_memory(uint64_t bytes, char out[static UNITS_BYTES]);
/* units_size in memory that lasts as long as the enclosing block. */
#define UNITS_SIZE(bytes) units_size((bytes), (char[UNITS_BYTES]){0})

/* The greatest whole size at or below it in the form of a setting, in the unit that units_size
 * shows: "320M", "15.2G". Returns out. */
const char *units_setting(uint64_t bytes, char out[static UNITS_BYTES]);

/* A duration as a person writes it in settings: "7.5s", "42s", "9m59s", "3h5m", "2d". Returns out.
 */
const char *units_period(uint64_t ns, char out[static UNITS_BYTES]);

/* Reads a time that a person wrote: "3s", "500ms", "2m", or a plain number of seconds. *ns:
 * nanoseconds; unchanged on failure. -EINVAL: it is no time, or not finite; -ERANGE: below 0 or
 * beyond a hundred years. */
int units_read_time(const char *text, uint64_t *ns);
