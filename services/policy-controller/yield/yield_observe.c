/*
 * yield: what it learns from an iteration's record. The pass tells what passes cost. Its draft
 * tells what is accepted, in this session and in all. The gain or loss goes into the purse, and the
 * first record of a trial ends the wait for it.
 */
#include "services/policy-controller/yield/yield_plan.h"
#include "shared/spec/session.h"

#include <math.h>
#include <string.h>

#define SAMPLE_MAX 4.0 /* times the expected time: no single pass may cost the whole purse */
#define EARNED_SHARE 0.1 /* purses that each won iteration adds to the limit of the purse */
#define EARNED_MAX 3.0
#define CREDIT_PURSES 4.0 /* purses: the most that sessions leave to later ones */
#define PURSE_FLOOR (-1.0)
#define CATCH_UP \
	16u /* tokens that a drafter reads in an iteration, at least, after it did not follow */
/* iterations in which it did not follow although asked to: more than can be late */
#define UNHEARD_MAX 64u
#define DELAY_GAIN 0.25 /* weight of the newest record in the mean of how late records are */

static struct acceptance_knobs knobs_of(const struct policy_state *s)
{
	return (struct acceptance_knobs){
		.memory = (double)s->settings.memory, .alarm = s->settings.alarm};
}

/* Fades the trust once for each pass, with the pass's first record. */
static void fade(struct yield_shared *shared, const struct iteration_record *record)
{
	if (shared->any && record->iteration == shared->iteration)
		return;
	shared->any = true;
	shared->iteration = record->iteration;
	yield_trust_fade(shared);
}

/* A model or a head that ends a chain early has also made the token that it leaves out. */
static uint32_t steps_of(const struct iteration_record *record, uint32_t method)
{
	bool passes = method == DRAFT_MODEL || method == DRAFT_EAGLE3 || method == DRAFT_MTP ||
		      method == DRAFT_LAYER_SKIP;
	bool extra = passes && record->depth < record->k;
	return (uint32_t)record->depth + (extra ? 1 : 0);
}

void yield_catch_up(struct policy_state *s)
{
	struct yield *y = yield_own(s);
	struct acceptance_knobs knobs = knobs_of(s);
	if (y->idle > 0)
		acceptance_idle(&y->acceptance, y->idle, yield_pool(s), &knobs);
	y->idle = 0;
}

/* Learns what a draft, verified or foreseen, tells about acceptance. Returns the session's method.
 */
static uint32_t observe_acceptance(struct policy_state *s, const struct iteration_record *draft)
{
	struct yield *y = yield_own(s);
	struct acceptance_knobs knobs = knobs_of(s);
	yield_catch_up(s);
	if (draft->drafted > 0 && draft->method < COST_METHODS)
		y->method = yield_shared(s)->method = draft->method;
	uint32_t method = yield_method(s);
	struct acceptance *pool = &yield_shared(s)->pool[method];
	if (y->drafts++ < YIELD_FIRST_DRAFTS)
		acceptance_observe(&yield_shared(s)->firsts[method], pool, draft, &knobs);
	acceptance_gather(pool, draft);
	acceptance_observe(&y->acceptance, pool, draft, &knobs);
	return method;
}

/* A draft that was not verified tells nothing about costs. */
static void observe_foresight(struct policy_state *s, const struct iteration_record *record)
{
	struct iteration_record draft = {.k = record->foreseen,
		.depth = record->foreseen_drafted,
		.drafted = record->foreseen_drafted,
		.accepted = record->foreseen_right,
		.method = record->foreseen_method};
	memcpy(draft.confidence, record->confidence, sizeof(draft.confidence));
	yield_own(s)->unseen = 0;
	observe_acceptance(s, &draft);
}

/* What the session's masks added to the pass, by the curve. To the planner it is a cost of drafting:
 * with K more tokens come K rows that are verified, and the rest. */
static uint64_t masks_ns(struct policy_state *s, const struct iteration_record *record)
{
	uint32_t b = record->batch_sessions;
	uint32_t extra = record->batch_tokens > b ? record->batch_tokens - b : 0;
	if (record->masks == 0 || record->masks > extra || b < 1 || b > LIMIT_RUNNING ||
		extra > COST_EXTRA_MAX || !passes_curve(s->passes, b, extra))
		return 0;
	const float *pass = s->passes->ns;
	return (uint64_t)(pass[extra] - pass[extra - record->masks]);
}

/* A pass with masks and without a draft, with which drafting from masks begins: only the next one
 * tells what is accepted. */
static bool is_preparing(const struct iteration_record *record)
{
	return record->masks > 0 && record->depth == 0;
}

static void observe_draft(struct policy_state *s, const struct iteration_record *record, bool first)
{
	uint32_t method = is_preparing(record) ? DRAFT_MTP_LORA : observe_acceptance(s, record);
	uint32_t steps = record->masks > 0 ? record->k : steps_of(record, method);
	cost_draft_observe(&s->passes->cost, record->masks > 0 ? DRAFT_MTP_LORA : method, steps,
		record->draft_ns + masks_ns(s, record), first);
}

/* A session that has won may lose more before it is stopped: bad luck does not make a bad K. */
static double purse_most(const struct policy_state *s)
{
	double earned = fmin(fmax(yield_of(s)->won * EARNED_SHARE, 0), EARNED_MAX);
	return fmax(s->settings.purse * (1 + earned), yield_of(s)->granted);
}

static void credit(struct policy_state *s, double won)
{
	struct yield_shared *shared = yield_shared(s);
	double most = s->settings.purse * CREDIT_PURSES;
	double before = isnan(shared->credit) ? s->settings.purse : shared->credit;
	shared->credit = fmin(fmax(before + won, PURSE_FLOOR), most);
}

/* Settles what the iteration won or lost against K = 0. In a batch the session pays its share of
 * the cost of the drafted tokens, by the curve: the clock cannot tell whose tokens they were, and
 * the last token alone may have cost next to nothing. */
static void settle(struct policy_state *s, const struct iteration_record *record)
{
	struct yield *y = yield_own(s);
	uint32_t b = record->batch_sessions, own = record->drafted + record->masks;
	uint32_t extra = record->batch_tokens > b ? record->batch_tokens - b : 0;
	const float *pass = s->passes->ns;
	if (b < 1 || b > LIMIT_RUNNING || extra > COST_EXTRA_MAX || own > extra ||
		record->iteration_ns <= record->draft_ns || record->iteration_ns > COST_NS_MAX)
		return;
	passes_curve(s->passes, b, extra);
	double base = (double)pass[0], believed = (double)pass[extra], lost;
	double took = fmin(
		(double)record->iteration_ns, SAMPLE_MAX * believed + (double)record->draft_ns);
	if (b == 1)
		lost = took - base;
	else
		lost = (believed - base) * own / fmax(extra, 1) + (double)record->draft_ns / b;
	lost = fmin(lost, SAMPLE_MAX * believed);
	double won = (double)record->emitted - 1 - lost * b / base;
	y->won += won;
	credit(s, won);
	yield_trust_won(yield_shared(s), won);
	if (y->purse > 0 && y->purse + won <= 0)
		y->emptied = (struct yield_emptied){.iteration = y->iterations,
			.k = record->k,
			.drafted = record->drafted,
			.accepted = record->accepted,
			.lost = (float)-won};
	y->purse = fmin(fmax(y->purse + won, PURSE_FLOOR), purse_most(s));
}

/* Tracks how far the drafter is behind in a session that it was told not to follow. If the verifier
 * makes the drafter follow no session at K = 0 (follow_at_zero), there is nothing to wait for: it
 * reads what it missed with the first draft. Drafts from masks need no drafter. */
static void follow_along(struct policy_state *s, const struct iteration_record *record)
{
	struct yield *y = yield_own(s);
	struct yield_shared *shared = yield_shared(s);
	if (record->k > 0 || record->method == DRAFT_MTP_LORA) {
		y->behind = 0;
		return;
	}
	if (record->unfollowed) {
		y->behind += record->emitted;
		shared->unheard += !s->unfollowed && shared->unheard < UNHEARD_MAX;
	} else {
		y->behind -= y->behind < CATCH_UP ? y->behind : CATCH_UP;
		shared->unheard = 0;
	}
	if (shared->unheard >= UNHEARD_MAX)
		y->behind = 0;
}

/* The wait ends with the first record of a pass that began when the trial was on the page. Usually
 * it is the trial's. Otherwise the trial's record was lost, or the trial never took place because
 * the context was ending. An earlier record may still tell enough about its own K. */
static void see_trial(struct policy_state *s, const struct iteration_record *record)
{
	struct yield *y = yield_own(s);
	if (y->waiting == 0)
		return;
	y->news = y->news || record->drafted > 0;
	if (policy_is_older(s, record))
		return;
	if (is_preparing(record) && !y->prepared) {
		y->prepared = true;
		return;
	}
	double delay = (double)y->waiting - (y->prepared ? 2 : 1);
	yield_shared(s)->delay += DELAY_GAIN * (delay - yield_shared(s)->delay);
	y->waiting = 0;
}

void yield_observe(
	struct policy_state *s, const struct iteration_record *record, struct verdict *verdict)
{
	struct yield *y = yield_own(s);
	(void)verdict;
	bool first = y->stale > 0 || y->iterations == 0;
	fade(yield_shared(s), record);
	passes_observe(s->passes, record, first);
	y->k = record->k;
	if (record->method == DRAFT_MTP_LORA)
		y->method = DRAFT_MTP_LORA;
	y->purse = fmin(y->purse + s->settings.spend, purse_most(s));
	if (yield_shared(s)->credit < s->settings.purse)
		credit(s, s->settings.spend);
	y->iterations++;
	y->stale = record->k == 0 ? y->stale + 1 : 0;
	see_trial(s, record);
	follow_along(s, record);
	y->unseen = record->k == 0 ? y->unseen + 1 : 0;
	if (record->k == 0) {
		y->idle++;
		if (record->foreseen > 0)
			observe_foresight(s, record);
		return;
	}
	observe_draft(s, record, first);
	yield_width_observe(s, record);
	settle(s, record);
}
