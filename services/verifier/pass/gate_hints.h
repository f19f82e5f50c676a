/*
 * Hints for the next layer with experts: its router on this layer's hidden state (AdapMoE, arXiv
 * 2408.10284, section 4.2; Fate, arXiv 2502.12224, section 3.1). This works because the residual
 * stream changes little from one layer to the next. They are made while this layer's missing
 * experts are being loaded, only where the expert cache asks for them, and only for few tokens: a
 * prompt wants most experts in any case. Layers beyond the next (gate_far.h) are a source of their
 * own. Both use 8-bit copies of the routers (shared/model/arch/router_copies.h), and read the pass
 * without changing it. Used by the engine thread.
 */
#pragma once

#include "services/verifier/state/config.h"
#include "services/verifier/pass/gate_far.h"
#include "shared/model/pass/moe_router.h"
#include "shared/model/arch/router_copies.h"
#include "shared/spec/slots.h"

struct gate_hints {
	int choice; /* enum verifier_gates */
	bool on, far_on; /* in this pass: for the next layer, for layers beyond it */
	struct router_copies copies; /* empty when choice is off */
	/* uses the copies; far has a router of its own, which uses them too */
	struct moe_router router;
	struct gate_far far;
	struct experts_cached *cached; /* borrowed; NULL: no hints at all */
	struct slots_hinter hinter; /* valid while `attached` is the region's header */
	struct slots_header *attached;
	uint64_t attachment; /* experts_cached_attachment when it was attached */
	uint32_t next[LIMIT_LAYERS]; /* the next layer with experts; 0: there is none */
	float *score; /* [n_experts] all 0 outside gate_hints_layer */
	/* time of one layer of a verification, without the waits for experts and with them;
	 * smoothed */
	uint64_t layer_ns, layer_wall_ns;
	/* Read by the front. Hints, and the time that they took: of all, and of those for layers
	 * beyond the next. */
	_Atomic uint64_t sent, spent_ns, far_sent, far_spent_ns;
};

/* cached NULL: it makes no hints. Borrows all. */
int gate_hints_init(struct gate_hints *gates, const struct model *model, struct backend *backend,
	struct experts_cached *cached, int choice, struct error *err);
void gate_hints_exit(struct gate_hints *gates);
/* Sets the queue in which the passes run from now on. Borrowed. */
void gate_hints_queue(struct gate_hints *gates, struct queue *q);
/* Call around each pass. wait_ns: the part of verify_ns that was spent waiting for experts.
 * measured: the pass is representative of a verification (a prompt's is not). */
void gate_hints_begin(struct gate_hints *gates);
void gate_hints_end(struct gate_hints *gates, uint64_t verify_ns, uint64_t wait_ns, bool measured);
/* Whether the expert cache wants hints of this source. */
bool gate_hints_wanted(const struct gate_hints *gates, enum hint_source source);
/* Does some of the work for hints beyond the next layer, for experts_cached_meanwhile (arg: a
 * struct gate_hints). Returns whether there is more. */
bool gate_hints_meanwhile(void *arg);
/* Called by the forward pass's hook, after begin of the layer's experts. hidden: rows of [n_embd],
 * the feed-forward input. */
void gate_hints_layer(struct gate_hints *gates, uint32_t layer, const struct rows *hidden);
