/*
 * The verifier's settings: one table (config.c) feeds the loader, --help and config/verifier.conf. Filled in by
 * main before any thread starts. What is live is changed in the loop thread (daemon_knobs.h), so no other thread reads it
 * here: the engine has its own copy (tuning.h).
 */
#pragma once

#include "shared/base/config.h"
#include "shared/base/limits.h"
#include "shared/model/arch/model.h"

enum verifier_weights { VERIFIER_WEIGHTS_AUTO, VERIFIER_WEIGHTS_PACKED, VERIFIER_WEIGHTS_MAPPED };
enum verifier_pin { VERIFIER_PIN_AUTO, VERIFIER_PIN_NO, VERIFIER_PIN_YES };
enum verifier_gates {
	VERIFIER_GATES_AUTO,
	VERIFIER_GATES_ON,
	VERIFIER_GATES_OFF,
	VERIFIER_GATES_NEAR
};
enum verifier_experts { VERIFIER_EXPERTS_AUTO, VERIFIER_EXPERTS_MAPPED, VERIFIER_EXPERTS_CACHED };

struct verifier_config {
	char model[1024];
	int kernels; /* of kernels_names */
	int64_t threads; /* 0 = the cores of this process's mask, within its quota */
	int pin; /* enum verifier_pin; resolve leaves NO or YES */
	int kv_type; /* verifier_config_kv_type */
	int64_t context; /* 0 = the model's, at most KV_PLAN_CONTEXT */
	int64_t sessions_max, queue_max, client_requests;
	int64_t kv_tokens; /* 0 = chosen from sessions_max and context */
	int64_t prefill_chunk;
	int experts; /* enum verifier_experts */
	int weights; /* enum verifier_weights */
	int gate_hints; /* enum verifier_gates */
	int64_t default_k;
	bool follow_at_zero;
	int64_t draft_wait, expert_patience, stream_interval, client_timeout, linger; /* ns */
	int64_t ahead_max;
	char pool_spin[LIMIT_NAME], draft_spin[LIMIT_NAME],
		expert_spin[LIMIT_NAME]; /* "auto" or a time: tuning_of */
	/* Filled in by verifier_config_resolve: what memory is made for (0: not yet), and whether there are four CPUs or fewer. */
	int64_t sessions_allocated, prefill_allocated;
	bool few_cpus;
};

extern const struct config_key verifier_config_keys[];

/* What does not depend on the model: thread count and spin times from the CPUs there are, relations between keys.
 * -EINVAL names the key. */
int verifier_config_resolve(struct verifier_config *config, struct error *err);

/* The same relations of a copy that was changed while the process runs, and that there is memory for it (a struct
 * verifier_config; daemon_knobs.check). */
int verifier_config_check(const void *config, struct error *err);

/* What does: context and kv_tokens become numbers, and are checked against the model. */
int verifier_config_fit(
	struct verifier_config *config, const struct model *model, struct error *err);

/* Whether a start with next would get that far, as long as model stays: of what differs from now, which is in force. -EINVAL, or
 * what file_open has of another model. */
int verifier_config_fits(const struct verifier_config *next, const struct verifier_config *now,
	const struct model *model, struct error *err);

/* The type that was set, or kv_type_auto. */
enum kv_type verifier_config_kv_type(
	const struct verifier_config *config, const struct model *model);
