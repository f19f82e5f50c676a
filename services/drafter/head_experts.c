#include "services/drafter/head_experts.h"

#include <string.h>

static struct head_experts *of(struct expert_source *source)
{
	return (struct head_experts *)source;
}

static void let_go(struct head_experts *x)
{
	if (x->arena.backend)
		x->backend->ops->free(&x->arena);
	x->arena = (struct buffer){0};
	x->attachment = 0;
}

/* The cache's slots, if it has this model's, with its layer for drafts; NULL: it has not. */
static struct slots *slots_of(struct head_experts *x)
{
	struct hints *hints = x->hints;
	struct slots *slots = &hints->hinter.slots;
	struct error err;
	if (x->attachment != 0 && (!hints->attached || x->attachment != hints->attachments))
		let_go(x);
	if (x->off || !hints->attached || hints->hinter.header->model_fingerprint != x->model ||
		slots->n_layers != x->layer + 1 ||
		slots->n_experts != x->source.model->config.n_experts ||
		slots->slot_bytes < x->geometry.slot_bytes)
		return NULL;
	if (x->attachment == 0 && x->backend->ops->wrap(x->backend, slots->arena,
					  slots->n_slots * slots->slot_bytes, &x->arena, &err) < 0)
		return NULL;
	x->attachment = hints->attachments;
	return slots;
}

static void head_begin(struct expert_source *source, uint32_t layer, const uint16_t *experts,
	const uint16_t *tokens, uint32_t n)
{
	struct head_experts *x = of(source);
	struct slots *slots = slots_of(x);
	(void)layer;
	x->n = n;
	x->returned = x->n_read = x->n_filed = 0;
	memcpy(x->experts, experts, n * sizeof(*experts));
	source->stats.lookups += n;
	if (!slots)
		return;
	slots_head_used(slots, ++x->iteration, experts, tokens, n);
	slots_hint_wake(&x->hints->hinter);
}

static struct place place_in(const struct head_experts *x, const struct slots *slots, uint32_t slot,
	uint64_t word, int part, uint32_t expert)
{
	const struct slots_part *p = &x->geometry.layers[0].part[part];
	return (struct place){&x->arena,
		(size_t)(slot * slots->slot_bytes) + slots_part_at(p, expert, slot_layout(word))};
}

static int head_ready(struct expert_source *source, struct expert_view *views)
{
	struct head_experts *x = of(source);
	const struct slots *slots = slots_of(x);
	int n = 0;
	for (; x->returned < x->n; x->returned++, n++) {
		uint32_t expert = x->experts[x->returned], slot = SLOT_NONE;
		uint64_t word = 0;
		if (slots)
			slot = slots_peek(slots, x->layer, expert, &word);
		views[n].index = x->returned;
		if (slot == SLOT_NONE) {
			experts_file_view(source->model, &x->file, 0, expert, &views[n]);
			x->filed[x->n_filed++] = (uint16_t)expert;
			x->from_file++;
			continue;
		}
		views[n] = (struct expert_view){
			.index = x->returned,
			.slot = slot,
			.gate = place_in(x, slots, slot, word, EXPERT_GATE, expert),
			.up = place_in(x, slots, slot, word, EXPERT_UP, expert),
			.down = place_in(x, slots, slot, word, EXPERT_DOWN, expert),
			.layout = slot_layout(word),
		};
		x->read[x->n_read].slot = slot;
		x->read[x->n_read++].word = word;
		x->from_slots++;
	}
	source->stats.hits = x->from_slots;
	return n;
}

static void head_used(struct expert_source *source, struct queue *q, ticket t)
{
	(void)source;
	(void)q;
	(void)t;
}

static void head_end(struct expert_source *source)
{
	(void)source;
}

static const struct expert_source_ops head_ops = {
	.name = "head",
	.begin = head_begin,
	.ready = head_ready,
	.used = head_used,
	.end = head_end,
};

int head_experts_init(struct head_experts *x, const struct model *head, uint64_t model,
	uint32_t layer, struct hints *hints, struct backend *backend, struct error *err)
{
	memset(x, 0, sizeof(*x));
	x->source.ops = &head_ops;
	x->source.model = head;
	x->hints = hints;
	x->backend = backend;
	x->model = model;
	x->layer = layer;
	slots_geometry_init(&x->geometry, head);
	return experts_file(head, backend, &x->file, err);
}

void head_experts_exit(struct head_experts *x)
{
	let_go(x);
	if (x->file.backend)
		x->backend->ops->free(&x->file);
}

static void drop_pages(const struct head_experts *x, uint32_t expert)
{
	const struct model *model = x->source.model;
	const struct layer *layer = model->layers;
	const struct expert_tensor *parts[EXPERT_PARTS] = {&layer->gate, &layer->up, &layer->down};
	for (int p = 0; p < EXPERT_PARTS; p++)
		gguf_advise(model->gguf, model_expert_data(parts[p], expert),
			parts[p]->expert_bytes, false);
}

bool head_experts_sound(struct head_experts *x)
{
	const struct slots *slots = &x->hints->hinter.slots;
	bool sound = true;
	for (uint32_t i = 0; i < x->n_read; i++)
		sound &= slots_unchanged(slots, x->read[i].slot, x->read[i].word);
	for (uint32_t i = 0; x->attachment != 0 && i < x->n_filed; i++)
		drop_pages(x, x->filed[i]);
	x->n_read = x->n_filed = 0;
	x->off = !sound;
	return sound;
}
