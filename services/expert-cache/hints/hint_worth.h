/*
 * Whether prefetches that rest on one source of hints pay: of those that were read, how many were used by the run that
 * they were for, and how many read in vain. A source that does not pay is left alone for a while, and then tried again:
 * text changes. Part of a policy.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
	HINT_WORTH_TRIAL = 64, /* passes between two judgements */
	HINT_WORTH_REST = 1024, /* passes without the source, when it does not pay */
};

struct hint_worth {
	uint32_t used, vain; /* since the last judgement */
	uint32_t passes; /* of the trial, or of the rest */
	bool resting;
};

/* One that was read: is it used? */
void hint_worth_read(struct hint_worth *worth, bool used);
/* A pass begins. True: the source is wanted in it. */
bool hint_worth_pass(struct hint_worth *worth);
