/*
 * Chat templates: the part of the Jinja language that models' templates use, rendered as
 * transformers does (trim_blocks, lstrip_blocks, loop controls, its tojson, raise_exception,
 * strftime_now and the sandbox in which lists and dicts are constant). The differences: integers
 * have 64 bits; include, import, extends, block and autoescape are refused by name, as are filters
 * that no model uses. A template is read-only after parsing, so any number of threads may render
 * it. A rendering uses the calling thread's stack, and memory that is all freed at its end.
 * Templates come with model files, so no template can make it crash, hang or use memory without
 * limit.
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
	/* one for each node evaluated, each item visited, and each 64 bytes of text touched */
	uint64_t steps;
	uint32_t depth; /* of calls and expressions */
	size_t output_bytes; /* of any one text */
	size_t memory_bytes;
};
extern const struct template_limits template_limits_default;

/* Every name that the template reads from outside is a key of `data` or of `trusted`. */
struct template_input {
	/* object: messages, tools and whatever else a caller sends; its strings are not trusted.
	 * tools and documents, when missing, are none, not undefined, as transformers passes
	 * them */
	const json_t *data;
	/* object: bos_token and the like: its strings may be special tokens; NULL: none */
	const json_t *trusted;
	const struct tm *now; /* what strftime_now shows; NULL: the local time */
};

struct template_text {
	char *data; /* malloc'd, with a NUL at the end */
	size_t bytes;
	/* [bytes] 1: written by the template (or trusted), 0: from data. Special tokens are
	 * recognised only in bytes with 1. A usual role and the text of a number count as the
	 * template's. */
	uint8_t *literal;
	/* A list of parts of text ({"type": "text", ...}) was written in Python's notation, which
	 * no template intends. */
	bool wrote_parts;
	/* A dict was written as Python writes one, or None. */
	bool wrote_values;
};

/* The source is copied. -EINVAL with "template line L, column C: " and what is wrong or not
 * supported. */
int template_parse(const char *source, size_t bytes, struct template **out, struct error *err);
void template_free(struct template **template);

/* limits NULL: the default. -EINVAL: the template failed or raised an exception, with line and
 * column; -E2BIG: a limit. */
int template_render(const struct template *template, const struct template_input *input,
	const struct template_limits *limits, struct template_text *out, struct error *err);
void template_text_free(struct template_text *text);
