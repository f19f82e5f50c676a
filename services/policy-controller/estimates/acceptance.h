/*
 * How likely drafted tokens are accepted: estimated online for each session from what was drafted,
 * with which confidence, and how much of it was accepted. Used by yield. Pure: no clock, no
 * threads, no allocation.
 *
 * A token at position i (from 0) that is reached, with all before it accepted, and was drafted with
 * confidence c, is accepted with chance
 *
 *   a_i(c) = r_i s c^g,      at least 0.01 and at most 0.98.
 *
 * s and g calibrate the drafter. g = s = 1 believes it; g > 1 finds it overconfident; for a drafter
 * without confidences (c = 1), s is its rate of acceptance. The form is a power because then the
 * product of the drafter's own confidences decides: the chance that a chain is accepted through i
 * falls below a bound exactly where that product falls below another bound, which the policy page
 * can pass to the drafter (struct policy_session, cut). s and g come from a binomial fit with ln a
 * linear in ln c, over eight classes of confidence. r_i, the residual of the position, is observed
 * over expected. All counts fade towards the pool, which holds what all sessions of this draft
 * method gave: over `memory` drafted iterations while the session drafts, and four times as slowly
 * while it does not.
 *
 * Changes are noticed by Page's CUSUM of the log-likelihood ratio, for odds that rose or fell by
 * the factor e^1.5. An alarm fades all counts at once.
 */
#pragma once

#include "shared/spec/policy.h"

enum { ACCEPTANCE_CLASSES = 8, ACCEPTANCE_CHAINS = 16 };

struct acceptance_class {
	float tried, accepted; /* positions that were reached, and how many of them were accepted */
	float surprise; /* sum of -ln c */
};

/* A draft as it arrived. */
struct acceptance_chain {
	uint8_t k, n; /* k: depth that was asked for; n: depth that was drafted */
	uint8_t confidence[LIMIT_DRAFT_DEPTH];
};

struct acceptance {
	struct acceptance_class classes[ACCEPTANCE_CLASSES];
	float observed[LIMIT_DRAFT_DEPTH], expected[LIMIT_DRAFT_DEPTH];
	uint32_t depths; /* number of positions in observed and expected with any observation */
	float scale, power; /* s, g */
	/* sums over the classes: tried of the session alone, evidence with what the pool adds */
	float tried, evidence;
	float rose, fell; /* the two CUSUMs */
	uint32_t n_alarms;
	uint32_t n_chains; /* number ever added; the last ACCEPTANCE_CHAINS are kept */
	struct acceptance_chain chains[ACCEPTANCE_CHAINS];
};

/* memory: how slowly counts fade, in iterations. alarm: bound of the CUSUMs. */
struct acceptance_knobs {
	double memory, alarm;
};

/* Starts without knowledge: believes the drafter, with the weight of two tokens. */
void acceptance_init(struct acceptance *a);
/* Adds an iteration with k > 0 to a pool. A pool keeps only the classes and the chains, because
 * nothing else of it is used. */
void acceptance_gather(struct acceptance *pool, const struct iteration_record *record);
/* Adds an iteration with k > 0. True: an alarm. */
bool acceptance_observe(struct acceptance *a, const struct acceptance *pool,
	const struct iteration_record *record, const struct acceptance_knobs *knobs);
/* Adds n iterations with k = 0. */
void acceptance_idle(struct acceptance *a, uint32_t n, const struct acceptance *pool,
	const struct acceptance_knobs *knobs);
/* Fits s and g. The pool's calibration fills in where the session has no evidence of its own. */
void acceptance_fit(struct acceptance *a, const struct acceptance *pool);

/* a_i(c), with c as in a record. */
double acceptance_of(const struct acceptance *a, uint32_t position, uint8_t confidence);
/* The mean of a_i for a token of which nothing is known. */
double acceptance_mean(const struct acceptance *a);
/* Relative standard deviation of a_i that remains because little is known about the session. mean:
 * acceptance_mean. */
double acceptance_doubt(const struct acceptance *a, double mean);
/* True when the drafter gives confidences: more than 5 % of the tokens that were tried had one
 * below the highest class. */
bool acceptance_informed(const struct acceptance *a);

/* The expected drafts of up to k tokens: the last ones of the session, or of the pool while the
 * session has too few. */
struct acceptance_drafts {
	double mean; /* acceptance_mean */
	uint32_t n, n_chances; /* n >= 1; n_chances: entries of chance */
	uint8_t length[ACCEPTANCE_CHAINS]; /* [n] */
	/* The chances to be accepted through position i: first all of the first draft, then all of
	 * the next. */
	double chance[ACCEPTANCE_CHAINS * LIMIT_DRAFT_DEPTH];
};
void acceptance_drafts(const struct acceptance *a, const struct acceptance *pool, uint32_t k,
	struct acceptance_drafts *out);
/* Averages over the drafts, each of which ends before the first position i whose chance is below
 * bound[i] (NULL: none ends early). drafted[i]: the share of drafts that have position i.
 * accepted[i]: the share in which it is also accepted. i < k. */
void acceptance_predict(const struct acceptance_drafts *drafts, uint32_t k, const double *bound,
	double *drafted, double *accepted);
/* Converts bounds on the chance to bounds on the product of raw confidences: cut[0..k-1], 0 to 1.
 */
void acceptance_cut(const struct acceptance *a, uint32_t k, const double *bound, float *cut);
