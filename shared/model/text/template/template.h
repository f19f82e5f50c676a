/*
 * Chat templates: the part of the Jinja language that models' templates use, rendered as transformers does (trim_blocks,
 * lstrip_blocks, loop controls, its tojson, raise_exception, strftime_now and the sandbox that changes no list or dict).
 * What differs: integers have 64 bits; include, import, extends, block and autoescape are refused by name, as are filters
 * that no model uses. A template is read-only after parsing; a rendering uses the calling thread's stack and memory that
 * is all given back at its end. Templates come with model files: no template makes it crash, hang or eat memory.
 */
#pragma once

#include "shared/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct template;

struct template_limits {
	uint64_t
		steps; /* nodes evaluated, items visited, and 64 bytes of text touched are one each */
	uint32_t depth; /* of calls and expressions */
	size_t output_bytes; /* of any one text */
	size_t memory_bytes;
};
extern const struct template_limits template_limits_default;

/* Every name the template reads from outside is a key of one of these. */
struct template_input {
	const json_t *
		data; /* object: messages, tools and what else a caller sends; its strings are not trusted. tools and
		       * documents are none, not undefined, where it has none, as transformers passes them */
	const json_t *
		trusted; /* object: bos_token and the like: its strings may be special tokens; NULL: none */
	const struct tm *now; /* what strftime_now shows; NULL: the local time */
};

struct template_text {
	char *data; /* malloc'd, with a NUL behind */
	size_t bytes;
	/* [bytes] 1: written by the template (or trusted), 0: taken from data. Special tokens are looked for only in the
	 * former. A role is the template's when it is one of the usual ones, and so is the text of a number. */
	uint8_t *literal;
	/* A list of parts of text ({"type": "text", ...}) was written as Python writes lists, which no template means. */
	bool wrote_parts;
};

/* The source is copied. -EINVAL with "template line L, column C: " and what is wrong or not supported. */
int template_parse(const char *source, size_t bytes, struct template **out, struct error *err);
void template_free(struct template **template);

/* limits NULL: the default. -EINVAL: the template failed or raised an exception, with line and column; -E2BIG: a limit. */
int template_render(const struct template *template, const struct template_input *input,
	const struct template_limits *limits, struct template_text *out, struct error *err);
void template_text_free(struct template_text *text);
