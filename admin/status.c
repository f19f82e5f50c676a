/* outriderctl status, sessions. */
#include "admin/ctl.h"

#include "client/include/outrider.h"
#include "client/summary/process.h"
#include "client/summary/summary.h"
#include "shared/base/proquint.h"
#include "shared/base/units.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/detail.h"
#include "shared/ipc/peers.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum { STATUS_TIMEOUT_MS = 500 };

/* A time in the unit that its size suggests, such as "32.4 ms". */
static const char *time_text(double ns, char *out, size_t bytes)
{
	static const struct {
		double ns;
		const char *unit;
	} units[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}};

	for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
		if (ns >= units[i].ns) {
			snprintf(out, bytes, "%.1f %s", ns / units[i].ns, units[i].unit);
			return out;
		}
	snprintf(out, bytes, "%.0f ns", ns);
	return out;
}

/* Whether the key ends with the suffix, which is then cut off. */
static bool take_suffix(char *key, const char *suffix)
{
	size_t n = strlen(key), cut = strlen(suffix);

	if (n <= cut || strcmp(key + n - cut, suffix) != 0)
		return false;
	key[n - cut] = '\0';
	return true;
}

/* Prints "settings_ns_max=1500000" as "settings, time at most: 1.5 ms": the unit is the last part
 * of a key, except for a qualifier behind it. */
static void detail_text(const char *detail)
{
	const char *equals = strchr(detail, '='), *what = "";
	char key[128], value[64];

	if (!equals || (size_t)(equals - detail) >= sizeof key) {
		printf("  %s\n", detail);
		return;
	}
	snprintf(key, sizeof key, "%.*s", (int)(equals - detail), detail);
	double number = strtod(equals + 1, NULL);
	bool max = take_suffix(key, "_max");
	value[0] = '\0';
	if (take_suffix(key, "_ns")) {
		time_text(number, value, sizeof value);
		what = max ? ", time at most" : ", time";
	} else if (take_suffix(key, "_bytes_per_second")) {
		snprintf(value, sizeof value, "%.2f GiB/s", number / (1 << 30));
		what = ", rate";
	} else if (take_suffix(key, "_bytes")) {
		units_size(number > 0 ? (uint64_t)number : 0, value);
	} else if (max) {
		what = ", at most";
	}
	for (char *c = key; *c; c++)
		if (*c == '_')
			*c = ' ';
	printf("  %s%s: %s\n", key, what, value[0] ? value : equals + 1);
}

static void process_text(const struct outrider_process *p, bool counters)
{
	char uptime[UNITS_BYTES], memory[UNITS_BYTES];

	printf("%s: %s\n", p->name, p->state);
	if (!p->answers && p->pid)
		printf("  pid %u\n", p->pid);
	if (!p->answers)
		return;
	printf("  pid %u, generation %" PRIu64 ", up for %s, memory %s, version %s\n", p->pid,
		p->generation, units_period(p->uptime_ns, uptime),
		units_memory(p->rss_bytes, memory), p->version);
	for (size_t i = 0; counters && i < p->n_details; i++)
		detail_text(p->details[i]);
}

/* Prints the summary, and for each process its own report: with its counters, or only its state. */
static void status_text(const struct outrider_status *status, bool counters)
{
	char lines[SUMMARY_LINES][SUMMARY_BYTES];
	size_t n = summary(status, lines);

	for (size_t i = 0; i < n; i++)
		puts(lines[i]);
	putchar('\n');
	for (size_t i = 0; i < outrider_status_count(status); i++)
		process_text(outrider_status_process(status, i), counters);
}

int ctl_status(struct ctl *ctl, int argc, char **argv)
{
	struct outrider_status *status;
	bool all = true;
	int code = outrider_status(ctl->runtime_dir, STATUS_TIMEOUT_MS, &status);

	(void)argc;
	(void)argv;
	if (code < 0)
		return ctl_fail(error_exit_status(code), "%s", outrider_error());
	for (size_t i = 0; i < outrider_status_count(status); i++)
		all &= outrider_status_process(status, i)->answers != 0;
	const char *given_up = outrider_status_given_up(status);
	if (ctl->json)
		ctl_print_json(json_pack("{s:o,s:o}", "processes", processes_json(status),
			"given_up", given_up ? json_text(given_up) : json_null()));
	else
		status_text(status, ctl->all);
	outrider_status_free(&status);
	return all ? EX_OK : EX_UNAVAILABLE;
}

static json_t *session_json(const Outrider__Session *s)
{
	char name[PROQUINT_BYTES];

	return json_pack("{s:o,s:s,s:o,s:I,s:I,s:I,s:I,s:o,s:I,s:I,s:I,s:I,s:o,s:I}", "uid",
		json_sprintf("%" PRIu64, s->uid), "name", proquint(s->uid, name), "state",
		json_text(s->state), "prompt_tokens", (json_int_t)s->prompt_tokens, "output_tokens",
		(json_int_t)s->output_tokens, "max_tokens", (json_int_t)s->max_tokens, "k",
		(json_int_t)s->k, "draft_method", json_text(s->draft_method), "drafted",
		(json_int_t)s->drafted, "accepted", (json_int_t)s->accepted, "iterations",
		(json_int_t)s->iterations, "age_ns", (json_int_t)s->age_ns, "tokens_per_s",
		ctl_measured_json((double)s->tokens_per_s), "slot", (json_int_t)s->slot);
}

json_t *ctl_sessions_json(const Outrider__Sessions *all)
{
	json_t *list = json_array();

	for (size_t i = 0; i < all->n_sessions; i++)
		json_array_append_new(list, session_json(all->sessions[i]));
	return json_pack("{s:o,s:I,s:I,s:I,s:I}", "sessions", list, "queued",
		(json_int_t)all->queued, "queue_max", (json_int_t)all->queue_max,
		"output_tokens_total", (json_int_t)all->output_tokens_total, "iterations_total",
		(json_int_t)all->iterations_total);
}

static int sessions_text(const Outrider__Sessions *all)
{
	printf("%-11s %-8s %7s %7s %7s %3s %-7s %6s %8s\n", "SESSION", "STATE", "PROMPT", "OUTPUT",
		"MAX", "K", "DRAFT", "ACC", "TOK/S");
	for (size_t i = 0; i < all->n_sessions; i++) {
		const Outrider__Session *s = all->sessions[i];
		char rate[16], share[16];

		printf("%-11s %-8s %7u %7u %7u %3u %-7s %6s %8s\n", PROQUINT(s->uid), s->state,
			s->prompt_tokens, s->output_tokens, s->max_tokens, s->k, s->draft_method,
			ctl_share((double)s->accepted, (double)s->drafted, 0, share, sizeof share),
			ctl_measured((double)s->tokens_per_s, 1, rate, sizeof rate));
	}
	printf("%zu session%s, %u of %u places in the queue taken; %" PRIu64 " tokens in %" PRIu64
	       " iterations so far\nTOK/S: output tokens per second since the session began, "
	       "including the wait for a place and the prompt\n",
		all->n_sessions, plural(all->n_sessions), all->queued, all->queue_max,
		all->output_tokens_total, all->iterations_total);
	return 0;
}

int ctl_sessions(struct ctl *ctl, int argc, char **argv)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT, *reply;
	Outrider__SessionsRequest body = OUTRIDER__SESSIONS_REQUEST__INIT;
	int status;

	(void)argc;
	(void)argv;
	request.body_case = OUTRIDER__ENVELOPE__BODY_SESSIONS_REQUEST;
	request.sessions_request = &body;
	status = ctl_call(ctl, PEER_VERIFIER, &request, OUTRIDER__ENVELOPE__BODY_SESSIONS, &reply);
	if (status)
		return status;
	status = ctl->json ? ctl_print_json(ctl_sessions_json(reply->sessions))
			   : sessions_text(reply->sessions);
	bus_free(&reply);
	return status;
}
