/* The table of the policy-controller's settings, and the structure that it fills. Plain data; every
 * session has a copy. */
#pragma once

#include "shared/base/config.h"
#include "shared/base/limits.h"

enum { SETTINGS_TRIALS_MAX = 15 }; /* trials in one test phase of cascade */

struct settings {
	char policy[32]; /* "yield", "goodput", "cascade", "static:K" or "static:SHAPE" */
	int64_t k_max, k_start;
	int64_t trial, trials; /* t and M of cascade's test phase */
	int64_t set, set_max; /* S of cascade's set phase, and the bound of its doubling */
	/* iterations at K = 0 for the baseline, and after how many it is too old */
	int64_t baseline, refresh;
	bool refresh_missed; /* missing experts make the baseline too old as well */
	bool medians; /* cascade uses medians of times; otherwise means */
	double threshold, converge;
	/* what the paper of cascade fixes or leaves open */
	int64_t backoff, falls, history, late, carry;
	int64_t memory, horizon, phase; /* from here on for yield */
	double alarm, purse, spend;
	int64_t tpot_ns, ttft_ns; /* targets of goodput; 0: none */
	bool rest_at_zero; /* at K = 0 */
	bool by_experts; /* nodes of drafts are chosen by what their experts cost */
	int64_t width; /* the most children of a drafted token */
	bool run_ahead;
	int64_t poll_ns;
	int64_t journal_bytes; /* 0: none is kept */
};

extern const struct config_key settings_keys[];
