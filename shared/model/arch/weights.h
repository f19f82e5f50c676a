/*
 * A model's quantised matrices in the layout that is fastest for products (kernels/tiles.h), in
 * memory of their own: a copy that is made once, and that a successor may take over. Matrices
 * without such a layout stay in the file's mapping: float types, fewer than sixteen rows, the
 * per-head matrices of MLA, and an embedding that is only looked up.
 */
#pragma once

#include "shared/model/arch/model.h"

enum weights_part { WEIGHTS_DENSE, WEIGHTS_ALL /* with the experts */ };

/* Bytes of the copy; 0 when it would be empty. */
uint64_t weights_bytes(const struct model *model, enum weights_part part);

/* Fills memory (weights_bytes, 64-byte aligned) from the mapping, with n_threads threads including
 * the caller, and releases the pages of the mapping that were copied. progress, which may be NULL,
 * is called now and then on the calling thread; if it returns false, the rest is not copied
 * (-ECANCELED). -ENOMEM. The model must still use its file. */
int weights_pack(const struct model *model, enum weights_part part, void *memory,
	uint32_t n_threads, bool (*progress)(void *arg), void *arg);

/* Makes the model use the matrices in memory, which must outlive it. */
void weights_use(struct model *model, enum weights_part part, const void *memory);
