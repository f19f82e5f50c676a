/*
 * Some experts of one layer of a model, in memory of the host that a back end can fetch from, as they
 * lie in a device's slots (shared/spec/device_slots.h): what benchmarks copy and compute.
 */
#pragma once

#include "kernels/backend.h"
#include "shared/model/arch/model.h"
#include "shared/spec/device_slots.h"

struct expert_arena {
	struct model *model;
	struct slots_geometry geometry;
	const struct slots_layer_geometry *layer;
	uint32_t number; /* of the layer */
	uint32_t n; /* experts, the first of the layer; at least as many as a token uses */
	size_t expert_bytes; /* distance between two of them, and bytes that are copied */
	struct buffer memory; /* [n] experts */
};

/* Loads the model and packs its experts. layer UINT32_MAX: the first that has experts. At most `most`
 * bytes of experts, unless a token uses more. -EINVAL: the model or the layer has none. */
int expert_arena_open(struct backend *backend, const char *path, uint32_t layer, uint64_t most,
	struct expert_arena *out, struct error *err);
/* May be called for one that was not opened, or only in part; before the back end is destroyed. */
void expert_arena_close(struct expert_arena *arena);
/* Packs expert e of the layer from the file's mapping, as the expert-cache does for a copy. */
void expert_arena_pack(const struct expert_arena *arena, uint32_t expert, unsigned char *to);
