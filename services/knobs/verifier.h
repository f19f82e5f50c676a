/* The table of the verifier's settings, and the structure that it fills. */
#pragma once

#include "shared/base/config.h"
#include "shared/base/limits.h"

enum verifier_weights { VERIFIER_WEIGHTS_AUTO, VERIFIER_WEIGHTS_PACKED, VERIFIER_WEIGHTS_MAPPED };
enum verifier_pin { VERIFIER_PIN_AUTO, VERIFIER_PIN_NO, VERIFIER_PIN_YES };
enum verifier_gates {
	VERIFIER_GATES_AUTO,
	VERIFIER_GATES_ON,
	VERIFIER_GATES_OFF,
	VERIFIER_GATES_NEAR
};
enum verifier_experts { VERIFIER_EXPERTS_AUTO, VERIFIER_EXPERTS_MAPPED, VERIFIER_EXPERTS_CACHED };

enum verifier_kv_memory { VERIFIER_KV_DEVICE, VERIFIER_KV_HOST };
enum verifier_arithmetic { VERIFIER_ARITHMETIC_EXACT, VERIFIER_ARITHMETIC_FAST };
enum verifier_device_lost { VERIFIER_DEVICE_LOST_CPU, VERIFIER_DEVICE_LOST_END };

struct verifier_config {
	char model[1024];
	char adapter[1024]; /* "": none */
	char device[64]; /* kernels/gpu/choice.h */
	bool device_shared;
	int device_lost; /* enum verifier_device_lost */
	int arithmetic; /* enum verifier_arithmetic */
	int hybrid; /* enum balance_rule */
	int kernels; /* index in kernels_names */
	int64_t threads; /* 0 = the cores on which this process may run, within its quota */
	int pin; /* enum verifier_pin; resolved to NO or YES */
	int kv_type; /* verifier_config_kv_type */
	int64_t context; /* 0 = the model's, at most KV_PLAN_CONTEXT */
	int64_t sessions_max, queue_max, client_requests;
	char classes[1024]; /* classes_read */
	int64_t ageing; /* ns */
	bool admit; /* false: no new session is started */
	int64_t kv_tokens; /* 0 = chosen from sessions_max and context */
	int kv_memory; /* enum verifier_kv_memory */
	char device_memory[32], device_kv[32]; /* kv_size.h */
	int64_t prefix_tokens; /* -1 = no limit */
	int64_t prefix_states; /* bytes */
	bool prefix_windows;
	char prefix_dir[1024]; /* "": nothing is kept on disk */
	int64_t prefix_disk; /* bytes */
	int64_t sleep_after; /* ns; 0 = never */
	int64_t sleep_timeout; /* ns */
	int64_t prefill_chunk;
	int64_t hidden_tokens;
	int experts; /* enum verifier_experts */
	int weights; /* enum verifier_weights */
	int gate_hints; /* enum verifier_gates */
	int64_t default_k, draft_width, draft_nodes;
	char budget_experts[1024]; /* shared/base/layer_limits.h; "0" or "all": no expert budget */
	int budget_ranking, budget_coverage; /* enum budget_ranking, enum budget_coverage */
	char budget_profile[1024]; /* "": none */
	bool budget_oracle;
	bool follow_at_zero;
	int64_t draft_wait, expert_patience, stream_interval, client_timeout, linger; /* ns */
	int64_t ahead_max;
	char pool_spin[LIMIT_NAME], draft_spin[LIMIT_NAME],
		expert_spin[LIMIT_NAME]; /* "auto" or a time: tuning_of */
	/* For what numbers memory is allocated (0: not yet), and whether there are at most four CPUs:
	 * set by verifier_config_resolve. kv_allocated: the tokens of the KV cache that there is, or is
	 * to be made; set by verifier_config_fit and kv_size_fit, and with each change of it. */
	int64_t sessions_allocated, prefill_allocated, kv_allocated;
	bool few_cpus;
	/* Set when the model, and then the back end, are known: whether prompts are computed fast, and
	 * the number of that arithmetic (shared/base/arithmetic.h; 0: the exact one). */
	bool fast;
	uint32_t fast_number;
};

extern const struct config_key verifier_config_keys[];

/* The values of kv_type, in the order of their numbers. */
extern const char *const verifier_kv_names[];
