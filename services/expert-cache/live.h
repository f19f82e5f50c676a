/*
 * Settings that change while the process runs: implements what daemon_knobs.h asks of a service. In
 * the loop thread. It allocates the memory that a change needs; the transfer worker puts the change
 * in force between two of its rounds.
 *
 * A killed process takes no change with it. The region's header says what was configured, and to
 * what it was permanently changed. A successor that is started with the same configuration
 * continues with the changed settings. Temporary changes end with the process.
 */
#pragma once

#include "services/expert-cache/settle.h"

/* The worker's options that the configuration means with this many slots. */
struct transfer_options live_options(
	struct service *service, const struct cache_config *config, uint32_t budget);

/* Call after store_open and before the worker starts: sets service->settled as at the start, or to
 * what a predecessor had or was changed to. */
void live_begin(struct service *service);
/* Call from time to time. When the verifier takes another amount of memory than was counted, or
 * when the machine or a control group has another limit, an auto budget follows; for a named
 * budget, the log says when it leaves too little. Memory that others use at the moment changes
 * neither: it comes and goes, and experts would come and go with it. */
void live_follow(struct service *service);
/* The process ends as requested, so its changes end with it. */
void live_end(struct service *service);

/* config: struct cache_config. 0 or -errno, with the reason and the allowed range. */
int live_check(const void *config, struct error *err);
/* The same for the next start: arg: struct service; next: struct cache_config (daemon_knobs.fits).
 */
int live_fits(void *arg, const void *next, struct error *err);
/* Checks what live_apply would refuse at present: memory that is not available
 * (daemon_knobs.rehearse). */
int live_rehearse(void *arg, const void *next, struct error *err);
/* arg: struct service. Applies everything or nothing. */
int live_apply(void *arg, const void *next, struct error *err);
/* Reads a profile of the model's layers. *out: for all layers of the geometry; of the block that
 * drafts nothing is known. */
int service_profile(
	const struct service *service, const char *path, uint64_t **out, struct error *err);
/* arg: struct service. Tells what the auto budget has taken. */
void live_means(void *arg, const struct config_key *key, char *out, size_t bytes);
/* arg: struct service. Tells what has no effect without a device. */
const char *live_idle(void *arg, const struct config_key *key);
/* arg: struct service; config: the settings that remain when temporary changes have ended. */
void live_stays(void *arg, const void *config);
