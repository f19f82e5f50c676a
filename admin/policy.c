/* outriderctl policy get, set, watch. */
#include "admin/knob.h"
#include "admin/interrupt.h"

#include "client/summary/look.h"
#include "shared/base/clock.h"
#include "shared/base/columns.h"
#include "shared/base/proquint.h"
#include "shared/base/standard.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum { WATCH_MS = 250, WATCH_TIMEOUT_MS = 3000, SESSIONS_TIMEOUT_MS = 500, KNOB_HELP_INDENT = 6 };

Outrider__Envelope *ctl_ask_sessions(struct ctl *ctl)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT, *reply = NULL;
	Outrider__SessionsRequest body = OUTRIDER__SESSIONS_REQUEST__INIT;

	request.body_case = OUTRIDER__ENVELOPE__BODY_SESSIONS_REQUEST;
	request.sessions_request = &body;
	if (ctl_ask(ctl, PEER_VERIFIER, &request, OUTRIDER__ENVELOPE__BODY_SESSIONS,
		    SESSIONS_TIMEOUT_MS, &reply, NULL) < 0)
		return NULL;
	return reply;
}

bool ctl_is_live(const Outrider__Sessions *sessions, uint64_t uid)
{
	for (size_t i = 0; sessions && i < sessions->n_sessions; i++)
		if (sessions->sessions[i]->uid == uid)
			return strcmp(sessions->sessions[i]->state, "done") != 0;
	return sessions == NULL;
}

static json_t *session_json(const Outrider__PolicySession *s, bool live)
{
	return json_pack("{s:o,s:I,s:I,s:o,s:o,s:o,s:o,s:o,s:I,s:o,s:o,s:o,s:o,s:b}", "uid",
		json_sprintf("%" PRIu64, s->session_uid), "slot", (json_int_t)s->slot, "k",
		(json_int_t)s->k, "utility", ctl_measured_json(look_utility(s)), "decided_utility",
		ctl_measured_json((double)s->utility), "acceptance",
		look_drafts(s) ? json_real((double)s->acceptance) : json_null(), "etr",
		ctl_measured_json((double)s->etr), "phase", json_text(s->phase), "iterations",
		(json_int_t)s->iterations, "base_ms", ctl_measured_json(s->base_ms), "base_age",
		s->base_ms > 0 ? json_integer((json_int_t)s->base_age) : json_null(),
		"iteration_ms", ctl_measured_json(s->iteration_ms), "policy", json_text(s->policy),
		"live", (int)live);
}

/* The process has the same table as this program, in one installation. */
static const struct config_key *key_of(const char *knob)
{
	return config_find(knob_process_of(PEER_POLICY)->keys, knob);
}

json_t *ctl_policy_json(
	const Outrider__PolicyState *state, const Outrider__Sessions *sessions, bool all)
{
	json_t *knobs = json_array(), *list = json_array();

	for (size_t i = 0; i < state->n_knobs; i++) {
		const Outrider__Knob *k = state->knobs[i];
		const struct config_key *key = key_of(k->name);

		json_array_append_new(knobs,
			json_pack("{s:o,s:o,s:o,s:s,s:o}", "name", json_text(k->name), "value",
				json_text(k->value), "range", json_text(k->range), "unit",
				key ? config_unit(key) : "", "help", json_text(k->help)));
	}
	for (size_t i = 0; i < state->n_sessions; i++) {
		bool live = ctl_is_live(sessions, state->sessions[i]->session_uid);

		if (live || all)
			json_array_append_new(list, session_json(state->sessions[i], live));
	}
	return json_pack("{s:o,s:o,s:o,s:I,s:I,s:I}", "policy", json_text(state->policy), "knobs",
		knobs, "sessions", list, "records", (json_int_t)state->records, "records_lost",
		(json_int_t)state->records_lost, "decisions", (json_int_t)state->decisions);
}

static void session_text(const Outrider__PolicySession *s)
{
	char utility[16], decided[16], share[16], etr[16], base[16], iteration[16], age[24] = "-";

	if (s->base_ms > 0)
		snprintf(age, sizeof age, "%" PRIu64, s->base_age);
	printf("%-11s %3u %-9s %5s %6s %9s %9s %6s %8s %8s\n", PROQUINT(s->session_uid), s->k,
		s->phase,
		ctl_share((double)s->acceptance, look_drafts(s) ? 1 : 0, 0, share, sizeof share),
		ctl_measured((double)s->etr, 2, etr, sizeof etr),
		ctl_measured(s->iteration_ms, 2, iteration, sizeof iteration),
		ctl_measured(s->base_ms, 2, base, sizeof base), age,
		ctl_measured(look_utility(s), 2, utility, sizeof utility),
		ctl_measured((double)s->utility, 2, decided, sizeof decided));
}

/* Prints its value and range, and below them its purpose. */
static void knob_text(const Outrider__Knob *k)
{
	const struct config_key *key = key_of(k->name);
	const char *unit = key ? config_range_unit(key) : "";
	char range[160];

	snprintf(range, sizeof range, "%s%s%s", k->range, *unit ? " " : "", unit);
	int at = printf("  %-16s %-12s ", k->name, k->value);
	columns_fold(stdout, range, at, at);
	printf("%*s", KNOB_HELP_INDENT, "");
	columns_fold(stdout, k->help, KNOB_HELP_INDENT, KNOB_HELP_INDENT);
}

static int state_text(
	const Outrider__PolicyState *state, const Outrider__Sessions *sessions, bool all)
{
	size_t shown = 0;

	printf("policy %s; %" PRIu64 " record%s of iterations read, %" PRIu64 " lost, %" PRIu64
	       " decision%s\n",
		state->policy, state->records, plural(state->records), state->records_lost,
		state->decisions, plural(state->decisions));
	for (size_t i = 0; i < state->n_sessions; i++) {
		if (!all && !ctl_is_live(sessions, state->sessions[i]->session_uid))
			continue;
		if (shown++ == 0)
			printf("%-11s %3s %-9s %5s %6s %9s %9s %6s %8s %8s\n", "SESSION", "K",
				"PHASE", "ACC", "ETR", "ITER MS", "BASE MS", "AGE", "UTILITY",
				"DECIDED");
		session_text(state->sessions[i]);
	}
	if (shown < state->n_sessions)
		printf("%zu session%s ended; policy get --all shows %s\n",
			state->n_sessions - shown,
			state->n_sessions - shown > 1 ? "s have" : " has",
			state->n_sessions - shown > 1 ? "them" : "it");
	if (state->n_sessions > 0)
		putchar('\n');
	for (size_t i = 0; i < state->n_knobs; i++)
		knob_text(state->knobs[i]);
	return 0;
}

static int show_state(struct ctl *ctl, Outrider__Envelope *request)
{
	Outrider__Envelope *reply, *of_verifier;
	const Outrider__Sessions *sessions;
	int status =
		ctl_call(ctl, PEER_POLICY, request, OUTRIDER__ENVELOPE__BODY_POLICY_STATE, &reply);

	if (status)
		return status;
	of_verifier = ctl_ask_sessions(ctl);
	sessions = of_verifier ? of_verifier->sessions : NULL;
	status = ctl->json
			 ? ctl_print_json(ctl_policy_json(reply->policy_state, sessions, ctl->all))
			 : state_text(reply->policy_state, sessions, ctl->all);
	bus_free(&of_verifier);
	bus_free(&reply);
	return status;
}

int ctl_policy_get(struct ctl *ctl, int argc, char **argv)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT;
	Outrider__PolicyGet body = OUTRIDER__POLICY_GET__INIT;

	(void)argc;
	(void)argv;
	request.body_case = OUTRIDER__ENVELOPE__BODY_POLICY_GET;
	request.policy_get = &body;
	return show_state(ctl, &request);
}

/* Sets knobs of the policy; the policy's name is one of them. */
int ctl_policy_set(struct ctl *ctl, int argc, char **argv)
{
	static struct knob_wishes wishes;
	const struct knob_process *in = knob_process_of(PEER_POLICY);
	const char *command = "policy set", *name = NULL;
	int status = 0;

	for (int i = 0; status == 0 && i < argc; i++) {
		if (!argv[i][0])
			return ctl_fail(
				EX_USAGE, "policy set: \"\": expected a policy or KNOB=VALUE");
		if (strchr(argv[i], '=')) {
			status = knob_add_assignment(ctl, command, argv[i], in, &wishes);
			continue;
		}
		if (name)
			return ctl_fail(EX_USAGE,
				"policy set: \"%.64s\" and \"%.64s\": expected one policy", name,
				argv[i]);
		name = argv[i];
		status = knob_add_wish(ctl, command, name, "policy", name, in, &wishes);
	}
	if (argc == 0)
		return ctl_fail(EX_USAGE, "policy set: expected a policy or KNOB=VALUE");
	return status ? status : knob_make(ctl, &wishes);
}

json_t *ctl_decision_json(const Outrider__PolicyDecision *d)
{
	return json_pack("{s:I,s:o,s:I,s:I,s:o,s:o,s:o,s:I,s:I,s:I}", "number",
		(json_int_t)d->number, "uid", json_sprintf("%" PRIu64, d->session_uid), "k_old",
		(json_int_t)d->k_old, "k_new", (json_int_t)d->k_new, "phase", json_text(d->phase),
		"utility", ctl_measured_json((double)d->utility), "reason", json_text(d->reason),
		"time_ns", (json_int_t)d->time_ns, "trial_n", (json_int_t)d->trial_n, "k_then",
		(json_int_t)d->k_then);
}

const char *ctl_step(const Outrider__PolicyDecision *d, char out[CTL_STEP_BYTES])
{
	int n = snprintf(out, CTL_STEP_BYTES, "K %u -> %u", d->k_old, d->k_new);

	if (d->trial_n)
		snprintf(out + n, CTL_STEP_BYTES - (size_t)n, " for %u, then %u", d->trial_n,
			d->k_then);
	return out;
}

/* all: the list to which it is added instead of being printed, or NULL. */
static void print_decision(const struct ctl *ctl, const Outrider__PolicyDecision *d, json_t *all)
{
	char utility[16], wall[CTL_WALL_BYTES], step[CTL_STEP_BYTES];

	if (all) {
		json_array_append_new(all, ctl_decision_json(d));
		return;
	}
	if (ctl->json) {
		/* One line each, so that a reader need not wait for an end. */
		json_t *line = ctl_decision_json(d);

		json_dumpf(line, stdout, 0);
		putchar('\n');
		json_decref(line);
		return;
	}
	printf("%s.%03" PRIu64 "  session %-11s  %-22s  %-8s utility %5s  %s\n",
		ctl_wall(d->time_ns, wall), d->time_ns / 1000000 % 1000, PROQUINT(d->session_uid),
		ctl_step(d, step), d->phase,
		ctl_measured((double)d->utility, 2, utility, sizeof utility), d->reason);
}

/* The decisions that `watch` has shown or left out so far; left out are those made before it began
 * about sessions that had ended. */
struct watching {
	uint64_t begun_ns, after;
	size_t left_out;
	bool was_there;
	json_t *all; /* with --once and JSON, when the output is one document */
};

static void print_decisions(
	struct ctl *ctl, struct watching *watching, const Outrider__PolicyDecisions *d)
{
	bool old = d->n_decisions > 0 && d->decisions[0]->time_ns < watching->begun_ns;
	Outrider__Envelope *reply = old && !ctl->all ? ctl_ask_sessions(ctl) : NULL;
	const Outrider__Sessions *sessions = reply ? reply->sessions : NULL;

	for (size_t i = 0; i < d->n_decisions; i++) {
		const Outrider__PolicyDecision *decision = d->decisions[i];

		if (decision->time_ns < watching->begun_ns &&
			!ctl_is_live(sessions, decision->session_uid))
			watching->left_out++;
		else
			print_decision(ctl, decision, watching->all);
	}
	bus_free(&reply);
}

static void print_left_out(const struct ctl *ctl, const struct watching *watching)
{
	if (watching->left_out && !ctl->json)
		printf("%zu earlier decision%s about sessions that have ended; policy watch --all "
		       "shows %s\n",
			watching->left_out, watching->left_out > 1 ? "s are" : " is",
			watching->left_out > 1 ? "them" : "it");
}

/* Waits for a controller that is away, if it was there before. An exit status. */
static int look(struct ctl *ctl, struct watching *watching)
{
	do {
		Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT, *reply = NULL;
		Outrider__PolicyWatch body = OUTRIDER__POLICY_WATCH__INIT;
		struct error err = {""};
		int code;

		body.after = watching->after;
		request.body_case = OUTRIDER__ENVELOPE__BODY_POLICY_WATCH;
		request.policy_watch = &body;
		code = ctl_ask_patiently(ctl, PEER_POLICY, &request,
			OUTRIDER__ENVELOPE__BODY_POLICY_DECISIONS, WATCH_TIMEOUT_MS, &reply, &err);
		if (code == -ECONNREFUSED && !watching->was_there)
			return ctl_no_service(ctl, PEER_POLICY);
		if (code == -ETIMEDOUT && !watching->was_there)
			return ctl_no_answer(PEER_POLICY, WATCH_TIMEOUT_MS, false);
		if (code < 0 && !watching->was_there)
			return ctl_fail(error_exit_status(code), "%s", err.text);
		if (code == 0) {
			print_decisions(ctl, watching, reply->policy_decisions);
			/* Printed once, after the decisions that were there. */
			if (!watching->was_there)
				print_left_out(ctl, watching);
			watching->was_there = true;
			/* A smaller number: the controller was restarted and counts from the
			 * beginning. */
			watching->after = reply->policy_decisions->next;
			bus_free(&reply);
		}
	} while (standard_flush() && !ctl->once && !interrupted() && poll(NULL, 0, WATCH_MS) == 0);
	return interrupt_status(EX_OK);
}

/* Ends with --once, when the reader goes away, or by Ctrl-C. */
int ctl_policy_watch(struct ctl *ctl, int argc, char **argv)
{
	struct watching watching = {.begun_ns = clock_wall_of(clock_ns())};

	(void)argc;
	(void)argv;
	if (!ctl->once)
		interrupt_watch(true);
	watching.all = ctl->json && ctl->once ? json_array() : NULL;
	int status = look(ctl, &watching);
	if (status == EX_OK && watching.all)
		return ctl_print_json(json_pack("{s:o,s:I}", "decisions", watching.all, "left_out",
			(json_int_t)watching.left_out));
	json_decref(watching.all);
	return status;
}
