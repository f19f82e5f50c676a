#include "services/verifier/pass/gate_hints.h"

#include "shared/base/clock.h"
#include "shared/base/counter.h"

#include <stdlib.h>
#include <string.h>

/* No hints are made for a batch with more tokens than a session's share: it wants most of the
 * experts, and the prediction would come too late to load them. */
#define TOKENS_MAX (LIMIT_DRAFT_SHARE + 1)

int gate_hints_init(struct gate_hints *gates, const struct model *model, struct backend *backend,
	struct experts_cached *cached, int choice, struct error *err)
{
	memset(gates, 0, sizeof(*gates));
	if (cached == NULL)
		return 0;
	gates->choice = choice;
	gates->score = calloc(model->config.n_experts, sizeof(*gates->score));
	if (gates->score == NULL)
		return error_set(err, ENOMEM, "no memory for the scores of %u experts",
			model->config.n_experts);
	int rc = moe_router_init(&gates->router, model, backend, TOKENS_MAX, err);
	if (rc != 0)
		return rc;
	uint32_t next = 0;
	for (uint32_t l = model->config.n_layers; l-- > 0;) {
		gates->next[l] = next;
		if (model->layers[l].moe)
			next = l;
	}
	if (choice != VERIFIER_GATES_OFF)
		rc = router_copies_init(&gates->copies, model, backend, err);
	if (rc == 0)
		rc = gate_far_init(
			&gates->far, model, backend, gates->copies.matrix, gates->next, err);
	if (rc != 0)
		return rc;
	gates->router.matrix = gates->copies.matrix;
	gates->cached = cached;
	experts_cached_meanwhile(cached, gate_hints_meanwhile, gates);
	return 0;
}

void gate_hints_queue(struct gate_hints *gates, struct queue *q)
{
	gates->router.q = q;
	gates->far.router.q = q;
}

void gate_hints_exit(struct gate_hints *gates)
{
	if (gates->cached != NULL)
		experts_cached_meanwhile(gates->cached, NULL, NULL);
	moe_router_exit(&gates->router);
	gate_far_exit(&gates->far);
	router_copies_exit(&gates->copies);
	free(gates->score);
	memset(gates, 0, sizeof(*gates));
}

bool gate_hints_wanted(const struct gate_hints *gates, enum hint_source source)
{
	return gates->attached != NULL && slots_hint_wanted(&gates->hinter, source);
}

static bool any_wanted(const struct gate_hints *gates)
{
	for (int s = 0; s < HINT_SOURCES; s++)
		if (gate_hints_wanted(gates, (enum hint_source)s))
			return true;
	return false;
}

void gate_hints_begin(struct gate_hints *gates)
{
	struct slots *slots = gates->cached ? experts_cached_slots(gates->cached) : NULL;

	gates->on = gates->far_on = false;
	gate_far_stop(&gates->far);
	if (slots == NULL) {
		gates->attached = NULL;
		return;
	}
	if (gates->attached == NULL ||
		gates->attachment != experts_cached_attachment(gates->cached)) {
		slots_hinter_gates(&gates->hinter, slots);
		ring_mend_producer(&gates->hinter.hints);
		gates->attached = slots->header;
		gates->attachment = experts_cached_attachment(gates->cached);
	}
	if (gates->choice == VERIFIER_GATES_ON)
		gates->on = any_wanted(gates);
	else if (gates->choice != VERIFIER_GATES_OFF)
		gates->on = gate_hints_wanted(gates, HINT_GATE);
	gates->far_on = gates->on && gates->choice != VERIFIER_GATES_NEAR &&
			gate_hints_wanted(gates, HINT_GATE_FAR);
}

void gate_hints_end(struct gate_hints *gates, uint64_t verify_ns, uint64_t wait_ns, bool measured)
{
	if (gates->attached == NULL || !measured || verify_ns < wait_ns)
		return;
	uint64_t ns = (verify_ns - wait_ns) / gates->router.model->config.n_layers;
	uint64_t wall_ns = verify_ns / gates->router.model->config.n_layers;
	gates->layer_ns = gates->layer_ns ? (7 * gates->layer_ns + ns) / 8 : ns;
	gates->layer_wall_ns =
		gates->layer_wall_ns ? (7 * gates->layer_wall_ns + wall_ns) / 8 : wall_ns;
	atomic_store_explicit(
		&gates->attached->verify_layer_ns, gates->layer_ns, memory_order_relaxed);
	atomic_store_explicit(
		&gates->attached->verify_layer_wall_ns, gates->layer_wall_ns, memory_order_relaxed);
}

/* Sends what a router predicts for the layer `ahead` layers with experts further on: the chosen
 * experts of all tokens, each once, with the sum of its weights. */
static uint32_t send(struct gate_hints *gates, const struct moe_router *router, uint32_t layer,
	uint32_t ahead, uint32_t n_tokens)
{
	uint32_t n_chosen = n_tokens * router->model->config.n_experts_used, n_sent = 0;
	uint64_t now_ns = clock_ns();
	bool missing = false;

	for (uint32_t i = 0; i < n_chosen; i++)
		gates->score[router->chosen[i]] += router->weights[i];
	for (uint32_t i = 0; i < n_chosen; i++) {
		uint32_t expert = router->chosen[i];
		struct slot_hint hint = {
			.layer = (uint16_t)layer,
			.expert = (uint16_t)expert,
			.score = gates->score[expert],
			.source = ahead == 1 ? HINT_GATE : HINT_GATE_FAR,
			/* This layer's experts are loaded first, and loading times vary. */
			.needed_by_ns = now_ns + (3 + ahead) * gates->layer_wall_ns,
			.made_ns = now_ns,
			.iteration = experts_cached_iteration(gates->cached) + ahead,
		};

		if (hint.score == 0)
			continue;
		gates->score[expert] = 0;
		n_sent += slots_hint(&gates->hinter, &hint);
		missing |= !slots_resident(&gates->hinter, layer, expert);
	}
	counter_add(&gates->sent, n_sent);
	/* An expert that is resident is no reason to wake the cache. */
	if (missing)
		slots_hint_wake(&gates->hinter);
	return n_sent;
}

/* Goes on with a prediction for a layer beyond the next: to its end, or by one slice. */
static void look_far(struct gate_hints *gates, bool all)
{
	struct gate_far *far = &gates->far;
	uint32_t layer, ahead;
	uint64_t start_ns = clock_ns();

	if (gate_far_look(far, all, &layer, &ahead))
		counter_add(
			&gates->far_sent, send(gates, &far->router, layer, ahead, far->n_tokens));
	counter_add(&gates->far_spent_ns, clock_ns() - start_ns);
}

bool gate_hints_meanwhile(void *arg)
{
	struct gate_hints *gates = arg;

	if (!gate_far_busy(&gates->far))
		return false;
	look_far(gates, false);
	return gate_far_busy(&gates->far);
}

void gate_hints_layer(struct gate_hints *gates, uint32_t layer, const struct rows *hidden)
{
	uint32_t n_tokens = hidden->n;
	uint32_t next = layer < LIMIT_LAYERS ? gates->next[layer] : 0;

	gate_far_stop(&gates->far);
	if (!gates->on || next == 0 || n_tokens > TOKENS_MAX)
		return;
	uint64_t start_ns = clock_ns();
	moe_router_run(&gates->router, next, hidden);
	send(gates, &gates->router, next, 1, n_tokens);
	counter_add(&gates->spent_ns, clock_ns() - start_ns);
	if (!gates->far_on)
		return;
	gate_far_start(&gates->far, layer, hidden);
	/* Then nothing has to be waited for in this layer, and the link is idle: the farthest
	 * prediction is worth its time. Measured with Qwen3-30B's shape with 24 layers, Zipf's
	 * routing, room for 33% and two cores: 11.5 ms of waiting per token; 13.4 ms without this.
	 */
	if (gate_far_busy(&gates->far) && experts_cached_missing(gates->cached) == 0)
		look_far(gates, true);
}
