/*
 * How likely drafted tokens are accepted: estimated online per session, from what was drafted, with
 * which confidence, and how much of it was accepted. Pure: no clock, no threads, no allocation.
 *
 * Position i (from 0), reached with all before it accepted and drafted with confidence c, is
 * accepted with
 *
 *     a_i(c) = r_i s c^g,      at most A_MAX.
 *
 * s and g calibrate the drafter: g = s = 1 believes it, g > 1 finds it too sure of itself, and for
 * a drafter without confidences (c = 1) s is its rate. A power, because then the product of the
 * drafter's own confidences decides: a chain's chance to be accepted through i falls below a bound
 * exactly where that product falls below another one, which is what the policy page can tell the
 * drafter (struct policy_session, cut). s and g are the binomial fit with ln a linear in ln c, over
 * eight classes of confidence; r_i, the residual of the position, is observed over
 * expected. All counts fade, over `memory` drafted iterations while drafting and four times as
 * slowly while not, towards the pool: what all sessions of this draft method gave.
 *
 * Changes are noticed by Page's CUSUM of the log-likelihood ratio of odds that rose, or fell, by
 * the factor e^SHIFT; an alarm fades everything at once.
 */
#pragma once

#include "shared/spec/policy.h"

enum { ACCEPTANCE_CLASSES = 8, ACCEPTANCE_CHAINS = 16 };

struct acceptance_class {
	float tried, accepted; /* positions reached, and how many of them were accepted */
	float surprise; /* sum of -ln c */
};

/* A draft as it came. */
struct acceptance_chain {
	uint8_t k, n; /* depth asked, drafted */
	uint8_t confidence[LIMIT_DRAFT_DEPTH];
};

struct acceptance {
	struct acceptance_class classes[ACCEPTANCE_CLASSES];
	float observed[LIMIT_DRAFT_DEPTH], expected[LIMIT_DRAFT_DEPTH];
	uint32_t depths; /* of which any was observed */
	float scale, power; /* s, g */
	float tried,
		evidence; /* sums over the classes: of the session, and with what the pool adds */
	float rose, fell; /* the two CUSUMs */
	uint32_t n_alarms;
	uint32_t n_chains; /* counts on; the last ACCEPTANCE_CHAINS are kept */
	struct acceptance_chain chains[ACCEPTANCE_CHAINS];
};

/* How fast it forgets and how soon it is alarmed. */
struct acceptance_knobs {
	double memory, alarm;
};

/* Nothing known: believes the drafter, with the weight of two tokens. */
void acceptance_init(struct acceptance *a);
/* An iteration with k > 0 into a pool: of that only the classes and the chains are kept, for nobody asks for more. */
void acceptance_gather(struct acceptance *pool, const struct iteration_record *record);
/* An iteration with k > 0. True: an alarm. */
bool acceptance_observe(struct acceptance *a, const struct acceptance *pool,
	const struct iteration_record *record, const struct acceptance_knobs *knobs);
/* n iterations with k = 0. */
void acceptance_idle(struct acceptance *a, uint32_t n, const struct acceptance *pool,
	const struct acceptance_knobs *knobs);
/* Takes the pool's calibration over where the session has no evidence of its own. */
void acceptance_fit(struct acceptance *a, const struct acceptance *pool);

/* a_i(c), c as in a record. */
double acceptance_of(const struct acceptance *a, uint32_t position, uint8_t confidence);
/* The mean of a_i where nothing is known of the token. */
double acceptance_mean(const struct acceptance *a);
/* Relative standard deviation of a_i, of what is not known about the session. mean: acceptance_mean. */
double acceptance_doubt(const struct acceptance *a, double mean);
/* Whether the drafter says anything of its tokens. */
bool acceptance_informed(const struct acceptance *a);

/* Drafts of up to k tokens as they are expected: the last ones of the session, or of the pool while it has too few. */
struct acceptance_drafts {
	double mean; /* acceptance_mean */
	uint32_t n, n_chances; /* n: 1 or more */
	uint8_t length[ACCEPTANCE_CHAINS]; /* [n] */
	/* To be accepted through position i: of the first draft, then of the next one. */
	double chance[ACCEPTANCE_CHAINS * LIMIT_DRAFT_DEPTH];
};
void acceptance_drafts(const struct acceptance *a, const struct acceptance *pool, uint32_t k,
	struct acceptance_drafts *out);
/* What they give that end before position i where their chance to be accepted through i is below
 * bound[i] (NULL: none do): drafted[i], the share of drafts that has position i, and accepted[i],
 * the share in which it is also accepted; i < k. */
void acceptance_predict(const struct acceptance_drafts *drafts, uint32_t k, const double *bound,
	double *drafted, double *accepted);
/* The products of raw confidences that belong to bounds on the chance: cut[0..k-1], 0 to 1. */
void acceptance_cut(const struct acceptance *a, uint32_t k, const double *bound, float *cut);
