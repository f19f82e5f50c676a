#include "shared/spec/slots.h"

#include "shared/base/round.h"

#include <string.h>

/* End of the pages that any expert of this part touches; an expert's bytes may begin anywhere
 * within a page. */
static uint64_t area_end(const struct slots_part *part, uint32_t n_experts)
{
	uint64_t most = 0;
	for (uint32_t e = 0; e < n_experts; e++) {
		uint64_t end = round_up(slots_part_place(part, e) + part->bytes, SLOTS_PAGE);
		most = end > most ? end : most;
	}
	return most;
}

/* True when a part follows another in the file, for every expert (gate and up in one tensor), and
 * may do so in the slot as well: packing moves a part down to a cache line. */
static bool follows(
	const struct slots_part *part, const struct slots_part *before, uint32_t n_experts)
{
	if ((before->behind + before->bytes) % CACHE_LINE)
		return false;
	for (uint32_t e = 0; e < n_experts; e++)
		if (slots_part_offset(part, e) != slots_part_offset(before, e) + before->bytes)
			return false;
	return true;
}

/* Sets where part p lies in a slot; end: of the areas before it. */
static void place_part(struct slots_layer_geometry *layer, int p, uint32_t n_experts, uint64_t end)
{
	struct slots_part *part = &layer->part[p];
	part->area = end;
	if (p == 0)
		return;
	const struct slots_part *before = part - 1;
	if (layer->packed)
		part->behind = part->file_offset - layer->part[EXPERT_GATE].file_offset;
	else if (follows(part, before, n_experts))
		part->behind = before->behind + before->bytes;
	if (part->behind)
		part->area = before->area;
}

void slots_geometry_init(struct slots_geometry *geometry, const struct model *model)
{
	memset(geometry, 0, sizeof(*geometry));
	uint32_t own = model->config.n_layers;
	geometry->n_drafting = model->n_drafting;
	geometry->n_layers = own + geometry->n_drafting;
	geometry->n_experts = model->config.n_experts;
	geometry->n_experts_used = model->config.n_experts_used;
	for (uint32_t l = 0; l < geometry->n_layers; l++) {
		const struct layer *layer = l < own ? &model->layers[l] : &model->drafting[l - own];
		struct slots_layer_geometry *out = &geometry->layers[l];
		if (!layer->moe)
			continue;
		const struct expert_tensor *tensors[EXPERT_PARTS] = {
			&layer->gate, &layer->up, &layer->down};
		uint64_t bytes = 0, tiles = 0;
		out->packed = model->packed;
		for (int p = 0; p < EXPERT_PARTS; p++) {
			struct slots_part *part = &out->part[p];
			part->file_offset = tensors[p]->file_offset;
			part->bytes = tensors[p]->expert_bytes;
			part->stride = tensors[p]->expert_stride;
			part->places = tensors[p]->places;
			part->matrix = tensors[p]->shape;
			part->matrix.data = NULL;
			part->matrix.layout = LAYOUT_ROWS;
			place_part(out, p, geometry->n_experts, bytes);
			/* A packed expert stays as it is. Otherwise its matrices move together so
			 * that it takes few pages. Each starts at a cache line, which a kernel
			 * loads at once; files align to 32 bytes only. On the demo model, in pages
			 * of 4 KiB, that is 4 % of a token. */
			part->tiles_at = out->packed ? slots_part_place(part, 0) : tiles;
			tiles = round_up(tiles + part->bytes, CACHE_LINE);
			bytes = area_end(part, geometry->n_experts);
		}
		out->moe = true;
		geometry->n_total += geometry->n_experts;
		if (bytes > geometry->slot_bytes)
			geometry->slot_bytes = bytes;
	}
}

unsigned slots_reads(const struct slots_layer_geometry *layer, uint32_t expert,
	struct slots_read out[static EXPERT_PARTS])
{
	unsigned n = 0;
	for (int p = 0; p < EXPERT_PARTS; p++) {
		const struct slots_part *part = &layer->part[p];
		uint64_t place = slots_part_place(part, expert) - part->area;
		if (n == 0 || part->behind == 0)
			out[n++] = (struct slots_read){
				.offset = slots_part_offset(part, expert) - place,
				.at = part->area,
			};
		out[n - 1].need = (size_t)(place + part->bytes);
		out[n - 1].bytes = (size_t)round_up(out[n - 1].need, SLOTS_PAGE);
	}
	return n;
}

uint32_t slots_min(const struct slots_geometry *geometry)
{
	uint32_t most = geometry->n_experts_used * (LIMIT_DRAFT_SHARE + 1);
	return most < geometry->n_experts ? most : geometry->n_experts;
}

/* The offsets of a shape, which are the same on both sides; *bytes: size of the payload. */
static bool lay_out(const struct slots_shape *shape, struct slots_header *out, uint64_t *bytes)
{
	if (shape->n_layers == 0 || shape->n_layers > LIMIT_LAYERS || shape->n_experts == 0 ||
		shape->n_experts > LIMIT_EXPERTS || shape->n_slots == 0 ||
		shape->n_slots > SLOTS_MAX || shape->slot_bytes == 0 ||
		shape->slot_bytes % SLOTS_PAGE != 0 || shape->slot_bytes > (1ull << 40))
		return false;
	uint64_t at = round_up(sizeof(*out), CACHE_LINE);
	out->demand_offset = at;
	at += ring_bytes(SLOT_DEMAND_BYTES, SLOTS_DEMAND_RING);
	out->activation_offset = at = round_up(at, CACHE_LINE);
	at += ring_bytes(SLOT_ACTIVATION_BYTES, SLOTS_ACTIVATION_RING);
	out->gate_offset = at = round_up(at, CACHE_LINE);
	at += ring_bytes(SLOT_HINT_BYTES, SLOTS_GATE_RING);
	out->counts_offset = at = round_up(at, CACHE_LINE);
	at += shape->n_layers * sizeof(struct slots_counts);
	out->table_offset = at = round_up(at, CACHE_LINE);
	at += (uint64_t)shape->n_layers * shape->n_experts * sizeof(uint32_t);
	out->uses_offset = at = round_up(at, CACHE_LINE);
	at += (uint64_t)shape->n_layers * shape->n_experts * sizeof(uint64_t);
	out->state_offset = at = round_up(at, CACHE_LINE);
	at += shape->n_slots * sizeof(uint64_t);
	out->used_offset = at = round_up(at, CACHE_LINE);
	at += shape->n_slots * sizeof(uint64_t);
	out->sums_offset = at = round_up(at, CACHE_LINE);
	at += shape->n_slots * sizeof(uint64_t);
	/* Aligned in the mapping, not in the payload: the region's header comes first. */
	out->arena_offset = at = round_up(at + REGION_DATA, SLOTS_PAGE) - REGION_DATA;
	*bytes = at + shape->n_slots * shape->slot_bytes;
	return true;
}

uint64_t slots_payload_bytes(const struct slots_shape *shape)
{
	struct slots_header offsets;
	uint64_t bytes;
	return lay_out(shape, &offsets, &bytes) ? bytes : 0;
}

void slots_format(const struct region *region, const struct slots_shape *shape)
{
	unsigned char *payload = region_payload(region);
	struct slots_header *header = (struct slots_header *)payload;
	uint64_t bytes;
	if (!lay_out(shape, header, &bytes))
		return;
	header->n_layers = shape->n_layers;
	header->n_experts = shape->n_experts;
	header->n_experts_used = shape->n_experts_used;
	header->n_slots = shape->n_slots;
	header->slot_bytes = shape->slot_bytes;
	atomic_store_explicit(&header->budget, shape->n_slots, memory_order_relaxed);
	header->model_fingerprint = shape->model_fingerprint;
	ring_format(payload + header->demand_offset, SLOT_DEMAND_BYTES, SLOTS_DEMAND_RING);
	ring_format(
		payload + header->activation_offset, SLOT_ACTIVATION_BYTES, SLOTS_ACTIVATION_RING);
	ring_format(payload + header->gate_offset, SLOT_HINT_BYTES, SLOTS_GATE_RING);
}

/* Reads the header once: later reads could differ. */
static int check_header(const struct region *region, const struct slots_header *header,
	const struct slots_shape *expected, struct slots_header *offsets, struct slots_shape *shape,
	struct error *err)
{
	*shape = (struct slots_shape){
		.n_layers = header->n_layers,
		.n_experts = header->n_experts,
		.n_experts_used = header->n_experts_used,
		.n_slots = header->n_slots,
		.slot_bytes = header->slot_bytes,
		.model_fingerprint = header->model_fingerprint,
	};
	uint64_t bytes;
	if (!lay_out(shape, offsets, &bytes) || bytes > region->bytes - REGION_DATA)
		return error_set(err, EBADMSG,
			"expert region: %u slots of %llu bytes for %u layers of %u experts do not "
			"fit its %zu bytes",
			shape->n_slots, (unsigned long long)shape->slot_bytes, shape->n_layers,
			shape->n_experts, region->bytes);
	if (header->demand_offset != offsets->demand_offset ||
		header->activation_offset != offsets->activation_offset ||
		header->gate_offset != offsets->gate_offset ||
		header->counts_offset != offsets->counts_offset ||
		header->table_offset != offsets->table_offset ||
		header->uses_offset != offsets->uses_offset ||
		header->state_offset != offsets->state_offset ||
		header->used_offset != offsets->used_offset ||
		header->sums_offset != offsets->sums_offset ||
		header->arena_offset != offsets->arena_offset)
		return error_set(err, EBADMSG, "expert region: its offsets are not layout %d's",
			EXPERTS_LAYOUT);
	if (expected == NULL)
		return 0;
	if (shape->model_fingerprint != expected->model_fingerprint)
		return error_set(err, ESTALE,
			"expert region: its experts are of another model (fingerprint %016llx) "
			"than the one that this process has open (%016llx)",
			(unsigned long long)shape->model_fingerprint,
			(unsigned long long)expected->model_fingerprint);
	if (shape->n_layers != expected->n_layers || shape->n_experts != expected->n_experts ||
		shape->slot_bytes != expected->slot_bytes ||
		(expected->n_slots != 0 && shape->n_slots != expected->n_slots))
		return error_set(err, ESTALE,
			"expert region: %u layers, %u experts, %u slots of %llu bytes, where %u, "
			"%u, %u of %llu were expected",
			shape->n_layers, shape->n_experts, shape->n_slots,
			(unsigned long long)shape->slot_bytes, expected->n_layers,
			expected->n_experts, expected->n_slots,
			(unsigned long long)expected->slot_bytes);
	return 0;
}

int slots_map(const struct region *region, const struct slots_shape *expected, struct slots *out,
	struct error *err)
{
	unsigned char *payload = region_payload(region);
	if (region->bytes < REGION_DATA + sizeof(struct slots_header))
		return error_set(
			err, EBADMSG, "expert region: %zu bytes hold no header", region->bytes);
	struct slots_header *header = (struct slots_header *)payload;
	struct slots_header at = {0};
	struct slots_shape shape;
	int status = check_header(region, header, expected, &at, &shape, err);
	if (status != 0)
		return status;
	struct slots slots = {
		.header = header,
		.n_layers = shape.n_layers,
		.n_experts = shape.n_experts,
		.n_slots = shape.n_slots,
		.slot_bytes = shape.slot_bytes,
		.counts = (struct slots_counts *)(payload + at.counts_offset),
		.table = (_Atomic uint32_t *)(payload + at.table_offset),
		.uses = (_Atomic uint64_t *)(payload + at.uses_offset),
		.state = (_Atomic uint64_t *)(payload + at.state_offset),
		.used = (_Atomic uint64_t *)(payload + at.used_offset),
		.sums = (_Atomic uint64_t *)(payload + at.sums_offset),
		.arena = payload + at.arena_offset,
	};
	const struct {
		struct ring *ring;
		uint64_t offset, end;
		size_t slot_bytes;
	} rings[] = {
		{&slots.demands, at.demand_offset, at.activation_offset, SLOT_DEMAND_BYTES},
		{&slots.activations, at.activation_offset, at.gate_offset, SLOT_ACTIVATION_BYTES},
		{&slots.gates, at.gate_offset, at.counts_offset, SLOT_HINT_BYTES},
	};
	for (size_t i = 0; i < sizeof(rings) / sizeof(rings[0]); i++) {
		status = ring_attach(rings[i].ring, payload + rings[i].offset,
			rings[i].end - rings[i].offset, rings[i].slot_bytes, err);
		if (status != 0)
			return error_prefix(err, status, "expert region");
	}
	*out = slots;
	return 0;
}

static size_t heads_offset(void)
{
	return round_up(sizeof(struct slots_hints) + ring_bytes(SLOT_HINT_BYTES, SLOTS_HINT_RING),
		CACHE_LINE);
}

size_t slots_hints_bytes(void)
{
	return heads_offset() + ring_bytes(SLOT_ACTIVATION_BYTES, SLOTS_HEAD_RING);
}

void slots_hints_format(const struct region *hints)
{
	struct slots_hints *payload = region_payload(hints);
	ring_format(payload + 1, SLOT_HINT_BYTES, SLOTS_HINT_RING);
	ring_format((char *)payload + heads_offset(), SLOT_ACTIVATION_BYTES, SLOTS_HEAD_RING);
}

int slots_map_hints(const struct region *hints, struct slots *slots, struct error *err)
{
	struct slots_hints *payload = region_payload(hints);
	if (hints->bytes < REGION_DATA + slots_hints_bytes())
		return error_set(err, EBADMSG, "region of hints: %zu bytes, expected %zu",
			hints->bytes, REGION_DATA + slots_hints_bytes());
	int status = ring_attach(&slots->hints, payload + 1, heads_offset() - sizeof(*payload),
		SLOT_HINT_BYTES, err);
	if (status == 0)
		status = ring_attach(&slots->heads, (char *)payload + heads_offset(),
			slots_hints_bytes() - heads_offset(), SLOT_ACTIVATION_BYTES, err);
	if (status != 0)
		return error_prefix(err, status, "region of hints");
	slots->hinted = payload;
	return 0;
}
