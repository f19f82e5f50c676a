/*
 * Hints for the next layer with experts: its router on this layer's hidden state (AdapMoE, arXiv 2408.10284, section
 * 4.2; Fate, arXiv 2502.12224, section 3.1). Works because the residual stream changes little from layer to layer. Made while
 * this layer's missing experts are on their way, only where the expert-cache asks for it, and only for few tokens: a
 * prompt wants most experts anyway. And for layers beyond the next (gate_far.h), a source of its own. Both from
 * 8-bit copies of the routers (shared/model/arch/router_copies.h). Reads the pass, never changes it. Used by the engine thread.
 */
#pragma once

#include "services/verifier/state/config.h"
#include "services/verifier/pass/gate_far.h"
#include "shared/model/pass/moe_router.h"
#include "shared/model/arch/router_copies.h"
#include "shared/spec/slots.h"

struct gate_hints {
	int choice; /* enum verifier_gates */
	bool on, far_on; /* in this pass */
	struct router_copies copies; /* none when choice is off */
	struct moe_router router; /* of them, and so is far's */
	struct gate_far far;
	struct experts_cached *cached; /* borrowed; NULL: never any hints */
	struct slots_hinter hinter; /* valid while attached is the region's header */
	struct slots_header *attached;
	uint64_t attachment; /* experts_cached_attachment of it */
	uint32_t next[LIMIT_LAYERS]; /* the next layer with experts; 0: none */
	float *score; /* [n_experts] 0 but in gate_hints_layer */
	uint64_t layer_ns,
		layer_wall_ns; /* one layer of a verification without waits, and with them; smoothed */
	/* Read by the front. Of all, and of those for layers beyond the next. */
	_Atomic uint64_t sent, spent_ns, far_sent, far_spent_ns;
};

/* cached NULL: nothing to do. Borrows all. */
int gate_hints_init(struct gate_hints *gates, const struct model *model, struct backend *backend,
	struct experts_cached *cached, int choice, struct error *err);
void gate_hints_exit(struct gate_hints *gates);
/* What the passes run in, from now on. Borrowed. */
void gate_hints_queue(struct gate_hints *gates, struct queue *q);
/* Around each pass. wait_ns: of verify_ns, spent waiting for experts; measured: a pass that says what one of a
 * verification takes (not a prompt's). */
void gate_hints_begin(struct gate_hints *gates);
void gate_hints_end(struct gate_hints *gates, uint64_t verify_ns, uint64_t wait_ns, bool measured);
/* Whether the expert-cache wants hints of this source. */
bool gate_hints_wanted(const struct gate_hints *gates, enum hint_source source);
/* Some of what is left to do for hints beyond the next layer, for experts_cached_meanwhile (arg: struct gate_hints); whether
 * there is more. */
bool gate_hints_meanwhile(void *arg);
/* From the forward's hook, behind begin of the layer's experts. hidden: rows of [n_embd], the feed-forward's input. */
void gate_hints_layer(struct gate_hints *gates, uint32_t layer, const struct rows *hidden);
