/*
 * How fast the answers of each class come, measured, for the status: a target that is missed is
 * said by how much. The engine's thread writes; any thread reads.
 */
#pragma once

#include "services/verifier/pass/scheduler.h"
#include "shared/spec/classes.h"

#include <stdatomic.h>
#include <stddef.h>

struct targets {
	struct request_classes classes; /* the engine's */
	struct {
		/* Smoothed; 0: not measured. */
		_Atomic uint64_t tpot_ns, ttft_ns;
	} of[LIMIT_CLASSES];
	/* Of a pass without prompts, and what a prompt token adds; 0: not known. */
	_Atomic uint64_t pass_ns, token_ns;
};

/* Forgets what was measured where the classes have changed. */
void targets_begin(struct targets *targets, const struct request_classes *classes);
/* A session of the class got n output tokens, ns after those before them. */
void targets_tokens(struct targets *targets, const char *name, uint32_t n, uint64_t ns);
/* A session of the class got its first token, ns after its admission. */
void targets_first(struct targets *targets, const char *name, uint64_t ns);
void targets_pass(struct targets *targets, const struct sched_cost *cost);
/* A sentence about the i-th of `classes`: "priority 10; tpot 61.0 ms, 11.0 ms over its target of
 * 50.0 ms; ttft 120.0 ms". Any thread. */
void targets_describe(const struct targets *targets, const struct request_classes *classes,
	uint32_t i, char *out, size_t bytes);
