#include "services/policy-controller/estimates/acceptance.h"

#include <math.h>
#include <string.h>

#define A_MAX 0.98
#define A_MIN 0.01
#define POWER_MIN 0.05
#define POWER_MAX 4.0
#define POWER_PRIOR 0.5 /* evidence, in squared ln c, that g = 1 is worth */
#define OWN_PRIOR 2.0 /* tokens that the drafter's word counts as where the pool knows nothing */
#define POOL_PRIOR 4.0 /* tokens that the pool's rate counts as */
#define FIT_STEPS 4
#define POSITION_PRIOR 6.0
#define POOL_MEMORY 512.0
#define SHIFT 1.5 /* ln of the factor between the odds before and after a change */
#define ALARMED 0.2f /* share of the counts that an alarm leaves */
#define IDLE_SLOWER 4.0
#define OWN_CHAINS 4u /* number of drafts from which a session's own drafts are used */

/* Lower bounds of c in all classes but the last, in 255ths. */
static const uint8_t class_floor[ACCEPTANCE_CLASSES - 1] = {250, 240, 224, 200, 168, 128, 77};
/* -ln of the middle of each class, for classes that have seen nothing. */
static const float class_surprise[ACCEPTANCE_CLASSES] = {
	0.01f, 0.04f, 0.09f, 0.18f, 0.33f, 0.54f, 0.91f, 1.8f};

static uint32_t class_of(uint8_t confidence)
{
	uint32_t i = 0;
	while (i < ACCEPTANCE_CLASSES - 1 && confidence < class_floor[i])
		i++;
	return i;
}

/* -ln c. There are only 256 values, and a plan asks for a hundred per session, so each is computed
 * once. */
static double surprise_of(uint8_t confidence)
{
	static double known[POLICY_CONFIDENCE + 1];
	if (known[confidence] <= 0)
		known[confidence] =
			confidence ? -log(confidence / (double)POLICY_CONFIDENCE) : log(510);
	return known[confidence];
}

static double within(double value, double low, double high)
{
	value = value > low ? value : low;
	return value < high ? value : high;
}

void acceptance_init(struct acceptance *a)
{
	memset(a, 0, sizeof(*a));
	acceptance_fit(a, NULL);
}

/* Mean and weight of a class's prior: what the pool saw, otherwise the drafter's word. */
static void prior_of(
	const struct acceptance *pool, uint32_t i, double word, double *mean, double *weight)
{
	*mean = fmin(word, 0.8);
	*weight = OWN_PRIOR / ACCEPTANCE_CLASSES;
	if (!pool || pool->classes[i].tried <= 0)
		return;
	double tried = (double)pool->classes[i].tried, more = fmin(tried, POOL_PRIOR);
	*mean = (*mean * *weight + more * (double)pool->classes[i].accepted / tried) /
		(*weight + more);
	*weight += more;
}

/* The classes of confidence as the fit sees them: x = -ln c, the number of positions, and the share
 * of them that was accepted, both with the prior added; and the drafter's word for it, c. */
struct fit_points {
	double x[ACCEPTANCE_CLASSES], n[ACCEPTANCE_CLASSES], rate[ACCEPTANCE_CLASSES],
		word[ACCEPTANCE_CLASSES];
};

static void fit_point(struct fit_points *points, uint32_t i, const struct acceptance_class *own,
	const struct acceptance *pool)
{
	double tried = (double)own->tried, mean, weight;
	double x = tried > 0.01 ? (double)own->surprise / tried : (double)class_surprise[i];
	points->x[i] = x;
	points->word[i] = exp(-x);
	prior_of(pool, i, points->word[i], &mean, &weight);
	points->n[i] = tried + weight;
	points->rate[i] = ((double)own->accepted + weight * mean) / points->n[i];
}

/* -ln a = b + g x, b >= 0. */
struct fit {
	double b, g;
};

/* One step of iteratively reweighted least squares (McCullagh and Nelder, Generalized linear
 * models, section 2.5), for the binomial distribution with a logarithmic link. The weights follow
 * from the rates that the last step expects, not from those observed: the variance of the logarithm
 * of an observed 0 of 30 is infinite, and would give the 30 no weight. */
static struct fit fit_step(const struct fit_points *p, struct fit last)
{
	enum { N = ACCEPTANCE_CLASSES };
	double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
	double expected[N], mu[N], weight[N], y[N];
	for (uint32_t i = 0; i < N; i++) {
		expected[i] = last.b + last.g * p->x[i];
		mu[i] = within(exp(-expected[i]), A_MIN, A_MAX);
	}
	/* In a loop of its own: the compiler then does two or more divisions at once. */
	for (uint32_t i = 0; i < N; i++) {
		weight[i] = p->n[i] * mu[i] / (1 - mu[i] + 0.05);
		y[i] = expected[i] - (p->rate[i] - mu[i]) / mu[i];
	}
	for (uint32_t i = 0; i < N; i++) {
		double x = p->x[i];
		w += weight[i];
		wx += weight[i] * x;
		wy += weight[i] * y[i];
		wxx += weight[i] * x * x;
		wxy += weight[i] * x * y[i];
	}
	double xx = wxx - wx * wx / w, xy = wxy - wx * wy / w;
	struct fit out = {.g = (xy + POWER_PRIOR) / (xx + POWER_PRIOR)};
	out.g = fmin(fmax(out.g, POWER_MIN), POWER_MAX);
	out.b = (wy - out.g * wx) / w;
	if (out.b < 0) {
		out.b = 0;
		out.g = fmin(fmax((wxy + POWER_PRIOR) / (wxx + POWER_PRIOR), POWER_MIN), POWER_MAX);
	}
	return out;
}

void acceptance_fit(struct acceptance *a, const struct acceptance *pool)
{
	struct fit_points points;
	double n = 0, accepted = 0, expected = 0;
	a->tried = 0;
	for (uint32_t i = 0; i < ACCEPTANCE_CLASSES; i++) {
		fit_point(&points, i, &a->classes[i], pool);
		a->tried += a->classes[i].tried;
		n += points.n[i];
		accepted += points.n[i] * points.rate[i];
		expected += points.n[i] * points.word[i];
	}
	a->evidence = (float)n;
	/* Starts from g = 1, with the level that expects as many accepted tokens as there were. */
	struct fit fit = {.b = fmax(log(expected / accepted), 0), .g = 1};
	for (int i = 0; i < FIT_STEPS; i++)
		fit = fit_step(&points, fit);
	a->power = (float)fit.g;
	a->scale = (float)exp(-fit.b);
}

static double position_of(const struct acceptance *a, uint32_t i)
{
	double r = ((double)a->observed[i] + POSITION_PRIOR) /
		   ((double)a->expected[i] + POSITION_PRIOR);
	return within(r, 0.3, 1.3);
}

static double calibrated(const struct acceptance *a, uint8_t confidence)
{
	if (confidence == POLICY_CONFIDENCE)
		return (double)a->scale;
	return (double)a->scale * exp(-(double)a->power * surprise_of(confidence));
}

double acceptance_of(const struct acceptance *a, uint32_t position, uint8_t confidence)
{
	return within(position_of(a, position) * calibrated(a, confidence), A_MIN, A_MAX);
}

double acceptance_mean(const struct acceptance *a)
{
	double tried = 0, sum = 0;
	for (uint32_t i = 0; i < ACCEPTANCE_CLASSES; i++) {
		const struct acceptance_class *own = &a->classes[i];
		if (own->tried <= 0)
			continue;
		double x = (double)(own->surprise / own->tried);
		tried += (double)own->tried;
		sum += (double)own->tried * (double)a->scale * exp(-(double)a->power * x);
	}
	double none = (double)a->scale;
	return fmin(fmax((sum + 0.1 * none) / (tried + 0.1), A_MIN), A_MAX);
}

double acceptance_doubt(const struct acceptance *a, double mean)
{
	return sqrt((1 - mean) / (mean * (double)a->evidence));
}

bool acceptance_informed(const struct acceptance *a)
{
	return (double)(a->tried - a->classes[0].tried) > 0.05 * (double)a->tried;
}

static void fade_classes(struct acceptance *a, float left)
{
	for (uint32_t i = 0; i < ACCEPTANCE_CLASSES; i++) {
		a->classes[i].tried *= left;
		a->classes[i].accepted *= left;
		a->classes[i].surprise *= left;
	}
}

static void fade(struct acceptance *a, float left)
{
	fade_classes(a, left);
	for (uint32_t i = 0; i < a->depths; i++) {
		a->observed[i] *= left;
		a->expected[i] *= left;
	}
}

/* Page's test in both directions: adds the evidence that the odds have shifted. */
static void accumulate(struct acceptance *a, double believed, bool accepted)
{
	double up = believed * exp(SHIFT) / (1 - believed + believed * exp(SHIFT));
	double down = believed * exp(-SHIFT) / (1 - believed + believed * exp(-SHIFT));
	double rose = log(accepted ? up / believed : (1 - up) / (1 - believed));
	double fell = log(accepted ? down / believed : (1 - down) / (1 - believed));
	a->rose = fmaxf(0, a->rose + (float)rose);
	a->fell = fmaxf(0, a->fell + (float)fell);
}

static void keep_chain(struct acceptance *a, const struct iteration_record *record)
{
	struct acceptance_chain *chain = &a->chains[a->n_chains++ % ACCEPTANCE_CHAINS];
	chain->k = record->k;
	chain->n = record->depth;
	memcpy(chain->confidence, record->confidence, sizeof(chain->confidence));
}

static void count(struct acceptance *a, uint8_t confidence, bool accepted)
{
	struct acceptance_class *class = &a->classes[class_of(confidence)];
	class->tried += 1;
	class->accepted += accepted ? 1 : 0;
	class->surprise += (float)surprise_of(confidence);
}

void acceptance_gather(struct acceptance *pool, const struct iteration_record *record)
{
	fade_classes(pool, (float)(1 - 1 / POOL_MEMORY));
	for (uint32_t i = 0; i < record->depth && i <= record->accepted; i++)
		count(pool, record->confidence[i], i < record->accepted);
	keep_chain(pool, record);
}

bool acceptance_observe(struct acceptance *a, const struct acceptance *pool,
	const struct iteration_record *record, const struct acceptance_knobs *knobs)
{
	fade(a, (float)(1 - 1 / knobs->memory));
	if (record->depth > a->depths)
		a->depths = record->depth;
	for (uint32_t i = 0; i < record->depth && i <= record->accepted; i++) {
		bool accepted = i < record->accepted;
		double chance = calibrated(a, record->confidence[i]);
		accumulate(a, within(position_of(a, i) * chance, A_MIN, A_MAX), accepted);
		count(a, record->confidence[i], accepted);
		a->observed[i] += accepted ? 1 : 0;
		a->expected[i] += (float)fmin(chance, A_MAX);
	}
	keep_chain(a, record);
	bool alarm = fmaxf(a->rose, a->fell) > (float)knobs->alarm;
	if (alarm) {
		fade(a, ALARMED);
		a->rose = a->fell = 0;
		a->n_alarms++;
	}
	acceptance_fit(a, pool);
	return alarm;
}

void acceptance_idle(struct acceptance *a, uint32_t n, const struct acceptance *pool,
	const struct acceptance_knobs *knobs)
{
	fade(a, (float)pow(1 - 1 / (IDLE_SLOWER * knobs->memory), n));
	acceptance_fit(a, pool);
}

/* A draft of the full depth that was asked for continues with the mean of what is known. A shorter
 * one had nothing more. */
static void follow_chain(const struct acceptance *a, const struct acceptance_chain *chain,
	uint32_t k, const double *position, struct acceptance_drafts *out)
{
	double chance = 1;
	uint32_t length = chain->n >= chain->k || chain->n > k ? k : chain->n;
	for (uint32_t i = 0; i < length; i++) {
		chance *= i < chain->n ? within(position[i] * calibrated(a, chain->confidence[i]),
						 A_MIN, A_MAX)
				       : out->mean * position[i];
		out->chance[out->n_chances++] = chance;
	}
	out->length[out->n++] = (uint8_t)length;
}

void acceptance_drafts(const struct acceptance *a, const struct acceptance *pool, uint32_t k,
	struct acceptance_drafts *out)
{
	static const struct acceptance_chain unknown;
	const struct acceptance *from =
		pool && a->n_chains < OWN_CHAINS && pool->n_chains > 0 ? pool : a;
	uint32_t n = from->n_chains < ACCEPTANCE_CHAINS ? from->n_chains : ACCEPTANCE_CHAINS;
	double position[LIMIT_DRAFT_DEPTH];
	for (uint32_t i = 0; i < k; i++)
		position[i] = position_of(a, i);
	out->mean = acceptance_mean(a);
	out->n = out->n_chances = 0;
	if (n == 0)
		follow_chain(a, &unknown, k, position, out);
	for (uint32_t i = 0; i < n; i++)
		follow_chain(a, &from->chains[i], k, position, out);
}

void acceptance_predict(const struct acceptance_drafts *drafts, uint32_t k, const double *bound,
	double *drafted, double *accepted)
{
	double share = 1.0 / drafts->n;
	const double *chance = drafts->chance;
	memset(drafted, 0, k * sizeof(*drafted));
	memset(accepted, 0, k * sizeof(*accepted));
	for (uint32_t n = 0; n < drafts->n; chance += drafts->length[n++])
		for (uint32_t i = 0; i < drafts->length[n]; i++) {
			if (bound && chance[i] < bound[i])
				break;
			drafted[i] += share;
			accepted[i] += share * chance[i];
		}
}

void acceptance_cut(const struct acceptance *a, uint32_t k, const double *bound, float *cut)
{
	double constant = 1;
	for (uint32_t i = 0; i < k; i++) {
		constant *= position_of(a, i) * (double)a->scale;
		double ratio = fmin(bound[i] / constant, 1);
		cut[i] = ratio > 0 ? (float)exp(log(ratio) / (double)a->power) : 0;
	}
}
