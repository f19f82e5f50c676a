#include "services/drafter/head_routes.h"

#include "shared/base/round.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int allocate(struct head_routes *r, struct backend *backend, struct error *err)
{
	const struct model_config *c = &r->target->config;
	size_t row = c->n_embd * sizeof(float), all = round_lines(r->n_max * row);
	int rc = backend->ops->alloc(backend, 2 * all, BUFFER_HOST, &r->memory, err);
	if (rc < 0)
		return rc;
	r->states = (struct rows){&r->memory, 0, row, 0};
	r->normed = (struct rows){&r->memory, all, row, 0};
	r->bits = calloc((size_t)r->n_max * r->n_words, sizeof(*r->bits));
	return r->bits ? 0 : error_set(err, ENOMEM, "no memory for a head's experts");
}

int head_routes_init(struct head_routes *r, const struct model *target, uint32_t n_embd,
	struct backend *backend, uint32_t n_max, struct error *err)
{
	const struct model_config *c = &target->config;
	const struct queue_limits limits = {
		.products = 1, .pairs = n_max, .n_experts = c->n_experts};
	memset(r, 0, sizeof(*r));
	if (c->n_experts == 0)
		return error_set(err, ENOTSUP, "the target has no experts");
	if (c->n_embd != n_embd)
		return error_set(err, ENOTSUP, "the head's states have %u values, the target's %u",
			n_embd, c->n_embd);
	r->target = target;
	r->n_max = n_max;
	for (uint32_t l = 0; l < c->n_layers; l++)
		if (target->layers[l].moe)
			r->layer[r->n_moe++] = (uint16_t)l;
	r->n_words = (r->n_moe * c->n_experts + 63) / 64;
	int rc = backend->ops->queue(backend, &limits, &r->queue, err);
	if (rc == 0)
		rc = moe_router_init(&r->router, target, backend, n_max, err);
	r->router.q = r->queue;
	if (rc == 0)
		rc = allocate(r, backend, err);
	if (rc < 0)
		head_routes_exit(r);
	return rc;
}

void head_routes_exit(struct head_routes *r)
{
	if (r->memory.backend)
		r->memory.backend->ops->free(&r->memory);
	moe_router_exit(&r->router);
	if (r->queue)
		r->queue->ops->queue_free(r->queue);
	free(r->bits);
	memset(r, 0, sizeof(*r));
}

void head_routes_begin(struct head_routes *r)
{
	r->n = 0;
}

int head_routes_add(struct head_routes *r, const float *state)
{
	if (r->n == r->n_max)
		return -1;
	memcpy(r->memory.host + r->states.offset + r->n * r->states.stride, state,
		r->states.stride);
	return (int)r->n++;
}

static void add_layer(struct head_routes *r, uint32_t at)
{
	const struct model_config *c = &r->target->config;
	const struct layer *layer = &r->target->layers[r->layer[at]];
	r->states.n = r->normed.n = r->n;
	r->queue->ops->norm(r->queue, &(struct step_norm){
					      .width = c->n_embd,
					      .x = r->states,
					      .w = layer->ffn_norm,
					      .bias = layer->ffn_norm_bias,
					      .eps = c->rms_eps,
					      .y = r->normed,
				      });
	moe_router_run(&r->router, r->layer[at], &r->normed);
	for (uint32_t i = 0; i < r->n; i++) {
		const uint16_t *chosen = r->router.chosen + (size_t)i * c->n_experts_used;
		uint64_t *bits = r->bits + (size_t)i * r->n_words;
		for (uint32_t j = 0; j < c->n_experts_used; j++) {
			uint32_t bit = at * c->n_experts + chosen[j];
			bits[bit / 64] |= UINT64_C(1) << bit % 64;
		}
	}
}

void head_routes_run(struct head_routes *r)
{
	if (r->n == 0)
		return;
	memset(r->bits, 0, (size_t)r->n * r->n_words * sizeof(*r->bits));
	for (uint32_t i = 0; i < r->n_moe; i++)
		if (r->on[i])
			add_layer(r, i);
}
