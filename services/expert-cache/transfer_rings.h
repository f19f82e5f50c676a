/*
 * What the peers say to the transfer worker: demands, activations and hints from the region's
 * rings, to whom they concern: the store, the loads, the policy, the judge of hints. The worker's
 * thread.
 */
#pragma once

#include "services/expert-cache/transfer.h"

/* At most one ring's worth of each. */
void transfer_drain(struct transfer *transfer);
