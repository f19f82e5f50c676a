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
	const struct layer *layer = &source->model->layers[mapped->layer];
	int n = 0;
	for (; mapped->returned < mapped->n; mapped->returned++, n++) {
		uint16_t expert = mapped->experts[mapped->returned];
		views[n] = (struct expert_view){
			.index = mapped->returned,
			.gate = model_expert_data(&layer->gate, expert),
			.up = model_expert_data(&layer->up, expert),
			.down = model_expert_data(&layer->down, expert),
			.layout = source->model->expert_layout,
		};
	}
	return n;
}

static void mapped_end(struct expert_source *source)
{
	(void)source;
}

static const struct expert_source_ops mapped_ops = {
	.name = "mapped",
	.begin = mapped_begin,
	.ready = mapped_ready,
	.end = mapped_end,
};

void experts_mapped_init(struct experts_mapped *mapped, const struct model *model)
{
	memset(mapped, 0, sizeof(*mapped));
	mapped->source.ops = &mapped_ops;
	mapped->source.model = model;
}
