#include "services/gateway/text.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_LEAST = 256 };

void text_add(struct text *text, const char *data, size_t n)
{
	if (text->failed || n == 0)
		return;
	if (text->n + n > text->capacity) {
		size_t capacity = text->capacity ? text->capacity : TEXT_LEAST;

		while (capacity < text->n + n)
			capacity *= 2;
		char *more = realloc(text->data, capacity);
		if (!more) {
			text->failed = true;
			return;
		}
		text->data = more;
		text->capacity = capacity;
	}
	memcpy(text->data + text->n, data, n);
	text->n += n;
}

void text_add_string(struct text *text, const char *string)
{
	text_add(text, string, strlen(string));
}

bool text_add_json(struct text *text, json_t *value, const char *before, const char *after)
{
	char *line = value ? json_dumps(value, JSON_COMPACT) : NULL;

	json_decref(value);
	if (!line)
		return false;
	text_add_string(text, before);
	text_add_string(text, line);
	text_add_string(text, after);
	free(line);
	return !text->failed;
}

void text_drop(struct text *text, size_t n)
{
	if (n == 0)
		return;
	text->n -= n;
	memmove(text->data, text->data + n, text->n);
}

void text_free(struct text *text)
{
	free(text->data);
	*text = (struct text){0};
}
