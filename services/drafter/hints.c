#include "services/drafter/hints.h"

#include "shared/base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The most that is believed of a peer's figure for the time of a layer. */
#define LAYER_NS_MAX 1000000000u

void hints_init(struct hints *hints, const struct drafter_config *config)
{
	memset(hints, 0, sizeof(*hints));
	hints->config = config;
	hints->experts.fd = hints->region.fd = -1;
	expert_history_init(&hints->history);
}

static void detach(struct hints *hints)
{
	hints->attached = false;
	free(hints->told);
	free(hints->chosen);
	free(hints->score);
	hints->told = NULL;
	hints->chosen = NULL;
	hints->score = NULL;
}

void hints_exit(struct hints *hints)
{
	hints_no_target(hints);
	hints_head(hints, NULL);
	detach(hints);
	region_close(&hints->experts);
	region_close(&hints->region);
	expert_history_exit(&hints->history);
}

static int allocate(struct hints *hints, struct error *err)
{
	const struct slots *slots = &hints->hinter.slots;
	hints->told_words = ((size_t)slots->n_layers * slots->n_experts + 63) / 64;
	hints->told = calloc(hints->told_words, sizeof(*hints->told));
	hints->chosen = calloc(slots->n_experts, sizeof(*hints->chosen));
	hints->score = calloc(slots->n_experts, sizeof(*hints->score));
	if (!hints->told || !hints->chosen || !hints->score)
		return error_set(err, ENOMEM, "no memory for expert hints");
	return 0;
}

/* Drops the history of another model. */
static int shape_history(struct hints *hints, struct error *err)
{
	const struct slots_header *header = hints->hinter.header;
	const struct slots *slots = &hints->hinter.slots;
	if (hints->history.memory && hints->fingerprint == header->model_fingerprint &&
		hints->history.n_layers == slots->n_layers &&
		hints->history.n_experts == slots->n_experts)
		return 0;
	hints->fingerprint = header->model_fingerprint;
	return expert_history_shape(&hints->history, slots->n_layers, slots->n_experts,
		header->n_experts_used, (size_t)hints->config->history, err);
}

static void take_over(struct region *own, struct region *given)
{
	if (!given)
		return;
	region_close(own);
	*own = *given;
	*given = (struct region){.fd = -1};
}

int hints_attach(
	struct hints *hints, struct region *experts, struct region *region, struct error *err)
{
	detach(hints);
	take_over(&hints->experts, experts);
	take_over(&hints->region, region);
	if (!hints->experts.header || !hints->region.header)
		return 0;
	int r = slots_hinter_attach(&hints->hinter, &hints->experts, &hints->region, err);
	if (r == 0)
		r = allocate(hints, err);
	if (r == 0)
		r = shape_history(hints, err);
	if (r < 0) {
		detach(hints);
		return r;
	}
	ring_mend_producer(&hints->hinter.hints);
	hints->iteration = hints->asked = 0;
	hints->attached = true;
	hints->attachments++;
	return 0;
}

/* Whether the loaded routers are of the model whose experts the region holds. */
static bool target_fits(const struct hints *hints)
{
	return hints->target &&
	       hints->hinter.header->model_fingerprint == hints->target->file_fingerprint &&
	       hints->target->config.n_layers <= hints->hinter.slots.n_layers &&
	       hints->target->config.n_experts <= hints->hinter.slots.n_experts;
}

bool hints_wanted(const struct hints *hints, enum hint_source source)
{
	if (hints->config->hints == CHOICE_OFF || !hints->attached ||
		!slots_hint_wanted(&hints->hinter, source))
		return false;
	return source == HINT_DRAFT ? target_fits(hints) : hints->history.memory != NULL;
}

static void begin_pass(struct hints *hints, uint64_t iteration)
{
	if (iteration == hints->iteration)
		return;
	hints->iteration = iteration;
	hints->verify_ns = 0;
	if (hints->told)
		memset(hints->told, 0, hints->told_words * sizeof(*hints->told));
	expert_history_begin(&hints->history);
}

void hints_request(struct hints *hints, uint64_t iteration)
{
	hints->asked = iteration;
	begin_pass(hints, iteration);
}

static uint64_t verify_layer_ns(const struct hints *hints)
{
	uint64_t ns = atomic_load_explicit(
		&hints->hinter.header->verify_layer_wall_ns, memory_order_relaxed);
	return ns < LAYER_NS_MAX ? ns : LAYER_NS_MAX;
}

void hints_ahead(struct hints *hints)
{
	if (!hints->attached || hints->asked == 0 || hints->n_moe == 0)
		return;
	begin_pass(hints, hints->asked + hints->n_moe);
	hints->verify_ns = clock_ns() + hints->hinter.slots.n_layers * verify_layer_ns(hints);
}

void hints_measured(struct hints *hints, uint32_t n_tokens, bool by_model)
{
	if (!hints->attached)
		return;
	struct slots_hints *said = hints->hinter.slots.hinted;
	/* Divided by the target's layers, whatever the draft model's are (MoE-SpAc, equation 10:
	 * T_draft / L_target). */
	uint64_t layer_ns = by_model ? hints->step_ns / hints->hinter.slots.n_layers : 0;
	atomic_store_explicit(&said->draft_tokens, n_tokens, memory_order_relaxed);
	atomic_store_explicit(&said->draft_layer_ns, layer_ns, memory_order_relaxed);
}

uint64_t hints_needed_by(const struct hints *hints, uint32_t layer, uint64_t now_ns)
{
	uint64_t begin_ns = hints->verify_ns > now_ns ? hints->verify_ns : now_ns;
	/* Half of the time is added, because the cache does not load what it believes to be too
	 * late, and loading times vary. */
	return begin_ns + (layer + 1) * verify_layer_ns(hints) * 3 / 2;
}

void hints_tell(struct hints *hints, enum hint_source source, uint32_t layer, uint32_t ordinal,
	uint32_t expert, float score, uint64_t session, uint64_t now_ns)
{
	const struct slots *slots = &hints->hinter.slots;
	if (layer >= slots->n_layers || expert >= slots->n_experts)
		return;
	size_t bit = (size_t)layer * slots->n_experts + expert;
	uint64_t mask = UINT64_C(1) << (bit & 63);
	if (hints->told[bit / 64] & mask)
		return;
	hints->told[bit / 64] |= mask;
	const struct slot_hint hint = {
		.layer = (uint16_t)layer,
		.expert = (uint16_t)expert,
		.score = score,
		.source = source,
		.session = session,
		.needed_by_ns = hints_needed_by(hints, layer, now_ns),
		.made_ns = now_ns,
		.iteration = hints->iteration + ordinal,
	};
	if (!slots_hint(&hints->hinter, &hint))
		return;
	hints->missing |= !slots_resident(&hints->hinter, layer, expert);
	atomic_fetch_add_explicit(&hints->sent[source], 1, memory_order_relaxed);
}

void hints_flush(struct hints *hints)
{
	if (hints->missing)
		slots_hint_wake(&hints->hinter);
	hints->missing = false;
}
