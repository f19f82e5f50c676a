/* What cascade measures: iterations at K = 0 by the size of the batch, and utility against that. */
#include "services/policy-controller/estimates/passes.h"
#include "services/policy-controller/published/cascade.h"
#include "shared/base/median.h"

/* Bound for the doubt in the ln of the factor that scales a baseline: as fine as the difference of
 * successive utilities that is told apart. */
#define DOUBT_MAX 0.1

uint32_t cascade_others(const struct iteration_record *record)
{
	uint32_t own = (uint32_t)record->batch_sessions + record->drafted;
	uint32_t others = record->batch_tokens > own ? record->batch_tokens - own : 0;
	return others < COST_EXTRA_MAX ? others : COST_EXTRA_MAX - 1;
}

/* How many times longer a pass of `sessions` sessions takes with `to` extra tokens than with
 * `from`, by the curve. */
static double longer(struct passes *passes, uint32_t sessions, double from, double to)
{
	uint32_t most = (uint32_t)(from > to ? from : to) + 1;
	if (from == to || !passes_curve(passes, sessions, most))
		return 1;
	double before = passes_at(passes, from);
	return before > 0 ? passes_at(passes, to) / before : 1;
}

/* True when the curve knows this ratio well enough: it knows both ends, or they are much the same.
 */
static bool known(struct passes *passes, uint32_t sessions, double from, double to)
{
	if (from == to)
		return true;
	double ratio = longer(passes, sessions, from, to);
	return passes_doubt(passes, sessions, from, ratio) <= DOUBT_MAX &&
	       passes_doubt(passes, sessions, to, ratio) <= DOUBT_MAX;
}

static uint32_t n_samples(const struct cascade *c)
{
	return c->n_samples < CASCADE_SAMPLES ? c->n_samples : CASCADE_SAMPLES;
}

/* i = 0 is the newest. */
static const struct cascade_sample *sample_at(const struct cascade *c, uint32_t i)
{
	return &c->samples[(c->n_samples - 1 - i) % CASCADE_SAMPLES];
}

static uint32_t age_of(const struct cascade *c, const struct cascade_sample *sample)
{
	uint64_t age = c->clock - sample->at;
	return age < UINT32_MAX ? (uint32_t)age : UINT32_MAX;
}

/* The newest usable sample of a batch of this size, among those whose others drafted most nearly
 * `others` tokens; NULL: none. */
static const struct cascade_sample *nearest(
	const struct policy_state *s, uint32_t sessions, uint32_t others)
{
	const struct cascade *c = cascade_of(s);
	const struct settings *knobs = &s->settings;
	int64_t set = knobs->set < knobs->refresh ? knobs->set : knobs->refresh;
	int64_t most = knobs->refresh + knobs->trials * knobs->trial + set;
	const struct cascade_sample *best = NULL;
	uint32_t least = UINT32_MAX;
	for (uint32_t i = 0; i < n_samples(c) && least > 0; i++) {
		const struct cascade_sample *sample = sample_at(c, i);
		uint32_t off =
			sample->others > others ? sample->others - others : others - sample->others;
		if (sample->sessions != sessions || (int64_t)age_of(c, sample) > most ||
			(int32_t)(sample->run - c->first_run) < 0 || off >= least)
			continue;
		best = sample;
		least = off;
	}
	return best;
}

/* The median or mean time of the iterations that are like this one and were measured together with
 * it. */
static double time_like(const struct policy_state *s, const struct cascade_sample *like)
{
	const struct cascade *c = cascade_of(s);
	double ns[CASCADE_SAMPLES] = {(double)like->ns}, sum = (double)like->ns;
	uint32_t n = 1;
	for (uint32_t i = 0; i < n_samples(c); i++) {
		const struct cascade_sample *sample = sample_at(c, i);
		if (sample != like && sample->sessions == like->sessions &&
			sample->others == like->others && sample->run == like->run) {
			ns[n++] = (double)sample->ns;
			sum += (double)sample->ns;
		}
	}
	return s->settings.medians ? median(ns, n) : sum / n;
}

/* The time of an iteration without the session's draft beside this many drafted tokens of others;
 * 0: unknown. */
static double base_ns(const struct policy_state *s, uint32_t sessions, uint32_t others)
{
	const struct cascade_sample *sample = nearest(s, sessions, others);
	if (!sample || !known(s->passes, sessions, sample->others, others))
		return 0;
	return time_like(s, sample) * longer(s->passes, sessions, sample->others, others);
}

bool cascade_base(const struct policy_state *s, struct cascade_base *out)
{
	const struct cascade *c = cascade_of(s);
	const struct cascade_sample *sample = nearest(s, c->sessions, c->others);
	if (!sample && c->n_samples > 0)
		sample = sample_at(c, 0);
	if (!sample)
		return false;
	*out = (struct cascade_base){
		time_like(s, sample), sample->sessions, sample->others, age_of(c, sample)};
	return true;
}

uint32_t cascade_age(const struct cascade *c, uint32_t sessions)
{
	for (uint32_t i = 0; i < n_samples(c); i++)
		if (sessions == 0 || sample_at(c, i)->sessions == sessions)
			return age_of(c, sample_at(c, i));
	return UINT32_MAX;
}

bool cascade_comparable(const struct policy_state *s, const struct iteration_record *record)
{
	const struct cascade_sample *sample =
		nearest(s, record->batch_sessions, cascade_others(record));
	return sample &&
	       known(s->passes, record->batch_sessions, sample->others, cascade_others(record));
}

void cascade_sample(struct cascade *c, const struct iteration_record *record)
{
	c->samples[c->n_samples++ % CASCADE_SAMPLES] =
		(struct cascade_sample){.ns = record->iteration_ns,
			.at = c->clock,
			.sessions = record->batch_sessions,
			.others = cascade_others(record),
			.run = c->run};
}

void cascade_add(struct cascade *c, const struct iteration_record *record)
{
	window_add(&c->window, &(struct window_iteration){.ns = record->iteration_ns,
				       .drafted = record->drafted,
				       .emitted = record->emitted,
				       .sessions = record->batch_sessions,
				       .others = cascade_others(record)});
}

bool cascade_measured(const struct policy_state *s, struct cascade_measure *out)
{
	const struct window *window = &cascade_of(s)->window;
	double share[WINDOW_MAX], base = 0;
	for (uint32_t i = 0; i < window_size(window); i++) {
		const struct window_iteration *it = window_at(window, i);
		const struct window_iteration *before = i > 0 ? window_at(window, i - 1) : NULL;
		if (!before || before->sessions != it->sessions || before->others != it->others)
			base = base_ns(s, it->sessions, it->others);
		/* The baseline that was known when the iteration came may be too old by now. */
		if (!(base > 0))
			return false;
		share[i] = (double)it->ns / base;
	}
	double mean = window_mean(window, share, s->settings.medians);
	if (!(mean > 0))
		return false;
	*out = (struct cascade_measure){
		.etr = window_etr(window), .time_ns = window_time_ns(window, s->settings.medians)};
	out->base_ns = out->time_ns / mean;
	out->utility = out->etr / mean;
	return true;
}
