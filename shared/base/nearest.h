/* Finds the name that somebody may have meant. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* The number of letters to insert, delete or replace, or of neighbours to exchange, to turn one
 * name into the other (optimal string alignment). A name of more than NEAREST_BYTES letters has
 * distance SIZE_MAX. */
enum { NEAREST_BYTES = 64 };
size_t nearest_distance(const char *a, const char *b);
/* True when a name at this distance is worth suggesting: at most a third of the letters written,
 * but at least 1. */
bool nearest_worth(const char *written, size_t distance);
/* The name to suggest among at(0), at(1), ... until NULL; NULL when none is worth it. */
const char *nearest_of(const char *written, const char *(*at)(size_t i));
