#include "services/policy-controller/explain.h"

#include "services/policy-controller/controller.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void explain_say(struct explanation *out, const char *format, ...)
{
	va_list args;
	if (out->n_words == EXPLAIN_WORDS)
		return;
	va_start(args, format);
	vsnprintf(out->words[out->n_words++], sizeof(out->words[0]), format, args);
	va_end(args);
}

void explain_figure(struct explanation *out, const char *name, const char *unit, double value)
{
	if (out->n_figures < EXPLAIN_FIGURES)
		out->figures[out->n_figures++] = (struct explained_figure){name, unit, value};
}

static const struct policy_state *find(const struct controller *c, uint64_t uid)
{
	const struct policy_state *newest = NULL;
	for (uint32_t i = 0; uid == 0 && i < LIMIT_SESSIONS; i++) {
		const struct policy_state *s = &c->sessions[i];
		if (s->uid != 0 && (!newest || s->last_ns > newest->last_ns))
			newest = s;
	}
	return uid ? controller_session(c, uid) : newest;
}

/* Takes the newest decisions about the session; the controller keeps the decisions of all sessions
 * together. */
static void take_decisions(const struct controller *c, uint64_t uid, struct explanation *out)
{
	const struct decision *d;
	for (uint64_t after = 0; (d = controller_decision(c, after)) != NULL; after = d->number) {
		if (d->session != uid)
			continue;
		if (out->n_decisions == EXPLAIN_DECISIONS)
			memmove(out->decisions, out->decisions + 1,
				--out->n_decisions * sizeof(out->decisions[0]));
		out->decisions[out->n_decisions++] = d;
	}
}

static void take_positions(const struct policy_state *s, struct explanation *out)
{
	for (uint32_t i = 0; i < LIMIT_DRAFT_DEPTH; i++) {
		out->positions[i] = (struct explained_position){
			(double)s->reached[i], (double)s->taken[i], (double)s->cut[i]};
		if (s->reached[i] > 0)
			out->n_positions = i + 1;
	}
}

static void explain_baseline(const struct policy_state *s, struct explanation *out)
{
	double base_ns;
	uint64_t age;
	controller_baseline(s, &base_ns, &age);
	if (base_ns <= 0)
		return;
	explain_figure(out, "iteration at K = 0, measured", "ms", base_ns / 1e6);
	explain_figure(out, "age of that measurement", "iterations", (double)age);
}

int explain_session(const struct controller *c, uint64_t uid, struct explanation *out)
{
	const struct policy_state *s = find(c, uid);
	memset(out, 0, sizeof(*out));
	if (!s)
		return -ENOENT;
	out->state = s;
	out->trial_n = s->trial_n;
	out->k = s->trial_n ? s->trial_k : s->k;
	out->k_then = s->trial_n ? s->k_then : s->k;
	out->k_last = s->k_last;
	out->k_fixed = s->k_fixed != 0;
	if (s->k_fixed) {
		out->k = out->k_then = out->k_last = s->k_fixed - 1;
		out->trial_n = 0;
		explain_say(out,
			"The request itself fixed K = %u: the policy decides nothing in this "
			"session and learns nothing from it.",
			out->k);
	} else {
		s->ops->explain(s, out);
	}
	if (s->unfollowed && !s->k_fixed)
		explain_say(out,
			"The drafter need not follow this session at K = 0: no draft will be "
			"asked for soon, and it catches up before one is.");
	explain_figure(out, "iterations", "", (double)s->iterations);
	if (s->missing > 0)
		explain_figure(out, "iterations whose records were lost", "", (double)s->missing);
	/* Fading means, in addition to the totals. */
	if (s->iterations > 0) {
		explain_figure(out, "tokens per iteration, lately", "tokens", (double)s->etr);
		explain_figure(out, "drafted per iteration, lately", "tokens", (double)s->drafted);
		explain_figure(
			out, "accepted per iteration, lately", "tokens", (double)s->accepted);
		explain_figure(out, "iteration, lately", "ms", s->iteration_ns / 1e6);
	}
	explain_baseline(s, out);
	take_positions(s, out);
	take_decisions(c, s->uid, out);
	return 0;
}
