/*
 * Text as JSON, for programs that print it. Paths can have any bytes, and text from processes may
 * be cut, so bytes that are not UTF-8 become U+FFFD. The caller owns the results.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* A JSON string; NULL: no memory. */
json_t *json_text(const char *text);
/* Prints one line: {"error": text, "status": status}, or with status 0 {"notice": text}. False: no
 * memory; nothing was printed. */
bool json_tell(FILE *to, int status, const char *text);
