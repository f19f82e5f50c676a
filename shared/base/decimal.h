/* Numbers that a person or a file gives: 3, 0.25, 1e-3. Pure. */
#pragma once

/* Like strtod, but *end is `text` for forms that only C takes for numbers: hexadecimal, inf and
 * nan. */
double decimal_read(const char *text, const char **end);
