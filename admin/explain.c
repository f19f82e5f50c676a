/* outriderctl policy explain: why a session's K is what it is, now. Words first, then a table. */
#include "admin/ctl.h"

#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sysexits.h>

static json_t *options_json(const Outrider__PolicyExplanation *e)
{
	json_t *all = json_array();

	for (size_t i = 0; i < e->n_options; i++) {
		const Outrider__PolicyOption *o = e->options[i];
		json_t *option = json_pack("{s:I,s:f,s:f,s:f,s:f,s:f,s:f}", "k", (json_int_t)o->k,
			"drafted", o->drafted, "tokens", o->tokens, "time_ms", o->time_ms,
			"tokens_per_s", o->tokens_per_s, "utility", o->utility, "doubt", o->doubt);

		if (o->weighed)
			json_object_set_new(option, "trial",
				json_pack("{s:f,s:f}", "brings", o->brings, "costs", o->costs));
		json_array_append_new(all, option);
	}
	return all;
}

static json_t *positions_json(const Outrider__PolicyExplanation *e)
{
	json_t *all = json_array();

	for (size_t i = 0; i < e->n_positions; i++)
		json_array_append_new(all,
			json_pack("{s:f,s:f,s:f}", "reached", e->positions[i]->reached, "accepted",
				e->positions[i]->accepted, "cut", e->positions[i]->cut));
	return all;
}

static json_t *explanation_json(const Outrider__PolicyExplanation *e)
{
	json_t *words = json_array(), *figures = json_array(), *decisions = json_array();

	for (size_t i = 0; i < e->n_words; i++)
		json_array_append_new(words, json_string(e->words[i]));
	for (size_t i = 0; i < e->n_figures; i++)
		json_array_append_new(
			figures, json_pack("{s:s,s:f,s:s}", "name", e->figures[i]->name, "value",
					 e->figures[i]->value, "unit", e->figures[i]->unit));
	for (size_t i = 0; i < e->n_decisions; i++)
		json_array_append_new(decisions, ctl_decision_json(e->decisions[i]));
	return json_pack("{s:o,s:s,s:s,s:I,s:I,s:I,s:b,s:f,s:I,s:o,s:o,s:o,s:o,s:o}", "uid",
		json_sprintf("%" PRIu64, e->session_uid), "policy", e->policy, "phase", e->phase,
		"k", (json_int_t)e->k, "k_then", (json_int_t)e->k_then, "trial_n",
		(json_int_t)e->trial_n, "k_fixed", e->k_fixed, "utility", (double)e->utility,
		"age_ns", (json_int_t)e->age_ns, "words", words, "figures", figures, "options",
		options_json(e), "positions", positions_json(e), "decisions", decisions);
}

static bool any_trial(const Outrider__PolicyExplanation *e)
{
	bool any = false;

	for (size_t i = 0; i < e->n_options; i++)
		any |= e->options[i]->weighed;
	return any;
}

static void print_options(const Outrider__PolicyExplanation *e)
{
	bool trials = any_trial(e);

	if (e->n_options == 0)
		return;
	printf("\n    K  DRAFTED  TOKENS   TIME MS  TOKENS/S   +-  UTILITY%s\n",
		trials ? "  TRIAL BRINGS   COSTS" : "");
	for (size_t i = 0; i < e->n_options; i++) {
		const Outrider__PolicyOption *o = e->options[i];

		/* Cascade knows what was emitted, not what had been drafted. */
		printf(" %c %2u ", o->k == e->k ? '*' : ' ', o->k);
		if (o->drafted > 0 || o->k == 0)
			printf(" %7.2f", o->drafted);
		else
			printf(" %7s", "-");
		printf(" %7.2f  %8.3f %9.1f", o->tokens, o->time_ms, o->tokens_per_s);
		if (o->doubt > 0)
			printf(" %3.0f%%", 100 * o->doubt);
		else
			printf(" %4s", "-");
		printf(" %8.3f", o->utility);
		if (o->weighed)
			printf("  %12.3f %7.3f", o->brings, o->costs);
		putchar('\n');
	}
	if (trials)
		puts("  (a trial brings and costs iterations at the best K)");
}

static void print_positions(const Outrider__PolicyExplanation *e)
{
	bool cuts = false;

	if (e->n_positions == 0)
		return;
	printf("\n  position in the draft ");
	for (size_t i = 0; i < e->n_positions; i++)
		printf(" %5zu", i + 1);
	printf("\n  accepted when reached ");
	for (size_t i = 0; i < e->n_positions; i++) {
		const Outrider__PolicyPosition *p = e->positions[i];

		if (p->reached > 0)
			printf(" %4.0f%%", 100 * p->accepted / p->reached);
		else
			printf(" %5s", "-");
		cuts |= p->cut > 0;
	}
	if (cuts) {
		printf("\n  cut below confidence  ");
		for (size_t i = 0; i < e->n_positions; i++)
			printf(" %5.2f", e->positions[i]->cut);
	}
	putchar('\n');
}

static int print_text(const Outrider__PolicyExplanation *e)
{
	printf("session %" PRIu64 ": K = %u", e->session_uid, e->k);
	if (e->trial_n)
		printf(" for %u iterations, then %u", e->trial_n, e->k_then);
	printf("; %s, policy %s, phase %s; last iteration %.1f s ago\n\n",
		e->k_fixed ? "fixed by the request" : "chosen by the policy", e->policy, e->phase,
		(double)e->age_ns / 1e9);
	for (size_t i = 0; i < e->n_words; i++)
		printf("  %s\n", e->words[i]);
	print_options(e);
	print_positions(e);
	if (e->n_figures)
		putchar('\n');
	for (size_t i = 0; i < e->n_figures; i++)
		printf("  %-38s %10.3f %s\n", e->figures[i]->name, e->figures[i]->value,
			e->figures[i]->unit);
	if (e->n_decisions)
		puts("\n  The last decisions:");
	for (size_t i = 0; i < e->n_decisions; i++) {
		char step[CTL_STEP_BYTES];

		printf("  %8" PRIu64 "  %-14s  %-8s %s\n", e->decisions[i]->number,
			ctl_step(e->decisions[i], step), e->decisions[i]->phase,
			e->decisions[i]->reason);
	}
	return EX_OK;
}

int ctl_policy_explain(struct ctl *ctl, int argc, char **argv)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT, *reply;
	Outrider__PolicyExplain body = OUTRIDER__POLICY_EXPLAIN__INIT;
	int status;

	if (argc > 1)
		return ctl_fail(EX_USAGE, "unexpected argument \"%.64s\"", argv[1]);
	body.session_uid = ctl->session;
	if (argc > 0)
		status = ctl_session(argv[0], &body.session_uid);
	else
		status = 0;
	if (status)
		return status;
	request.body_case = OUTRIDER__ENVELOPE__BODY_POLICY_EXPLAIN;
	request.policy_explain = &body;
	status = ctl_call(
		ctl, PEER_POLICY, &request, OUTRIDER__ENVELOPE__BODY_POLICY_EXPLANATION, &reply);
	if (status)
		return status;
	status = ctl->json ? ctl_print_json(explanation_json(reply->policy_explanation))
			   : print_text(reply->policy_explanation);
	bus_free(&reply);
	return status;
}
