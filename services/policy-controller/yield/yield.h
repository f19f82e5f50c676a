/*
 * yield: the K of every session of a pass that gives the most expected tokens per second, chosen
 * anew after every pass.
 *
 * What is maximised. A pass over b sessions emits b + sum of A_s,i tokens and takes V_b(sum of
 * D_s,i) + W(K), where D_s,i is the chance that session s has a drafted position i, A_s,i that it
 * is also accepted, V_b what a pass with so many extra tokens takes (cost.h: on a mixture of
 * experts less for each the more experts the others have activated) and W the wait for drafts.
 * Tokens per second over a long run is the ratio of the expectations (renewal theory), so that
 * ratio R is maximised, not the mean of ratios. Positions are taken into the pass in the order of
 * A/D, the most likely first, whichever session they are of; every prefix of that order is
 * evaluated, because V is concave where experts run out and the first extra token may cost more
 * than it brings while three bring more than they cost. For one session this is the exact maximum
 * over K.
 *
 * Where a chain ends. With the best rate R* a token is worth 1 / R* seconds. A drafted token that
 * is reached with chance p is worth verifying when p >= R* dV (Dinkelbach: the maximiser of a ratio
 * maximises tokens - R* time); with those behind it, when that holds for some run of them:
 *     bound_i = R* min over m of  (dV_i + ... + dV_m and the drafting of i+1..m) / (1 + a + ... + a^(m-i)).
 * Through the calibration (acceptance.h) that is a bound on the product of the drafter's own
 * confidences, which the page carries per position; so the drafter stops within the draft where the
 * policy, which does not see it, would have.
 *
 * Exploring. What is not known has a standard deviation: of acceptance from its evidence, of the
 * cost of a pass size from how long ago it, and sizes like it, were run. Trying K costs (R* - R_K) T_K tokens once and
 * brings, if K should turn out better, the expected improvement over the next `horizon` iterations:
 * EI = sd (phi(z) + z Phi(z)), z = (R_K - R*) / sd. A session that has not drafted for t iterations
 * may also have changed, with chance rho = 1 - exp(-h t): then it is any session, and speculation
 * is worth what it is worth to one of low, middling or high acceptance. h is the rate of changes it
 * has shown (one in `phase` iterations to begin with), so that a session that never changes is
 * tried less and less often. K is tried while what it may bring exceeds what it costs (the
 * knowledge gradient's bound on the value of information), and a longer draft only where the purse pays for it
 * if nothing in it is accepted: also while it drafts, for an empty purse ends what pays. From K = 0 a
 * trial costs what it is believed to lose, and a part of what it loses when nothing is accepted. A trial is
 * of one iteration, which the verifier counts (struct policy_session, trial_n): it costs no more
 * when its record is read late. The first record that was made with the trial's decision ends the
 * wait for it, whatever it shows; before, only drafts that were on their way may decide for K > 0. A K
 * that promises the most after too few drafts is tried for as long as records are late, as far as the
 * purse can pay for it. No random numbers: the same records give the same decisions.
 * A trial from K = 0 also waits for its first draft, which a drafter that has rested makes after it has read what it missed:
 * what such drafts took is a cost of it (cost_draft_first).
 * Promises are held against what came of them: what drafting brought, over all sessions lately, as a
 * share of what trials at K = 0 had promised is what the next promise is worth (yield_trust). So what
 * did not pay in the sessions before is tried seldom in the next one, and again when it pays or is
 * long ago.
 *
 * The purse makes K = 0 the floor, whatever the estimates believe: it holds what speculation may
 * still lose against K = 0, in iterations at K = 0. It begins with `purse`, grows by `spend` an
 * iteration and by what was measured to be won, up to `purse` (up to four times that in a session
 * that has won more), and shrinks by what was measured to be lost. Empty, K is 0 until it holds a
 * trial again. A session therefore never loses more than purse + spend * iterations, even with an
 * adversary for a model. Many short sessions would each lose a purse: a new one begins with what
 * the sessions before it left of theirs, but with enough for a trial; and with up to a purse more
 * where they have won that.
 *
 * Before the first record. A session that the controller has not seen yet begins with the K that
 * the first drafts of the sessions before it would have paid for (page, defaults): where answers are
 * short, waiting for its own would be most of it.
 *
 * The drafter at K = 0. Following a session costs processor time and memory bandwidth that the pass
 * would use. After some iterations without a draft the drafter need not follow; it catches up, at
 * K = 0, before a trial is made. With `rest_at_zero` = no it follows all the time, and none of that is waited for. Nor is
 * it where the verifier has it follow nobody at K = 0.
 *
 * Foresight. While it follows at K = 0 the drafter says what it would have drafted and how much of that came
 * (drafter/foresight.h). That is evidence of acceptance as of a draft that was verified, at the price of none; a session of which
 * it is known cannot have changed unseen, and what is left to try is what passes take.
 *
 * What is new. Cascade tries K in runs of 4 iterations and keeps the winner for 16: it pays for
 * every trial in full, and compares windows of 4 noisy samples. Here every iteration informs all K:
 * a draft of 5 of which 2 were accepted says what every shorter one would have given, and a pass of
 * any size moves the level of the whole curve. SGLang's tiers go by acceptance alone, vLLM's table
 * by batch size alone, llama.cpp's p-min by confidence alone; none knows what a token costs, which
 * is why they lose on mixtures of experts.
 */
#pragma once

#include "services/policy-controller/estimates/acceptance.h"
#include "services/policy-controller/estimates/passes.h"
#include "services/policy-controller/policy.h"

enum yield_rule {
	YIELD_UNPLANNED, /* nothing was measured yet */
	YIELD_MOST, /* the highest rate */
	YIELD_STICKY, /* the K there was: another promises too little more */
	YIELD_THRESHOLD, /* K = 0: the highest rate is too little above its */
	YIELD_TRIAL, /* what a trial may bring exceeds what it costs */
	YIELD_PROOF, /* too little was seen for the best K */
	YIELD_CATCHING_UP, /* the drafter has not followed */
	YIELD_EMPTY, /* the purse */
};

/* What the plan that chose K weighed, per K from 0 to k_max: only for display. */
struct yield_view {
	enum yield_rule rule;
	uint32_t k_max, best, highest; /* of the rates, before the rules */
	uint32_t sessions; /* in the pass */
	uint64_t weighed; /* bit k: as a trial */
	float others; /* drafted tokens of the rest of the pass */
	float hope, base_ns;
	float drafted[LIMIT_DRAFT_DEPTH + 1], tokens[LIMIT_DRAFT_DEPTH + 1]; /* of the session */
	float time_ns[LIMIT_DRAFT_DEPTH + 1],
		rate[LIMIT_DRAFT_DEPTH + 1]; /* of the pass; tokens per ns */
	float doubt[LIMIT_DRAFT_DEPTH + 1], brings[LIMIT_DRAFT_DEPTH + 1],
		costs[LIMIT_DRAFT_DEPTH + 1];
};

/* Of one session. */
struct yield {
	struct acceptance acceptance;
	uint32_t method; /* enum draft_method of its last draft; COST_METHODS: none yet */
	uint32_t k; /* of its last iteration */
	uint32_t drafts, behind; /* tokens that the drafter may not have read */
	uint32_t probes; /* plans since the chain was last left uncut */
	double purse, won; /* won: since the session began, in iterations at K = 0 */
	double granted; /* what the purse began with */
	/* For display: the iteration of the session that emptied the purse last, 0: none did. */
	struct yield_emptied {
		uint64_t iteration;
		uint32_t k, drafted, accepted;
		float lost; /* in iterations at K = 0 */
	} emptied;
	uint32_t stale; /* iterations since it last drafted */
	uint32_t idle; /* of them, those that acceptance does not know of yet */
	uint32_t unseen; /* of them, those since a draft was foreseen */
	uint32_t
		waiting; /* passes since a trial was begun that no record shows yet; 0 = none is on */
	bool news; /* drafts from before the trial were seen since the last plan */
	uint64_t iterations; /* since the session began */
	struct yield_view view;
};

/* What some of a pass's sessions add to it at their K, and the longest wait of them for a draft. */
struct yield_rest {
	double gain, extra, wait;
};

/* What one plan works with, per session. */
struct yield_option {
	double drafted[LIMIT_DRAFT_DEPTH], accepted[LIMIT_DRAFT_DEPTH], bound[LIMIT_DRAFT_DEPTH];
	double gained[LIMIT_DRAFT_DEPTH + 1],
		extra[LIMIT_DRAFT_DEPTH + 1]; /* sums over the first k */
	double wait_fixed, wait_step; /* for a draft, ns (cost_draft) */
	uint32_t k;
	struct yield_rest after; /* the sessions behind this one, as the plan began */
	struct acceptance_drafts drafts;
};

/* Of all sessions. */
struct yield_shared {
	struct acceptance pool[COST_METHODS]; /* by method */
	struct acceptance firsts[COST_METHODS]; /* of the first drafts of sessions alone */
	uint32_t first_k, n_plans; /* what a session begins with that nobody has seen */
	uint32_t method; /* of the last draft of any session */
	double credit; /* a purse of all sessions together: what a new one begins with; NAN: nobody has drafted */
	double delay; /* passes until a trial's first record is there: moving mean */
	double promised, brought; /* by trials at K = 0, in iterations; both fade (yield_trust) */
	uint32_t
		hopeless; /* passes since one that no acceptance would have turned was tried all the same */
	uint32_t
		unheard; /* iterations in a row that the drafter did not follow though the page asked it to */
	uint64_t iteration; /* the last pass that one of its sessions was in */
	bool any;
	/* Scratch of a plan. */
	struct yield_option options[LIMIT_RUNNING];
	uint16_t taken[LIMIT_RUNNING * LIMIT_DRAFT_DEPTH]; /* whose positions, in their order */
};

/* The state of a session under yield, and that of all of them. */
static inline struct yield *yield_own(struct policy_state *s)
{
	return (struct yield *)s->own;
}

static inline const struct yield *yield_of(const struct policy_state *s)
{
	return (const struct yield *)s->own;
}

static inline struct yield_shared *yield_shared(const struct policy_state *s)
{
	return s->shared;
}

/* Changes per iteration that the session has shown. */
double yield_change_rate(const struct policy_state *s);
/* policy_ops.observe (yield_observe.c). */
void yield_observe(
	struct policy_state *s, const struct iteration_record *record, struct verdict *verdict);
/* policy_ops.explain (yield_explain.c). */
void yield_explain(const struct policy_state *s, struct explanation *out);
/* policy_ops.plan: after the records of a pass: chooses K and cut of the n sessions of it that this policy serves.
 * sessions: in the pass; others: extra tokens that the rest of them had; passes: since the last
 * plan, this one among them. verdicts: [n]. */
void yield_plan(struct policy_state **states, uint32_t n, uint32_t sessions, uint32_t others,
	uint32_t passes, struct verdict *verdicts);
