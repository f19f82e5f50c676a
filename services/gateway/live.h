/* The gateway's settings while it runs: knobs (shared/ipc/daemon_knobs.h), and the file of keys, which is read again when it changes.
 * On the loop's thread. */
#pragma once

#include "services/knobs/gateway.h"
#include "shared/base/error.h"

struct gateway;
struct options;

/* What no value can be that is wrong by itself: where to listen. */
int live_check(const struct gateway_config *config, struct error *err);
/* The knobs. config: what gateway->config points to; changes are written there. */
int live_open(struct gateway *gateway, struct gateway_config *config, const struct options *options,
	struct error *err);
/* Once a second is enough. */
void live_tick(struct gateway *gateway);
