/*
 * Why a session's K is what it is, in words and figures: what `outriderctl policy explain` prints.
 * It is filled from the state in which the decision was made, and nothing is computed anew, so it
 * explains the K in force. Plain memory, no allocation; the caller serialises.
 */
#pragma once

#include "shared/base/limits.h"

#include <stdbool.h>
#include <stdint.h>

enum { EXPLAIN_WORDS = 12, EXPLAIN_FIGURES = 24, EXPLAIN_DECISIONS = 8 };

/* What a policy knows of one K. Unknown figures are 0. */
struct explained_k {
	uint32_t k;
	double drafted, tokens; /* tokens: of the session in one iteration, with the certain one */
	double time_ns; /* of the iteration, the wait for drafts included */
	double tokens_per_s; /* of the session */
	double utility; /* compared with K = 0 */
	double doubt; /* relative standard deviation of tokens_per_s */
	bool weighed; /* it was weighed as a trial: */
	double brings, costs; /* both in iterations at the present best K */
	/* constant text: why figures are missing (all of them when time_ns is 0); NULL: no note */
	const char *note;
};

/* Position i of a draft, from 0: counts over the last drafts, which fade. */
struct explained_position {
	double reached, accepted;
	double cut; /* the page's bound */
};

struct controller;
struct decision;
struct policy_state;

struct explanation {
	const struct policy_state *state;
	uint32_t k; /* in force: from the policy page, or fixed by the request */
	/* in force after its last record; of a session that has ended, its last K */
	uint32_t k_last;
	/* trial_n not 0: k is in force for trial_n iterations, then k_then */
	uint32_t k_then, trial_n;
	bool k_fixed; /* the request fixed it */
	uint32_t n_words, n_figures, n_options, n_positions, n_decisions;
	char words[EXPLAIN_WORDS][320]; /* sentences */
	struct explained_figure {
		const char *name, *unit;
		double value;
	} figures[EXPLAIN_FIGURES];
	struct explained_k options[LIMIT_DRAFT_DEPTH + 1];
	struct explained_position positions[LIMIT_DRAFT_DEPTH];
	/* oldest first; valid until the next record */
	const struct decision *decisions[EXPLAIN_DECISIONS];
};

/* Explains session uid, or with 0 the session of the last record. -ENOENT: it is unknown, or there
 * is none. *out borrows from the controller. */
int explain_session(const struct controller *controller, uint64_t uid, struct explanation *out);

/* For the policies: add a sentence or a figure. Text that does not fit is left out. */
void explain_say(struct explanation *out, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* name and unit must be constants. */
void explain_figure(struct explanation *out, const char *name, const char *unit, double value);
