/* Bytes that grow: what is to be sent to one HTTP client. Plain memory, all zero when empty; the owner frees it. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct text {
	char *data;
	size_t n, capacity;
	bool failed; /* memory ran out once: the rest was not added */
};

void text_add(struct text *text, const char *data, size_t n);
void text_add_string(struct text *text, const char *string);
/* The value on one line, between these strings. Takes the reference; a NULL is what an allocation without memory gave. False: no
 * memory. */
bool text_add_json(struct text *text, json_t *value, const char *before, const char *after);
/* Leaves the first n bytes out. */
void text_drop(struct text *text, size_t n);
void text_free(struct text *text);
