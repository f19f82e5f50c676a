#include "shared/model/pass/experts.h"

#include <assert.h>
#include <string.h>

static void mapped_begin(struct expert_source *source, uint32_t layer, const uint16_t *experts,
	const uint16_t *tokens, uint32_t n)
{
	struct experts_mapped *mapped = (struct experts_mapped *)source;
	(void)tokens;
	assert(n <= LIMIT_EXPERTS && layer < source->model->config.n_layers);
	mapped->layer = layer;
	mapped->n = n;
	mapped->returned = 0;
	memcpy(mapped->experts, experts, n * sizeof(*experts));
	source->stats.lookups += n;
	source->stats.hits += n;
}

static int mapped_ready(struct expert_source *source, struct expert_view *views)
{
	struct experts_mapped *mapped = (struct experts_mapped *)source;
	int n = 0;
	for (; mapped->returned < mapped->n; mapped->returned++, n++) {
		views[n] = (struct expert_view){.index = mapped->returned};
		experts_file_view(source->model, &mapped->file, mapped->layer,
			mapped->experts[mapped->returned], &views[n]);
	}
	return n;
}

static void mapped_used(struct expert_source *source, struct queue *q, ticket t)
{
	(void)source;
	(void)q;
	(void)t;
}

static void mapped_end(struct expert_source *source)
{
	(void)source;
}

static void mapped_chose(struct expert_source *source, uint32_t layer, const uint16_t *experts,
	const uint16_t *tokens, uint32_t n)
{
	(void)layer;
	(void)experts;
	(void)tokens;
	source->stats.lookups += n;
	source->stats.hits += n;
}

static uint64_t mapped_settled(struct expert_source *source)
{
	(void)source;
	return 1;
}

static void mapped_place(
	struct expert_source *source, uint32_t layer, uint16_t expert, struct expert_view *view)
{
	const struct experts_mapped *mapped = (const struct experts_mapped *)source;
	experts_file_view(source->model, &mapped->file, layer, expert, view);
}

static const struct expert_source_ops mapped_ops = {
	.name = "mapped",
	.begin = mapped_begin,
	.ready = mapped_ready,
	.used = mapped_used,
	.end = mapped_end,
	.settled = mapped_settled,
	.place = mapped_place,
	.chose = mapped_chose,
};

/* Extends first..end by the memory of a layer's experts. */
static void widen(const struct model_config *config, const struct expert_tensor *tensor,
	uintptr_t *first, uintptr_t *end)
{
	for (uint32_t e = 0; e < config->n_experts; e++) {
		uintptr_t at = (uintptr_t)model_expert_data(tensor, e);
		*first = at < *first ? at : *first;
		*end = at + tensor->expert_bytes > *end ? at + tensor->expert_bytes : *end;
	}
}

/* The memory of all experts, and of what lies between them; returns its bytes. */
static size_t span(const struct model *model, uintptr_t *first)
{
	uintptr_t end = 0;
	*first = UINTPTR_MAX;
	for (uint32_t i = 0; i < model->config.n_layers; i++) {
		const struct layer *layer = &model->layers[i];
		if (!layer->moe)
			continue;
		widen(&model->config, &layer->gate, first, &end);
		widen(&model->config, &layer->up, first, &end);
		widen(&model->config, &layer->down, first, &end);
	}
	return end == 0 ? 0 : end - *first;
}

size_t experts_file_bytes(const struct model *model)
{
	uintptr_t first;
	return span(model, &first);
}

int experts_file(
	const struct model *model, struct backend *backend, struct buffer *out, struct error *err)
{
	uintptr_t first;
	size_t bytes = span(model, &first);
	*out = (struct buffer){0};
	return bytes == 0
		       ? 0
		       : backend->ops->wrap_weights(backend, (const void *)first, bytes, out, err);
}

static struct place place_of(
	const struct buffer *file, const struct expert_tensor *tensor, uint32_t expert)
{
	const unsigned char *data = model_expert_data(tensor, expert);
	return (struct place){file, (size_t)(data - file->host)};
}

void experts_file_view(const struct model *model, const struct buffer *file, uint32_t layer,
	uint32_t expert, struct expert_view *view)
{
	const struct layer *l = &model->layers[layer];
	view->slot = EXPERT_NO_SLOT;
	view->gate = place_of(file, &l->gate, expert);
	view->up = place_of(file, &l->up, expert);
	view->down = place_of(file, &l->down, expert);
	view->layout = model->expert_layout;
}

int experts_mapped_init(struct experts_mapped *mapped, const struct model *model,
	struct backend *backend, struct error *err)
{
	memset(mapped, 0, sizeof(*mapped));
	mapped->source.ops = &mapped_ops;
	mapped->source.model = model;
	return experts_file(model, backend, &mapped->file, err);
}

void experts_mapped_exit(struct experts_mapped *mapped)
{
	if (mapped->file.backend)
		mapped->file.backend->ops->free(&mapped->file);
	memset(mapped, 0, sizeof(*mapped));
}
