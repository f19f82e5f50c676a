/*
 * Checks that an expert that is read again has the bytes that it had before, with a hash over a few
 * fixed places of each of its parts, kept from the first load. A file that was written to keeps its
 * size, and perhaps its times, but its content then differs in many places. Detects accidents, not
 * an adversary. Used by the transfer worker alone.
 */
#pragma once

#include "shared/spec/slots.h"

struct integrity {
	uint64_t *sums; /* [n_layers][n_experts]; 0: not loaded yet */
	uint32_t n_experts;
};

int integrity_init(
	struct integrity *integrity, const struct slots_geometry *geometry, struct error *err);
void integrity_exit(struct integrity *integrity);

/* slot: the expert as it was read, before packing. -ESTALE when it differs from the first time. */
int integrity_check(struct integrity *integrity, const struct slots_geometry *geometry,
	uint32_t layer, uint32_t expert, const unsigned char *slot, struct error *err);
