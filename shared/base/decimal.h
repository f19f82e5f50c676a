/* A number that a person or a file gave: 3, 0.25, 1e-3. Pure. */
#pragma once

/* As strtod, but *end is `text` also where C alone would see a number: hexadecimal ones, inf and nan. */
double decimal_read(const char *text, const char **end);
