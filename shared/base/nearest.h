/* The name that somebody may have meant. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* How many letters must be put in, taken out or replaced, or neighbours exchanged, to make one of the other (optimal string
 * alignment). Names of more than NEAREST_BYTES letters are SIZE_MAX away from all. */
enum { NEAREST_BYTES = 64 };
size_t nearest_distance(const char *a, const char *b);
/* Whether a name so far from what was written is worth suggesting: at most a third of its letters, and one at least. */
bool nearest_worth(const char *written, size_t distance);
/* Of the names at(0), at(1), ... until NULL the one to suggest; NULL when none is worth it. */
const char *nearest_of(const char *written, const char *(*at)(size_t i));
