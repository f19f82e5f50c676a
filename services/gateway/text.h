/* A growing array of bytes for one HTTP client. Plain memory, all zeros when empty; the owner frees
 * it. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct text {
	char *data;
	size_t n, capacity;
	bool failed; /* memory was exhausted once, and what came after is missing */
};

void text_add(struct text *text, const char *data, size_t n);
void text_add_string(struct text *text, const char *string);
/* Adds the value on one line, between these strings. Takes the reference; value NULL means that its
 * allocation failed. False: memory is exhausted. */
bool text_add_json(struct text *text, json_t *value, const char *before, const char *after);
/* Removes the first n bytes. */
void text_drop(struct text *text, size_t n);
void text_free(struct text *text);
