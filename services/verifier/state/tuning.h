/*
 * The settings that the engine follows while it runs: one snapshot of the configuration, which nobody changes once the engine has
 * it. The front makes another when a setting changes (engine_tune); the engine goes by that one from the start of an iteration
 * on, and frees the last. How long that took is counted, so that it can be looked at.
 */
#pragma once

#include "services/verifier/state/config.h"

/* Times in ns. */
struct tuning {
	uint64_t draft_wait, draft_spin, expert_patience, expert_spin, pool_spin, stream_interval;
	uint32_t sessions_max, prefill_chunk;
	uint32_t ahead_max, default_k;
	bool follow_at_zero;
	uint64_t given_ns, given_iteration; /* when, and which iteration was the last to end */
	uint64_t number; /* counts those given */
};

/* "auto" becomes a time here. -ENOEXEC names the key. */
int tuning_of(const struct verifier_config *config, struct tuning *out, struct error *err);
/* The same, allocated, the caller's to free; also -ENOMEM. */
int tuning_create(const struct verifier_config *config, struct tuning **out, struct error *err);
