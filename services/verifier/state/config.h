/*
 * The verifier's settings: one table (services/knobs) feeds the loader, --help and config/verifier.conf. Filled in by
 * main before any thread starts. What is live is changed in the loop thread (daemon_knobs.h), so no other thread reads it
 * here: the engine goes by a snapshot (tuning.h).
 */
#pragma once

#include "services/knobs/verifier.h"
#include "shared/model/arch/model.h"

/* What does not depend on the model: thread count and spin times from the CPUs there are, relations between keys.
 * -EINVAL names the key. */
int verifier_config_resolve(struct verifier_config *config, struct error *err);

/* Session pages that are used at a time: of those that run and wait, and of finished ones that are kept. The others are never
 * touched, and cost no memory. Changes with the configuration. */
uint32_t verifier_config_places(const struct verifier_config *config);

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
