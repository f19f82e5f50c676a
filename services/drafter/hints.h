/*
 * Hints for the expert cache: which experts the tokens of the next pass are likely to need. They
 * have two sources:
 * - draft (SP-MoE, section 3.1): the feed-forward input of the draft model's layer l, put through
 *   the target's router of layer l. Needs a draft model with the target's hidden size and number of
 *   layers (hints_draft.c). Of a head: its state, put through the routers of those layers in which
 *   that is right more often than history (hints_head.c).
 * - history: what the same tokens needed before (expert_history.h), for every other drafter and for
 *   sessions at K = 0 (hints_history.c).
 * An expert is hinted at most once per pass. Used by the draft thread; the loop thread reads the
 * atomics.
 */
#pragma once

#include "services/drafter/config.h"
#include "services/drafter/head_routes.h"
#include "services/drafter/route_recall.h"
#include "shared/spec/expert_history.h"
#include "shared/model/pass/moe_router.h"
#include "shared/spec/slots.h"

struct draft_session;

struct hints {
	const struct drafter_config *config;
	/* Owned: regions of the expert cache, one to read and one to write. header NULL = none. */
	struct region experts, region;
	struct slots_hinter hinter;
	bool attached;
	uint64_t attachments; /* how often regions were attached */
	uint64_t head_uses; /* numbers what the cache is told of the experts of layers for drafts */
	/* The pass for which hints are made now. */
	/* of its first layer with experts; 0 = not known, so no hints are made */
	uint64_t iteration;
	uint64_t asked; /* the one that the verifier's last request named */
	uint64_t verify_ns; /* when it is expected to begin; 0 = now */
	uint64_t *told; /* bit (layer * n_experts + expert): hinted already in this pass */
	size_t told_words;
	bool missing; /* an expert that was hinted is not resident, so the cache has to be woken */
	/* For the source `draft`. */
	/* owned: a mapping of the target, for its routers; NULL = no hints of this source */
	struct model *target;
	struct queue *routing; /* owned: the queue in which the router runs */
	struct moe_router router;
	/* of each of the target's layers: its index among those with experts */
	uint16_t ordinal[LIMIT_LAYERS];
	uint32_t n_moe;
	uint64_t step_ns; /* time of one step of the draft model, smoothed; 0 = not measured */
	/* Of a head. */
	const struct head_routes *routes; /* borrowed; NULL: there is none */
	struct route_recall recall;
	bool needs; /* a request of the round wants the experts of each drafted token */
	/* For the source `history`. */
	struct expert_history history;
	uint64_t fingerprint; /* of the model from which the history was learnt */
	uint16_t *chosen; /* [n_experts] scratch */
	float *score; /* [n_experts] scratch */
	_Atomic uint64_t sent[HINT_SOURCES], learnt;
};

/* config is borrowed. */
void hints_init(struct hints *hints, const struct drafter_config *config);
void hints_exit(struct hints *hints);
/* Takes over the cache's regions. NULL leaves the present region in place. Hints are made once
 * both are there. */
int hints_attach(
	struct hints *hints, struct region *experts, struct region *region, struct error *err);
/* True when the expert cache wants hints of this source and they can be made. */
bool hints_wanted(const struct hints *hints, enum hint_source source);
/* Call for each request. iteration: of the first layer with experts of the pass that the request is
 * for. */
void hints_request(struct hints *hints, uint64_t iteration);
/* Call after each round, for the cache's own plans: how many tokens the longest draft has, and
 * whether the model drafted, so that the time of its steps counts. */
void hints_measured(struct hints *hints, uint32_t n_tokens, bool by_model);
/* When the verifier is expected to need the experts of a layer, with half of the time from the
 * pass's beginning added for safety. */
uint64_t hints_needed_by(const struct hints *hints, uint32_t layer, uint64_t now_ns);
/* Sends one hint, unless the expert was hinted in this pass. ordinal: the layer's index among those
 * with experts. */
void hints_tell(struct hints *hints, enum hint_source source, uint32_t layer, uint32_t ordinal,
	uint32_t expert, float score, uint64_t session, uint64_t now_ns);
/* Call after the hints of a layer: wakes the cache if one of them is not resident. */
void hints_flush(struct hints *hints);

/* ---- Source draft (hints_draft.c). ---- */

/* Sets the target, whose file is at path, for a draft model of this shape. -ENOTSUP with the reason
 * when the two do not fit. */
int hints_target(struct hints *hints, const char *path, uint64_t fingerprint,
	const struct model_config *draft, struct backend *backend, struct error *err);
void hints_no_target(struct hints *hints);
/* Call before a step of the draft model. steps_left: how many steps, this one included, lie before
 * the pass. */
void hints_step(struct hints *hints, uint32_t steps_left);
/* Call after a step of the draft model, with the time it took. */
void hints_step_took(struct hints *hints, uint64_t step_ns);
/* Call before steps that go on behind a draft that was sent: their hints are for the pass after the
 * next. */
void hints_ahead(struct hints *hints);
/* hidden: a row of [n_embd], the feed-forward input in the draft model's layer `layer`, for a token
 * of this session that is to be verified. */
void hints_token(struct hints *hints, uint32_t layer, const struct rows *hidden, uint64_t session);

/* ---- Of a head (hints_head.c). ---- */

/* Sets the routers that are applied to the states of the head that drafts; borrowed. NULL: none. */
void hints_head(struct hints *hints, const struct head_routes *routes);
/* Whether they are wanted now, by the cache or by the verifier. */
bool hints_head_wanted(const struct hints *hints);
/* Call before a pass of the head: which layers' routers are to be applied, as route_recall_pass. */
bool hints_head_pass(struct hints *hints, bool *on);
/* Tells the cache, and notes, what they predict for the token at a position of the session. before:
 * the token in front of it, -1 = none. bits: as head_routes_of. */
void hints_head_token(struct hints *hints, const struct draft_session *s, uint32_t position,
	int32_t before, int32_t token, const uint64_t *bits);
/* The same from history, for a token whose prediction follows: of the layers in which history is
 * believed. tokens as hints_history. */
void hints_head_history(struct hints *hints, const struct draft_session *s, const int32_t *tokens,
	uint32_t first, uint32_t n);
/* Adds to the reply which experts its nodes need, as far as that is predicted. n_words: the
 * verifier's size of a set of experts. */
void hints_head_needs(struct hints *hints, const struct draft_session *s, uint32_t n_words,
	struct draft_reply *reply);

/* ---- Source history (hints_history.c). ---- */

/* Learns from at most max entries of the ring. Returns how many it took. */
uint32_t hints_learn(struct hints *hints, struct ring *routings, uint32_t max);
/* Hints for n tokens of the session, tokens[first] and those after it, committed or drafted. The
 * estimate is for all the tokens of the pass: these tokens and the tokens of earlier calls. left_out:
 * as expert_history_token_but; or NULL. */
void hints_history(struct hints *hints, const struct draft_session *s, const int32_t *tokens,
	uint32_t first, uint32_t n, const bool *left_out);
