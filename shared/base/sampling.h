/* What a request may say about sampling: the one table of ranges for the SDK, the command lines, the verifier and whoever reads its
 * pages. Pure. */
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
	SAMPLING_TOP_N_SIGMA,
	SAMPLING_XTC_PROBABILITY,
	SAMPLING_XTC_THRESHOLD,
	SAMPLING_LOGIT_BIAS,
	SAMPLING_REPLAY_ERROR,
	SAMPLING_VALUES
};

/* -EINVAL, with a message that has name, value and range. What is not a number is in no range. */
int sampling_check(enum sampling_value what, double value, struct error *err);
/* "0 to 100": the range as a message has it. */
const char *sampling_range(enum sampling_value what);
