/*
 * The region "weights": the model's matrices as the verifier packed them (shared/model/arch/weights.h).
 * A restarted verifier takes it over (services/verifier/state/packed.h), and a drafter that computes
 * layers of the target reads it, so that it needs no copy of its own.
 */
#pragma once

#include "shared/ipc/region.h"
#include "shared/model/arch/weights.h"

#include <stdatomic.h>

#define WEIGHTS_REGION "weights"
#define WEIGHTS_REGION_LAYOUT 3

/* The head of the payload; the matrices follow. */
struct packed_header {
	uint64_t model_fingerprint, bytes; /* fingerprint: that of the file */
	uint64_t stamps; /* gguf_stamps: which files they come from, and the files' state then */
	/* checksum of the matrices, by which a successor recognises what was packed */
	uint64_t sum;
	uint32_t part; /* enum weights_part */
	/* the matrices are complete; false while they are packed, or after a death in between */
	_Atomic uint32_t ready;
	unsigned char pad[88];
};
static_assert(sizeof(struct packed_header) == 128, "the matrices stay 64-byte aligned");

/* Makes a model that still uses its file use another process's copy instead; the mapping must
 * outlive it. Nothing is believed of the region but the matrices themselves. Returns which part of the
 * weights it has. -ESTALE: it is not of this file, or not complete; the model is as before. */
int packed_use(const struct region *region, struct model *model, struct error *err);
