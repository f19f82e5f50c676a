#include "services/drafter/hints.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void hints_init(struct hints *hints, const struct kernels *kernels)
{
	memset(hints, 0, sizeof(*hints));
	hints->kernels = kernels;
	hints->region.fd = -1;
}

void hints_forget(struct hints *hints)
{
	if (hints->target)
		model_free(&hints->target);
	free(hints->scores);
	free(hints->told);
	hints->scores = NULL;
	hints->told = NULL;
}

void hints_exit(struct hints *hints)
{
	hints_forget(hints);
	region_close(&hints->region);
	memset(hints, 0, sizeof(*hints));
}

static int check(const struct model *target, uint64_t fingerprint, const struct model_config *draft,
	struct error *err)
{
	const struct model_config *config = &target->config;
	if (target->fingerprint != fingerprint)
		return error_set(err, ENOTSUP, "the target's file is not the one that is served");
	if (config->n_experts == 0)
		return error_set(err, ENOTSUP, "the target has no experts");
	if (config->n_embd != draft->n_embd || config->n_layers != draft->n_layers)
		return error_set(err, ENOTSUP,
			"the draft model has %u layers of %u, the target %u of %u", draft->n_layers,
			draft->n_embd, config->n_layers, config->n_embd);
	for (uint32_t l = 0; l < config->n_layers; l++) {
		const struct layer *layer = &target->layers[l];
		const struct tensor_type_info *type = tensor_type_info(layer->router.type);
		if (layer->moe && (!type || type->quantised))
			return error_set(err, ENOTSUP, "the target's routers are quantised");
	}
	return 0;
}

int hints_target(struct hints *hints, const char *path, uint64_t fingerprint,
	const struct model_config *draft, struct error *err)
{
	hints_forget(hints);
	struct model *target;
	int r = model_load(path, &target, err);
	if (r < 0)
		return r;
	r = check(target, fingerprint, draft, err);
	if (r < 0) {
		model_free(&target);
		return r;
	}
	hints->target = target;
	size_t bits = (size_t)target->config.n_layers * target->config.n_experts;
	hints->told_words = (bits + 63) / 64;
	hints->told = calloc(hints->told_words, sizeof(*hints->told));
	hints->scores = calloc(target->config.n_experts, sizeof(*hints->scores));
	if (!hints->told || !hints->scores) {
		hints_forget(hints);
		return error_set(err, ENOMEM, "no memory for expert hints");
	}
	return 0;
}

int hints_attach(struct hints *hints, struct region *region, struct error *err)
{
	hints->attached = false;
	region_close(&hints->region);
	hints->region = *region;
	*region = (struct region){.fd = -1};
	if (!hints->region.header)
		return 0;
	int r = slots_hinter_attach(&hints->hinter, &hints->region, err);
	if (r < 0) {
		region_close(&hints->region);
		hints->region = (struct region){.fd = -1};
		return r;
	}
	hints->attached = true;
	return 0;
}

/* Not every expert has a slot. */
static bool useful(const struct hints *hints)
{
	const struct model_config *config = &hints->target->config;
	uint64_t n_total = 0;
	for (uint32_t l = 0; l < config->n_layers; l++)
		n_total += hints->target->layers[l].moe ? config->n_experts : 0;
	return atomic_load_explicit(&hints->hinter.header->budget, memory_order_relaxed) < n_total;
}

bool hints_wanted(const struct hints *hints)
{
	return hints->target && hints->attached &&
	       hints->hinter.header->model_fingerprint == hints->target->file_fingerprint &&
	       useful(hints);
}

void hints_round(struct hints *hints)
{
	if (hints->told)
		memset(hints->told, 0, hints->told_words * sizeof(*hints->told));
}

static uint32_t best(const float *scores, uint32_t n)
{
	uint32_t at = 0;
	for (uint32_t i = 1; i < n; i++)
		if (scores[i] > scores[at])
			at = i;
	return at;
}

void hints_token(struct hints *hints, uint32_t layer, const float *hidden, uint64_t session)
{
	const struct model_config *config = &hints->target->config;
	if (layer >= config->n_layers || !hints->target->layers[layer].moe)
		return;
	const struct activation x = {.f32 = hidden};
	float *scores = hints->scores;
	uint32_t n = config->n_experts;
	hints->kernels->matmul(
		&hints->target->layers[layer].router, 0, n, &x, 1, (float *const[]){scores});
	/* As moe_route.c scores them, but for groups: a hint may be wrong. */
	const struct layer *target = &hints->target->layers[layer];
	if (target->router_bias)
		hints->kernels->add(scores, target->router_bias, n);
	if (config->routing.gating == GATING_SIGMOID)
		hints->kernels->sigmoid(scores, n);
	else
		hints->kernels->softmax(scores, n);
	if (target->selection_bias)
		hints->kernels->add(scores, target->selection_bias, n);
	for (uint32_t i = 0; i < config->n_experts_used && i < n; i++) {
		uint32_t expert = best(scores, n);
		struct slot_hint hint = {.layer = (uint16_t)layer,
			.expert = (uint16_t)expert,
			.score = scores[expert],
			.session = session};
		scores[expert] = -__builtin_inff();
		size_t bit = (size_t)layer * n + expert;
		uint64_t mask = UINT64_C(1) << (bit & 63);
		if (hints->told[bit / 64] & mask)
			continue;
		hints->told[bit / 64] |= mask;
		if (!slots_resident(&hints->hinter, layer, expert) &&
			slots_hint(&hints->hinter, &hint))
			hints->sent++;
	}
}
