/*
 * What the machine has less of than the configuration asks for: said once at start-up, with the key that would help.
 * Only what surely cannot run is refused. Called by main, before the engine starts.
 */
#pragma once

#include "services/verifier/config.h"

/* Logs what there is to say about threads and kernels. */
void resources_notice(const struct verifier_config *config, const struct kernels *kernels);

/* kv_bytes: what the KV cache takes. -ENOMEM when that alone is more than the process may have; a notice when weights
 * that stay in memory do not fit beside it. */
int resources_memory(const struct verifier_config *config, const struct model *model,
	uint64_t kv_bytes, struct error *err);
