/* Values of options that several subcommands take, beside client/model/args.h. Each names the option when it refuses. */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* "1,2,4" as out[0..*n-1], 1 to `most` numbers of low to high. */
int option_numbers(const char *name, const char *text, uint32_t low, uint32_t high, uint32_t most,
	uint32_t *out, uint32_t *n, struct error *err);
/* One of two words; *out: whether it is the first. */
int option_either(const char *name, const char *text, const char *first, const char *second,
	bool *out, struct error *err);
/* --format: json or text. */
int option_format(const char *text, bool *json, struct error *err);
