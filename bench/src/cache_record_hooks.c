/* The hooks of the engines, which record the experts of each layer, its times, and hints. */
#include "bench/src/cache_record.h"

#include "shared/spec/slots.h"

#include <errno.h>
#include <string.h>

/* ---- Hints. ---- */

/* Adds a hint, unless this drafting has made the same one. */
static void add_hint(struct recorder *r, const struct trace_hint *hint)
{
	bool *told = &r->told[(size_t)hint->layer * r->trace.n_experts + hint->expert];
	if (!*told && cache_trace_add_hint(&r->trace, hint) < 0)
		r->status = -ENOMEM;
	*told = true;
}

/* Adds the hints that the target's router of `layer` makes from these tokens, as the service does:
 * each expert once, with the sum of its weights, but none that this drafting has made before. */
static void add_hints(struct recorder *r, enum hint_source source, uint32_t layer,
	const struct rows *hidden, uint64_t start_ns)
{
	moe_router_run(&r->router, layer, hidden);
	uint32_t n_chosen = hidden->n * r->trace.n_experts_used;
	uint32_t at_ns = (uint32_t)(record_clock_ns(r) - start_ns);
	memset(r->scores, 0, r->trace.n_experts * sizeof(*r->scores));
	for (uint32_t i = 0; i < n_chosen; i++)
		r->scores[r->router.chosen[i]] += r->router.weights[i];
	for (uint32_t i = 0; i < n_chosen; i++) {
		uint16_t expert = r->router.chosen[i];
		struct trace_hint hint = {.layer = (uint16_t)layer,
			.expert = expert,
			.source = source,
			.score = r->scores[expert],
			.at_ns = at_ns};
		add_hint(r, &hint);
	}
}

void record_history_hints(struct recorder *r, uint64_t session, uint32_t first, uint32_t n)
{
	struct cache_history *h = &r->history;
	if (r->silent)
		return;
	cache_history_expect(h, session, r->tokens, first, n);
	for (uint32_t o = 0; o < h->history.n_moe; o++) {
		uint32_t chosen = cache_history_choose(h, o);
		uint32_t at_ns = (uint32_t)(record_clock_ns(r) - r->draft_start_ns);
		for (uint32_t i = 0; i < chosen; i++)
			add_hint(r, &(struct trace_hint){.layer = h->history.layer[o],
					    .expert = h->experts[i],
					    .source = HINT_HISTORY,
					    .score = h->score[i],
					    .at_ns = at_ns});
	}
}

void record_learn(struct recorder *r, uint64_t session, uint32_t n)
{
	const struct engine *e = &r->target;
	if (!r->silent)
		cache_history_learn(&r->history, e->batch, n, session,
			e->seq.n > 0 ? r->tokens[e->seq.n - 1] : -1);
}

void record_forget_hints(struct recorder *r)
{
	memset(r->told, 0, (size_t)r->trace.n_layers * r->trace.n_experts * sizeof(*r->told));
}

/* ---- The target's hooks. ---- */

static uint32_t next_moe(const struct recorder *r, uint32_t layer)
{
	do
		layer++;
	while (layer < r->trace.n_layers && !r->trace.moe[layer]);
	return layer;
}

static void add_uses(struct recorder *r, uint32_t n_tokens, const uint16_t *experts)
{
	uint32_t n_experts = r->trace.n_experts;
	memset(r->tokens_of, 0, n_experts * sizeof(*r->tokens_of));
	for (size_t i = 0; i < (size_t)n_tokens * r->trace.n_experts_used; i++)
		r->tokens_of[experts[i]]++;
	for (uint32_t e = 0; e < n_experts; e++) {
		struct trace_use use = {(uint16_t)e, r->tokens_of[e]};
		if (use.tokens > 0 && cache_trace_add_use(&r->trace, use) < 0)
			r->status = -ENOMEM;
	}
}

/* Between attention and experts, when the first half of the layer has ended. */
static void on_layer(void *arg, uint32_t layer, uint32_t n_tokens, const uint16_t *experts,
	const float *weights, const struct rows *hidden)
{
	struct recorder *r = arg;
	uint64_t now_ns = record_clock_ns(r);
	(void)weights;
	if (r->silent || r->status != 0 || experts == NULL)
		return;
	struct trace_layer run = {.layer = layer, .before_ns = (uint32_t)(now_ns - r->mark_ns)};
	if (cache_trace_add_layer(&r->trace, &run) < 0) {
		r->status = -ENOMEM;
		return;
	}
	add_uses(r, n_tokens, experts);
	cache_history_layer(&r->history, layer, n_tokens, experts);
	uint32_t next = next_moe(r, layer);
	uint64_t start_ns = record_clock_ns(r);
	/* The tokens of a prompt would want every expert. */
	if (!r->prefill && next < r->trace.n_layers) {
		record_forget_hints(r);
		add_hints(r, HINT_GATE, next, hidden, start_ns);
	}
	r->mark_ns = record_clock_ns(r);
}

/* Before each layer, and after the last, when the second half of the layer before has ended. */
static void on_residual(void *arg, uint32_t layer, uint32_t n_tokens, const struct rows *x)
{
	struct recorder *r = arg;
	uint64_t now_ns = record_clock_ns(r);
	(void)n_tokens;
	(void)x;
	if (r->silent || r->status != 0)
		return;
	const struct trace_pass *pass = &r->trace.passes[r->trace.n_passes - 1];
	if (layer > 0 && r->trace.moe[layer - 1] && pass->n_layers > 0) {
		r->trace.layers[r->trace.n_layer_runs - 1].after_ns =
			(uint32_t)(now_ns - r->mark_ns);
		r->mark_ns = now_ns;
	}
}

/* The draft model's feed-forward input through the target's router of the same layer (SP-MoE,
 * section 3.2). */
static void on_draft_layer(void *arg, uint32_t layer, uint32_t n_tokens, const uint16_t *experts,
	const float *weights, const struct rows *hidden)
{
	struct recorder *r = arg;
	(void)experts;
	(void)weights;
	if (r->silent || r->status != 0 || !r->trace.moe[layer])
		return;
	/* Only the last token is about to be verified; the tokens that the drafter read before have
	 * been. */
	struct rows last = *hidden;
	last.offset += (n_tokens - 1) * last.stride;
	last.n = 1;
	add_hints(r, HINT_DRAFT, layer, &last, r->draft_start_ns);
}

void record_set_hooks(struct recorder *r)
{
	const struct forward_hooks hooks = {.layer = on_layer, .residual = on_residual, .arg = r};
	forward_set_hooks(r->target.forward, &hooks);
	const struct forward_hooks draft_hooks = {.layer = on_draft_layer, .arg = r};
	if (r->options->drafter == CACHE_DRAFT_MODEL)
		forward_set_hooks(r->draft.forward, &draft_hooks);
}
