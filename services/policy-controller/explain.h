/*
 * Why a session's K is what it is, in words and figures: what `outriderctl policy explain` prints.
 * Filled from the state that the decision was made in, never computed anew: what is explained is
 * the K in force. Plain memory, no allocation; the caller serialises.
 */
#pragma once

#include "shared/base/limits.h"

#include <stdbool.h>
#include <stdint.h>

enum { EXPLAIN_WORDS = 12, EXPLAIN_FIGURES = 24, EXPLAIN_DECISIONS = 8 };

/* What a policy knows of one K. A figure that it has not is 0. */
struct explained_k {
	uint32_t k;
	double drafted, tokens; /* of the session in one iteration; tokens with the certain one */
	double time_ns; /* of the iteration, the wait for drafts included */
	double tokens_per_s; /* of the session */
	double utility; /* against K = 0 */
	double doubt; /* relative standard deviation of tokens_per_s */
	bool weighed; /* as a trial: */
	double brings, costs; /* in iterations at the K that is best now */
	const char *
		note; /* why figures are missing, a constant: all of them where time_ns is 0; NULL: nothing is to be said */
};

/* Position i of a draft, from 0: counts of the last drafts, fading. */
struct explained_position {
	double reached, accepted;
	double cut; /* of the page */
};

struct controller;
struct decision;
struct policy_state;

struct explanation {
	const struct policy_state *state;
	uint32_t k; /* in force: what the policy page says, or the request's */
	uint32_t k_last; /* the same behind its last record: of one that has ended, its last */
	uint32_t k_then, trial_n; /* trial_n not 0: k for so many iterations, then k_then */
	bool k_fixed; /* by the request */
	uint32_t n_words, n_figures, n_options, n_positions, n_decisions;
	char words[EXPLAIN_WORDS][320]; /* sentences */
	struct explained_figure {
		const char *name, *unit;
		double value;
	} figures[EXPLAIN_FIGURES];
	struct explained_k options[LIMIT_DRAFT_DEPTH + 1];
	struct explained_position positions[LIMIT_DRAFT_DEPTH];
	const struct decision
		*decisions[EXPLAIN_DECISIONS]; /* oldest first; until the next record */
};

/* The session uid, or with 0 the one whose record came last. -ENOENT: it is not known, or there is
 * none. *out borrows from the controller. */
int explain_session(const struct controller *controller, uint64_t uid, struct explanation *out);

/* For the policies. What does not fit any more is left out. */
void explain_say(struct explanation *out, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* name and unit are borrowed for good. */
void explain_figure(struct explanation *out, const char *name, const char *unit, double value);
