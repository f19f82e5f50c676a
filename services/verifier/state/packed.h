/*
 * The verifier's side of the region "weights" (shared/spec/packed.h). A restarted
 * verifier takes it over instead of reading and packing the file again, if the checksum that was
 * made after packing still fits.
 */
#pragma once

#include "services/verifier/state/config.h"
#include "services/verifier/state/resources.h"
#include "shared/ipc/broker.h"
#include "shared/spec/packed.h"

/* Packs the model's matrices, or takes over a predecessor's, as the configuration says, and makes
 * the model use them. out->header is NULL when they stay in the file: because the configuration
 * says so, or because it allows that and memory has no room for them in addition to `needs` and the
 * expert cache (which is asked where it matters). left: the descriptor of a predecessor's region
 * (regions.h), which is taken. -ENOMEM names the key; -ECANCELED: the daemon was told to stop.
 * Called before the engine is made; the region must outlive the engine. */
int packed_open(struct daemon *daemon, struct broker *broker, int *left,
	const struct verifier_config *config, const struct resources_needs *needs,
	struct model *model, struct region *out, struct error *err);
/* Stamps the region, if there is one, with the model's gguf_stamps as they are now. */
void packed_stamp(const struct region *packed, const struct model *model);
