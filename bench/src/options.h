/* Reads the values of options that several subcommands take, in addition to client/model/args.h.
 * Pure. -EINVAL names the option and what it takes. */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Reads "1,2,4" into out[0..*n-1]: 1 to `most` numbers, each from `low` to `high`. */
int option_numbers(const char *name, const char *text, uint32_t low, uint32_t high, uint32_t most,
	uint32_t *out, uint32_t *n, struct error *err);
/* Reads one of two words. *out is true for the first. */
int option_either(const char *name, const char *text, const char *first, const char *second,
	bool *out, struct error *err);
/* --format: json or text. */
int option_format(const char *text, bool *json, struct error *err);
