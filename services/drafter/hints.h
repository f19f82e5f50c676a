/*
 * Hints for the expert-cache: which experts the tokens of the pass that comes next will want. Two sources:
 * - draft (SP-MoE, section 3.1): the feed-forward input of the draft model's layer l through the target's router l. Needs
 *   a draft model of the target's hidden size and number of layers (hints_draft.c).
 * - history: what such tokens wanted before (history.h), for every other drafter and for sessions at K = 0
 *   (hints_history.c).
 * In one pass an expert is hinted for once. Used by the draft thread; the atomics are read by the loop thread.
 */
#pragma once

#include "services/drafter/config.h"
#include "services/drafter/history.h"
#include "shared/model/pass/moe_router.h"
#include "shared/spec/slots.h"

struct draft_session;

struct hints {
	const struct drafter_config *config;
	/* Owned: the expert-cache's, to read from and to write to; header NULL = none. */
	struct region experts, region;
	struct slots_hinter hinter;
	bool attached;
	/* The pass that is hinted for. */
	uint64_t iteration; /* of its first layer with experts; 0 = not known, no hints */
	uint64_t asked; /* the same of the verifier's last request */
	uint64_t verify_ns; /* when it is expected to begin; 0 = now */
	uint64_t *told; /* bit (layer * n_experts + expert): hinted in this pass */
	size_t told_words;
	bool missing; /* something hinted is not resident: the cache is to look */
	/* Source draft. */
	struct model *target; /* owned: the mapping, for its routers; NULL = no such hints */
	struct queue *routing; /* owned: what the router runs in */
	struct moe_router router;
	uint16_t ordinal[LIMIT_LAYERS]; /* of the target's layers among those with experts */
	uint32_t n_moe;
	uint64_t step_ns; /* one step of the draft model, smoothed; 0 = not measured */
	/* Source history. */
	struct history history;
	uint64_t fingerprint; /* of the model it is about */
	uint16_t *chosen; /* [n_experts] */
	float *score; /* [n_experts] */
	_Atomic uint64_t sent[HINT_SOURCES], learnt;
};

/* config is borrowed. */
void hints_init(struct hints *hints, const struct drafter_config *config);
void hints_exit(struct hints *hints);
/* Takes over the region of experts, or that of hints, or both; NULL: that one stays as it is. With both there are hints. */
int hints_attach(
	struct hints *hints, struct region *experts, struct region *region, struct error *err);
/* Whether the expert-cache wants hints of this source, and they can be made. */
bool hints_wanted(const struct hints *hints, enum hint_source source);
/* A request is about the pass whose first layer with experts has this iteration. */
void hints_request(struct hints *hints, uint64_t iteration);
/* What was drafted, and whether by the model, whose steps take so long: for the cache's own plans. */
void hints_measured(struct hints *hints, uint32_t n_tokens, bool by_model);
/* When the verifier is expected to reach a layer. */
uint64_t hints_needed_by(const struct hints *hints, uint32_t layer, uint64_t now_ns);
/* One hint, unless the expert was hinted for in this pass. ordinal: the layer's among those with experts. */
void hints_tell(struct hints *hints, enum hint_source source, uint32_t layer, uint32_t ordinal,
	uint32_t expert, float score, uint64_t session, uint64_t now_ns);
/* After the hints of a layer: the cache is woken if there is something to load. */
void hints_flush(struct hints *hints);

/* ---- Source draft (hints_draft.c). ---- */

/* A new target (path of its file) for a draft model of this shape. -ENOTSUP with the reason when they do not fit. */
int hints_target(struct hints *hints, const char *path, uint64_t fingerprint,
	const struct model_config *draft, struct backend *backend, struct error *err);
void hints_no_target(struct hints *hints);
/* A step of the draft model begins, after which this many follow before the pass is asked for. */
void hints_step(struct hints *hints, uint32_t steps_left);
/* It took so long. */
void hints_step_took(struct hints *hints, uint64_t step_ns);
/* The draft model goes on behind what the pass will verify: the next pass's. */
void hints_ahead(struct hints *hints);
/* hidden: a row of [n_embd], the feed-forward's input in draft layer `layer` for a token of this session that will be verified. */
void hints_token(struct hints *hints, uint32_t layer, const struct rows *hidden, uint64_t session);

/* ---- Source history (hints_history.c). ---- */

/* Learns from up to max entries; how many there were. */
uint32_t hints_learn(struct hints *hints, struct ring *routings, uint32_t max);
/* Hints for the session's tokens first..first+n-1 of tokens[] (committed and drafted), beside those of the pass that it was
 * told of before. */
void hints_history(struct hints *hints, const struct draft_session *s, const int32_t *tokens,
	uint32_t first, uint32_t n);
