/*
 * yield, our policy. After every pass it chooses for each session of the pass the K (length of its
 * drafts) that gives the most expected tokens per second. yield_plan decides, from what
 * yield_observe has learned; both are called by the controller as a policy (policy.h), under its
 * mutex. Pure: no clock, no random numbers. The same records give the same decisions.
 *
 * The decision in short. For each session, in this order:
 *
 * 1. While a trial waits for its record, nothing changes, unless older drafts already show that
 *    drafting pays.
 * 2. `best` is the K with the highest rate of those that the purse can pay for (The purse). The
 *    present K is kept if best is less than 0.5 % better; best is 0 if its rate is below
 *    `threshold` times the rate at K = 0.
 * 3. Another K is tried if the trial may bring more than it costs (Exploring), once the last
 *    decision is in force.
 * 4. If best > 0 rests on fewer than 3 remembered tokens of the session (they fade), the smaller of
 *    best and `k_start` is tried, or less if two such drafts could lose more than half of the purse.
 *    K is 0 after the trial (a proof).
 * 5. With an empty purse K is 0.
 * 6. If the drafter has not followed the session, K stays 0 until it has caught up.
 *
 * What is maximised. A pass over b sessions emits b + sum of A_s,i tokens and takes V_b(sum of
 * D_s,i) + W(K). D_s,i is the chance that session s has a drafted token at position i; A_s,i is the
 * chance that it is also accepted. V_b(e) is the time of a pass with e extra tokens (cost.h); on a
 * mixture of experts each token costs less the more experts the others have activated. W is the
 * wait for drafts: the longest of all sessions. Over a long run, tokens per second is the ratio of
 * the expectations (renewal theory), so this ratio R is maximised, not the mean of ratios.
 * Positions are added to the pass in the order of A/D, the most likely first, whichever session
 * they belong to. Every prefix of that order is evaluated, because V is concave where experts run
 * out: the first extra token may cost more than it brings, while three bring more than they cost.
 * For one session this is the exact maximum over K.
 *
 * Where a chain ends. At the best rate R* a token is worth 1 / R* seconds. Let p be the chance that
 * a drafted token and all before it are accepted. The token is worth verifying when p >= R* dV,
 * where dV is the time that it adds (Dinkelbach: the maximiser of a ratio maximises
 * tokens - R* time). It is also worth verifying when this holds for some run of tokens that begins
 * with it, that is, when p is at least
 *
 *   bound_i = R* min over m of
 *             (dV_i + ... + dV_m and the drafting of i+1..m) / (1 + a + ... + a^(m-i)).
 *
 * Here a is the session's mean acceptance (acceptance_mean), the same at every position.
 *
 * The calibration (acceptance.h) turns this into a bound on the product of the drafter's own
 * confidences. The page carries one bound per position, so the drafter ends a draft where the
 * policy, which does not see the draft, would have ended it. In one of 48 plans a draft is left
 * uncut, to learn what the cut tokens would have been.
 *
 * Targets. The policy `goodput` is this policy under targets: a session's time per token, V / (1 +
 * gained tokens), is to stay within its tpot, and no pass is to take longer than a ttft, because a
 * request that arrives meanwhile waits for its end. Where both the settings and the session's class
 * (classes.h) have a target, the stricter one holds. Among the prefixes, and then among the K of a
 * session, those that keep all targets come first, by their rate; if none does, the one that
 * exceeds a target by the smallest factor is taken (yield_value). Nothing is tried that exceeds a
 * target by more than the best K.
 *
 * Exploring. Each unknown has a standard deviation. For acceptance it follows from the evidence;
 * for the cost of a pass size, from how long ago this size, and sizes like it, were run. Trying K
 * once costs (R* - R_K) T_K tokens. It brings the expected improvement over the next `horizon`
 * iterations, or until the next change if that is expected sooner, in case K turns out better:
 *
 *   EI = sd (phi(z) + z Phi(z)),   z = (R_K - R*) / sd.
 *
 * A session of which no draft was seen for t iterations may also have changed, with chance
 * 1 - exp(-h t). It may then be any session, so speculation is worth its mean value over sessions
 * of low, middling and high acceptance; a trial of k shows 1 - 2^-k of that. h is the rate of the
 * changes that the session has shown, one in `phase` iterations to begin with, so a session that
 * never changes is tried less and less often. K is tried while its possible gain exceeds its cost
 * (the knowledge gradient's bound on the value of information). A draft longer than the best one is
 * tried only if the purse could pay for it with nothing accepted: also while the session drafts,
 * because an empty purse ends what pays. A trial from K = 0 may lose half of the purse. When not even
 * high acceptance could make drafting pay, nothing is tried from K = 0 for 2048 iterations, counted
 * over all sessions.
 *
 * Trials. A trial from K = 0 is charged a weighted mean of two losses: the believed loss, and the
 * loss when nothing is accepted. It also waits for its first draft, which a drafter that has rested
 * makes only after reading what it missed; the time that such drafts took counts as a cost
 * (cost_draft_first). The verifier counts the iterations of a trial (struct policy_session,
 * trial_n), usually one, so a trial costs no more when its record is read late. The first record
 * made under the trial's decision ends the wait, whatever it shows. Before that, only drafts that
 * were already under way may decide for K > 0. When a K promises the most after too few drafts, it
 * is tried for two iterations more than records are late, or for fewer if the purse cannot pay for
 * them, but for at least two.
 *
 * Trust. Promises are compared with results: the gains that drafting brought lately, over all
 * sessions, as a share of what trials from K = 0 had promised, is the factor for the next promise
 * (yield_trust). So what did not pay in earlier sessions is seldom tried in the next one, and is
 * tried again once it pays or the results are old.
 *
 * The purse makes K = 0 the floor, whatever the estimates say. It holds what speculation may still
 * lose against K = 0, counted in iterations at K = 0. Each iteration adds `spend` and the measured
 * gain, and subtracts the measured loss. The purse holds at most `purse`, up to four times that in
 * a session that has won, or what it began with if that is more. When it is empty, K is 0 until it
 * can pay for a trial again. So even with an adversary for a model, a session loses at most what
 * its purse began with, plus `spend` in each iteration, plus what the iterations that empty the
 * purse overdraw.
 *
 * The purse also limits how fast K rises. Of few tokens all may have been accepted, and then the
 * longest drafts promise the most. K is raised only as far as two purses can pay for the drafts that
 * are made until the first longer one is seen, with nothing accepted.
 *
 * A purse begins with what the sessions before left of theirs, because many short sessions would
 * otherwise each lose a whole one: a quarter of `purse` at least, three times `purse` at most
 * (yield_grant). Before any session has drafted, it is `purse`.
 *
 * Settings. A change acts in the next plan. A session whose K exceeds the new k_max begins anew,
 * with a new purse (controller_set).
 *
 * Before the first record. A session that the controller has not seen yet begins with the K for
 * which the first drafts of earlier sessions would have paid (page, defaults). Short answers would
 * otherwise be over before their own records decide.
 *
 * The drafter at K = 0. Following a session costs processor time and memory bandwidth that the pass
 * could use. After 32 iterations without a draft the drafter need not follow, or at once when not
 * even high acceptance could make drafting pay. It catches up, at K = 0, before the next trial.
 * With `rest_at_zero` = no it always follows, and no trial waits for it. Nor does a trial wait when
 * the verifier makes the drafter follow no session at K = 0.
 *
 * Foresight. While it follows a session at K = 0, the drafter reports what it would have drafted
 * and how much of that came true (drafter/foresight.h). This is the same evidence of acceptance as
 * a verified draft, at no cost. A session with foresight cannot change unseen; only the cost of
 * passes is then left to try.
 *
 * What is new. Cascade tries each K in runs of 4 iterations and keeps the winner for 16: it pays
 * for every trial in full, and compares windows of 4 noisy samples. Here every iteration informs
 * all K: a draft of 5 with 2 accepted tells what every shorter draft would have given, and a pass
 * of any size moves the level of the whole curve. SGLang's tiers follow acceptance alone, vLLM's
 * table batch size alone, llama.cpp's p-min confidence alone. None of these three knows what a
 * token costs, which is why they lose on mixtures of experts.
 */
#pragma once

#include "services/policy-controller/estimates/acceptance.h"
#include "services/policy-controller/estimates/passes.h"
#include "services/policy-controller/policy.h"

enum yield_rule {
	YIELD_UNPLANNED, /* nothing has been measured yet */
	YIELD_MOST, /* the K with the highest rate */
	YIELD_STICKY, /* the present K: another one promises too little more */
	YIELD_THRESHOLD, /* K = 0: the highest rate is too little above its rate */
	YIELD_TRIAL, /* a trial, which may bring more than it costs */
	YIELD_PROOF, /* a trial of the best K, for which too few drafts were seen */
	YIELD_CATCHING_UP, /* K = 0: the drafter has not followed */
	YIELD_EMPTY, /* K = 0: the purse is empty */
};

/* The figures of the plan that chose K, for each K from 0 to k_max. Only for display. */
struct yield_view {
	enum yield_rule rule;
	uint32_t k_max, best, highest; /* best and highest: by rate, before the rules */
	uint32_t sessions; /* in the pass */
	uint64_t weighed; /* bit k is set: k was weighed as a trial */
	float others; /* drafted tokens of the rest of the pass */
	float hope, base_ns;
	float drafted[LIMIT_DRAFT_DEPTH + 1], tokens[LIMIT_DRAFT_DEPTH + 1]; /* the session's */
	float time_ns[LIMIT_DRAFT_DEPTH + 1],
		rate[LIMIT_DRAFT_DEPTH + 1]; /* time_ns: of the pass; rate: tokens per ns */
	float late[LIMIT_DRAFT_DEPTH + 1]; /* yield_late; above 1: beyond a target */
	float doubt[LIMIT_DRAFT_DEPTH + 1], brings[LIMIT_DRAFT_DEPTH + 1],
		costs[LIMIT_DRAFT_DEPTH + 1];
};

/* What yield keeps of one session. */
struct yield {
	struct acceptance acceptance;
	uint32_t
		method; /* enum draft_method of its last draft, or of its masks; COST_METHODS: none */
	uint32_t k; /* in its last iteration */
	/* drafts: number so far; behind: tokens that the drafter may not have read */
	uint32_t drafts, behind;
	uint32_t probes; /* plans since a draft was last left uncut */
	uint32_t widths; /* plans since the other width was last tried */
	double purse, won; /* both in iterations at K = 0; won: since the session began */
	double granted; /* what the purse began with */
	/* For display: the iteration that last emptied the purse; 0: none has. */
	struct yield_emptied {
		uint64_t iteration;
		uint32_t k, drafted, accepted;
		float lost; /* in iterations at K = 0 */
	} emptied;
	uint32_t stale; /* iterations since its last draft */
	uint32_t idle; /* iterations at K = 0 that `acceptance` does not know of yet */
	uint32_t unseen; /* iterations since a draft was verified or foreseen */
	/* passes since the trial began whose record is awaited; 0: no trial waits */
	uint32_t waiting;
	bool prepared; /* a pass of the trial has computed the masks for its first draft */
	bool news; /* drafts from before the trial were seen since the last plan */
	uint64_t iterations; /* since the session began */
	struct yield_view view;
};

/* What some sessions of a pass add to it at their K, and the longest of their waits for a draft. */
struct yield_rest {
	double gain, extra, wait;
};

/* What one plan works with for each session. */
struct yield_option {
	double drafted[LIMIT_DRAFT_DEPTH], accepted[LIMIT_DRAFT_DEPTH], bound[LIMIT_DRAFT_DEPTH];
	double gained[LIMIT_DRAFT_DEPTH + 1],
		extra[LIMIT_DRAFT_DEPTH + 1]; /* sums over the first k positions */
	/* the wait for a draft of k tokens is wait_fixed + wait_step * k ns (cost_draft) */
	double wait_fixed, wait_step;
	uint32_t k;
	/* goodput's targets; 0: none */
	double tpot_ns, ttft_ns;
	struct yield_rest after; /* sum over the sessions behind this one, as the plan began */
	struct acceptance_drafts drafts;
};

/* What yield keeps of all sessions. */
struct yield_shared {
	struct acceptance pool[COST_METHODS]; /* drafts of all sessions, by method */
	struct acceptance firsts[COST_METHODS]; /* the first drafts of sessions only, by method */
	/* first_k: the K for a session that the controller has not seen */
	uint32_t first_k, n_plans;
	uint32_t method; /* of the last draft of any session */
	/* what sessions leave to new ones, in iterations at K = 0; NAN: no session has drafted */
	double credit;
	double delay; /* passes from a trial's beginning to its first record; moving mean */
	double promised, brought; /* by trials from K = 0, in iterations; both fade (yield_trust) */
	/* iterations, of all sessions, since a trial that no acceptance could have made pay */
	uint32_t hopeless;
	/* iterations in a row in which the drafter did not follow although the page asked it to */
	uint32_t unheard;
	uint64_t iteration; /* the last pass with one of its sessions */
	bool any;
	/* What alternatives bring, by method (yield_width.c); fades. */
	struct yield_width {
		double drafts; /* wide drafts */
		double beside, nodes; /* tokens and nodes that they had beside the main path */
		double wait[2], waits[2]; /* ns per step of drafting, narrow and wide; how many */
	} width[COST_METHODS];
	/* Scratch memory of a plan. */
	struct yield_option options[LIMIT_RUNNING];
	/* sessions whose positions were taken, in order */
	uint16_t taken[LIMIT_RUNNING * LIMIT_DRAFT_DEPTH];
};

/* The state of one session under yield, and the state of all sessions. */
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

/* The rate of changes that the session has shown, per iteration. */
double yield_change_rate(const struct policy_state *s);
/* policy_ops.observe (yield_observe.c). */
void yield_observe(
	struct policy_state *s, const struct iteration_record *record, struct verdict *verdict);
/* The targets of goodput for a session, in ns; 0: none. */
double yield_tpot(const struct policy_state *s);
double yield_ttft(const struct policy_state *s);
/* policy_ops.explain (yield_explain.c). */
void yield_explain(const struct policy_state *s, struct explanation *out);
/* policy_ops.plan. Called after the records of a pass; chooses K and cut for those n sessions of
 * the pass that this policy serves. sessions: all sessions in the pass. others: extra tokens of the
 * sessions that it does not serve. passes: number of passes since the last plan, this one included.
 * verdicts: [n]. */
void yield_plan(struct policy_state **states, uint32_t n, uint32_t sessions, uint32_t others,
	uint32_t passes, struct verdict *verdicts);
