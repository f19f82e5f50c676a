#include "shared/base/sampling.h"

#include "shared/base/limits.h"

#include <float.h>
#include <stdbool.h>
#include <stddef.h>

#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)
#define MOST_TOP_K 1048576
#define MOST_WINDOW 1048576
static_assert(MOST_TOP_K == LIMIT_VOCAB && MOST_WINDOW == LIMIT_CONTEXT, "the messages are right");

static const struct {
	const char *name, *range;
	double low, high;
	bool above; /* low itself is too low */
	bool zero; /* but 0 is allowed */
} values[SAMPLING_VALUES] = {
	/* Logits divided by less leave the range of a float, and their order with it. */
	[SAMPLING_TEMPERATURE] = {"temperature", "0, or 1e-30 to 100", 1e-30, 100, .zero = true},
	[SAMPLING_TOP_K] = {"top-k", "0 to " TEXT(MOST_TOP_K), 0, MOST_TOP_K},
	[SAMPLING_TOP_P] = {"top-p", "more than 0, up to 1", 0, 1, .above = true},
	[SAMPLING_MIN_P] = {"min-p", "0 to 1", 0, 1},
	[SAMPLING_REPEAT_PENALTY] = {"repeat penalty", "more than 0, up to 10", 0, 10,
		.above = true},
	[SAMPLING_REPEAT_WINDOW] = {"repeat window", "0 to " TEXT(MOST_WINDOW), 0, MOST_WINDOW},
	[SAMPLING_LOGIT_BIAS] = {"logit bias", "numbers that a float can hold", -(double)FLT_MAX,
		(double)FLT_MAX},
	[SAMPLING_REPLAY_ERROR] = {"replay error", "0 to 1", 0, 1},
};

int sampling_check(enum sampling_value what, double value, struct error *err)
{
	bool low = values[what].above ? value > values[what].low : value >= values[what].low;

	/* Written so that a NaN fails. */
	if ((low && value <= values[what].high) || (values[what].zero && value == 0))
		return 0;
	return error_set(err, EINVAL, "%s is %.7g: allowed are %s", values[what].name, value,
		values[what].range);
}

const char *sampling_range(enum sampling_value what)
{
	return values[what].range;
}
