/*
 * The best result in hindsight: exact for one session, a bound for sessions side by side.
 *
 * Side by side, what a lane drafts changes the cost of the other lanes' tokens. The optimum would
 * be a path through the positions of all lanes at once, of which there are too many. But in
 * hindsight no lane drafts a token that is rejected, and a pass of n lanes with a_i accepted tokens
 * each takes at least
 *
 *   c(n + sum a_i) + fixed [some a_i > 0] + step max a_i,
 *
 * where c is the curve made non-decreasing. For a concave g <= c, Jensen's inequality says that
 * this is at least
 *
 *   1/n sum h(a_i),  h(a) = g(n + n a) + fixed [a > 0] + step a:
 *
 * the mean over the lanes of the time of the pass if all lanes drafted as this one does. This
 * separates: each lane has a least sum of h of its own at each position. A run ends with the first
 * lane that is done; the others are then anywhere between the position that the same number of
 * passes reaches at least and their own end. The least time per token over all such ends is a lower
 * bound for every policy. It is exact if all lanes are alike and the curve is concave, which
 * experts make it. For other curves, several concave functions below the curve are tried.
 */
#include "bench/src/policy_sim.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

double sim_optimum_ms(const struct sim_curve *curve, const struct sim_text *text, uint32_t k_max)
{
	double *best = calloc((size_t)text->n + 1, sizeof(*best)), result = 0;
	/* From the end: the least time for the tokens from x on. */
	for (uint32_t x = text->n; best && x-- > 0;) {
		const struct sim_point *point = &text->points[x];
		best[x] = 1 + best[x + 1];
		for (uint32_t k = 1; k <= k_max && k <= point->available && x + k < text->n; k++) {
			uint32_t gained = 1 + (k < point->run ? k : point->run);
			double cost = sim_curve_cost(curve, 1 + k) + curve->draft_fixed +
				      curve->draft_step * k;
			best[x] = fmin(best[x], cost + best[x + gained]);
		}
	}
	if (best)
		result = best[0] * curve->base_ms;
	free(best);
	return result;
}

enum { HULL_MAX = LIMIT_RUNNING * LIMIT_DRAFT_DEPTH + 1 };

struct side_by_side {
	const struct sim_curve *curve;
	const struct sim_text *texts;
	uint32_t n, k_max;
	uint32_t passes_min; /* until a lane is done */
	double cost[HULL_MAX]; /* c(n + i), i up to n * k_max, made non-decreasing */
	double *least; /* for each lane, one after the other, by position: the least sum of h / n */
};

/* The least cost of each position of a lane, where a pass with a accepted tokens costs pass[a]. */
static void find_least(
	const struct sim_text *text, uint32_t k_max, const double *pass, double *least)
{
	for (uint32_t x = 0; x <= text->n; x++)
		least[x] = x == 0 ? 0 : INFINITY;
	for (uint32_t x = 0; x < text->n; x++) {
		uint32_t right = text->points[x].run;
		for (uint32_t a = 0; a <= k_max && a <= right && x + a < text->n; a++)
			least[x + a + 1] = fmin(least[x + a + 1], least[x] + pass[a]);
	}
}

/* The least time per token over all ends, from the least sums by position: Dinkelbach's method,
 * from a possible end. For a given rate each lane ends where its time exceeds that rate by the
 * least, and the lane that is done is the one for which that costs the least more. */
static double rate_of(const struct side_by_side *s)
{
	double rate = INFINITY, next = 0;
	const double *least = s->least;
	for (uint32_t i = 0; i < s->n; least += s->texts[i++].n + 1)
		next += least[s->texts[i].n];
	double tokens = 0;
	for (uint32_t i = 0; i < s->n; i++)
		tokens += s->texts[i].n;
	for (next /= tokens; next < rate;) {
		double time = 0, done_more = INFINITY, done_time = 0, done_tokens = 0;
		rate = next;
		tokens = 0;
		least = s->least;
		for (uint32_t i = 0; i < s->n; least += s->texts[i++].n + 1) {
			uint32_t end = s->texts[i].n, at = end;
			for (uint32_t x = s->passes_min; x < end; x++)
				if (least[x] - rate * x < least[at] - rate * at)
					at = x;
			double more = least[end] - least[at] - rate * (end - at);
			if (more < done_more) {
				done_more = more;
				done_time = least[end] - least[at];
				done_tokens = end - at;
			}
			time += least[at];
			tokens += at;
		}
		next = (time + done_time) / (tokens + done_tokens);
	}
	return rate;
}

/* The rate for g(n + n a) in g[a]. */
static double rate_with(struct side_by_side *s, const double *g)
{
	double pass[LIMIT_DRAFT_DEPTH + 1], *least = s->least;
	for (uint32_t a = 0; a <= s->k_max; a++) {
		double draft = a > 0 ? s->curve->draft_fixed + s->curve->draft_step * a : 0;
		pass[a] = (g[a] + draft) / s->n;
	}
	for (uint32_t i = 0; i < s->n; least += s->texts[i++].n + 1)
		find_least(&s->texts[i], s->k_max, pass, least);
	return rate_of(s);
}

/* The corners of the hull of the costs, side 1: the upper one, -1: the lower one. Returns how many.
 */
static uint32_t hull_of(const double *cost, uint32_t n, int side, uint32_t *corners)
{
	uint32_t found = 0;
	for (uint32_t i = 0; i < n; i++) {
		while (found >= 2) {
			uint32_t a = corners[found - 2], b = corners[found - 1];
			double turn = (cost[b] - cost[a]) * (i - a) - (cost[i] - cost[a]) * (b - a);
			if (side * turn > 0)
				break;
			found--;
		}
		corners[found++] = i;
	}
	return found;
}

static double line_at(const double *cost, uint32_t a, uint32_t b, double at)
{
	return cost[a] + (cost[b] - cost[a]) * (at - a) / (b - a);
}

static double hull_at(const double *cost, const uint32_t *corners, uint32_t n, uint32_t at)
{
	uint32_t c = 1;
	while (c + 1 < n && at > corners[c])
		c++;
	return n < 2 ? cost[at] : line_at(cost, corners[c - 1], corners[c], at);
}

/* With the least concave curve above the costs, lowered until it is below them: where the costs are
 * concave, the curve itself. */
static double concave_rate(struct side_by_side *s, uint32_t n_costs)
{
	uint32_t corners[HULL_MAX], n = hull_of(s->cost, n_costs, 1, corners);
	double g[LIMIT_DRAFT_DEPTH + 1], share = 1;
	for (uint32_t i = 0; i < n_costs; i++)
		share = fmin(share, s->cost[i] / hull_at(s->cost, corners, n, i));
	for (uint32_t a = 0; a <= s->k_max; a++)
		g[a] = share * hull_at(s->cost, corners, n, a * s->n);
	return rate_with(s, g);
}

/* With the lines through two neighbouring corners of the greatest convex curve below the costs: the
 * best of them. */
static double line_rate(struct side_by_side *s, uint32_t n_costs)
{
	uint32_t corners[HULL_MAX], n = hull_of(s->cost, n_costs, -1, corners);
	double best = 0, g[LIMIT_DRAFT_DEPTH + 1];
	for (uint32_t c = 0; c + 1 < n; c++) {
		for (uint32_t a = 0; a <= s->k_max; a++)
			g[a] = line_at(s->cost, corners[c], corners[c + 1], a * s->n);
		best = fmax(best, rate_with(s, g));
	}
	return best;
}

/* The fewest passes in which a lane can be done: each accepts all right tokens, or fewer where that
 * leads further. */
static uint32_t passes_min(const struct side_by_side *s)
{
	double pass[LIMIT_DRAFT_DEPTH + 1], fewest = INFINITY;
	for (uint32_t a = 0; a <= s->k_max; a++)
		pass[a] = 1;
	for (uint32_t i = 0; i < s->n; i++) {
		find_least(&s->texts[i], s->k_max, pass, s->least);
		fewest = fmin(fewest, s->least[s->texts[i].n]);
	}
	return (uint32_t)fewest;
}

double sim_bound_ms(
	const struct sim_curve *curve, const struct sim_text *texts, uint32_t n, uint32_t k_max)
{
	struct side_by_side *s = calloc(1, sizeof(*s));
	uint32_t n_costs = n * k_max + 1;
	size_t positions = 0;
	double rate = 0;
	assert(n > 0 && n <= LIMIT_RUNNING && k_max <= LIMIT_DRAFT_DEPTH);
	for (uint32_t i = 0; i < n; i++)
		positions += texts[i].n + 1;
	if (s)
		*s = (struct side_by_side){.curve = curve, .texts = texts, .n = n, .k_max = k_max};
	if (s && (s->least = calloc(positions, sizeof(double)))) {
		s->passes_min = passes_min(s);
		for (uint32_t i = n_costs; i-- > 0;) {
			s->cost[i] = sim_curve_cost(curve, n + i);
			if (i + 1 < n_costs)
				s->cost[i] = fmin(s->cost[i], s->cost[i + 1]);
		}
		/* For a single lane no mean has to be taken. */
		rate = n == 1 ? rate_with(s, s->cost)
			      : fmax(concave_rate(s, n_costs), line_rate(s, n_costs));
		free(s->least);
	}
	free(s);
	return rate * curve->base_ms;
}
