/*
 * What the machine has less of than the configuration asks for: said once at start-up, with the key that would help.
 * Only what surely cannot run, with one session at work, is refused. Called by main, before the engine starts.
 */
#pragma once

#include "services/verifier/state/config.h"

struct backend;

/* Memory that no page of a file can be taken away for: more than there is of it and the kernel ends processes. Bytes. */
struct resources_needs {
	uint64_t kv; /* all of the cache, filled or not */
	uint64_t rest; /* session pages, and the rings to the drafter */
	uint64_t
		buffers; /* this process's own: what it has allocated already, and those of the largest pass */
	uint64_t kv_one, buffers_one; /* of one session alone, with the whole of its context */
	uint64_t experts; /* the fewest that an expert-cache keeps, and */
	uint64_t experts_all; /* the most; both 0 where none is asked */
	uint64_t there, kv_there; /* memory that rest and buffers, and kv, have already */
	uint64_t
		others; /* what the other processes allocate, where they share this one's limits; else 0 */
};

/* Of a model that is loaded, with its tokenizer, and a configuration that fits it. kv_bytes: what the KV cache takes. */
void resources_needs(const struct verifier_config *config, const struct model *model,
	struct backend *backend, uint64_t kv_bytes, struct resources_needs *out);

/* The least limit of a control group that one session can be served in: with experts where the expert-cache is in it too. */
uint64_t resources_least(const struct resources_needs *needs);

/* Logs what there is to say about threads and kernels. */
void resources_notice(const struct verifier_config *config, const struct backend *backend);

/* -ENOMEM, with the least limit and what to set, when they are more than the process may ever have. */
int resources_check(const struct verifier_config *config, const struct resources_needs *needs,
	struct error *err);

/* The same, and a notice when all sessions together may need more than there is, and when weights that stay in memory do not fit beside
 * the KV cache. */
int resources_memory(const struct verifier_config *config, const struct model *model,
	const struct resources_needs *needs, struct error *err);
