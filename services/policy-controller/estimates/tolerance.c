#include "services/policy-controller/estimates/tolerance.h"

#include <math.h>

#define FADE (1 - 1.0f / 256) /* of a pass, by each later one of its cell */
/* Passes, with drafts and without, before a speed-up counts as measured: two, of which one has
 * faded a little. */
#define PASSES_LEAST 1.9f
#define SAMPLE_MAX 4.0 /* times the expected time: a longer pass was delayed, and counts as that */

double tolerance_tau(double first_ns, double pass_ns)
{
	return pass_ns > 0 ? first_ns / pass_ns : 0; /* [gamma, section 3.1] */
}

double tolerance_speedup(double lambda, double tau, double gamma, double delta)
{
	return lambda * tau / (1 + gamma * delta * tau); /* [gamma, equation 1] */
}

static uint32_t gamma_of(uint32_t sessions, uint32_t extra)
{
	uint32_t gamma = (extra + sessions / 2) / sessions;
	if (extra > 0 && gamma == 0)
		gamma = 1;
	return gamma < TOLERANCE_GAMMAS ? gamma : TOLERANCE_GAMMAS - 1;
}

static void fade(struct tolerance_cell *c)
{
	c->passes *= FADE;
	c->sessions *= FADE;
	c->drafted *= FADE;
	c->emitted *= FADE;
	c->context *= FADE;
	c->ns *= (double)FADE;
	c->wait_ns *= (double)FADE;
	c->predicted_ns *= (double)FADE;
	c->predicted_base_ns *= (double)FADE;
}

void tolerance_pass(struct tolerance *t, struct cost *cost, const struct iteration_record *record)
{
	uint32_t b = record->batch_sessions, extra = record->batch_tokens - b;
	t->last = NULL;
	if (b < 1 || b > LIMIT_RUNNING || extra > COST_EXTRA_MAX)
		return;
	struct tolerance_cell *c = &t->cells[b][gamma_of(b, extra)];
	/* What other sizes of batch say of the first pass of this one is no measure of a delay. */
	bool seen = cost->curves[cost->state][b].n > 0;
	double base_ns, pass_ns = cost_time(cost, b, extra, &base_ns);
	/* The first pass of all predicts nothing. */
	if (!(pass_ns > 0))
		return;
	fade(c);
	c->passes += 1;
	c->sessions += (float)b;
	c->drafted += (float)extra;
	c->context += (float)record->n_context;
	double ns = (double)(record->iteration_ns - record->draft_ns);
	c->ns += seen ? fmin(ns, SAMPLE_MAX * pass_ns) : ns;
	c->wait_ns += (double)record->draft_ns;
	c->predicted_ns += pass_ns;
	c->predicted_base_ns += base_ns;
	t->last = c;
}

void tolerance_brought(struct tolerance *t, const struct iteration_record *record)
{
	if (t->last)
		t->last->emitted += record->emitted;
}

bool tolerance_seen(const struct tolerance *t, uint32_t sessions)
{
	for (uint32_t i = 0; i < TOLERANCE_GAMMAS; i++)
		if (t->cells[sessions][i].passes >= PASSES_LEAST)
			return true;
	return false;
}

/* What the passes of a cell say. base: the cell of the same batches without drafts. */
static void take_cell(struct tolerance_point *p, const struct tolerance_cell *c,
	const struct tolerance_cell *base)
{
	if (c->passes < PASSES_LEAST)
		return;
	p->passes = (double)c->passes;
	p->context = (double)(c->context / c->passes);
	p->drafted = (double)(c->drafted / c->sessions);
	p->lambda = (double)(c->emitted / c->sessions);
	if (p->gamma == 0)
		return;
	p->delta = c->wait_ns / p->passes / p->drafted / (c->predicted_base_ns / p->passes);
	p->predicted = tolerance_speedup(p->lambda,
		tolerance_tau(c->predicted_base_ns, c->predicted_ns), p->drafted, p->delta);
	/* Tokens per time, over that of passes without drafts. */
	if (base->passes >= PASSES_LEAST)
		p->measured = (double)(c->emitted / c->sessions) *
			      (base->ns / (double)base->passes) /
			      ((c->ns + c->wait_ns) / p->passes);
}

uint32_t tolerance_points(const struct tolerance *t, struct cost *cost, uint32_t sessions,
	uint32_t most, struct tolerance_point *out)
{
	const struct tolerance_cell *cells = t->cells[sessions];
	uint32_t n = 0;
	for (uint32_t gamma = 0; gamma < most && gamma < TOLERANCE_GAMMAS; gamma++) {
		uint32_t extra = sessions * gamma;
		double first_ns;
		if (extra > COST_EXTRA_MAX)
			break;
		double pass_ns = cost_time(cost, sessions, extra, &first_ns);
		if (!(pass_ns > 0))
			break;
		out[n] = (struct tolerance_point){
			.sessions = sessions,
			.gamma = gamma,
			.pass_ns = pass_ns,
			.tau = tolerance_tau(first_ns, pass_ns),
			.evidence = cost_evidence(cost, sessions, extra),
		};
		take_cell(&out[n++], &cells[gamma], &cells[0]);
	}
	return n;
}
