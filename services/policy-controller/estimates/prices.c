#include "services/policy-controller/estimates/prices.h"

#include <math.h>
#include <string.h>

#define FADE (1 - 1.0 / 512) /* of a pass, by each later one */
#define FEW 8.0 /* passes before which there are no prices */
#define SAMPLE_MAX 4.0 /* times the mean: a longer pass counts as long as that */
/* The prior, as shares of a mean pass's time: what the rows of a mean pass cost together, what its
 * experts cost, and what they would cost more if all were missing. It counts as much as PRIOR
 * passes of twice the mean's size. */
static const double SHARE[PRICES_TERMS] = {0.1, 0.5, 1.0};
#define PRIOR 2.0

void prices_init(struct prices *prices)
{
	memset(prices, 0, sizeof(*prices));
}

void prices_observe(struct prices *p, double rows, double experts, double missing, double ns)
{
	const double x[PRICES_TERMS] = {rows, experts, missing};
	if (!(ns > 0))
		return;
	if (p->n > 0)
		ns = fmin(ns, SAMPLE_MAX * p->y / p->n);
	p->n = p->n * FADE + 1;
	p->y = p->y * FADE + ns;
	for (int i = 0; i < PRICES_TERMS; i++) {
		p->x[i] = p->x[i] * FADE + x[i];
		p->xy[i] = p->xy[i] * FADE + x[i] * ns;
		for (int j = 0; j < PRICES_TERMS; j++)
			p->xx[i][j] = p->xx[i][j] * FADE + x[i] * x[j];
	}
}

/* Solves the n equations a x = b by elimination; a is positive definite. Overwrites both. */
static void solve(double a[PRICES_TERMS][PRICES_TERMS], double b[PRICES_TERMS], int n)
{
	for (int i = 0; i < n; i++)
		for (int r = i + 1; r < n; r++) {
			double factor = a[r][i] / a[i][i];
			for (int c = i; c < n; c++)
				a[r][c] -= factor * a[i][c];
			b[r] -= factor * b[i];
		}
	for (int i = n - 1; i >= 0; i--) {
		for (int c = i + 1; c < n; c++)
			b[i] -= a[i][c] * b[c];
		b[i] /= a[i][i];
	}
}

/* Solves for the terms in use; the others are 0. */
static void solve_for(double a[PRICES_TERMS][PRICES_TERMS], const double b[PRICES_TERMS],
	const bool used[PRICES_TERMS], double out[PRICES_TERMS])
{
	double m[PRICES_TERMS][PRICES_TERMS] = {{0}}, v[PRICES_TERMS] = {0};
	int at[PRICES_TERMS] = {0}, n = 0;
	for (int i = 0; i < PRICES_TERMS; i++)
		if (used[i])
			at[n++] = i;
	for (int i = 0; i < n; i++) {
		v[i] = b[at[i]];
		for (int j = 0; j < n; j++)
			m[i][j] = a[at[i]][at[j]];
	}
	solve(m, v, n);
	for (int i = 0; i < PRICES_TERMS; i++)
		out[i] = 0;
	for (int i = 0; i < n; i++)
		out[at[i]] = v[i];
}

bool prices_get(const struct prices *p, double out[PRICES_TERMS])
{
	double a[PRICES_TERMS][PRICES_TERMS], b[PRICES_TERMS], unit[PRICES_TERMS],
		mean[PRICES_TERMS];
	bool used[PRICES_TERMS];
	for (int i = 0; i < PRICES_TERMS; i++)
		out[i] = 0;
	if (p->n < FEW || !(p->x[0] > 0))
		return false;
	double y = p->y / p->n;
	for (int i = 0; i < PRICES_TERMS; i++) {
		mean[i] = p->x[i] / p->n;
		/* Missing experts are measured in all experts of a mean pass. */
		unit[i] = mean[i == 2 ? 1 : i];
		used[i] = unit[i] > 0;
	}
	for (int i = 0; i < PRICES_TERMS; i++) {
		double by = used[i] ? unit[i] : 1;
		b[i] = (p->xy[i] / p->n - mean[i] * y) * p->n / (by * y) + PRIOR * SHARE[i];
		for (int j = 0; j < PRICES_TERMS; j++)
			a[i][j] = (p->xx[i][j] / p->n - mean[i] * mean[j]) * p->n /
				  (by * (used[j] ? unit[j] : 1));
		a[i][i] += PRIOR;
	}
	/* The term that is the most negative is left out until none is. */
	for (;;) {
		int worst = -1;
		solve_for(a, b, used, out);
		for (int i = 0; i < PRICES_TERMS; i++)
			if (used[i] && out[i] < 0 && (worst < 0 || out[i] < out[worst]))
				worst = i;
		if (worst < 0)
			break;
		used[worst] = false;
	}
	for (int i = 0; i < PRICES_TERMS; i++)
		out[i] = unit[i] > 0 ? out[i] * y / unit[i] : 0;
	return true;
}
