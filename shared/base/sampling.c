#include "shared/base/sampling.h"

#include "shared/base/limits.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)
#define MOST_TOP_K 1048576
#define MOST_WINDOW 1048576
static_assert(MOST_TOP_K == LIMIT_VOCAB && MOST_WINDOW == LIMIT_CONTEXT, "the messages are right");

static const struct {
	const char *name, *range;
	double low, high;
	bool above; /* low itself is not allowed */
	bool zero; /* 0 is allowed too */
} values[SAMPLING_VALUES] = {
	/* Logits divided by less leave the range of a float, and their order with it. */
	[SAMPLING_TEMPERATURE] = {"temperature", "0, or 1e-30 to 100", 1e-30, 100, .zero = true},
	[SAMPLING_TOP_K] = {"top-k", "0 to " TEXT(MOST_TOP_K), 0, .high = MOST_TOP_K},
	[SAMPLING_TOP_P] = {"top-p", "more than 0, up to 1", 0, 1, .above = true},
	[SAMPLING_MIN_P] = {"min-p", "0 to 1", 0, .high = 1},
	[SAMPLING_REPEAT_PENALTY] = {"repeat penalty", "more than 0, up to 10", 0, 10,
		.above = true},
	[SAMPLING_REPEAT_WINDOW] = {"repeat window", "0 to " TEXT(MOST_WINDOW), 0,
		.high = MOST_WINDOW},
	[SAMPLING_PRESENCE_PENALTY] = {"presence penalty", "-2 to 2", -2, .high = 2},
	[SAMPLING_FREQUENCY_PENALTY] = {"frequency penalty", "-2 to 2", -2, .high = 2},
	[SAMPLING_DRY_MULTIPLIER] = {"dry multiplier", "0 to 100", 0, .high = 100},
	[SAMPLING_DRY_BASE] = {"dry base", "1 to 100", 1, .high = 100},
	[SAMPLING_DRY_ALLOWED_LENGTH] = {"dry allowed length", "1 to 256", 1, .high = 256},
	[SAMPLING_DRY_WINDOW] = {"dry window", "0 to " TEXT(MOST_WINDOW), 0, .high = MOST_WINDOW},
	[SAMPLING_TOP_N_SIGMA] = {"top-n-sigma", "0 to 100", 0, .high = 100},
	[SAMPLING_XTC_PROBABILITY] = {"xtc probability", "0 to 1", 0, .high = 1},
	/* Above a half at most one token is above it, and nothing is left out. */
	[SAMPLING_XTC_THRESHOLD] = {"xtc threshold", "more than 0, up to 0.5", 0, 0.5,
		.above = true},
	[SAMPLING_LOGIT_BIAS] = {"logit bias", "numbers that a float can hold, or -inf, which bans",
		-HUGE_VAL, .high = (double)FLT_MAX},
	[SAMPLING_REPLAY_ERROR] = {"replay error", "0 to 1", 0, .high = 1},
};

/* Written so that a NaN is not allowed. */
static bool is_allowed(enum sampling_value what, double value)
{
	bool low = values[what].above ? value > values[what].low : value >= values[what].low;

	return (low && value <= values[what].high) || (values[what].zero && value == 0);
}

int sampling_check(enum sampling_value what, double value, struct error *err)
{
	char text[32];

	if (is_allowed(what, value))
		return 0;
	/* With as many digits as show that the value is out of range. */
	snprintf(text, sizeof(text), "%.7g", value);
	if (is_allowed(what, strtod(text, NULL)))
		snprintf(text, sizeof(text), "%.17g", value);
	return error_set(err, EINVAL, "%s is %s: allowed are %s", values[what].name, text,
		values[what].range);
}

const char *sampling_range(enum sampling_value what)
{
	return values[what].range;
}
