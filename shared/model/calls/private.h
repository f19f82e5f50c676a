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
void calls_text_free(struct calls_text *text);

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
/* Follows a JSON object or array from its first byte to its end. Returns how many bytes were read. */
struct calls_brackets {
	size_t depth;
	bool string, escape; /* within a string; behind a backslash of one */
	bool closed; /* that was all of it */
	bool bad; /* the next byte cannot stand there */
};
size_t calls_brackets_scan(struct calls_brackets *brackets, const char *text, size_t n);
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

bool calls_is_name(const char *text, size_t n);
/* Adds the key of an argument; adds its value, which was written without quotes, as JSON. The schema
 * of the function decides its type. False: the text is not UTF-8, or memory is exhausted. */
bool calls_add_key(struct calls_text *out, const char *key, size_t n);
bool calls_add_value(struct calls_text *out, const json_t *function, const char *key, size_t n_key,
	const char *text, size_t n);
/* Whether the schema allows such a value to be a string only; adds a part of one, with escapes. */
bool calls_is_string(const json_t *function, const char *key, size_t n);
void calls_add_escaped(struct calls_text *out, const char *text, size_t n);

/* Read from behind the opening of a call up to its arguments, and return its name. */
bool calls_head_glm(struct calls_reader *r, const char **name, size_t *n);
bool calls_head_deepseek(struct calls_reader *r, const char **name, size_t *n);
bool calls_head_mistral(struct calls_reader *r, const char **name, size_t *n);

/* A call that is reported while it arrives (live.c). */
struct calls_live {
	enum calls_notation notation;
	const char *function; /* of a harmony message, borrowed */
	bool began; /* it is a call: its name is known */
	bool hopeless; /* it can only be reported when it is complete */
	bool ended; /* its arguments are complete, or broken */
	bool tagged; /* the arguments stand in tags, not in JSON */
	bool first; /* no argument has arrived yet */
	enum {
		VALUE_NONE,
		VALUE_STRING,
		VALUE_OTHER
	} value; /* the text within which the reading stopped */
	size_t at; /* how far the text was read */
	struct calls_brackets brackets;
	const json_t *described; /* the function, as it was offered */
	struct calls_text name, key; /* with a NUL at the end */
	struct calls_text out; /* arguments that were not reported yet */
};
void calls_live_reset(struct calls_live *live);
void calls_live_free(struct calls_live *live);
/* Reads on; r is behind the opening of the call. Returns `began`. */
bool calls_live_read(struct calls_live *live, struct calls_reader *r, const json_t *tools);

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
