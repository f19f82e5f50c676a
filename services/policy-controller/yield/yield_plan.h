/*
 * What the parts of yield share. yield.c chooses K for each session; yield_joint.c finds the best K
 * for all sessions of a pass together; yield_observe.c learns from records; yield_explore.c decides
 * on trials; yield_first.c decides with which K and purse a session begins. Internal to yield;
 * pure.
 */
#pragma once

#include "services/policy-controller/yield/yield.h"

/* Drafts by a method, first ones aside, from which on the cost of its drafts counts as known. Until
 * then a trial is one iteration longer, because its first draft does not count. */
#define YIELD_WARM_DRAFTS 3.0
/* share of a session's purse that one trial from K = 0 may lose */
#define YIELD_TRIAL_SHARE 0.5
/* number of a session's first drafts that count towards the first K of later sessions */
#define YIELD_FIRST_DRAFTS 8u

/* The smaller and the greater of two numbers, without the care for NAN that fmin and fmax, which
 * are calls, take. */
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
	double rate; /* R: tokens per ns */
	struct yield_rest before; /* the sessions that have settled */
	bool targets; /* of any session */
};

struct yield_choice {
	double rate[LIMIT_DRAFT_DEPTH + 1];
	double late[LIMIT_DRAFT_DEPTH + 1]; /* as a multiple of the targets; 0: there are none */
	double value[LIMIT_DRAFT_DEPTH + 1]; /* yield_value of both */
	double hope; /* yield_change_worth */
	double sd[LIMIT_DRAFT_DEPTH + 1],
		/* both relative; sd_cost: only the deviation of the cost */
		sd_cost[LIMIT_DRAFT_DEPTH + 1];
	double other_gain, other_extra, other_wait; /* of the rest of the batch */
};

/* enum draft_method of the session's drafts, or of the last draft of any session. */
uint32_t yield_method(const struct policy_state *s);
/* The acceptance of all sessions' drafts of that method. */
const struct acceptance *yield_pool(const struct policy_state *s);
/* Tells the estimate of iterations at K = 0. Deferred until somebody asks, because there may be a
 * hundred of them between two plans. */
void yield_catch_up(struct policy_state *s);
/* Tokens per ns of a pass that gains `gained` tokens from `extra` extra ones and waits `wait` ns
 * for drafts. */
double plan_rate_of(const struct yield_plan_pass *p, double gained, double extra, double wait);
/* What a rate is worth with which a target is exceeded `late` times: the rate itself within the
 * targets, and less than any such rate beyond them. */
double yield_value(const struct yield_plan_pass *p, double rate, double late);
/* How many times a pass of `ns` exceeds the targets of the session with k, of the other sessions'
 * joint choice: above 1 it is beyond one of them. 0: there are no targets. */
double yield_late(const struct yield_plan_pass *p, uint32_t index, uint32_t k, double ns);
/* passes_doubt of `extra` tokens in addition to p->others. */
double plan_cost_doubt(const struct yield_plan_pass *p, double extra, double ratio);
/* The wait for a draft of k tokens of states[index], in ns. */
double plan_wait_of(const struct yield_plan_pass *p, uint32_t index, uint32_t k);
/* Evaluates every prefix of the pass's positions, the likeliest first; among equally likely ones
 * the first session's. Sets options[].k to the best prefix, the shortest of equals, and p->rate to
 * its rate. n log n. Before: options[].drafted, accepted and the waits are set. */
void yield_choose_jointly(struct yield_plan_pass *p);

/* What speculation would win, as a share of the rate at K = 0, if the session had changed into an
 * arbitrary one: the mean, over three acceptances, of the gain of the best K. Passes are taken to
 * be as short as they may be (plan_cost_doubt). waits: include the wait for drafts, as far as it is
 * known. */
double yield_change_worth(
	const struct yield_plan_pass *p, uint32_t index, const struct yield_choice *c, bool waits);
/* What an iteration at k loses when nothing is accepted, in iterations at K = 0: the time that its
 * pass takes longer. */
double yield_trial_loss(
	const struct yield_plan_pass *p, uint32_t index, const struct yield_choice *c, uint32_t k);
/* The K with the largest surplus of what a trial may bring over what it costs; `best` when none has
 * a surplus. */
uint32_t yield_explore(const struct yield_plan_pass *p, uint32_t index,
	const struct yield_choice *c, uint32_t best);

/* Learns from a draft how much its alternatives brought and cost. */
void yield_width_observe(struct policy_state *s, const struct iteration_record *record);
/* How wide the session's drafts of k tokens may be: 1, or the setting `width` if alternatives pay.
 * extra: the pass's drafted tokens. Now and then it is the other of the two, to see what that is
 * like. */
uint32_t yield_width(const struct yield_plan_pass *p, uint32_t index, uint32_t k, double extra);

/* What a new session's purse begins with, in iterations at K = 0: a purse. Less if earlier sessions
 * lost theirs; more if they won more, shared among the sessions served at the same time. */
double yield_grant(const struct policy_state *s);
/* Call after each plan: updates shared->first_k now and then. */
void yield_choose_first(const struct yield_plan_pass *p);

/* The factor for the promise of the next trial, 0 to 1: what trials from K = 0 brought as a share
 * of what they had promised, over all sessions lately. */
double yield_trust(const struct yield_shared *shared);
/* A trial of k begins, whose figures are in view. */
void yield_trust_promised(struct yield_shared *shared, const struct yield_view *view, uint32_t k);
/* Drafting won this many iterations; negative: lost. */
void yield_trust_won(struct yield_shared *shared, double won);
/* A pass has ended. */
void yield_trust_fade(struct yield_shared *shared);
