/*
 * Passes whose experts the back end finds by itself, because it knows where all of them lie: no layer
 * waits for the host, and the pass is one section.
 */
#include "shared/model/pass/forward_internal.h"

/* Where memory is estimated there is no source yet. */
static bool can(const struct forward *f)
{
	return f->model->config.n_experts > 0 && f->backend->ops->know_experts &&
	       (!f->experts || f->experts->ops->settled);
}

uint32_t moe_known_limit(const struct forward *f)
{
	return can(f) ? f->model->config.n_layers * f->model->config.n_experts : 0;
}

static void tell(struct forward *f, uint32_t layer)
{
	uint32_t n = f->model->config.n_experts;
	f->layer = layer;
	for (uint32_t e = 0; e < n; e++) {
		const struct expert_use use = {.expert = (uint16_t)e};
		f->experts->ops->place(f->experts, layer, (uint16_t)e, &f->views[e]);
		f->ready[e] = moe_expert(f, &f->views[e], &use);
	}
	const struct ffn shape = moe_shape(f);
	f->queue->ops->know_experts(f->queue, &shape, f->ready, layer * n, n);
}

void moe_known_begin(struct forward *f)
{
	f->whole = can(f) && f->n <= FORWARD_GRAPH_TOKENS && !f->hooks.layer && f->n_budgets == 0 &&
		   f->n_gated == 0;
	uint64_t settled = f->whole ? f->experts->ops->settled(f->experts) : 0;
	f->whole = settled != 0;
	if (!f->whole)
		return;
	*f->n_chosen = 0;
	for (uint32_t l = 0; settled != f->known && l < f->model->config.n_layers; l++)
		if (f->model->layers[l].moe)
			tell(f, l);
	f->known = settled;
}

void moe_known_layer(struct forward *f)
{
	const struct model_config *config = &f->model->config;
	struct step_experts step = {
		.shape = moe_shape(f),
		.order = f->order,
		.known = f->layer * config->n_experts,
		.n_chosen = batch_place(f, f->n_chosen),
		.n_used = config->n_experts_used,
		.pairs = f->order.pairs,
		.in = inputs_of(f, f->h, f->h_q8, config->n_embd),
		.y = floats_of(f, f->down, config->n_embd),
	};
	step.y.n = f->n * config->n_experts_used;
	times_mark(f, TIMELINE_DEVICE_EXPERTS);
	f->queue->ops->experts(f->queue, &step);
}

/* The distinct experts that a layer's rows chose, ascending, and by how many each was chosen. */
static void tell_choice(struct forward *f)
{
	uint32_t n_tokens = f->n - f->n_padding, n = 0;
	const uint16_t *chosen = moe_chosen(f);
	uint16_t tokens[LIMIT_EXPERTS] = {0};
	for (uint32_t i = 0; i < n_tokens * f->model->config.n_experts_used; i++)
		tokens[chosen[i]]++;
	for (uint32_t e = 0; e < f->model->config.n_experts; e++) {
		if (tokens[e] == 0)
			continue;
		f->distinct[n] = (uint16_t)e;
		f->distinct_tokens[n++] = tokens[e];
	}
	f->experts->ops->chose(f->experts, f->layer, f->distinct, f->distinct_tokens, n);
	if (f->hooks.routed)
		f->hooks.routed(f->hooks.arg, f->layer, n_tokens, chosen);
}

void moe_known_end(struct forward *f, bool ended)
{
	if (!f->whole || !ended)
		return;
	f->stats.unique_experts = *f->n_chosen;
	for (f->layer = 0; f->layer < f->model->config.n_layers; f->layer++)
		if (f->model->layers[f->layer].moe)
			tell_choice(f);
}
