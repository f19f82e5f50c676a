/* outriderctl status, sessions. */
#include "admin/ctl.h"

#include "client/include/outrider.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <inttypes.h>
#include <string.h>
#include <sysexits.h>

enum { STATUS_TIMEOUT_MS = 500 };

static json_t *details_json(const struct outrider_process *p)
{
	json_t *details = json_object();

	for (size_t i = 0; i < p->n_details; i++) {
		const char *equals = strchr(p->details[i], '=');
		char key[128];

		if (!equals || (size_t)(equals - p->details[i]) >= sizeof key)
			continue;
		snprintf(key, sizeof key, "%.*s", (int)(equals - p->details[i]), p->details[i]);
		json_object_set_new(details, key, ctl_text_json(equals + 1));
	}
	return details;
}

static void process_text(const struct outrider_process *p)
{
	if (!p->pid) {
		printf("%s: %s\n", p->name, p->state);
		return;
	}
	printf("%s: %s\n  pid=%u generation=%" PRIu64 " up=%.0fs memory=%.1fMiB version=%s\n",
		p->name, p->state, p->pid, p->generation, (double)p->uptime_ns / 1e9,
		ctl_mib(p->rss_bytes), p->version);
	for (size_t i = 0; i < p->n_details; i++)
		printf("  %s\n", p->details[i]);
}

json_t *ctl_processes_json(const struct outrider_status *status)
{
	json_t *list = json_array();

	for (size_t i = 0; i < outrider_status_count(status); i++) {
		const struct outrider_process *p = outrider_status_process(status, i);

		json_array_append_new(list,
			json_pack("{s:s,s:o,s:o,s:o,s:I,s:I,s:s,s:o}", "name", p->name, "pid",
				p->pid ? json_integer(p->pid) : json_null(), "state",
				ctl_text_json(p->state), "generation",
				p->pid ? json_integer((json_int_t)p->generation) : json_null(),
				"uptime_ns", (json_int_t)p->uptime_ns, "rss_bytes",
				(json_int_t)p->rss_bytes, "version", p->version, "details",
				details_json(p)));
	}
	return list;
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
	for (size_t i = 0; i < outrider_status_count(status); i++) {
		const struct outrider_process *p = outrider_status_process(status, i);

		all &= p->pid != 0;
		if (!ctl->json)
			process_text(p);
	}
	if (ctl->json)
		ctl_print_json(json_pack("{s:o}", "processes", ctl_processes_json(status)));
	outrider_status_free(&status);
	return all ? EX_OK : EX_UNAVAILABLE;
}

static json_t *session_json(const Outrider__Session *s)
{
	return json_pack("{s:o,s:s,s:I,s:I,s:I,s:I,s:s,s:I,s:I,s:I,s:I,s:f,s:I}", "uid",
		json_sprintf("%" PRIu64, s->uid), "state", s->state, "prompt_tokens",
		(json_int_t)s->prompt_tokens, "output_tokens", (json_int_t)s->output_tokens,
		"max_tokens", (json_int_t)s->max_tokens, "k", (json_int_t)s->k, "draft_method",
		s->draft_method, "drafted", (json_int_t)s->drafted, "accepted",
		(json_int_t)s->accepted, "iterations", (json_int_t)s->iterations, "age_ns",
		(json_int_t)s->age_ns, "tokens_per_s", (double)s->tokens_per_s, "slot",
		(json_int_t)s->slot);
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
	printf("%-20s %-8s %7s %7s %7s %3s %-7s %6s %8s\n", "SESSION", "STATE", "PROMPT", "OUTPUT",
		"MAX", "K", "DRAFT", "ACC", "TOK/S");
	for (size_t i = 0; i < all->n_sessions; i++) {
		const Outrider__Session *s = all->sessions[i];
		char rate[16];

		printf("%-20" PRIu64 " %-8s %7u %7u %7u %3u %-7s %5.0f%% %8s\n", s->uid, s->state,
			s->prompt_tokens, s->output_tokens, s->max_tokens, s->k, s->draft_method,
			s->drafted ? 100.0 * (double)s->accepted / (double)s->drafted : 0.0,
			ctl_measured((double)s->tokens_per_s, 1, rate, sizeof rate));
	}
	printf("%zu sessions, %u of %u places in the queue taken; %" PRIu64 " tokens in %" PRIu64
	       " iterations so far\n",
		all->n_sessions, all->queued, all->queue_max, all->output_tokens_total,
		all->iterations_total);
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
