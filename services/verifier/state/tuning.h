/*
 * The settings that the engine follows while it runs: one snapshot of the configuration, which is
 * constant once the engine has it. When a setting changes, the front makes another (engine_tune);
 * the engine follows that one from the beginning of an iteration on, and frees the last. How long
 * that took is counted.
 */
#pragma once

#include "services/verifier/state/config.h"
#include "shared/spec/classes.h"

/* Times in ns. */
struct tuning {
	uint64_t draft_wait, draft_spin, expert_patience, expert_spin, pool_spin, stream_interval;
	uint32_t sessions_max, prefill_chunk;
	uint32_t prefix_pages; /* KV pages, at most KV_PAGES_MAX */
	uint32_t ahead_max, default_k, draft_width, draft_nodes;
	bool follow_at_zero;
	struct request_classes classes;
	int hybrid; /* enum balance_rule */
	uint64_t ageing, sleep_after;
	/* when it was given, and the last iteration that had ended then */
	uint64_t given_ns, given_iteration;
	uint64_t number; /* counts the snapshots given */
};

/* Fills *out from the configuration; "auto" becomes a time. -ENOEXEC names the key. */
int tuning_of(const struct verifier_config *config, struct tuning *out, struct error *err);
/* The same in new memory, for the caller to free; also -ENOMEM. */
int tuning_create(const struct verifier_config *config, struct tuning **out, struct error *err);
