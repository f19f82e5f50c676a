/* The table of the policy-controller's settings, and the structure that it fills. Plain data; every session carries a copy. */
#pragma once

#include "shared/base/config.h"
#include "shared/base/limits.h"

enum { SETTINGS_TRIALS_MAX = 15 }; /* of one test phase of cascade */

struct settings {
	char policy[32]; /* "cascade", "yield" or "static:K" */
	int64_t k_max, k_start;
	int64_t trial, trials; /* t and M of the test phase */
	int64_t set, set_max; /* S of the set phase, and where its doubling ends */
	int64_t baseline, refresh; /* iterations at K = 0, and how old they may grow */
	bool refresh_missed; /* and whether missing experts make them old */
	bool medians; /* of cascade's times; else their mean */
	double threshold, converge;
	int64_t backoff, falls, history, late, carry; /* what the paper fixes or leaves open */
	int64_t memory, horizon, phase; /* of yield */
	double alarm, purse, spend;
	bool rest_at_zero; /* at K = 0 */
	bool run_ahead;
	int64_t poll_ns;
	int64_t journal_bytes; /* 0: none is kept */
};

extern const struct config_key settings_keys[];
