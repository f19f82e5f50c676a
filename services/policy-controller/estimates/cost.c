#include "services/policy-controller/estimates/cost.h"

#include "shared/base/memory.h"

#include <math.h>
#include <string.h>

#define CELL_MEMORY 32.0f /* passes that a cell's mean goes back */
/* share of a cell's weight that is left after a pass elsewhere */
#define CELL_FADE (1.0f - 1.0f / 512)
#define LEVEL_GAIN 0.125 /* share of a well known cell's deviation that goes into the level */
#define YOUNG 8.0f /* first passes at K = 0, some of which may have been delayed */
#define DELAYED 0.2 /* ln: a pass that is longer by this much may have been delayed */
#define TRUSTED 8.0f /* weight at which half of a cell's deviation belongs to the level */
#define OWN_SHARE 0.75f /* share of a well known cell's step that goes to the level */
#define MISSING_SHARE 0.1f /* factor for both where experts are missing */
#define DEVIATION_MAX 0.7 /* ln 2: no single pass is believed to be off by more */
/* share of a neighbour's evidence in a curve that starts as a copy of it */
#define NEIGHBOUR_TRUST 0.1f
#define RESIDUAL_PRIOR 1.0f
/* weight from which a cell says more about its neighbours than cells behind it do */
#define WELL_KNOWN 1.0f
#define MISSING_GAIN 0.0625
#define FIRST_SHARE 0.25f /* weight of a session's first longer pass where experts are missing */
#define EXPERTS_OFTEN 16u
#define EXPERTS_EVERY 16u
#define FIRST_GAIN 0.25
/* passes after which the belief in a first draft's wait has faded to 1 / e */
#define FIRST_PASSES 8192.0
#define DRAFT_FADE (1 - 1.0 / 128)

/* The prior for a model that nobody has run: a token adds a third, the next ones a little less. */
#define PRIOR_M 0.25f
#define PRIOR_L 0.08f
#define PRIOR_Q 0.8f
#define PRIOR_WEIGHT 0.1

/* The first e of each cell behind COST_EXACT, except for the last cell: four cells per doubling. */
static const uint16_t cell_begin[COST_CELLS - 1 - COST_EXACT] = {17, 20, 23, 27, 32, 39, 46, 54, 64,
	77, 91, 108, 128, 153, 182, 216, 256, 305, 363, 431, 512, 609, 725, 862, 1024, 1218, 1448,
	1722, 2048, 2435, 2896, 3444};

static uint32_t cell_of(uint32_t extra)
{
	uint32_t cell = COST_EXACT;
	if (extra <= COST_EXACT)
		return extra;
	while (cell < COST_CELLS - 1 && extra >= cell_begin[cell - COST_EXACT])
		cell++;
	return cell;
}

void cost_init(struct cost *cost)
{
	memory_clear(cost, sizeof(*cost));
}

/* A token adds to a pass of b sessions about 1 / b of what it adds to a pass of one. */
static void curve_clear(struct cost_curve *curve, uint32_t sessions)
{
	memset(curve, 0, sizeof(*curve));
	curve->sessions = sessions;
	curve->m = PRIOR_M / (float)sessions;
	curve->l = PRIOR_L / (float)sessions;
	curve->q = PRIOR_Q;
}

static double grown(double q, double extra)
{
	return q > 0.999 ? extra : (1 - pow(q, extra)) / (1 - q);
}

/* G at the mean e of a cell, which changes seldom. */
static double cell_grown(struct cost_curve *curve, uint32_t index)
{
	struct cost_grown *known = &curve->grown[index];
	float extra = curve->cells[index].extra;
	if (known->q != curve->q || known->extra != extra)
		*known = (struct cost_grown){
			curve->q, extra, grown((double)curve->q, (double)extra)};
	return known->value;
}

/* Finds q from the distinct experts: of a few values, the one with which experts(0) + u G(e) fits
 * best. Without experts for at least two different e there is nothing to learn. */
static void fit_experts(struct cost_curve *curve)
{
	static const float grid[] = {0.4f, 0.5f, 0.6f, 0.7f, 0.8f, 0.87f, 0.93f, 0.97f, 1};
	const struct cost_cell *first = &curve->cells[0];
	double best = INFINITY;
	if (first->experts_weight <= 0 || first->experts <= 0)
		return;
	for (size_t g = 0; g < sizeof(grid) / sizeof(*grid); g++) {
		double ug = 0, gg = 0, uu = 0;
		for (uint32_t i = 1; i < COST_CELLS; i++) {
			const struct cost_cell *cell = &curve->cells[i];
			if (cell->experts_weight <= 0)
				continue;
			double u = (double)(cell->experts / first->experts) - 1;
			double x = grown((double)grid[g], (double)cell->extra);
			double w = (double)cell->experts_weight;
			ug += w * u * x;
			gg += w * x * x;
			uu += w * u * u;
		}
		if (gg <= 0)
			return;
		double off = (double)(grid[g] - PRIOR_Q);
		double error = uu - ug * ug / gg + 0.01 * off * off;
		if (error < best) {
			best = error;
			curve->q = grid[g];
		}
	}
}

/* Finds m and l by least squares over the cells, with a prior of PRIOR_WEIGHT passes; neither is
 * below 0. Computed on demand, not after each of the passes at K = 0 between two demands. */
static void fit_times(struct cost_curve *curve)
{
	if (!curve->behind)
		return;
	curve->behind = false;
	double gp = grown((double)curve->q, 2), lp = 2;
	double gg = PRIOR_WEIGHT * gp * gp, ee = PRIOR_WEIGHT * lp * lp, ge = 0;
	double gy = gg * (double)PRIOR_M / curve->sessions;
	double ey = ee * (double)PRIOR_L / curve->sessions;
	for (uint32_t i = 1; i < COST_CELLS; i++) {
		const struct cost_cell *cell = &curve->cells[i];
		double w = (double)cell->weight, e = (double)cell->extra;
		if (w <= 0)
			continue;
		double x = cell_grown(curve, i), y = (double)cell->ratio - 1;
		/* Longer passes deviate by more. */
		w /= (double)cell->ratio;
		gg += w * x * x;
		ee += w * e * e;
		ge += w * x * e;
		gy += w * x * y;
		ey += w * e * y;
	}
	double determinant = gg * ee - ge * ge;
	double m = (gy * ee - ey * ge) / determinant, l = (ey * gg - gy * ge) / determinant;
	if (!(m >= 0)) {
		m = 0;
		l = ey / ee;
	} else if (!(l >= 0)) {
		l = 0;
		m = gy / gg;
	}
	curve->m = (float)(m > 0 ? m : 0);
	curve->l = (float)(l > 0 ? l : 0);
}

/* The nearest curve that was seen: in this state of the cache if there is one, and then by the size
 * of the batch. */
static struct cost_curve *nearest(struct cost *cost, uint32_t sessions)
{
	struct cost_curve *best = NULL;
	uint32_t best_distance = UINT32_MAX;
	for (uint32_t state = 0; state < COST_STATES; state++)
		for (uint32_t b = 1; b <= LIMIT_RUNNING; b++) {
			uint32_t apart = (b > sessions ? b - sessions : sessions - b) +
					 (state == cost->state ? 0 : LIMIT_RUNNING);
			if (cost->curves[state][b].level_ns > 0 && apart < best_distance) {
				best = &cost->curves[state][b];
				best_distance = apart;
			}
		}
	return best;
}

static struct cost_curve *curve_at(struct cost *cost, uint32_t sessions)
{
	struct cost_curve *curve = &cost->curves[cost->state][sessions];
	if (curve->level_ns > 0)
		return curve;
	struct cost_curve *from = nearest(cost, sessions);
	if (!from) {
		curve_clear(curve, sessions);
		return curve;
	}
	fit_times(from);
	float factor = (float)from->sessions / (float)sessions;
	*curve = *from;
	curve->sessions = sessions;
	curve->m *= factor;
	curve->l *= factor;
	for (uint32_t i = 0; i < COST_CELLS; i++) {
		curve->cells[i].weight = fminf(curve->cells[i].weight * NEIGHBOUR_TRUST, 1);
		curve->cells[i].ratio = 1 + (curve->cells[i].ratio - 1) * factor;
		curve->cells[i].experts_weight = 0;
	}
	curve->cells[0].weight = 0;
	curve->n = 0;
	return curve;
}

/* grown: G(e). */
static double fitted(const struct cost_curve *curve, double grown, double extra)
{
	return 1 + (double)curve->m * grown + (double)curve->l * extra;
}

/* What the cell knows beyond the fit. */
static double residual(struct cost_curve *curve, uint32_t index)
{
	const struct cost_cell *cell = &curve->cells[index];
	if (index == 0 || cell->weight <= 0)
		return 0;
	double beyond =
		(double)cell->ratio - fitted(curve, cell_grown(curve, index), (double)cell->extra);
	return beyond * (double)(cell->weight / (cell->weight + RESIDUAL_PRIOR));
}

static double shape(struct cost_curve *curve, uint32_t extra)
{
	if (extra == 0)
		return 1;
	uint32_t cell = cell_of(extra);
	bool alone = curve->cells[cell].extra == (float)extra;
	double g = alone ? cell_grown(curve, cell) : grown((double)curve->q, extra);
	double value = fitted(curve, g, extra) + residual(curve, cell);
	return value > 1 ? value : 1;
}

static uint32_t state_of(double missing)
{
	return missing < 0.005 ? 0 : missing < 0.05 ? 1 : missing < 0.2 ? 2 : 3;
}

static void follow_cache(struct cost *cost, const struct cost_pass *pass)
{
	double lookups = (double)pass->hits + (double)pass->misses;
	double share = lookups > 0 ? pass->misses / lookups : 0;
	cost->missing += MISSING_GAIN * (share - cost->missing);
	cost->state = state_of(cost->missing);
}

/* Adds one time to its cell and to the level. The deviation of a well known cell is attributed to
 * the machine, that of an unknown cell to the shape. It is also attributed to the shape where
 * experts are missing: longer passes cause each other more misses, and a pass at K = 0 would be no
 * slower for that. The first longer pass of a session finds the experts of shorter passes resident,
 * so it says less about the passes after it. */
static void learn_time(
	struct cost_curve *curve, uint32_t extra, double ns, bool missing, bool first_longer)
{
	float weight = first_longer && missing && extra > 0 ? FIRST_SHARE : 1;
	struct cost_cell *cell = &curve->cells[cell_of(extra)];
	if (extra > 0)
		fit_times(curve);
	double believed = shape(curve, extra);
	bool first = curve->level_ns <= 0;
	if (first)
		curve->level_ns = ns / believed;
	for (uint32_t i = 0; i < COST_CELLS; i++)
		curve->cells[i].weight *= CELL_FADE;
	double deviation = log(ns / (curve->level_ns * believed));
	if (cell->weight >= 2)
		deviation = fmin(fmax(deviation, -DEVIATION_MAX), DEVIATION_MAX);
	double known = (double)(cell->weight / (cell->weight + TRUSTED));
	if (missing && extra > 0)
		known *= (double)MISSING_SHARE;
	double gain =
		extra == 0 ? fmax(LEVEL_GAIN, 1 / (1 + (double)cell->weight)) : LEVEL_GAIN * known;
	/* Passes are delayed, never sped up: among the first few a short one is right, and a long
	 * one does not count in full. */
	if (extra == 0 && cell->weight > 0 && cell->weight < YOUNG) {
		gain = deviation < -DELAYED ? 1 : gain;
		deviation = fmin(deviation, DELAYED);
	}
	/* This pass was shorter than a pass at K = 0 is believed to be, which cannot be: the level
	 * is too high. */
	if (extra > 0 && deviation < 0 && believed <= 1)
		gain = LEVEL_GAIN;
	double before = curve->level_ns;
	curve->level_ns *= exp(gain * deviation);
	/* The cell does not get what the level has taken. */
	float step = (1 - OWN_SHARE * (float)known) * weight /
		     (fminf(cell->weight, CELL_MEMORY) + weight);
	float ratio = (float)(believed * exp(deviation) * before / curve->level_ns);
	if (extra == 0)
		ratio = 1;
	if (cell->weight <= 0)
		cell->extra = (float)extra;
	cell->ratio += step * (ratio - cell->ratio);
	cell->extra += step * ((float)extra - cell->extra);
	cell->weight = fminf(cell->weight + weight, CELL_MEMORY);
}

static void learn_experts(struct cost_curve *curve, uint32_t extra, uint32_t experts)
{
	struct cost_cell *cell = &curve->cells[cell_of(extra)];
	float step = 1 / (fminf(cell->experts_weight, CELL_MEMORY) + 1);
	cell->experts += step * ((float)experts - cell->experts);
	cell->experts_weight = fminf(cell->experts_weight + 1, CELL_MEMORY);
}

void cost_observe(struct cost *cost, const struct cost_pass *pass)
{
	if (pass->sessions < 1 || pass->sessions > LIMIT_RUNNING || pass->extra > COST_EXTRA_MAX ||
		pass->ns == 0 || pass->ns > COST_NS_MAX)
		return;
	cost->n_passes++;
	follow_cache(cost, pass);
	struct cost_curve *curve = curve_at(cost, pass->sessions);
	learn_time(curve, pass->extra, (double)pass->ns, cost->state > 0, pass->first);
	if (pass->experts > 0)
		learn_experts(curve, pass->extra, pass->experts);
	/* The growth of experts is a property of the model, and its estimate changes slowly. */
	if (pass->experts > 0 && (curve->n < EXPERTS_OFTEN || curve->n % EXPERTS_EVERY == 0))
		fit_experts(curve);
	curve->n++;
	curve->behind = true;
}

bool cost_curve(struct cost *cost, uint32_t sessions, uint32_t n, float *out)
{
	struct cost_curve *curve = curve_at(cost, sessions);
	fit_times(curve);
	bool seen = curve->level_ns > 0;
	double level = seen ? curve->level_ns : 1e6, q = (double)curve->q, power = 1, g = 0;
	double beyond = 0;
	uint32_t cell = 0;
	out[0] = (float)level;
	for (uint32_t e = 1; e <= n; e++) {
		if (cell_of(e) != cell) {
			cell = cell_of(e);
			beyond = residual(curve, cell);
		}
		g += power;
		power *= q;
		out[e] = (float)(level * (fitted(curve, g, e) + beyond));
		if (!(out[e] > out[e - 1]))
			out[e] = out[e - 1];
	}
	return seen;
}

double cost_time(struct cost *cost, uint32_t sessions, uint32_t extra, double *base)
{
	struct cost_curve *curve = curve_at(cost, sessions);
	fit_times(curve);
	*base = curve->level_ns;
	return curve->level_ns * shape(curve, extra);
}

/* How many passes at `extra` the passes of another cell are worth. V is one smooth curve. If the
 * times of two sizes have the correlation r, w passes of one leave 1 - r^2 w / (1 + w) of the
 * variance of the other; the same number of own passes leaves as much. r is taken as the square of
 * the ratio of the token counts. */
static double said_by(const struct cost_cell *cell, double extra)
{
	double w = (double)cell->weight, a = 1 + extra, b = 1 + (double)cell->extra;
	double ratio = a < b ? a / b : b / a, r = ratio * ratio;
	return r * r * w / (1 + (1 - r * r) * w);
}

/* The largest contribution of the cells on one side of e's. */
static double said_beside(
	const struct cost_curve *curve, uint32_t cell_of_e, uint32_t extra, int step)
{
	double most = 0;
	for (int i = (int)cell_of_e + step; i > 0 && i < COST_CELLS; i += step) {
		const struct cost_cell *cell = &curve->cells[i];
		if (cell->weight <= 0)
			continue;
		most = fmax(most, said_by(cell, extra));
		if (cell->weight >= WELL_KNOWN)
			break;
	}
	return most;
}

double cost_evidence(const struct cost *cost, uint32_t sessions, uint32_t extra)
{
	const struct cost_curve *curve = &cost->curves[cost->state][sessions];
	uint32_t cell = cell_of(extra);
	return (double)curve->cells[cell].weight + said_beside(curve, cell, extra, -1) +
	       said_beside(curve, cell, extra, 1);
}

void cost_draft_observe(struct cost *cost, uint32_t method, uint32_t steps, uint64_t ns, bool first)
{
	double fixed, step, y = (double)ns;
	if (method >= COST_METHODS || ns > COST_NS_MAX)
		return;
	struct cost_draft *d = &cost->draft[method];
	if (first) {
		d->first_ns += (d->first_ns > 0 ? FIRST_GAIN : 1) * (y - d->first_ns);
		d->first_pass = cost->n_passes;
		return;
	}
	cost_draft(cost, method, &fixed, &step);
	double believed = fixed + step * steps;
	/* A wait that is much longer than believed was probably for catching up: it is capped. */
	if (d->n >= 4 && believed > 0 && y > 4 * believed)
		y = 4 * believed;
	d->n = d->n * DRAFT_FADE + 1;
	d->x = d->x * DRAFT_FADE + steps;
	d->xx = d->xx * DRAFT_FADE + (double)steps * steps;
	d->y = d->y * DRAFT_FADE + y;
	d->xy = d->xy * DRAFT_FADE + y * steps;
}

double cost_draft_first(const struct cost *cost, uint32_t method)
{
	if (method >= COST_METHODS || cost->draft[method].first_ns <= 0)
		return 0;
	const struct cost_draft *d = &cost->draft[method];
	return d->first_ns * exp(-(double)(cost->n_passes - d->first_pass) / FIRST_PASSES);
}

double cost_draft_evidence(const struct cost *cost, uint32_t method)
{
	return method < COST_METHODS ? cost->draft[method].n : 0;
}

/* With drafts of a single length, the whole wait counts as that of the steps: longer drafts cost
 * more. */
void cost_draft(const struct cost *cost, uint32_t method, double *fixed, double *step)
{
	*fixed = *step = 0;
	if (method >= COST_METHODS)
		return;
	*fixed = cost->draft[method].first_ns / 2;
	if (cost->draft[method].n <= 0)
		return;
	const struct cost_draft *d = &cost->draft[method];
	double mean_x = d->x / d->n, mean_y = d->y / d->n;
	double ridge = 0.1 * d->n, spread = d->xx - d->n * mean_x * mean_x + ridge;
	double slope = mean_x > 0 ? mean_y / mean_x : 0;
	slope = (d->xy - d->n * mean_x * mean_y + ridge * slope) / spread;
	*step = fmin(fmax(slope, 0), mean_x > 0 ? mean_y / mean_x : 0);
	*fixed = mean_y - *step * mean_x;
}
