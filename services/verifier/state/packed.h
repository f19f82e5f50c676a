/*
 * The region "weights": the model's packed matrices (shared/model/arch/weights.h), which a restarted verifier takes over
 * instead of reading and packing the file again, if their checksum is the one that was made when they were packed.
 */
#pragma once

#include "services/verifier/state/config.h"
#include "services/verifier/state/resources.h"
#include "shared/ipc/broker.h"
#include "shared/ipc/region.h"

#define WEIGHTS_REGION "weights"
#define WEIGHTS_REGION_LAYOUT 3

/* Packs the model's matrices, or takes over a predecessor's, as the configuration says, and makes the model use them. Of
 * a configuration that leaves them in the file, or where memory has no room for them beside those needs and what the
 * expert-cache takes, which is asked where it matters, and that is allowed, out->header is NULL. left: the descriptor of a
 * predecessor's (regions.h), taken. -ENOMEM names the key, -ECANCELED: the daemon was told to stop.
 * Called before the engine is made; the region must outlive it. */
int packed_open(struct daemon *daemon, struct broker *broker, int *left,
	const struct verifier_config *config, const struct resources_needs *needs,
	struct model *model, struct region *out, struct error *err);
/* Notes the model's gguf_stamps as they are now, if there is a copy. */
void packed_stamp(const struct region *packed, const struct model *model);
