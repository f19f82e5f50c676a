/* The table of the drafter's settings, and the structure that it fills. */
#pragma once

#include "shared/base/config.h"
#include "shared/base/limits.h"

enum choice { CHOICE_AUTO, CHOICE_ON, CHOICE_OFF };
enum drafter_arithmetic { DRAFTER_ARITHMETIC_AUTO, DRAFTER_ARITHMETIC_EXACT };

struct drafter_config {
	char draft[1024];
	int method; /* enum draft_method */
	char skip_layers[256]; /* shared/model/arch/skip.h */
	char device[64]; /* kernels/gpu/choice.h */
	bool device_shared;
	int arithmetic; /* enum drafter_arithmetic */
	int kernels; /* index in kernels_names */
	int64_t threads, chunk;
	int64_t ngram_min, ngram_max;
	int run_ahead, hints; /* enum choice */
	char spin[32];
	int64_t kv_tokens, context;
	int64_t history; /* bytes */
	/* Resolved by drafter_config_resolve. */
	uint64_t spin_ns;
	int64_t chunk_allocated; /* tokens for which the draft model's batch was allocated */
	/* there are two or fewer, so that drafting ahead would take CPU time from the verifier */
	bool few_cpus;
	bool draft_is_head; /* `draft` is an EAGLE-3 head; set by worker_init */
};

extern const struct config_key drafter_config_keys[];
