/* Bytes that grow: what is to be sent to one HTTP client. Plain memory, all zero when empty; the owner frees it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct text {
	char *data;
	size_t n, capacity;
	bool failed; /* memory ran out once: the rest was not added */
};

void text_add(struct text *text, const char *data, size_t n);
void text_add_string(struct text *text, const char *string);
/* Leaves the first n bytes out. */
void text_drop(struct text *text, size_t n);
void text_free(struct text *text);
