#include "services/policy-controller/yield/yield.h"

#include "services/policy-controller/yield/yield_plan.h"
#include "shared/base/memory.h"
#include "shared/spec/session.h"

#include <math.h>
#include <string.h>

#define STICKY 1.005 /* another K must promise this much more */
#define PROBE_EVERY 48u /* plans between two drafts that are left uncut */
#define THIN 3.0 /* tried tokens; with fewer, a K > 0 has to prove itself first */
#define PROOF 2u /* iterations of a proof, plus as many as records are late */
#define PROOF_MAX 64.0
/* purses: what drafts may lose that are longer than before until the first of them is seen */
#define RISE_PURSES 2.0
#define FIRST_RECORDS 4u /* records of a new session that are awaited at once */
#define DRAFTING_RECORDS 8u /* records of a drafting session that may be read together */
#define FOLLOWED 32u /* iterations without a draft after which the drafter need not follow */
/* tokens that the drafter is taken to be behind in a session that it has not followed */
#define BEHIND_FIRST 128u

static_assert(sizeof(struct yield) <= POLICY_STATE_BYTES, "a session has room for it");

static void yield_init(void *memory)
{
	struct yield_shared *shared = memory;
	memory_clear(shared, sizeof(*shared));
	for (uint32_t i = 0; i < COST_METHODS; i++) {
		acceptance_init(&shared->pool[i]);
		acceptance_init(&shared->firsts[i]);
	}
	shared->method = DRAFT_NGRAM;
	shared->credit = NAN; /* no session has lost anything: a new one gets a whole purse */
}

uint32_t yield_method(const struct policy_state *s)
{
	return yield_of(s)->method < COST_METHODS ? yield_of(s)->method : yield_shared(s)->method;
}

const struct acceptance *yield_pool(const struct policy_state *s)
{
	return &yield_shared(s)->pool[yield_method(s)];
}

static uint32_t yield_first_k(const struct settings *settings, const void *memory)
{
	const struct yield_shared *shared = memory;
	uint32_t most = (uint32_t)settings->k_max;
	return shared->first_k < most ? shared->first_k : most;
}

static void yield_begin(struct policy_state *s, uint32_t k_hint, struct verdict *verdict)
{
	struct yield *y = yield_own(s);
	y->method = COST_METHODS;
	y->granted = y->purse = yield_grant(s);
	y->behind = s->unfollowed ? BEHIND_FIRST : 0;
	acceptance_init(&y->acceptance);
	acceptance_fit(&y->acceptance, yield_pool(s));
	s->k = k_hint <= (uint32_t)s->settings.k_max ? k_hint : 0;
	s->phase = s->k ? PHASE_SET : PHASE_BASELINE;
	memset(s->cut, 0, sizeof(s->cut));
	policy_decide(
		verdict, "%s: K = %u until the first iterations are measured", s->ops->name, s->k);
}

double plan_cost_doubt(const struct yield_plan_pass *p, double extra, double ratio)
{
	return passes_doubt(p->passes, p->sessions, p->others + extra, ratio);
}

double plan_rate_of(const struct yield_plan_pass *p, double gained, double extra, double wait)
{
	return (p->sessions + gained) / (passes_at(p->passes, p->others + extra) + wait);
}

double plan_wait_of(const struct yield_plan_pass *p, uint32_t index, uint32_t k)
{
	const struct yield_option *o = &p->shared->options[index];
	return k == 0 ? 0 : o->wait_fixed + o->wait_step * k;
}

/* bound_i of yield.h, when the session's tokens come after `before` extra ones. */
static void set_bounds(struct yield_plan_pass *p, const struct policy_state *s,
	struct yield_option *o, double before)
{
	uint32_t most = (uint32_t)s->settings.k_max;
	double a = o->drafts.mean, takes[LIMIT_DRAFT_DEPTH];
	for (uint32_t i = 0; i < most; i++)
		takes[i] = passes_at(p->passes, before + i + 1) - passes_at(p->passes, before + i);
	for (uint32_t i = 0; i < most; i++) {
		double cost = 0, value = 0, power = 1, best = INFINITY;
		for (uint32_t j = i; j < most; j++) {
			cost += takes[j] + (j > i ? o->wait_step : 0);
			value += power;
			power *= a;
			best = yield_min(best, cost / value);
		}
		o->bound[i] = p->rate * best;
	}
}

/* Two targets hold: so does the stricter one. 0: none. */
static double stricter(double setting_ns, double class_ns)
{
	if (!(setting_ns > 0 && class_ns > 0))
		return yield_max(setting_ns, class_ns);
	return fmin(setting_ns, class_ns);
}

double yield_tpot(const struct policy_state *s)
{
	return stricter((double)s->settings.tpot_ns, (double)s->class_tpot_ns);
}

double yield_ttft(const struct policy_state *s)
{
	return stricter((double)s->settings.ttft_ns, (double)s->class_ttft_ns);
}

/* Sets what is known of the session and stays the same throughout a plan. True: it has a target. */
static bool begin_option(struct policy_state *s, struct yield_option *o)
{
	yield_catch_up(s);
	cost_draft(&s->passes->cost, yield_method(s), &o->wait_fixed, &o->wait_step);
	acceptance_drafts(
		&yield_of(s)->acceptance, yield_pool(s), (uint32_t)s->settings.k_max, &o->drafts);
	bool targets = s->ops == &policy_goodput;
	o->tpot_ns = targets ? yield_tpot(s) : 0;
	o->ttft_ns = targets ? yield_ttft(s) : 0;
	return o->tpot_ns > 0 || o->ttft_ns > 0;
}

static void predict(const struct policy_state *s, struct yield_option *o, bool cut)
{
	uint32_t most = (uint32_t)s->settings.k_max;
	acceptance_predict(&o->drafts, most, cut ? o->bound : NULL, o->drafted, o->accepted);
	o->gained[0] = o->extra[0] = 0;
	for (uint32_t i = 0; i < most; i++) {
		o->gained[i + 1] = o->gained[i] + o->accepted[i];
		o->extra[i + 1] = o->extra[i] + o->drafted[i];
	}
}

static void add_to_rest(struct yield_rest *rest, const struct yield_plan_pass *p, uint32_t index)
{
	const struct yield_option *o = &p->shared->options[index];
	rest->gain += o->gained[o->k];
	rest->extra += o->extra[o->k];
	rest->wait = yield_max(rest->wait, plan_wait_of(p, index, o->k));
}

/* Called before the first session settles: sets each session's `after`, with the K that was chosen
 * jointly for those behind it. */
static void sum_up(struct yield_plan_pass *p)
{
	struct yield_rest after = {0};
	for (uint32_t i = p->n; i-- > 0;) {
		p->shared->options[i].after = after;
		add_to_rest(&after, p, i);
	}
	p->before = (struct yield_rest){0};
}

/* Rates and doubts for each K of this session, with the K of the others fixed. */
static void weigh(const struct yield_plan_pass *p, uint32_t index, struct yield_choice *c)
{
	const struct policy_state *s = p->states[index];
	const struct yield_option *o = &p->shared->options[index];
	double doubt = acceptance_doubt(&yield_of(s)->acceptance, o->drafts.mean), spread = 0;
	*c = (struct yield_choice){
		.other_gain = p->before.gain + o->after.gain,
		.other_extra = p->before.extra + o->after.extra,
		.other_wait = yield_max(p->before.wait, o->after.wait),
	};
	double now = passes_at(p->passes, p->others + c->other_extra + o->extra[o->k]);
	for (uint32_t k = 0; k <= (uint32_t)s->settings.k_max; k++) {
		double extra = c->other_extra + o->extra[k];
		double wait = yield_max(c->other_wait, plan_wait_of(p, index, k));
		if (k > 0)
			spread += k * o->accepted[k - 1] * doubt;
		double tokens = p->sessions + c->other_gain + o->gained[k];
		double pass = passes_at(p->passes, p->others + extra);
		double unsure = plan_cost_doubt(p, extra, pass / now);
		c->rate[k] = plan_rate_of(p, c->other_gain + o->gained[k], extra, wait);
		c->late[k] = yield_late(p, index, k, pass + wait);
		c->value[k] = yield_value(p, c->rate[k], c->late[k]);
		c->sd[k] = hypot(spread / tokens, unsure);
		c->sd_cost[k] = unsure;
	}
}

/* A longer draft than the present one is taken only if the purse could pay for those that are made
 * before its first record is read: a few lucky tokens promise the most of the longest drafts. */
static bool affordable(
	const struct yield_plan_pass *p, uint32_t index, const struct yield_choice *c, uint32_t k)
{
	const struct policy_state *s = p->states[index];
	return k <= s->k || yield_trial_loss(p, index, c, k) * (1 + p->shared->delay) <=
				    RISE_PURSES * yield_of(s)->purse;
}

static uint32_t best_of(const struct yield_plan_pass *p, uint32_t index,
	const struct yield_choice *c, uint32_t planned)
{
	struct policy_state *s = p->states[index];
	struct yield_view *view = &yield_own(s)->view;
	uint32_t best = affordable(p, index, c, planned) ? planned : 0;
	uint32_t most = (uint32_t)s->settings.k_max;
	for (uint32_t k = 0; k <= most; k++)
		if (c->value[k] > c->value[best] && affordable(p, index, c, k))
			best = k;
	view->highest = best;
	view->rule = YIELD_MOST;
	if (s->k <= most && s->k != best && c->value[s->k] * STICKY > c->value[best]) {
		best = s->k;
		view->rule = YIELD_STICKY;
	}
	if (best > 0 && c->value[best] < s->settings.threshold * c->value[0]) {
		best = 0;
		view->rule = YIELD_THRESHOLD;
	}
	return best;
}

/* The K above 0 with the highest rate. */
static uint32_t best_draft(const struct policy_state *s, const struct yield_choice *c)
{
	uint32_t best = 1;
	for (uint32_t k = 2; k <= (uint32_t)s->settings.k_max; k++)
		if (c->rate[k] > c->rate[best])
			best = k;
	return best;
}

static void explain(const struct yield_plan_pass *p, uint32_t index, const struct yield_choice *c,
	uint32_t k, const char *why, struct verdict *verdict)
{
	const struct policy_state *s = p->states[index];
	const struct yield_option *o = &p->shared->options[index];
	double tokens = p->sessions + c->other_gain + o->gained[k];
	const char *trying = s->trial_n ? "trying " : "";
	/* Without a draft nothing is accepted, so the reason is what drafts would be like. */
	if (k == 0) {
		uint32_t other = best_draft(s, c);
		policy_decide(verdict,
			"%sK = 0: iteration %.3f ms; K = %u has utility %.2f with acceptance "
			"%.0f%%%s",
			trying, tokens / c->rate[0] / 1e6, other, c->rate[other] / c->rate[0],
			100 * o->drafts.mean, why);
		return;
	}
	policy_decide(verdict,
		"%sK = %u: %.2f tokens with %.2f drafted, iteration %.3f ms (K = 0: %.3f), "
		"acceptance %.0f%%, utility %.2f%s",
		trying, k, 1 + o->gained[k], o->extra[k], tokens / c->rate[k] / 1e6,
		(p->sessions + c->other_gain) / c->rate[0] / 1e6, 100 * o->drafts.mean,
		c->rate[k] / c->rate[0], why);
}

/* Keeps the figures of the decision for whoever asks for them. */
static void keep_view(const struct yield_plan_pass *p, uint32_t index, const struct yield_choice *c)
{
	const struct yield_option *o = &p->shared->options[index];
	struct policy_state *s = p->states[index];
	struct yield_view *view = &yield_own(s)->view;
	*view = (struct yield_view){
		.k_max = (uint32_t)s->settings.k_max,
		.sessions = p->sessions,
		.others = (float)(p->others + c->other_extra),
		.hope = (float)c->hope,
		.base_ns = p->passes->ns[0],
	};
	for (uint32_t k = 0; k <= view->k_max; k++) {
		double tokens = p->sessions + c->other_gain + o->gained[k];
		view->drafted[k] = (float)o->extra[k];
		view->tokens[k] = (float)(1 + o->gained[k]);
		view->rate[k] = (float)c->rate[k];
		view->time_ns[k] = (float)(tokens / c->rate[k]);
		view->late[k] = (float)c->late[k];
		view->doubt[k] = (float)c->sd[k];
	}
}

/* Sets where the session's drafts end from now on. Now and then one draft is left uncut, to see
 * what the cut tokens would have been. */
static void set_cut(struct policy_state *s, const struct yield_option *o, uint32_t k)
{
	struct yield *y = yield_own(s);
	memset(s->cut, 0, sizeof(s->cut));
	if (k == 0)
		return;
	bool probe = ++y->probes >= PROBE_EVERY && y->purse > 1;
	if (probe) {
		y->probes = 0;
		s->prices.token = 0;
	} else if (acceptance_informed(&y->acceptance)) {
		acceptance_cut(&y->acceptance, k, o->bound, s->cut);
	}
}

/* The prices by which the verifier chooses among the nodes of drafts. Without them it verifies all. */
static void set_prices(const struct yield_plan_pass *p, struct policy_state *s)
{
	double price[PRICES_TERMS];
	s->prices = (struct policy_prices){0};
	if (!s->settings.by_experts || !(p->rate > 0) || !prices_get(&p->passes->prices, price))
		return;
	s->prices = (struct policy_prices){
		.token = (float)(1 / p->rate),
		.row = (float)price[0],
		.expert = (float)price[1],
		.load = (float)price[2],
	};
}

static bool pays(const struct policy_state *s, const struct yield_choice *c)
{
	double least = c->value[0] * fmax(STICKY, s->settings.threshold);
	for (uint32_t k = 1; k <= (uint32_t)s->settings.k_max; k++)
		if (c->value[k] > least)
			return true;
	return false;
}

/* True while the trial's record is awaited. If older records show that drafting pays, the wait is
 * over. */
static bool awaits_trial(
	const struct yield_plan_pass *p, struct policy_state *s, const struct yield_choice *c)
{
	struct yield *y = yield_own(s);
	if (y->waiting == 0)
		return false;
	y->waiting += p->n_passes;
	bool news = y->news && s->k == 0 && (double)y->acceptance.tried >= THIN;
	y->news = false;
	return !(news && pays(s, c));
}

/* Iterations of a proof: enough for the first record to be there before the last iteration, as far
 * as the purse can pay for them. */
static uint32_t proof_length(
	const struct yield_plan_pass *p, uint32_t index, const struct yield_choice *c, uint32_t k)
{
	double loss = yield_trial_loss(p, index, c, k), purse = yield_of(p->states[index])->purse;
	double length = fmin(PROOF + p->shared->delay, PROOF_MAX);
	return (uint32_t)fmax(loss > 0 ? fmin(length, purse / loss) : length, PROOF);
}

/* The K of a proof: no more than k_start, nor than the purse can pay for. */
static uint32_t proof_k(const struct yield_plan_pass *p, uint32_t index,
	const struct yield_choice *c, uint32_t best)
{
	const struct policy_state *s = p->states[index];
	double most = YIELD_TRIAL_SHARE * yield_of(s)->purse;
	uint32_t k = best < (uint32_t)s->settings.k_start ? best : (uint32_t)s->settings.k_start;
	while (k > 1 && PROOF * yield_trial_loss(p, index, c, k) > most)
		k--;
	return k;
}

struct decision {
	uint32_t best; /* the K that holds; after the trial, if there is one */
	uint32_t k; /* if it differs from best, it is tried */
	uint32_t trial_n; /* iterations of the trial */
	bool empty, catching_up; /* reasons why there is no draft */
};

/* Decides on the K with the highest rate or a trial, and whether anything forbids them. known: the
 * cost of a draft is known. */
static struct decision decide(
	const struct yield_plan_pass *p, uint32_t index, const struct yield_choice *c, bool known)
{
	struct policy_state *s = p->states[index];
	struct yield *y = yield_own(s);
	uint32_t best = best_of(p, index, c, p->shared->options[index].k);
	struct decision d = {.best = best, .k = best, .trial_n = known ? 1 : 2};
	y->view.best = best;
	/* Nothing is tried before the last decision is in force. */
	if (y->k == s->k)
		d.k = yield_explore(p, index, c, best);
	if (d.k != best)
		y->view.rule = YIELD_TRIAL;
	if (d.k != best && best == 0 && y->behind == 0)
		yield_trust_promised(p->shared, &y->view, d.k);
	if (best > 0 && (double)y->acceptance.tried < THIN) {
		d.k = proof_k(p, index, c, best);
		d.best = 0;
		d.trial_n = proof_length(p, index, c, d.k);
		y->view.rule = YIELD_PROOF;
	}
	d.empty = y->purse <= 0 && (d.best > 0 || d.k > 0);
	if (d.empty) {
		d.best = d.k = 0;
		y->view.rule = YIELD_EMPTY;
	}
	/* Its first pass computes the masks alone. */
	if (yield_method(s) == DRAFT_MTP_LORA)
		d.trial_n++;
	d.catching_up = d.k > 0 && y->behind > 0;
	if (d.catching_up) {
		d.best = d.k = 0;
		y->view.rule = YIELD_CATCHING_UP;
	}
	return d;
}

static void begin_trial(struct policy_state *s, const struct decision *d)
{
	s->trial_id++;
	s->trial_n = d->trial_n;
	s->trial_k = d->k;
	s->k_then = d->best;
	yield_own(s)->waiting = 1;
	yield_own(s)->prepared = yield_own(s)->news = false;
}

/* Decides the session's K, trial and cut, and whether the drafter follows it. */
static void settle_on(struct yield_plan_pass *p, uint32_t index, struct verdict *verdict)
{
	struct policy_state *s = p->states[index];
	struct yield *y = yield_own(s);
	struct yield_option *o = &p->shared->options[index];
	struct yield_choice c;
	uint32_t k_old = s->k;
	weigh(p, index, &c);
	bool known = cost_draft_evidence(&p->passes->cost, yield_method(s)) >= YIELD_WARM_DRAFTS;
	c.hope = yield_change_worth(p, index, &c, known);
	if (awaits_trial(p, s, &c)) {
		o->k = s->k;
		return;
	}
	y->waiting = s->trial_n = 0;
	keep_view(p, index, &c);
	struct decision d = decide(p, index, &c, known);
	bool tried = d.k != d.best;
	s->k = o->k = d.best;
	if (tried)
		begin_trial(s, &d);
	s->utility = (float)(c.rate[d.best] / c.rate[0]);
	s->phase = tried ? PHASE_TEST : d.best ? PHASE_SET : PHASE_OFF;
	set_prices(p, s);
	set_cut(s, o, d.k);
	s->width = yield_width(p, index, d.k, p->others + c.other_extra + o->extra[d.k]);
	s->unfollowed = s->settings.rest_at_zero && d.k == 0 && !d.catching_up &&
			(!(c.hope > 0) || y->stale >= FOLLOWED || y->behind > 0);
	if (tried || d.best != k_old)
		explain(p, index, &c, d.k, d.empty ? "; the purse is empty" : "", verdict);
}

void yield_plan(struct policy_state **states, uint32_t n, uint32_t sessions, uint32_t others,
	uint32_t passes, struct verdict *verdicts)
{
	uint32_t most = 0;
	if (n == 0 || sessions < n || sessions > LIMIT_RUNNING ||
		others > (sessions - n) * LIMIT_DRAFT_NODES)
		return;
	struct yield_shared *shared = yield_shared(states[0]);
	struct yield_plan_pass p = {.shared = shared,
		.passes = states[0]->passes,
		.states = states,
		.n = n,
		.sessions = sessions,
		.others = others,
		.n_passes = passes};
	for (uint32_t i = 0; i < n; i++)
		most += (uint32_t)states[i]->settings.k_max;
	if (others + most + 1 > COST_EXTRA_MAX)
		most = COST_EXTRA_MAX - others - 1;
	if (!passes_curve(p.passes, sessions, others + most + 1))
		return;
	for (uint32_t i = 0; i < n; i++)
		p.targets = begin_option(states[i], &shared->options[i]) || p.targets;
	/* First with uncut drafts, which tells what a token is worth; then with drafts cut by that.
	 */
	for (uint32_t i = 0; i < n; i++)
		predict(states[i], &shared->options[i], false);
	yield_choose_jointly(&p);
	double extra = others;
	for (uint32_t i = 0; i < n; i++)
		extra += shared->options[i].extra[shared->options[i].k];
	for (uint32_t i = 0; i < n; i++) {
		struct yield_option *o = &shared->options[i];
		if (!acceptance_informed(&yield_of(states[i])->acceptance))
			continue;
		set_bounds(&p, states[i], o, fmax(extra - o->extra[o->k], 0));
	}
	for (uint32_t i = 0; i < n; i++)
		if (acceptance_informed(&yield_of(states[i])->acceptance))
			predict(states[i], &shared->options[i], true);
	yield_choose_jointly(&p);
	sum_up(&p);
	for (uint32_t i = 0; i < n; i++) {
		settle_on(&p, i, &verdicts[i]);
		add_to_rest(&p.before, &p, i);
	}
	yield_choose_first(&p);
}

/* In how many iterations a record may decide something: at once while a trial runs or a decision is
 * not in force yet, soon while the session drafts. When a record is read, the verifier is already
 * in the next pass, so a decision takes effect in the pass after that. */
static uint32_t yield_awaits(const struct policy_state *s)
{
	const struct yield *y = yield_of(s);
	if (s->trial_n > 0)
		return y->waiting == 1 ? 1 + (s->trial_n < PROOF ? s->trial_n : PROOF) : 1;
	if (y->k != s->k)
		return 2;
	if (y->iterations < FIRST_RECORDS)
		return 1;
	return s->k > 0 ? DRAFTING_RECORDS : 0;
}

/* What yield and goodput have in common. */
#define YIELD_RULE                                                                              \
	.state_bytes = sizeof(struct yield), .first_k = yield_first_k, .begin = yield_begin,    \
	.observe = yield_observe, .explain = yield_explain, .awaits = yield_awaits,             \
	.options_are = "expected: drafted and tokens of the session's iterations, tokens/s of " \
		       "the whole batch while it decodes",                                      \
	.tells_drafted = true, .tells_doubt = true, .foresight = true, .plan = yield_plan

const struct policy_ops policy_yield = {
	.name = "yield",
	.shared_bytes = sizeof(struct yield_shared),
	.init = yield_init,
	YIELD_RULE,
};

/* yield under targets (yield.h, Targets). What it learns of drafts is yield's: sessions may change
 * from one to the other. */
const struct policy_ops policy_goodput = {
	.name = "goodput",
	.shares = &policy_yield,
	YIELD_RULE,
};
