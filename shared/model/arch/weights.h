/*
 * A model's quantised matrices in the layout the kernels like best (kernels/tiles.h), in memory of their own: a copy made
 * once, which a successor may take over as it is. What has no such layout (float types, fewer than sixteen rows, the
 * per-head matrices of MLA, an embedding that is only looked up) stays in the file's mapping.
 */
#pragma once

#include "shared/model/arch/model.h"

enum weights_part { WEIGHTS_DENSE, WEIGHTS_ALL /* with the experts */ };

/* Bytes of the copy; 0 when nothing would be in it. */
uint64_t weights_bytes(const struct model *model, enum weights_part part);

/* Fills memory (weights_bytes, 64-byte aligned) from the mapping with n_threads threads, the caller one of them, and lets
 * the mapping's pages go that were copied. progress, or NULL, is called now and then by the calling thread; when it says false
 * the rest is left (-ECANCELED). -ENOMEM. The model must still lie in its file. */
int weights_pack(const struct model *model, enum weights_part part, void *memory,
	uint32_t n_threads, bool (*progress)(void *arg), void *arg);

/* From now on the matrices of the model lie in memory, which outlives it. */
void weights_use(struct model *model, enum weights_part part, const void *memory);
