/* What the files of this room share: how the parser asks a notation, and texts. */
#pragma once

#include "shared/model/calls/calls.h"

/* A text that grows. */
struct calls_text {
	char *data;
	size_t n, capacity;
	bool failed;
};
void calls_text_add(struct calls_text *text, const char *data, size_t n);

/* A place in what is there of the answer. Reading beyond its end is not wrong: `more` says then that it depends on what comes. */
struct calls_reader {
	const char *text;
	size_t n, at;
	bool final; /* nothing comes any more */
	bool more; /* what is there does not decide it */
	const char *need; /* where more is set: nothing is decided before this is there */
};
void calls_space(struct calls_reader *r);
/* Whether this text follows; then it is behind it. */
bool calls_take(struct calls_reader *r, const char *word);
/* The text up to this word, and goes behind it. */
bool calls_upto(struct calls_reader *r, const char *word, const char **text, size_t *n);
/* A JSON object or array. */
bool calls_value(struct calls_reader *r, const char **text, size_t *n);

/* The calls of one notation, found from its opening on: complete, or not. */
struct calls_found {
	const json_t *tools;
	struct calls_text names, arguments; /* each ended by NUL */
	unsigned n;
};
/* Adds a call of a name and the text of a JSON object; false: it is none, or names no function that there is. */
bool calls_add(
	struct calls_found *found, const char *name, size_t n, const char *arguments, size_t bytes);
/* {"name": ..., "arguments": {...}}, or "parameters". */
bool calls_add_object(struct calls_found *found, const char *text, size_t n);

/* Which types of JSON a schema allows, as far as is easily seen; root: where its references are. */
enum {
	CALLS_STRING = 1 << JSON_STRING,
	CALLS_ANY = 0xFF,
};
unsigned calls_types(const json_t *root, const json_t *schema, unsigned depth);
/* What a reference of a schema means; the schema itself where it is none. */
const json_t *calls_resolve(const json_t *root, const json_t *schema);

/* Behind the opening of a call. True: the calls up to r->at were added to *found. False: r->more, or it is none. */
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
