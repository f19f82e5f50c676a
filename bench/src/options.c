#include "bench/src/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int refuse(const char *name, const char *text, uint32_t low, uint32_t high, uint32_t most,
	struct error *err)
{
	return error_set(err, EINVAL, "--%s takes up to %u numbers of %u to %u, not \"%s\"", name,
		most, low, high, text);
}

int option_numbers(const char *name, const char *text, uint32_t low, uint32_t high, uint32_t most,
	uint32_t *out, uint32_t *n, struct error *err)
{
	const char *at = text;

	for (*n = 0;; at++) {
		char *end;
		unsigned long value = strtoul(at, &end, 10);

		if (*at < '0' || *at > '9' || value < low || value > high || *n == most)
			return refuse(name, text, low, high, most, err);
		out[(*n)++] = (uint32_t)value;
		at = end;
		if (!*at)
			return 0;
		if (*at != ',')
			return refuse(name, text, low, high, most, err);
	}
}

int option_either(const char *name, const char *text, const char *first, const char *second,
	bool *out, struct error *err)
{
	*out = strcmp(text, first) == 0;
	if (*out || strcmp(text, second) == 0)
		return 0;
	return error_set(err, EINVAL, "--%s takes %s or %s, not \"%s\"", name, first, second, text);
}

int option_format(const char *text, bool *json, struct error *err)
{
	return option_either("format", text, "json", "text", json, err);
}
