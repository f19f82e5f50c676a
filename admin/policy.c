/* outriderctl policy get, set, watch. */
#include "admin/knob.h"

#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum { WATCH_MS = 250, WATCH_TIMEOUT_MS = 3000 };

json_t *ctl_policy_json(const Outrider__PolicyState *state)
{
	json_t *knobs = json_array(), *sessions = json_array();

	for (size_t i = 0; i < state->n_knobs; i++) {
		const Outrider__Knob *k = state->knobs[i];

		json_array_append_new(
			knobs, json_pack("{s:s,s:s,s:s,s:s}", "name", k->name, "value", k->value,
				       "range", k->range, "help", k->help));
	}
	for (size_t i = 0; i < state->n_sessions; i++) {
		const Outrider__PolicySession *s = state->sessions[i];

		json_array_append_new(
			sessions, json_pack("{s:o,s:I,s:I,s:f,s:f,s:f,s:s,s:I,s:f,s:f,s:s}", "uid",
					  json_sprintf("%" PRIu64, s->session_uid), "slot",
					  (json_int_t)s->slot, "k", (json_int_t)s->k, "utility",
					  (double)s->utility, "acceptance", (double)s->acceptance,
					  "etr", (double)s->etr, "phase", s->phase, "iterations",
					  (json_int_t)s->iterations, "base_ms", s->base_ms,
					  "iteration_ms", s->iteration_ms, "policy", s->policy));
	}
	return json_pack("{s:s,s:o,s:o,s:I,s:I,s:I}", "policy", state->policy, "knobs", knobs,
		"sessions", sessions, "records", (json_int_t)state->records, "records_lost",
		(json_int_t)state->records_lost, "decisions", (json_int_t)state->decisions);
}

static int state_text(const Outrider__PolicyState *state)
{
	printf("policy %s; %" PRIu64 " records read, %" PRIu64 " lost, %" PRIu64 " decisions\n",
		state->policy, state->records, state->records_lost, state->decisions);
	for (size_t i = 0; i < state->n_knobs; i++) {
		const Outrider__Knob *k = state->knobs[i];

		printf("  %-20s %-12s %-16s %s\n", k->name, k->value, k->range, k->help);
	}
	if (state->n_sessions)
		printf("%-20s %3s %-9s %8s %6s %6s %9s %9s\n", "SESSION", "K", "PHASE", "UTILITY",
			"ACC", "ETR", "BASE MS", "ITER MS");
	for (size_t i = 0; i < state->n_sessions; i++) {
		const Outrider__PolicySession *s = state->sessions[i];

		printf("%-20" PRIu64 " %3u %-9s %8.2f %5.0f%% %6.2f %9.2f %9.2f\n", s->session_uid,
			s->k, s->phase, (double)s->utility, 100 * (double)s->acceptance,
			(double)s->etr, s->base_ms, s->iteration_ms);
	}
	return 0;
}

static int show_state(struct ctl *ctl, Outrider__Envelope *request)
{
	Outrider__Envelope *reply;
	int status =
		ctl_call(ctl, PEER_POLICY, request, OUTRIDER__ENVELOPE__BODY_POLICY_STATE, &reply);

	if (status)
		return status;
	status = ctl->json ? ctl_print_json(ctl_policy_json(reply->policy_state))
			   : state_text(reply->policy_state);
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

/* The policy's knobs, of which its name is one; then what it is now. */
int ctl_policy_set(struct ctl *ctl, int argc, char **argv)
{
	static struct knob_wishes wishes;
	static char name[128];
	char *arguments[KNOB_WISHES_MAX + 1];
	int n = 0, status;

	if (argc > KNOB_WISHES_MAX)
		return ctl_fail(EX_USAGE, "policy set: more than %d knobs", KNOB_WISHES_MAX);
	for (int i = 0; i < argc; i++) {
		if (!argv[i][0])
			return ctl_fail(
				EX_USAGE, "policy set: \"\": expected a policy or KNOB=VALUE");
		if (strchr(argv[i], '=')) {
			arguments[n++] = argv[i];
			continue;
		}
		if (name[0])
			return ctl_fail(EX_USAGE, "policy set: \"%.64s\" and \"%.64s\": one policy",
				name + strlen("policy="), argv[i]);
		snprintf(name, sizeof name, "policy=%s", argv[i]);
		arguments[n++] = name;
	}
	if (argc == 0)
		return ctl_fail(EX_USAGE, "policy set: expected a policy or KNOB=VALUE");
	status = knob_read_assignments(
		ctl, "policy set", n, arguments, knob_process_of(PEER_POLICY), &wishes);
	if (status == 0)
		status = knob_make(ctl, &wishes, true);
	return status ? status : ctl_policy_get(ctl, 0, NULL);
}

json_t *ctl_decision_json(const Outrider__PolicyDecision *d)
{
	return json_pack("{s:I,s:o,s:I,s:I,s:s,s:f,s:s,s:I}", "number", (json_int_t)d->number,
		"uid", json_sprintf("%" PRIu64, d->session_uid), "k_old", (json_int_t)d->k_old,
		"k_new", (json_int_t)d->k_new, "phase", d->phase, "utility", (double)d->utility,
		"reason", d->reason, "time_ns", (json_int_t)d->time_ns);
}

static void print_decision(const struct ctl *ctl, const Outrider__PolicyDecision *d)
{
	if (ctl->json) {
		/* A line each, so that a reader need not wait for an end. */
		json_t *line = ctl_decision_json(d);

		json_dumpf(line, stdout, 0);
		putchar('\n');
		json_decref(line);
		return;
	}
	printf("%12.3f  session %" PRIu64 "  K %u -> %u  %-8s utility %.2f  %s\n",
		(double)d->time_ns / 1e9, d->session_uid, d->k_old, d->k_new, d->phase,
		(double)d->utility, d->reason);
}

/* Ends with --once, when the reader goes away, or by Ctrl-C. A controller that is away is waited for: it comes back. */
int ctl_policy_watch(struct ctl *ctl, int argc, char **argv)
{
	uint64_t after = 0;
	bool was_there = false;

	(void)argc;
	(void)argv;
	do {
		Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT, *reply;
		Outrider__PolicyWatch body = OUTRIDER__POLICY_WATCH__INIT;
		struct error err = {""};
		int code;

		body.after = after;
		request.body_case = OUTRIDER__ENVELOPE__BODY_POLICY_WATCH;
		request.policy_watch = &body;
		code = ctl_ask(ctl, PEER_POLICY, &request,
			OUTRIDER__ENVELOPE__BODY_POLICY_DECISIONS, WATCH_TIMEOUT_MS, &reply, &err);
		if (code < 0 && !was_there)
			return ctl_fail(
				code == -ETIMEDOUT ? EX_UNAVAILABLE : error_exit_status(code), "%s",
				err.text);
		if (code == 0) {
			const Outrider__PolicyDecisions *d = reply->policy_decisions;

			was_there = true;
			for (size_t i = 0; i < d->n_decisions; i++)
				print_decision(ctl, d->decisions[i]);
			/* A smaller number: it started anew and counts from the beginning. */
			after = d->next;
			bus_free(&reply);
		}
		if (fflush(stdout) != 0)
			return EX_OK;
	} while (!ctl->once && poll(NULL, 0, WATCH_MS) == 0);
	return EX_OK;
}
