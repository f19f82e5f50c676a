/* The ranges of a request's sampling parameters: one table for the SDK, the command lines, the
 * verifier and the readers of its pages. No side effects. */
#pragma once

#include "shared/base/error.h"

enum sampling_value {
	SAMPLING_TEMPERATURE = 0,
	SAMPLING_TOP_K,
	SAMPLING_TOP_P,
	SAMPLING_MIN_P,
	SAMPLING_REPEAT_PENALTY,
	SAMPLING_REPEAT_WINDOW,
	SAMPLING_PRESENCE_PENALTY,
	SAMPLING_FREQUENCY_PENALTY,
	SAMPLING_DRY_MULTIPLIER,
	SAMPLING_DRY_BASE,
	SAMPLING_DRY_ALLOWED_LENGTH,
	SAMPLING_DRY_WINDOW,
	SAMPLING_TOP_N_SIGMA,
	SAMPLING_XTC_PROBABILITY,
	SAMPLING_XTC_THRESHOLD,
	SAMPLING_LOGIT_BIAS,
	SAMPLING_REPLAY_ERROR,
	SAMPLING_VALUES
};

/* -EINVAL, with a message that has name, value and range. A NaN is in no range. */
int sampling_check(enum sampling_value what, double value, struct error *err);
/* The range as messages write it, such as "0 to 100". */
const char *sampling_range(enum sampling_value what);
