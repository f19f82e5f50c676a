/*
 * Settings that change while the process runs: what daemon_knobs.h asks of a service. In the loop thread. The memory a
 * change needs is allocated here; the transfer worker puts it in force between two of its rounds.
 *
 * A process that is killed takes no change with it: the region's header says what was configured and what it was changed to
 * to stay, and a successor that was started with the same configuration goes on with the latter. A change for a time
 * ends with the process.
 */
#pragma once

#include "services/expert-cache/settle.h"

/* What the configuration means with so many slots. */
struct transfer_options live_options(
	struct service *service, const struct cache_config *config, uint32_t budget);

/* After store_open and before the worker starts: service->settled as at start, or what a predecessor had or was
 * changed to. */
void live_begin(struct service *service);
/* Now and then: where the verifier takes another amount of memory than was counted, or the machine or a control group has another
 * limit, budget auto follows, and of a named one it is said when it leaves too little. What others use of the memory meanwhile
 * changes neither: it comes and goes, and experts would go and come with it. */
void live_follow(struct service *service);
/* It ends as it was asked to, and its changes with it. */
void live_end(struct service *service);

/* config: struct cache_config. 0 or -errno with the reason and the allowed range. */
int live_check(const void *config, struct error *err);
/* The same of what is for the next start: arg: struct service, next: struct cache_config (daemon_knobs.fits). */
int live_fits(void *arg, const void *next, struct error *err);
/* What live_apply would refuse of it now: memory that there is not (daemon_knobs.rehearse). */
int live_rehearse(void *arg, const void *next, struct error *err);
/* arg: struct service. All of it or nothing. */
int live_apply(void *arg, const void *next, struct error *err);
/* arg: struct service. What budget auto has taken. */
void live_means(void *arg, const struct config_key *key, char *out, size_t bytes);
/* arg: struct service; config: what stays when changes for a time have ended. */
void live_stays(void *arg, const void *config);
