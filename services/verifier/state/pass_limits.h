/* What the largest pass has room for: its memory is allocated by it, and counted before anything is. */
#pragma once

#include "shared/model/pass/forward.h"

/* Of passes with at most this many sessions and prompt tokens, of sessions of at most `context` tokens. */
struct forward_limits pass_limits(int64_t sessions, int64_t prefill_tokens, int64_t context);
