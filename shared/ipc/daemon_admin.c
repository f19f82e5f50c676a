/* The admin endpoint of a daemon: it answers status and knobs, and passes other messages to the
 * service's handler. */
#include "shared/ipc/daemon_private.h"
#include "shared/ipc/knobs_private.h"

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/ipc/peers.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DETAILS_MAX = 96 };

struct daemon_details {
	char *lines[DETAILS_MAX];
	size_t n;
};

void daemon_on_detail(
	struct daemon *daemon, void (*detail)(void *arg, struct daemon_details *to), void *arg)
{
	daemon->detail = detail;
	daemon->detail_arg = arg;
}

void daemon_detail(struct daemon_details *to, const char *key, const char *format, ...)
{
	char line[512];
	size_t n = (size_t)snprintf(line, sizeof line, "%s=", key);
	va_list args;

	if (n >= sizeof line || to->n == DETAILS_MAX)
		return;
	va_start(args, format);
	vsnprintf(line + n, sizeof line - n, format, args);
	va_end(args);
	to->lines[to->n] = strdup(line);
	if (to->lines[to->n])
		to->n++;
}

void daemon_detail_file(struct daemon_details *to, const char *key, const char *path)
{
	char *absolute = file_absolute(path);

	daemon_detail(to, key, "%s", absolute ? absolute : path);
	free(absolute);
}

/* The parts of the resident memory: anonymous, of files (the model's mapping), and shared with
 * other processes (regions). */
static void detail_memory(struct daemon_details *to)
{
	static const char *const kinds[][2] = {{"memory_anonymous_bytes", "RssAnon"},
		{"memory_file_bytes", "RssFile"}, {"memory_shared_bytes", "RssShmem"}};

	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
		uint64_t kib = memory_info("/proc/self/status", kinds[i][1]);

		if (kib < UINT64_MAX >> 10)
			daemon_detail(to, kinds[i][0], "%llu", (unsigned long long)kib << 10);
	}
}

/* Writes a line such as "peer_drafter=degraded: no verifier" for each peer, and for how long it has
 * been so. */
static void detail_peers(const struct daemon *daemon, struct daemon_details *to)
{
	for (size_t i = 0; peers_all[i]; i++) {
		const struct peer *peer = registry_peer(daemon, peers_all[i]);
		const struct peer_state *state = peer ? &peer->card.state : NULL;
		char key[64];

		if (!peer || peer->standing == PEER_UNKNOWN)
			continue;
		snprintf(key, sizeof key, "peer_%s", peer->name);
		if (peer->standing == PEER_REGISTERED)
			daemon_detail(to, key, "%s%s%s", peer_stage_names[state->stage],
				state->text[0] ? ": " : "", state->text);
		else if (peer->standing == PEER_REFUSED)
			daemon_detail(to, key, "refused: %s", peer->refusal);
		else
			daemon_detail(to, key, "gone");
		snprintf(key, sizeof key, "peer_%s_ns", peer->name);
		daemon_detail(to, key, "%llu", (unsigned long long)(clock_ns() - peer->since_ns));
	}
}

static uint64_t rss_bytes(void)
{
	char line[128], *resident;
	uint64_t pages = 0;
	FILE *file = fopen("/proc/self/statm", "re");

	if (!file)
		return 0;
	/* The line reads "size resident shared ...", in pages. */
	if (fgets(line, sizeof line, file) && (resident = strchr(line, ' ')))
		pages = strtoull(resident, NULL, 10);
	fclose(file);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* protobuf-c frees everything that the reply points to, so all of it must come from malloc. */
static bool fill_status(struct daemon *daemon, Outrider__Envelope *reply)
{
	Outrider__Status *status = malloc(sizeof *status);
	struct daemon_details details = {.n = 0};

	if (!status)
		return false;
	outrider__status__init(status);
	reply->body_case = OUTRIDER__ENVELOPE__BODY_STATUS;
	reply->status = status;
	pthread_mutex_lock(&daemon->state_lock);
	status->state = strdup(daemon->state);
	pthread_mutex_unlock(&daemon->state_lock);
	status->name = strdup(daemon->name);
	status->version = strdup(OUTRIDER_VERSION);
	if (!status->state || !status->name || !status->version)
		return false;
	status->pid = (uint32_t)getpid();
	status->generation = daemon_generation(daemon);
	status->uptime_ns = clock_ns() - daemon->start_ns;
	status->rss_bytes = rss_bytes();
	if (daemon->detail)
		daemon->detail(daemon->detail_arg, &details);
	detail_memory(&details);
	detail_peers(daemon, &details);
	if (details.n == 0)
		return true;
	status->detail = malloc(details.n * sizeof *status->detail);
	if (!status->detail) {
		for (size_t i = 0; i < details.n; i++)
			free(details.lines[i]);
		return false;
	}
	memcpy(status->detail, details.lines, details.n * sizeof *status->detail);
	status->n_detail = details.n;
	return true;
}

void daemon_failure(Outrider__Envelope *reply, int code, uint64_t session, const char *text)
{
	Outrider__Failure *failure = malloc(sizeof *failure);

	if (!failure)
		return;
	outrider__failure__init(failure);
	failure->code = code;
	failure->session_uid = session;
	failure->message = strdup(text);
	reply->body_case = OUTRIDER__ENVELOPE__BODY_FAILURE;
	reply->failure = failure;
}

void daemon_answer_failure(struct daemon *daemon, const struct bus_address *to, uint64_t request_id,
	int code, const char *text)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Failure failure = OUTRIDER__FAILURE__INIT;

	failure.code = code;
	failure.message = (char *)text;
	envelope.request_id = request_id;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_FAILURE;
	envelope.failure = &failure;
	/* A connection that is gone needs no answer. */
	(void)bus_send_to(daemon->admin_server, to, &envelope);
}

/* Like daemon_admin, for every kind of message. */
static int fill(struct daemon *daemon, const struct bus_address *from,
	const Outrider__Envelope *request, Outrider__Envelope *reply)
{
	if (request->body_case == OUTRIDER__ENVELOPE__BODY_STATUS_REQUEST)
		return fill_status(daemon, reply) ? 0 : -ENOMEM;
	if (request->body_case == OUTRIDER__ENVELOPE__BODY_TRACE_REQUEST)
		return daemon_fill_trace(request->trace_request, reply) ? 0 : -ENOMEM;
	if (daemon->knobs && knobs_answer(daemon->knobs, from, request, reply))
		return reply->body_case != OUTRIDER__ENVELOPE__BODY__NOT_SET ? 0 : -ENOMEM;
	return daemon->admin ? daemon->admin(daemon->admin_arg, request, reply) : -EOPNOTSUPP;
}

static void answer(
	struct daemon *daemon, const struct bus_address *from, const Outrider__Envelope *request)
{
	Outrider__Envelope *reply = malloc(sizeof *reply);
	char text[128];
	int code = -ENOMEM;

	if (reply) {
		outrider__envelope__init(reply);
		code = fill(daemon, from, request, reply);
		reply->request_id = request->request_id;
	}
	if (code == 0) {
		code = bus_send_to(daemon->admin_server, from, reply);
		if (code < 0)
			log_info("admin: an answer could not be sent: %s", strerror(-code));
	} else {
		if (code == -ENOMEM)
			snprintf(text, sizeof text, "%s has no memory for an answer", daemon->name);
		else
			snprintf(text, sizeof text, "%s does not understand message %d",
				daemon->name, (int)request->body_case);
		daemon_answer_failure(daemon, from, request->request_id, -code, text);
	}
	bus_free(&reply);
}

static void handle_admin(void *arg)
{
	struct daemon *daemon = arg;
	Outrider__Envelope *request;
	struct bus_address from;
	struct error err = {""};
	int code = bus_receive_from(daemon->admin_server, &from, &request, &err);

	if (code == -EPROTO) {
		log_limited(LOG_LEVEL_NOTICE, "admin: dropped: %s", err.text);
		daemon_answer_failure(daemon, &from, 0, EPROTO, err.text);
	}
	if (code < 0)
		return;
	if (!registry_take(daemon, &from, request))
		answer(daemon, &from, request);
	bus_free(&request);
}

int daemon_admin_open(struct daemon *daemon, daemon_admin handler, void *arg, struct error *err)
{
	char endpoint[160];
	int code;

	peers_admin_endpoint(daemon->runtime_dir, daemon->name, endpoint, sizeof endpoint);
	code = bus_server(endpoint, BUS_ADMINS, &daemon->admin_server, err);
	if (code < 0)
		return code;
	daemon->admin = handler;
	daemon->admin_arg = arg;
	registry_open(daemon);
	return daemon_add_server(daemon, daemon->admin_server, handle_admin, daemon);
}
