/*
 * Draft methods: one vtable each, in one table (methods.c). Used by the draft thread alone.
 */
#pragma once

#include "services/drafter/session.h"
#include "shared/spec/policy.h"

struct draft_model;

/* What a method works with. */
struct draft_context {
	const struct session_view *view;
	struct draft_model *model; /* NULL: none loaded, or refused for this target */
	struct hints *hints;
};

/* One request of a round and the reply it gets, which has room for the budget's nodes: n = 0 and the echoed fields are filled in
 * already. */
struct draft_item {
	struct draft_session *session;
	struct draft_budget budget;
	struct policy_session knobs; /* its cut: where a path is to end; zeros cut nothing */
	const struct draft_ops *ops;
	struct draft_reply *reply;
};

struct draft_ops {
	const char *name;
	enum draft_method method;
	/* Drafts for all items of a round that use this method: one call, so that a method with
	 * a batch uses it. Fills n, the nodes, their supports, ahead and method, and keeps to the budget. An item the
	 * method has nothing for keeps n = 0. */
	void (*draft)(struct draft_context *context, struct draft_item *items, uint32_t n);
};

extern const struct draft_ops draft_none, draft_ngram, draft_replay, draft_by_model;
extern const struct draft_ops *const draft_methods_all[]; /* ended by NULL */

/* The method for a session: what its request says, else the configured one; auto is the model
 * where it can be used (a model is loaded and the session fits it), else n-gram. A session that
 * asks for a model that is not there gets n-grams. */
const struct draft_ops *draft_method_for(const struct draft_context *context,
	const struct draft_session *s, enum draft_method fallback);

/* Another node, which there is room for; parent -1: behind the committed tokens. */
void draft_add(struct draft_reply *reply, int parent, int32_t token, float confidence);
/* The next token of a reply that is a chain. */
void draft_append(struct draft_reply *reply, int32_t token, float confidence);
/* The longest chain that the budget allows. */
static inline uint32_t draft_length(struct draft_budget budget)
{
	return budget.nodes < budget.depth ? budget.nodes : budget.depth;
}
