/*
 * Hints for the expert-cache (SP-MoE, section 3): the feed-forward input of the draft model's layer
 * l, through the target's router of layer l, gives the experts that the target will want for the
 * same token. Needs a draft model of the target's hidden size and number of layers. Used by the
 * draft thread.
 */
#pragma once

#include "shared/model/model.h"
#include "shared/spec/slots.h"

struct hints {
	struct model *target; /* owned: the mapping, for its routers; NULL = no hints */
	const struct kernels *kernels;
	struct region region; /* owned: the expert region; header NULL = none */
	struct slots_hinter hinter;
	bool attached;
	float *scores; /* [n_experts] */
	uint64_t *told; /* bit (layer * n_experts + expert): hinted in this round */
	size_t told_words;
	_Atomic uint64_t sent; /* read by the loop thread for status */
};

void hints_init(struct hints *hints, const struct kernels *kernels);
void hints_exit(struct hints *hints);
/* A new target (path of its file) for a draft model of this shape. -ENOTSUP with the reason when
 * they do not fit. */
int hints_target(struct hints *hints, const char *path, uint64_t fingerprint,
	const struct model_config *draft, struct error *err);
/* No target: no hints. */
void hints_forget(struct hints *hints);
/* Takes the region over (header NULL: none any more). */
int hints_attach(struct hints *hints, struct region *region, struct error *err);
/* Whether hidden states are wanted at all now. */
bool hints_wanted(const struct hints *hints);
void hints_round(struct hints *hints);
/* hidden: [n_embd], the feed-forward's input in draft layer `layer` for a token of this session
 * that will be verified. */
void hints_token(struct hints *hints, uint32_t layer, const float *hidden, uint64_t session);
