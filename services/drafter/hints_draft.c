#include "services/drafter/hints.h"
#include "shared/base/clock.h"

#include <errno.h>
#include <stdlib.h>

void hints_no_target(struct hints *hints)
{
	if (!hints->target)
		return;
	moe_router_exit(&hints->router);
	hints->routing->ops->queue_free(hints->routing);
	hints->routing = NULL;
	model_free(&hints->target);
	hints->n_moe = 0;
}

/* A queue for this alone: the one of the draft model's passes has no room for routers unless the
 * draft model has some, and then only for its own. */
static int open_router(
	struct hints *hints, const struct model *target, struct backend *backend, struct error *err)
{
	const struct queue_limits limits = {
		.products = 1, .pairs = 1, .n_experts = target->config.n_experts};
	int r = backend->ops->queue(backend, &limits, &hints->routing, err);
	if (r < 0)
		return r;
	r = moe_router_init(&hints->router, target, backend, 1, err);
	if (r < 0) {
		backend->ops->queue_free(hints->routing);
		hints->routing = NULL;
		return r;
	}
	hints->router.q = hints->routing;
	hints->router.alone = true;
	return 0;
}

static int check(const struct model *target, uint64_t fingerprint, const struct model_config *draft,
	struct error *err)
{
	const struct model_config *config = &target->config;
	if (target->fingerprint != fingerprint)
		return error_set(err, ENOTSUP, "the target's file is not the served file");
	if (config->n_experts == 0)
		return error_set(err, ENOTSUP, "the target has no experts");
	if (config->n_embd != draft->n_embd || config->n_layers != draft->n_layers)
		return error_set(err, ENOTSUP,
			"the draft model has %u layers of %u, the target %u of %u", draft->n_layers,
			draft->n_embd, config->n_layers, config->n_embd);
	return 0;
}

int hints_target(struct hints *hints, const char *path, uint64_t fingerprint,
	const struct model_config *draft, struct backend *backend, struct error *err)
{
	hints_no_target(hints);
	struct model *target;
	int r = model_load(path, &target, err);
	if (r < 0)
		return r;
	r = check(target, fingerprint, draft, err);
	if (r == 0)
		r = open_router(hints, target, backend, err);
	if (r < 0) {
		model_free(&target);
		return r;
	}
	hints->target = target;
	for (uint32_t l = 0; l < target->config.n_layers; l++)
		if (target->layers[l].moe)
			hints->ordinal[l] = (uint16_t)hints->n_moe++;
	return 0;
}

void hints_step(struct hints *hints, uint32_t steps_left)
{
	hints->verify_ns = hints->step_ns ? clock_ns() + steps_left * hints->step_ns : 0;
}

void hints_step_took(struct hints *hints, uint64_t step_ns)
{
	hints->step_ns = hints->step_ns ? (7 * hints->step_ns + step_ns) / 8 : step_ns;
}

void hints_token(struct hints *hints, uint32_t layer, const struct rows *hidden, uint64_t session)
{
	const struct model *target = hints->target;
	if (hints->iteration == 0 || layer >= target->config.n_layers || !target->layers[layer].moe)
		return;
	moe_router_run(&hints->router, layer, hidden);
	uint64_t now_ns = clock_ns();
	for (uint32_t j = 0; j < target->config.n_experts_used; j++)
		hints_tell(hints, HINT_DRAFT, layer, hints->ordinal[layer], hints->router.chosen[j],
			hints->router.weights[j], session, now_ns);
}
