/* Sizes and times as the programs' tables and sentences show them: one way, each with its unit. Pure. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Room for either. */
enum { UNITS_BYTES = 32 };

/* "320.5 MiB", from 10 GiB on "15.2 GiB". Returns out. */
const char *units_size(uint64_t bytes, char out[static UNITS_BYTES]);
/* The same in room of its own, which lasts as long as the block that it stands in. */
/* The same of a process's memory, which is never 0: that is "unknown", of one that could not read it (no /proc). */
const char *units_memory(uint64_t bytes, char out[static UNITS_BYTES]);
#define UNITS_SIZE(bytes) units_size((bytes), (char[UNITS_BYTES]){0})

/* The most whole size at or below it as a setting takes it, in the unit that units_size shows: "320M", "15.2G". Returns out. */
const char *units_setting(uint64_t bytes, char out[static UNITS_BYTES]);

/* How long something has lasted, or will: "7.5s", "42s", "9m59s", "3h5m", "2d", as a person writes times in settings.
 * Returns out. */
const char *units_period(uint64_t ns, char out[static UNITS_BYTES]);

/* A time that a person gave, "3s", "500ms", "2m", or a number alone, which is seconds, as nanoseconds in *ns, which stays
 * what it was otherwise: -EINVAL where it is none of these or not finite, -ERANGE beyond a hundred years or below 0. */
int units_read_time(const char *text, uint64_t *ns);
