#include "client/cli/doctor/facts.h"

#include "shared/spec/kv_plan.h"

#include <math.h>
#include <stdlib.h>

/* For one token, the demo model gives work to its threads 31 times in 6 layers, the OLMoE shape 97
 * times in 16 (counted with callgrind). */
enum { HAND_OVERS_LAYER = 6 };

static struct kv_layout layout_of(const struct model *model, int64_t tokens)
{
	struct kv_plan plan = kv_plan_default(model);

	plan.tokens = tokens;
	return kv_plan_layout(&plan, model);
}

static uint64_t kv_token_bytes(const struct model *model)
{
	enum { FEW = 1 << 15, MANY = 1 << 16 };
	const struct kv_layout few = layout_of(model, FEW), many = layout_of(model, MANY);
	size_t a = kv_bytes(&few), b = kv_bytes(&many);

	return b > a ? (b - a) / (MANY - FEW) : 0;
}

static void count_experts(struct facts *facts)
{
	const struct model *model = facts->model;
	uint64_t all = 0;

	for (uint32_t i = 0; i < model->config.n_layers; i++) {
		if (!model->layers[i].moe)
			continue;
		facts->moe_layers++;
		all += model_expert_bytes(model, i);
	}
	if (facts->moe_layers == 0)
		return;
	facts->experts = model->config.n_experts;
	facts->used = model->config.n_experts_used;
	facts->expert_bytes = all / facts->moe_layers;
	facts->expert_token_bytes = all * facts->used;
}

int facts_open(const char *path, struct facts *out, struct error *err)
{
	/* Any values will do, because bytes are counted, not times. */
	static const struct peaks peaks = {1, 1, 1, 1, 1};
	struct floor floor;

	*out = (struct facts){0};
	int rc = model_load(path, &out->model, err);
	if (rc == 0) {
		out->geometry = calloc(1, sizeof(*out->geometry));
		if (!out->geometry)
			rc = error_set(err, ENOMEM, "%s: no memory", path);
	}
	if (rc == 0) {
		slots_geometry_init(out->geometry, out->model);
		out->bytes = gguf_bytes(out->model->gguf);
		out->kv_token_bytes = kv_token_bytes(out->model);
		out->hand_overs = HAND_OVERS_LAYER * out->model->config.n_layers;
		count_experts(out);
		rc = facts_floor(out, &peaks, 1, 0, &floor);
		if (rc != 0)
			error_set(err, ENOMEM, "%s: no memory", path);
	}
	if (rc == 0)
		out->dense_token_bytes =
			(uint64_t)(floor.bytes - floor.expert_bytes - floor.kv_bytes);
	else
		facts_close(out);
	return rc;
}

void facts_close(struct facts *facts)
{
	free(facts->geometry);
	facts->geometry = NULL;
	model_free(&facts->model);
}

double facts_distinct(const struct facts *facts, uint32_t n)
{
	double share = (double)facts->used / facts->experts;

	return facts->experts == 0 ? 0 : facts->experts * (1 - pow(1 - share, n));
}

int facts_floor(const struct facts *facts, const struct peaks *peaks, uint32_t n, uint32_t depth,
	struct floor *out)
{
	const struct model *model = facts->model;
	const struct model_config *c = &model->config;
	const struct kv_layout layout = layout_of(model, KV_PAGE_CELLS);
	size_t all = (size_t)c->n_layers * c->n_experts;
	uint16_t *chosen = calloc(all + 1, sizeof(*chosen));
	uint32_t distinct = (uint32_t)lround(facts_distinct(facts, n));

	if (!chosen)
		return -ENOMEM;
	/* It makes no difference which experts these are: all of a layer have the same size. */
	for (uint32_t layer = 0; layer < c->n_layers; layer++)
		for (uint32_t i = 0; model->layers[layer].moe && i < n * c->n_experts_used; i++)
			chosen[(size_t)layer * c->n_experts + i % distinct]++;
	const struct floor_pass pass = {n, n, depth, chosen};
	floor_of(model, &layout, peaks, &pass, out);
	free(chosen);
	return 0;
}
