/*
 * Text as JSON, for the programs that print it: paths are any bytes, and what processes say of them may be cut. Bytes that are
 * no UTF-8 become U+FFFD. The caller owns what it gets.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* A string; NULL: no memory. */
json_t *json_text(const char *text);
/* Writes a line: what goes wrong, {"error": text, "status": status}; or, of status 0, {"notice": text}. False: no memory,
 * nothing is written. */
bool json_tell(FILE *to, int status, const char *text);
