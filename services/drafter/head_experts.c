#include "services/drafter/head_experts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct head_experts *from(struct expert_source *source)
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

/* The cache's slots, if it has this model's, with all of its layers; NULL: it has not. */
static struct slots *slots_of(struct head_experts *x)
{
	struct hints *hints = x->hints;
	struct slots *slots = &hints->hinter.slots;
	struct error err;
	if (x->attachment != 0 && (!hints->attached || x->attachment != hints->attachments))
		let_go(x);
	if (x->off || !hints->attached || hints->hinter.header->model_fingerprint != x->of.model ||
		slots->n_layers != x->of.n_cached ||
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
	struct head_experts *x = from(source);
	struct slots *slots = slots_of(x);
	/* The layers of a pass ascend. */
	if (layer <= x->layer)
		x->n_read = 0;
	x->layer = layer;
	x->n = n;
	x->returned = 0;
	memcpy(x->experts, experts, n * sizeof(*experts));
	source->stats.lookups += n;
	if (!slots || !x->of.tells)
		return;
	slots_head_used(slots, ++x->hints->head_uses, x->of.layer[layer], experts, tokens, n);
	slots_hint_wake(&x->hints->hinter);
}

static struct place place_in(const struct head_experts *x, const struct slots *slots, uint32_t slot,
	uint64_t word, int part, uint32_t expert)
{
	const struct slots_part *p = &x->geometry.layers[x->layer].part[part];
	return (struct place){&x->arena,
		(size_t)(slot * slots->slot_bytes) + slots_part_at(p, expert, slot_layout(word))};
}

static int head_ready(struct expert_source *source, struct expert_view *views)
{
	struct head_experts *x = from(source);
	const struct slots *slots = slots_of(x);
	int n = 0;
	for (; x->returned < x->n; x->returned++, n++) {
		struct head_expert *read = &x->read[x->n_read++];
		uint32_t expert = x->experts[x->returned], slot = SLOT_NONE;
		uint64_t word = 0;
		if (slots)
			slot = slots_peek(slots, x->of.layer[x->layer], expert, &word);
		*read = (struct head_expert){(uint16_t)x->layer, (uint16_t)expert, slot, word};
		views[n].index = x->returned;
		if (slot == SLOT_NONE) {
			experts_file_view(source->model, &x->file, x->layer, expert, &views[n]);
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

/* The most experts that a pass reads: each of each layer. */
static uint32_t read_max(const struct model *model)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < model->config.n_layers; i++)
		n += model->layers[i].moe ? model->config.n_experts : 0;
	return n;
}

int head_experts_init(struct head_experts *x, const struct model *source,
	const struct head_experts_of *of, struct hints *hints, struct backend *backend,
	struct error *err)
{
	memset(x, 0, sizeof(*x));
	x->source.ops = &head_ops;
	x->source.model = source;
	x->of = *of;
	x->hints = hints;
	x->backend = backend;
	slots_geometry_init(&x->geometry, source);
	x->n_read_max = read_max(source);
	x->read = calloc(x->n_read_max + 1, sizeof(*x->read));
	if (!x->read)
		return error_set(err, ENOMEM, "no memory for a draft's experts");
	return experts_file(source, backend, &x->file, err);
}

void head_experts_exit(struct head_experts *x)
{
	let_go(x);
	free(x->read);
	x->read = NULL;
	if (x->file.backend)
		x->backend->ops->free(&x->file);
}

static void drop_pages(const struct head_experts *x, uint32_t at, uint32_t expert)
{
	const struct model *model = x->source.model;
	const struct layer *layer = &model->layers[at];
	const struct expert_tensor *parts[EXPERT_PARTS] = {&layer->gate, &layer->up, &layer->down};
	for (int p = 0; p < EXPERT_PARTS; p++)
		gguf_advise(model->gguf, model_expert_data(parts[p], expert),
			parts[p]->expert_bytes, false);
}

bool head_experts_sound(struct head_experts *x)
{
	const struct slots *slots = &x->hints->hinter.slots;
	bool sound = true;
	for (uint32_t i = 0; i < x->n_read; i++) {
		const struct head_expert *read = &x->read[i];
		if (read->slot != SLOT_NONE)
			sound &= slots_unchanged(slots, read->slot, read->word);
		else if (x->attachment != 0)
			drop_pages(x, read->layer, read->expert);
	}
	x->n_read = 0;
	x->off = !sound;
	return sound;
}

int head_experts_run(struct head_experts *x, struct forward *forward,
	const struct batch_token *batch, uint32_t n)
{
	int r = forward_run(forward, batch, n);
	if (r < 0 || head_experts_sound(x))
		return r;
	r = forward_run(forward, batch, n);
	(void)head_experts_sound(x);
	return r;
}
