/*
 * Tells whether prefetches that rest on one source of hints pay: how many of the experts that were
 * read were used by the run they were for, and how many were read in vain. A source that does not
 * pay is left alone for a while and then tried again, because text changes. Part of a policy.
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
	uint32_t passes; /* of the present trial or rest */
	bool resting;
};

/* Call when a prefetch was read, with whether it was used. */
void hint_worth_read(struct hint_worth *worth, bool used);
/* Call when a pass begins. True: the source is wanted in it. */
bool hint_worth_pass(struct hint_worth *worth);
