/*
 * The settings that the engine follows while it runs. The front gives them (engine_tune), the engine takes them over at the
 * start of an iteration; how long that took is counted, so that it can be looked at.
 */
#pragma once

#include "services/verifier/state/config.h"

/* Whole words, for page_read. Times in ns. */
struct tuning {
	uint64_t draft_wait, draft_spin, expert_patience, expert_spin, pool_spin, stream_interval;
	uint32_t sessions_max, prefill_chunk;
	uint32_t ahead_max, default_k;
	uint32_t follow_at_zero, pad;
	uint64_t given_ns, given_iteration; /* when, and which iteration was the last to end */
	uint64_t number; /* counts those given */
};
static_assert(sizeof(struct tuning) % 8 == 0, "page_read copies 8-byte words");

/* "auto" becomes a time here. -ENOEXEC names the key. */
int tuning_of(const struct verifier_config *config, struct tuning *out, struct error *err);
