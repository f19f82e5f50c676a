/* Command-line options of outrider-model as tables: parsing, ranges and --help come from the same
 * rows. */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum arg_type {
	ARG_FLAG, /* bool */
	ARG_U32, /* uint32_t, min..max */
	ARG_U64, /* uint64_t */
	ARG_FLOAT, /* float; the command checks its range */
	ARG_STRING, /* const char *, borrowed from argv */
	ARG_FILE, /* the same, without dashes before it; name is what --help calls it */
	/* const char *, as ARG_STRING; --json alone is the same as json for its value */
	ARG_FORMAT,
	ARG_STRINGS, /* struct arg_strings: may be given several times */
};

struct arg_strings {
	const char *items[32]; /* borrowed from argv */
	size_t n;
};

struct arg {
	const char *name; /* without the dashes */
	enum arg_type type;
	void *out;
	uint32_t min, max;
	const char *value; /* what --help calls the value */
	const char *help;
};

/* args: the last one has name == NULL. Accepts "--name value" and "--name=value"; -h stands for
 * --help where that is an option. -EINVAL names the option and the allowed range. */
int args_parse(int argc, char **argv, const struct arg *args, struct error *err);
void args_help(const struct arg *args, FILE *to);

/* Reads "1,2 3" into malloc'd ids: any 32-bit integers, which the caller compares with the
 * vocabulary. */
int args_tokens(const char *text, int32_t **ids, uint32_t *n, struct error *err);
