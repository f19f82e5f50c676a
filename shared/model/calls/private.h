/*
 * What the files of this room share: a text that may still grow, and the readers of the notations,
 * which parser.c calls. No other room includes this.
 */
#pragma once

#include "shared/model/calls/calls.h"

/* A text that grows. */
struct calls_text {
	char *data;
	size_t n, capacity;
	bool failed;
};
void calls_text_add(struct calls_text *text, const char *data, size_t n);

/* A place in the part of the answer that has arrived. A function that would have to read beyond its
 * end returns false and sets `more`: call it again when more has arrived. */
struct calls_reader {
	const char *text;
	size_t n, at;
	bool final; /* the answer has ended: nothing more will arrive */
	bool more; /* the result depends on text that has not arrived */
	/* with `more`: nothing is decided before this text arrives; NULL: any text may decide */
	const char *need;
};
/* Goes behind white space. */
void calls_space(struct calls_reader *r);
/* True when this word follows; goes behind it. */
bool calls_take(struct calls_reader *r, const char *word);
/* Reads the text up to this word, and goes behind the word. */
bool calls_upto(struct calls_reader *r, const char *word, const char **text, size_t *n);
/* Reads a JSON object or array. */
bool calls_value(struct calls_reader *r, const char **text, size_t *n);

/* The calls that were found behind one opening. */
struct calls_found {
	const json_t *tools;
	struct calls_text names, arguments; /* of each call in turn, each with its NUL */
	unsigned n;
};
/* Adds a call: a name and the text of a JSON object. False: the text is no object, or the name is
 * not that of an offered function. */
bool calls_add(
	struct calls_found *found, const char *name, size_t n, const char *arguments, size_t bytes);
/* The same for {"name": ..., "arguments": {...}}, or with "parameters". */
bool calls_add_object(struct calls_found *found, const char *text, size_t n);

/* The JSON types that a schema allows, as far as is easily seen: bit 1 << json_type. root: the
 * schema that its references refer to. */
enum {
	CALLS_STRING = 1 << JSON_STRING,
	CALLS_ANY = 0xFF,
};
unsigned calls_types(const json_t *root, const json_t *schema, unsigned depth);
/* The schema that a reference refers to; the schema itself if it is no reference. */
const json_t *calls_resolve(const json_t *root, const json_t *schema);

/* Readers of the notations; r is behind the opening of a call. True: the calls up to r->at were
 * added to *found. False: r->more is set, or it is no call. */
bool calls_read_json(struct calls_reader *r, struct calls_found *found);
bool calls_read_qwen(struct calls_reader *r, struct calls_found *found);
bool calls_read_glm(struct calls_reader *r, struct calls_found *found);
bool calls_read_deepseek(struct calls_reader *r, struct calls_found *found);
bool calls_read_mistral(struct calls_reader *r, struct calls_found *found);

#define DEEPSEEK_CALLS "<\uff5ctool\u2581calls\u2581begin\uff5c>"
#define DEEPSEEK_CALLS_END "<\uff5ctool\u2581calls\u2581end\uff5c>"
#define DEEPSEEK_CALL "<\uff5ctool\u2581call\u2581begin\uff5c>"
#define DEEPSEEK_CALL_END "<\uff5ctool\u2581call\u2581end\uff5c>"
#define DEEPSEEK_SEP "<\uff5ctool\u2581sep\uff5c>"
