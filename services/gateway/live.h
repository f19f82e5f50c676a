/* The gateway's settings while it runs: knobs (shared/ipc/daemon_knobs.h), and the file of keys,
 * which is read again when it changes. Loop thread. */
#pragma once

#include "services/knobs/gateway.h"
#include "shared/base/error.h"

struct gateway;
struct options;

/* Checks what the table of keys cannot express: where to listen. */
int live_check(const struct gateway_config *config, struct error *err);
/* Opens the knobs. config: what gateway->config points to; changes are written there. */
int live_open(struct gateway *gateway, struct gateway_config *config, const struct options *options,
	struct error *err);
/* Call once a second: reads the file of keys if it has changed. */
void live_tick(struct gateway *gateway);
