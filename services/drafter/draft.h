/*
 * Draft methods: one vtable each, all of them in one table (methods.c). The draft thread alone
 * calls them.
 */
#pragma once

#include "services/drafter/session.h"
#include "shared/spec/policy.h"

struct draft_model;
struct tree;

/* What a method may use. */
struct draft_context {
	const struct session_view *view;
	struct draft_model *model; /* NULL: none is loaded, or it was refused for this target */
	struct draft_model *head; /* an EAGLE-3 head or the target's layer for drafts; NULL: none */
	struct draft_model
		*skip; /* a part of the target's layers; NULL: nobody wanted it, or refused */
	struct hints *hints;
	struct tree *tree; /* scratch memory */
};

/* One request of a round with its reply. When a method gets the reply, it has room for the nodes of
 * the budget, n is 0, and the fields that echo the request are filled in. */
struct draft_item {
	struct draft_session *session;
	struct draft_budget budget;
	struct policy_session knobs; /* its cut says where a path is to end; zeros cut nothing */
	const struct draft_ops *ops;
	struct draft_reply *reply;
};

struct draft_ops {
	const char *name;
	enum draft_method method;
	/* Drafts for all items of a round that use this method, in one call, so that a method with
	 * a batch can use it. Fills n, the nodes, their supports, ahead and method of each reply,
	 * within the budget. An item for which the method has no draft keeps n = 0. */
	void (*draft)(struct draft_context *context, struct draft_item *items, uint32_t n);
};

/* A tree from n-grams (ngram_tree.c), within a budget whose width is more than 1: appends to the
 * item's reply the different continuations that followed the last tokens earlier. */
void ngram_tree(struct draft_context *context, const struct draft_item *item);

extern const struct draft_ops draft_none, draft_ngram, draft_replay, draft_by_model,
	draft_by_eagle3, draft_by_mtp, draft_by_skip;
extern const struct draft_ops *const draft_methods_all[]; /* the last one is NULL */

/* The method for a session: the method that its request names, else the configured one (fallback).
 * `auto` is the head or the draft model where it can be used (one is loaded and the session fits
 * it), else n-grams. A session that asks for what cannot be used gets n-grams too. */
const struct draft_ops *draft_method_for(const struct draft_context *context,
	const struct draft_session *s, enum draft_method fallback);

/* Whether drafts of this method are made in passes of a model or a head. */
bool draft_by_passes(uint32_t method);

/* Adds a node to a reply that has room for it. parent: index of a node; -1 for a node that follows
 * the committed tokens. */
void draft_add(struct draft_reply *reply, int parent, int32_t token, float confidence);
/* Adds the next token to a reply that is a chain. */
void draft_append(struct draft_reply *reply, int32_t token, float confidence);
/* The length of the longest chain that the budget allows. */
static inline uint32_t draft_length(struct draft_budget budget)
{
	return budget.nodes < budget.depth ? budget.nodes : budget.depth;
}
