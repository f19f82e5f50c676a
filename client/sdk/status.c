/* Asks all processes at once for their state. One that hangs delays nothing beyond the caller's
 * time limit. */
#include "client/include/outrider.h"

#include "client/sdk/failure.h"
#include "shared/base/patience.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/given_up.h"
#include "shared/ipc/peers.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <zmq.h>

/* The processes of every service, and the gateway, which counts where it listens. */
static const char *const names[] = {
	PEER_VERIFIER, PEER_DRAFTER, PEER_CACHE, PEER_POLICY, PEER_GATEWAY};
enum { PROCESSES = sizeof names / sizeof names[0], GATEWAY = PROCESSES - 1 };

struct outrider_status {
	struct outrider_process processes[PROCESSES];
	size_t n; /* entries of processes */
	Outrider__Envelope *answers[PROCESSES];
	const char *silent[PROCESSES]; /* the state of a process that has not answered */
	int listens[PROCESSES]; /* pid of the process that listens */
	char given_up[384]; /* why they will not be started again, or "" */
};

/* *silent: the state to report if it does not answer; *pid: of the process that listens, according
 * to the kernel. */
static int ask(void *zmq, const char *runtime_dir, const char *name, void **socket,
	const char **silent, int *pid)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__StatusRequest request = OUTRIDER__STATUS_REQUEST__INIT;
	char endpoint[300];
	pid_t holder;
	int code;

	*socket = NULL;
	*silent = "down";
	peers_admin_endpoint(runtime_dir, name, endpoint, sizeof endpoint);
	/* It makes no sense to wait for a process that is gone. */
	code = bus_probe(bus_ipc_path(endpoint), SOCK_STREAM, pid);
	if (code < 0 && peers_runs(runtime_dir, name, &holder)) {
		*silent = "loading";
		*pid = (int)holder;
	}
	if (code < 0)
		return code;
	*silent = peers_starting(bus_ipc_path(endpoint)) ? "no answer yet" : "no answer";
	code = bus_client(zmq, endpoint, socket, NULL);
	if (code < 0)
		return code;
	envelope.request_id = 1;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_STATUS_REQUEST;
	envelope.status_request = &request;
	code = bus_send(*socket, &envelope);
	if (code < 0)
		bus_close(socket);
	return code;
}

static void collect(void *sockets[PROCESSES], int timeout_ms, struct outrider_status *status)
{
	struct patience patience;
	int step_ms;

	patience_init(&patience, timeout_ms);
	do {
		zmq_pollitem_t items[PROCESSES];
		int which[PROCESSES], n = 0;

		for (int i = 0; i < PROCESSES; i++)
			if (sockets[i] && !status->answers[i]) {
				which[n] = i;
				items[n++] = (zmq_pollitem_t){
					.socket = sockets[i], .events = ZMQ_POLLIN};
			}
		if (n == 0)
			return;
		step_ms = patience_step_ms(&patience);
		zmq_poll(items, n, step_ms);
		for (int i = 0; i < n; i++) {
			Outrider__Envelope **answer = &status->answers[which[i]];

			if (bus_receive(sockets[which[i]], 0, answer, NULL) < 0)
				continue;
			if ((*answer)->body_case != OUTRIDER__ENVELOPE__BODY_STATUS)
				bus_free(answer);
		}
	} while (step_ms > 0);
}

static void fill(struct outrider_process *process, const char *name, const char *silent, int pid,
	const Outrider__Envelope *answer)
{
	const Outrider__Status *s = answer ? answer->status : NULL;

	*process = (struct outrider_process){
		.name = name, .state = silent, .version = "", .pid = pid > 0 ? (uint32_t)pid : 0};
	if (!s)
		return;
	process->answers = 1;
	process->pid = s->pid;
	process->state = s->state;
	process->generation = s->generation;
	process->uptime_ns = s->uptime_ns;
	process->rss_bytes = s->rss_bytes;
	process->version = s->version;
	process->n_details = s->n_detail;
	process->details = (const char *const *)s->detail;
}

int outrider_status(const char *runtime_dir, int timeout_ms, struct outrider_status **out)
{
	struct outrider_status *status;
	struct error err = {""};
	char dir[256];
	void *zmq = NULL, *sockets[PROCESSES] = {NULL};
	bool recent;
	int code;

	if (!out)
		return failure_null("place for the status");
	*out = NULL;
	status = calloc(1, sizeof *status);
	if (!status)
		return failure_set(ENOMEM, "no memory for the status");
	code = bus_context(&zmq, &err);
	if (code < 0) {
		free(status);
		return failure_take(code, &err);
	}
	/* Without the directory there is no service, which is an answer too. */
	code = peers_runtime_dir(runtime_dir, false, dir, sizeof dir, &err);
	if (code < 0 && code != -ENOENT) {
		zmq_ctx_term(zmq);
		free(status);
		return failure_take(code, &err);
	}
	for (int i = 0; i < PROCESSES; i++)
		status->silent[i] = "down";
	for (int i = 0; code == 0 && i < PROCESSES; i++)
		ask(zmq, dir, names[i], &sockets[i], &status->silent[i], &status->listens[i]);
	collect(sockets, timeout_ms, status);
	if (code == 0 && !given_up_read(dir, 0, &recent, status->given_up, sizeof status->given_up))
		status->given_up[0] = '\0';
	for (int i = 0; i < PROCESSES; i++) {
		int linger = 0;

		if (sockets[i])
			zmq_setsockopt(sockets[i], ZMQ_LINGER, &linger, sizeof linger);
		bus_close(&sockets[i]);
		fill(&status->processes[i], names[i], status->silent[i], status->listens[i],
			status->answers[i]);
	}
	zmq_ctx_term(zmq);
	status->n = status->answers[GATEWAY] || status->listens[GATEWAY] > 0 ? PROCESSES : GATEWAY;
	*out = status;
	return 0;
}

size_t outrider_status_count(const struct outrider_status *status)
{
	return status ? status->n : 0;
}

const struct outrider_process *outrider_status_process(
	const struct outrider_status *status, size_t i)
{
	return status && i < status->n ? &status->processes[i] : NULL;
}

const char *outrider_status_given_up(const struct outrider_status *status)
{
	return status && status->given_up[0] != '\0' ? status->given_up : NULL;
}

void outrider_status_free(struct outrider_status **status)
{
	if (!status || !*status)
		return;
	for (int i = 0; i < PROCESSES; i++)
		bus_free(&(*status)->answers[i]);
	free(*status);
	*status = NULL;
}
