/* How large the largest pass is. Its memory is allocated by these limits, and counted by them
 * before anything is allocated. */
#pragma once

#include "shared/model/pass/forward.h"

/* The limits of passes with at most this many sessions and prompt tokens, where sessions have at
 * most `context` tokens. oracle: expert budgets may be ranked by it. */
struct forward_limits pass_limits(
	int64_t sessions, int64_t prefill_tokens, int64_t context, bool oracle, bool fast);
