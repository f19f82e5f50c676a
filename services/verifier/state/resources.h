/*
 * Compares what the configuration needs with what the machine has. Shortages are logged once, at
 * the start, with the key that would help. Only what certainly cannot run, even with one session,
 * is refused. Called by main, before the engine starts.
 */
#pragma once

#include "services/verifier/state/config.h"

struct backend;

/* Memory that the kernel cannot reclaim by dropping pages of files; when there is not enough, it
 * ends processes. In bytes. */
struct resources_needs {
	uint64_t kv; /* all of the KV cache, filled or not */
	uint64_t rest; /* session pages, and the rings to the drafter */
	/* this process's own: what it has allocated already, and the buffers of the largest pass */
	uint64_t buffers;
	uint64_t kv_one, buffers_one; /* for a single session with the whole of its context */
	uint64_t experts; /* the least that an expert cache keeps */
	uint64_t experts_all; /* the most that it keeps; both 0 where no cache is asked */
	uint64_t there, kv_there; /* what is allocated already of rest and buffers, and of kv */
	/* what the other processes allocate, where they share this one's limits; else 0 */
	uint64_t others;
};

struct adapter;

/* The needs of a loaded model, with its tokenizer, under a configuration that fits it. kv_bytes: of
 * the KV cache. */
void resources_needs(const struct verifier_config *config, const struct model *model,
	const struct adapter *adapter, struct backend *backend, uint64_t kv_bytes,
	struct resources_needs *out);

/* What the process takes of the device's memory: weights, passes, the KV cache, and spare slots for
 * experts; 0 where it computes in the host's. */
uint64_t resources_device(const struct verifier_config *config, const struct model *model,
	const struct adapter *adapter, struct backend *backend);

/* The least limit of a control group under which one session can be served; it includes experts
 * where the expert cache is in the same group. */
uint64_t resources_least(const struct resources_needs *needs);

/* Logs notices about threads and kernels. */
void resources_notice(const struct verifier_config *config, const struct backend *backend);

/* -ENOMEM, with the least limit and what to set, when the needs exceed all that the process may
 * have. */
int resources_check(const struct verifier_config *config, const struct resources_needs *needs,
	struct error *err);

/* The same check; also logs a notice when all sessions together may need more than there is, and
 * when weights that stay in memory do not fit in addition to the KV cache. */
int resources_memory(const struct verifier_config *config, const struct model *model,
	const struct resources_needs *needs, struct error *err);
