/*
 * Whether an expert that is read again has the bytes it had before: a hash of a few fixed places of
 * each of its parts, kept from the first load. A file that was written to keeps its size and may
 * keep its times; what it says then differs in places all over. Against accidents, not against an
 * adversary. Used by the transfer worker alone.
 */
#pragma once

#include "shared/spec/slots.h"

struct integrity {
	uint64_t *sums; /* [n_layers][n_experts], 0: not loaded yet */
	uint32_t n_experts;
};

int integrity_init(
	struct integrity *integrity, const struct slots_geometry *geometry, struct error *err);
void integrity_exit(struct integrity *integrity);

/* slot: the expert as it was read, before its matrices are packed. -ESTALE when it is another one than it was. */
int integrity_check(struct integrity *integrity, const struct slots_geometry *geometry,
	uint32_t layer, uint32_t expert, const unsigned char *slot, struct error *err);
