/*
 * The verifier's settings. One table (services/knobs) feeds the loader, --help and
 * config/verifier.conf. main fills them in before any thread starts. The loop thread changes live
 * settings (daemon_knobs.h), so no other thread reads them here: the engine uses a snapshot
 * (tuning.h).
 */
#pragma once

#include "services/knobs/verifier.h"
#include "shared/model/arch/model.h"
#include "shared/spec/budget.h"

/* Resolves what does not depend on the model: the number of threads and the spin times, from the
 * CPUs there are. Checks the relations between keys. -EINVAL names the key. */
int verifier_config_resolve(struct verifier_config *config, struct error *err);

/* How many session pages are used at a time: by running and waiting sessions, and by finished ones
 * that are kept. The other pages are never touched and cost no memory. Changes with the
 * configuration. */
uint32_t verifier_config_places(const struct verifier_config *config);

/* Checks the same relations in the changed copy of a running process's settings, a struct
 * verifier_config, and that there is memory for it (daemon_knobs.check). */
int verifier_config_check(const void *config, struct error *err);

/* Resolves what depends on the model: context and kv_tokens become numbers, which are checked
 * against it. */
int verifier_config_fit(
	struct verifier_config *config, const struct model *model, struct error *err);

/* Whether a start with `next` would succeed as long as the model stays, judged by the settings in
 * which next differs from `now`, the ones in force. -EINVAL, or an error of file_open for another
 * model. */
int verifier_config_fits(const struct verifier_config *next, const struct verifier_config *now,
	const struct model *model, struct error *err);

/* The expert budgets that requests may ask for. */
struct budget_means verifier_config_budget(
	const struct verifier_config *config, const struct model *model);
/* Reads the default budget: the most experts of each layer ([LIMIT_LAYERS]), 0: no limit. -EINVAL
 * names the key. */
int verifier_config_read_budget(const struct verifier_config *config, const struct model *model,
	uint16_t *experts, struct error *err);
/* Checks the setting of the default budget. -EINVAL names the key. */
int verifier_config_check_budget(
	const struct verifier_config *config, const struct model *model, struct error *err);

/* The number of the arithmetic that answers are computed in (shared/base/arithmetic.h), once the back
 * end is known. */
uint32_t verifier_config_arithmetic(const struct verifier_config *config);

/* The configured type, or kv_type_auto. */
enum kv_type verifier_config_kv_type(
	const struct verifier_config *config, const struct model *model);
