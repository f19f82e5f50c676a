#include "bench/src/expert_arena.h"

#include <errno.h>

void expert_arena_pack(const struct expert_arena *arena, uint32_t expert, unsigned char *to)
{
	const struct layer *layer = &arena->model->layers[arena->number];
	const void *const from[EXPERT_PARTS] = {
		[EXPERT_GATE] = model_expert_data(&layer->gate, expert),
		[EXPERT_UP] = model_expert_data(&layer->up, expert),
		[EXPERT_DOWN] = model_expert_data(&layer->down, expert),
	};

	device_pack(arena->layer, from, arena->layer->packed ? LAYOUT_TILES : LAYOUT_ROWS, to);
}

static int choose_layer(
	struct expert_arena *arena, const char *path, uint32_t layer, struct error *err)
{
	uint32_t n = arena->model->config.n_layers;

	if (layer == UINT32_MAX)
		for (layer = 0; layer + 1 < n && !arena->geometry.layers[layer].moe;)
			layer++;
	if (layer >= n)
		return error_set(
			err, EINVAL, "--layer %u: the model has layers 0 to %u", layer, n - 1);
	if (!arena->geometry.layers[layer].moe)
		return error_set(err, EINVAL, "%s: layer %u has no experts", path, layer);
	arena->number = layer;
	arena->layer = &arena->geometry.layers[layer];
	return 0;
}

int expert_arena_open(struct backend *backend, const char *path, uint32_t layer, uint64_t most,
	struct expert_arena *out, struct error *err)
{
	*out = (struct expert_arena){0};
	int rc = model_load(path, &out->model, err);
	if (rc < 0)
		return rc;
	slots_geometry_init(&out->geometry, out->model);
	rc = choose_layer(out, path, layer, err);
	if (rc < 0)
		return rc;
	out->expert_bytes = (size_t)device_expert_bytes(out->layer);
	uint64_t fit = most / out->expert_bytes;
	out->n = fit > out->geometry.n_experts ? out->geometry.n_experts : (uint32_t)fit;
	if (out->n < out->geometry.n_experts_used)
		out->n = out->geometry.n_experts_used;
	rc = backend->ops->alloc(
		backend, out->n * out->expert_bytes, BUFFER_HOST, &out->memory, err);
	for (uint32_t e = 0; rc == 0 && e < out->n; e++)
		expert_arena_pack(out, e, out->memory.host + e * out->expert_bytes);
	return rc;
}

void expert_arena_close(struct expert_arena *arena)
{
	if (arena->memory.backend != NULL)
		arena->memory.backend->ops->free(&arena->memory);
	model_free(&arena->model);
	*arena = (struct expert_arena){0};
}
