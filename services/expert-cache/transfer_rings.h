/*
 * Takes what the peers send to the transfer worker (demands, activations and hints from the
 * region's rings) and passes it to the store, the loads, the policy and the judge of hints. In the
 * worker's thread.
 */
#pragma once

#include "services/expert-cache/transfer.h"

/* Takes at most one ring's worth of each. */
void transfer_drain(struct transfer *transfer);
