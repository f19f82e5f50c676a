#include "services/expert-cache/store/integrity.h"

#include <stdlib.h>
#include <string.h>

enum {
	PLACES = 8, /* in a part: its beginning, its end, and between */
	PLACE_BYTES = 128,
};

int integrity_init(
	struct integrity *integrity, const struct slots_geometry *geometry, struct error *err)
{
	integrity->n_experts = geometry->n_experts;
	integrity->sums =
		calloc((size_t)geometry->n_layers * geometry->n_experts, sizeof(*integrity->sums));
	return integrity->sums != NULL ? 0 : error_set(err, ENOMEM, "no memory for checksums");
}

void integrity_exit(struct integrity *integrity)
{
	free(integrity->sums);
	*integrity = (struct integrity){0};
}

/* FNV-1a over words of eight bytes; the shift is there because a product carries nothing downwards.
 */
static uint64_t add_place(uint64_t hash, const unsigned char *place, size_t bytes)
{
	for (size_t i = 0; i + 8 <= bytes; i += 8) {
		uint64_t word;
		memcpy(&word, place + i, sizeof(word));
		hash = (hash ^ word) * 0x100000001b3u;
		hash ^= hash >> 32;
	}
	return hash;
}

static uint64_t add_part(uint64_t hash, const unsigned char *data, uint64_t bytes)
{
	if (bytes <= PLACES * PLACE_BYTES)
		return add_place(hash, data, (size_t)bytes);
	for (uint64_t i = 0; i < PLACES; i++)
		hash = add_place(
			hash, data + (bytes - PLACE_BYTES) * i / (PLACES - 1), PLACE_BYTES);
	return hash;
}

int integrity_check(struct integrity *integrity, const struct slots_geometry *geometry,
	uint32_t layer, uint32_t expert, const unsigned char *slot, struct error *err)
{
	uint64_t *sum = &integrity->sums[(size_t)layer * integrity->n_experts + expert];
	uint64_t hash = 0xcbf29ce484222325u;
	for (int p = 0; p < EXPERT_PARTS; p++) {
		const struct slots_part *part = &geometry->layers[layer].part[p];
		hash = add_part(hash, slot + slots_part_place(part, expert), part->bytes);
	}
	hash |= 1; /* never 0, which means "not loaded yet" */
	if (*sum == 0)
		*sum = hash;
	if (*sum == hash)
		return 0;
	return error_set(err, ESTALE,
		"expert %u of layer %u differs from what was loaded before (%d places of %d bytes "
		"in each of its %d matrices were compared): the model file was written to; its "
		"model is lost, and a restart serves the file as it is then",
		expert, layer, PLACES, PLACE_BYTES, EXPERT_PARTS);
}
