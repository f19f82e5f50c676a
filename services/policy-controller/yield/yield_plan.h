/*
 * What the parts of yield share: yield.c chooses K, yield_joint.c for all sessions of a pass together, yield_observe.c says from what, yield_explore.c tries, yield_first.c
 * says what a session begins with. Internal to yield; pure.
 */
#pragma once

#include "services/policy-controller/yield/yield.h"

#define YIELD_WARM_DRAFTS \
	3.0 /* in a row, before what a draft costs is known; until then trials are longer by one */
#define YIELD_FIRST_DRAFTS 8u /* of a session, that say what the next one may begin with */

/* Of two numbers: fmin and fmax, which are calls, without their care for NAN. */
static inline double yield_min(double a, double b)
{
	return a < b ? a : b;
}

static inline double yield_max(double a, double b)
{
	return a > b ? a : b;
}

struct yield_plan_pass {
	struct yield_shared *shared;
	struct passes *passes;
	struct policy_state **states;
	uint32_t n, sessions, others, n_passes;
	double rate; /* tokens per ns, R */
	struct yield_rest before; /* sessions that have settled */
};

struct yield_choice {
	double rate[LIMIT_DRAFT_DEPTH + 1];
	double hope; /* yield_change_worth */
	double sd[LIMIT_DRAFT_DEPTH + 1],
		sd_cost[LIMIT_DRAFT_DEPTH + 1]; /* relative; of the cost alone */
	double other_gain, other_extra, other_wait; /* of the rest of the batch */
};

/* enum draft_method of the session's drafts, or of the last one of any session. */
uint32_t yield_method(const struct policy_state *s);
/* The acceptance of all sessions' drafts of that method. */
const struct acceptance *yield_pool(const struct policy_state *s);
/* Iterations at K = 0 are told to the estimate when somebody asks it: there may be a hundred of them between two plans. */
void yield_catch_up(struct policy_state *s);
/* Tokens per ns of a pass that gains so many tokens from so many extra ones and waits so long for
 * drafts. */
double plan_rate_of(const struct yield_plan_pass *p, double gained, double extra, double wait);
/* passes_doubt of so many extra tokens beside `others`. */
double plan_cost_doubt(const struct yield_plan_pass *p, double extra, double ratio);
/* The wait for a draft of k tokens of states[index], ns. */
double plan_wait_of(const struct yield_plan_pass *p, uint32_t index, uint32_t k);
/* Every prefix of the pass's positions, the likeliest first, of equally likely ones that of the first session: options[].k is
 * the best prefix, the shortest of equals, and p->rate its rate. In n log n. options[].drafted, accepted and the waits are set. */
void yield_choose_jointly(struct yield_plan_pass *p);

/* What speculation would win, as a share of the rate at K = 0, if the session had changed into just
 * any: the mean over three acceptances of what the best K gives, passes taking no longer than they
 * may (plan_cost_doubt). waits: with the wait for drafts, as far as it is known. */
double yield_change_worth(
	const struct yield_plan_pass *p, uint32_t index, const struct yield_choice *c, bool waits);
/* What an iteration at k loses, in iterations at K = 0, when nothing is accepted: what its pass takes longer. */
double yield_trial_loss(
	const struct yield_plan_pass *p, uint32_t index, const struct yield_choice *c, uint32_t k);
/* The K worth trying: the largest surplus of what it may bring over what it costs; `best` when
 * there is none. */
uint32_t yield_explore(const struct yield_plan_pass *p, uint32_t index,
	const struct yield_choice *c, uint32_t best);

/* What a new session may lose, in iterations: a purse; more where sessions before it have won more than
 * that, which those that are served side by side share; less where they lost theirs. */
double yield_grant(const struct policy_state *s);
/* Now and then: shared->first_k. */
void yield_choose_first(const struct yield_plan_pass *p);

/* What trials at K = 0 brought as a share of what they had promised, over all sessions lately: what
 * the next one's promise is worth, 0 to 1. */
double yield_trust(const struct yield_shared *shared);
/* A trial of k, whose figures the view has, is begun. */
void yield_trust_promised(struct yield_shared *shared, const struct yield_view *view, uint32_t k);
/* Drafting won so many iterations, or lost them. */
void yield_trust_won(struct yield_shared *shared, double won);
/* A pass. */
void yield_trust_fade(struct yield_shared *shared);
