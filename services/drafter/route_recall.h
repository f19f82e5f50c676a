/*
 * How often predictions of a token's experts are right, layer by layer: what the target's routers say
 * of a head's state (head_routes.h) beside what such tokens needed before (expert_history.h), both as
 * many experts as a token uses. Predictions are noted when they are made, and compared when the
 * verifier says where the token was routed. In each layer the better of the two is believed. (Both
 * together, as evidence that is independent, were no better than the better one.) Pure; used by the
 * draft thread.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/spec/draft.h"
#include "shared/spec/expert_history.h"

enum {
	ROUTE_NOTES = 2048, /* predictions that are remembered */
	/* tokens after which a layer's routers may be believed, and over which recall is averaged */
	ROUTE_LEAST = 32,
	ROUTE_SPAN = 128,
	/* Routers that are not believed are applied in one of so many passes, for comparison: they are
	 * read for it, of the shape of Qwen3-30B-A3B 48 MB. */
	ROUTE_TRIAL = 16,
};

enum route_source { ROUTE_ROUTERS, ROUTE_HISTORY, ROUTE_SOURCES };

struct route_key {
	uint64_t session; /* uid */
	uint32_t position;
	int32_t before, token; /* before: the token in front of it, -1 = none */
};

struct route_recall {
	uint32_t n_moe, n_experts, n_used, n_words; /* n_words 0: nothing can be noted */
	uint32_t passes; /* counted by route_recall_pass */
	struct route_key *key; /* [ROUTE_NOTES] session 0: free */
	uint64_t *bits; /* [ROUTE_NOTES][ROUTE_SOURCES][n_words] */
	struct route_layer {
		float recall[ROUTE_SOURCES]; /* share of the used experts that were predicted */
		_Atomic uint32_t n; /* tokens compared */
		/* the same as recall, per mille, for other threads */
		_Atomic uint32_t per_mille[ROUTE_SOURCES];
	} layer[LIMIT_LAYERS]; /* [n_moe] */
};

/* Begins anew for a model of this shape. -ENOMEM; nothing can be noted then. */
int route_recall_shape(struct route_recall *recall, uint32_t n_moe, uint32_t n_experts,
	uint32_t n_used, struct error *err);
void route_recall_exit(struct route_recall *recall);
/* Notes a token's predictions: that of the routers, which is copied, and that of history, which must be
 * of this model; NULL: there is none. page: the session's. */
void route_recall_note(struct route_recall *recall, const struct route_key *key,
	const uint64_t *routers, struct expert_history *history, uint32_t page);
/* What the routers say of a token, [n_words]; NULL: that is not remembered. */
const uint64_t *route_recall_find(const struct route_recall *recall, const struct route_key *key);
/* Call before a pass whose states may be routed: sets on[i] where the i-th layer's routers are to be
 * applied: those that are believed, and now and then all. any: not only those that are believed. Returns
 * whether there is one. on: [n_moe] */
bool route_recall_pass(struct route_recall *recall, bool any, bool *on);
/* Compares where a token was routed with what was predicted, in the layers of which the routers said
 * something. Entries that make no sense are left out. */
void route_recall_learn(struct route_recall *recall, const struct draft_routing *entry);
/* Whether the routers are believed in the i-th layer with experts. */
bool route_recall_believed(const struct route_recall *recall, uint32_t i);
