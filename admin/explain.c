/* outriderctl policy explain: why a session has its present K. First sentences, then a table. */
#include "admin/ctl.h"

#include "shared/base/columns.h"
#include "shared/base/proquint.h"
#include "shared/base/units.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <inttypes.h>
#include <string.h>
#include <sysexits.h>

enum { TIMEOUT_MS = 1000 };

static bool any_trials(const Outrider__PolicyExplanation *e)
{
	bool any = false;

	for (size_t i = 0; i < e->n_options; i++)
		any |= e->options[i]->weighed;
	return any;
}

static json_t *real_or_null(bool known, double value)
{
	return known ? json_real(value) : json_null();
}

static json_t *options_json(const Outrider__PolicyExplanation *e)
{
	json_t *all = json_array();

	for (size_t i = 0; i < e->n_options; i++) {
		const Outrider__PolicyOption *o = e->options[i];
		bool known = o->time_ms > 0;
		json_t *option = json_pack("{s:I,s:o,s:o,s:o,s:o,s:o,s:o}", "k", (json_int_t)o->k,
			"drafted", real_or_null(known && e->tells_drafted, o->drafted), "tokens",
			real_or_null(known, o->tokens), "time_ms", real_or_null(known, o->time_ms),
			"tokens_per_s", real_or_null(known, o->tokens_per_s), "utility",
			real_or_null(known, o->utility), "doubt",
			real_or_null(known && e->tells_doubt, o->doubt));

		if (*o->note)
			json_object_set_new(option, "note", json_text(o->note));
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

static json_t *explanation_json(
	const Outrider__PolicyExplanation *e, const Outrider__DraftTree *tree, bool live)
{
	json_t *words = json_array(), *figures = json_array(), *decisions = json_array();

	for (size_t i = 0; i < e->n_words; i++)
		json_array_append_new(words, json_text(e->words[i]));
	for (size_t i = 0; i < e->n_figures; i++)
		json_array_append_new(figures,
			json_pack("{s:o,s:f,s:o}", "name", json_text(e->figures[i]->name), "value",
				e->figures[i]->value, "unit", json_text(e->figures[i]->unit)));
	for (size_t i = 0; i < e->n_decisions; i++)
		json_array_append_new(decisions, ctl_decision_json(e->decisions[i]));
	return json_pack("{s:o,s:o,s:o,s:I,s:I,s:b,s:I,s:I,s:b,s:o,s:I,s:o,s:o,s:o,s:o,s:o,s:o}",
		"uid", json_sprintf("%" PRIu64, e->session_uid), "policy", json_text(e->policy),
		"phase", json_text(e->phase), "k", (json_int_t)e->k, "k_last",
		(json_int_t)e->k_last, "live", (int)live, "k_then", (json_int_t)e->k_then,
		"trial_n", (json_int_t)e->trial_n, "k_fixed", e->k_fixed, "utility",
		ctl_measured_json((double)e->utility), "age_ns", (json_int_t)e->age_ns, "words",
		words, "figures", figures, "options", options_json(e), "positions",
		positions_json(e), "decisions", decisions, "tree", ctl_tree_json(tree));
}

static void print_option(const Outrider__PolicyExplanation *e, const Outrider__PolicyOption *o)
{
	printf(" %c %2u ", o->k == e->k ? '*' : ' ', o->k);
	/* Without a time only the reason is known. */
	if (!(o->time_ms > 0)) {
		printf(" %s\n", o->note);
		return;
	}
	if (e->tells_drafted)
		printf(" %7.2f", o->drafted);
	printf(" %7.2f  %8.3f %9.1f", o->tokens, o->time_ms, o->tokens_per_s);
	if (e->tells_doubt)
		printf(" %3.0f%%", 100 * o->doubt);
	printf(" %8.3f", o->utility);
	if (o->weighed)
		printf("  %12.3f %7.3f", o->brings, o->costs);
	else if (*o->note)
		printf("  %s", o->note);
	putchar('\n');
}

static void print_options(const Outrider__PolicyExplanation *e)
{
	bool trials = any_trials(e);

	if (e->n_options == 0)
		return;
	printf("\n    K %s TOKENS   TIME MS  TOKENS/S%s  UTILITY%s\n",
		e->tells_drafted ? " DRAFTED " : " ", e->tells_doubt ? "   +-" : "",
		trials ? "  TRIAL BRINGS   COSTS" : "");
	for (size_t i = 0; i < e->n_options; i++)
		print_option(e, e->options[i]);
	if (*e->options_are) {
		fputs("  ", stdout);
		columns_fold(stdout, e->options_are, 2, 2);
	}
	if (trials)
		puts("  BRINGS and COSTS of a trial are in iterations at the best K");
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
			printf(" %5s", "never");
		cuts |= p->cut > 0;
	}
	if (cuts) {
		printf("\n  cut below confidence  ");
		for (size_t i = 0; i < e->n_positions; i++)
			printf(" %5.2f", e->positions[i]->cut);
	}
	putchar('\n');
}

/* Settings that were changed later have no effect on it: the controller is not told of a session's
 * end. */
static void print_ended(const Outrider__PolicyExplanation *e)
{
	char age[UNITS_BYTES];

	printf("session %s: K = %u; %sit has ended, last iteration %s ago\n\n",
		PROQUINT(e->session_uid), e->k_last, e->k_fixed ? "fixed by the request; " : "",
		units_period(e->age_ns, age));
	if (!e->k_fixed)
		printf("  If it went on: K = %u, chosen by policy %s, phase %s.\n", e->k, e->policy,
			e->phase);
}

static void print_head(const Outrider__PolicyExplanation *e)
{
	char age[UNITS_BYTES];

	printf("session %s: K = %u", PROQUINT(e->session_uid), e->k);
	if (e->trial_n)
		printf(" for %u iteration%s, then %u", e->trial_n, plural(e->trial_n), e->k_then);
	if (e->k_fixed)
		printf("; fixed by the request");
	else
		printf("; chosen by policy %s, phase %s", e->policy, e->phase);
	printf("; last iteration %s ago\n\n", units_period(e->age_ns, age));
}

/* Prints counts without decimals, one below the other. */
static void print_figure(const Outrider__PolicyFigure *f)
{
	bool whole = f->value >= 0 && f->value < 1e9 && (double)(uint64_t)f->value == f->value;

	printf("  %-38s %*.*f", f->name, whole ? 6 : 10, whole ? 0 : 3, f->value);
	if (*f->unit)
		printf("%*s %s", whole ? 4 : 0, "", f->unit);
	putchar('\n');
}

static int print_text(
	const Outrider__PolicyExplanation *e, const Outrider__DraftTree *tree, bool live)
{
	if (live)
		print_head(e);
	else
		print_ended(e);
	for (size_t i = 0; i < e->n_words; i++) {
		fputs("  ", stdout);
		columns_fold(stdout, e->words[i], 2, 4);
	}
	print_options(e);
	print_positions(e);
	ctl_print_tree(tree);
	if (e->n_figures)
		putchar('\n');
	for (size_t i = 0; i < e->n_figures; i++)
		print_figure(e->figures[i]);
	if (e->n_decisions)
		puts("\n  The last decisions:");
	for (size_t i = 0; i < e->n_decisions; i++) {
		char step[CTL_STEP_BYTES];

		int at = printf("  %8" PRIu64 "  %-22s  %-8s ", e->decisions[i]->number,
			ctl_step(e->decisions[i], step), e->decisions[i]->phase);
		columns_fold(stdout, e->decisions[i]->reason, at, at);
	}
	return EX_OK;
}

/* The session's last draft whose tokens were taken by their cost; NULL: there is none, or nobody
 * tells. */
static Outrider__Envelope *ask_tree(struct ctl *ctl, uint64_t uid)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT, *reply;
	Outrider__DraftTreeRequest body = OUTRIDER__DRAFT_TREE_REQUEST__INIT;

	body.session_uid = uid;
	request.body_case = OUTRIDER__ENVELOPE__BODY_DRAFT_TREE_REQUEST;
	request.draft_tree_request = &body;
	if (ctl_ask(ctl, PEER_VERIFIER, &request, OUTRIDER__ENVELOPE__BODY_DRAFT_TREE, TIMEOUT_MS,
		    &reply, NULL) < 0)
		return NULL;
	if (reply->draft_tree->iteration == 0)
		bus_free(&reply);
	return reply;
}

int ctl_policy_explain(struct ctl *ctl, int argc, char **argv)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT, *reply, *of_verifier, *tree;
	Outrider__PolicyExplain body = OUTRIDER__POLICY_EXPLAIN__INIT;
	int status;

	if (argc > 1)
		return ctl_fail(EX_USAGE, "unexpected argument \"%.64s\"", argv[1]);
	status = ctl_session_of(ctl, argc > 0 ? argv[0] : NULL, &body.session_uid);
	if (status)
		return status;
	request.body_case = OUTRIDER__ENVELOPE__BODY_POLICY_EXPLAIN;
	request.policy_explain = &body;
	status = ctl_call(
		ctl, PEER_POLICY, &request, OUTRIDER__ENVELOPE__BODY_POLICY_EXPLANATION, &reply);
	if (status)
		return status;
	of_verifier = ctl_ask_sessions(ctl);
	bool live = ctl_is_live(
		of_verifier ? of_verifier->sessions : NULL, reply->policy_explanation->session_uid);
	tree = ask_tree(ctl, reply->policy_explanation->session_uid);
	const Outrider__DraftTree *last = tree ? tree->draft_tree : NULL;
	status = ctl->json ? ctl_print_json(explanation_json(reply->policy_explanation, last, live))
			   : print_text(reply->policy_explanation, last, live);
	bus_free(&tree);
	bus_free(&of_verifier);
	bus_free(&reply);
	return status;
}
