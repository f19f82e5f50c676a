/*
 * Changes knobs as fast as the processes answer.
 *
 *	knob-storm RUNTIME_DIR storm COUNT SEED [UID...]
 *		COUNT changes, right and wrong ones, of any knob of any process, each of them at least once: prints what became
 *		of them as JSON. Each answer is checked: all of a batch or nothing, and a refusal has a reason.
 *	knob-storm RUNTIME_DIR latency COUNT UID
 *		Sets the session's K COUNT times; prints after how many iterations, and how long, the verifier used it.
 */
#include "shared/base/clock.h"
#include "shared/base/rand.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

enum { TIMEOUT_MS = 60000, SAMPLES_MAX = 100000, PAUSE_US_MAX = 6000, KNOBS_MAX = 256 };

struct process {
	const char *name;
	void *socket;
	Outrider__Envelope *list;
	size_t tried; /* of the list, from its beginning: each had its turn */
	bool changed[KNOBS_MAX];
};

static struct process processes[4];
static void *zmq;
static uint64_t request_id, seed;
static uint32_t throws;
static struct {
	uint64_t sent, done, refused, batches;
} counts;

static void die(const char *what, const char *why)
{
	fprintf(stderr, "knob-storm: %s: %s\n", what, why);
	exit(1);
}

static Outrider__Envelope *call(struct process *process, Outrider__Envelope *request)
{
	struct error err = {""};
	Outrider__Envelope *reply;

	request->request_id = ++request_id;
	if (bus_send(process->socket, request) < 0)
		die(process->name, "cannot send");
	do {
		if (bus_receive(process->socket, TIMEOUT_MS, &reply, &err) < 0)
			die(process->name, err.text[0] ? err.text : "no answer");
		if (reply->request_id == request_id)
			return reply;
		bus_free(&reply);
	} while (true);
}

static uint64_t dice(uint64_t n)
{
	return (uint64_t)(rand_uniform(seed, RAND_REPLAY, ++throws, 0) * (double)n);
}

static void list(struct process *process)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT;
	Outrider__KnobList body = OUTRIDER__KNOB_LIST__INIT;

	request.body_case = OUTRIDER__ENVELOPE__BODY_KNOB_LIST;
	request.knob_list = &body;
	process->list = call(process, &request);
	/* A process may have none. */
	if (process->list->body_case != OUTRIDER__ENVELOPE__BODY_KNOBS)
		bus_free(&process->list);
}

/* Spinning for long takes the CPU from everybody, and these end or refuse sessions, as they should: only wrong values. */
static bool only_wrong(const Outrider__KnobInfo *info)
{
	static const char *const names[] = {
		"client_timeout", "client_requests", "linger", "queue_max", "model", "draft"};

	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		if (strcmp(info->name, names[i]) == 0)
			return true;
	/* These change answers: they are the only ones. */
	return strncmp(info->name, "budget_", strlen("budget_")) == 0;
}

static void wrong_value(char *out, size_t bytes)
{
	static const char *const values[] = {"", "-1", "nan", "inf", "1e400", "maybe",
		"99999999999", "0x", "3 3", "\xff\xfe", "static:99", "1\n2", "%n%s", "-0.5ms",
		"18446744073709551616"};

	snprintf(out, bytes, "%s", values[dice(sizeof values / sizeof values[0])]);
}

/* One that the range allows, mostly: its ends, its default, what it is, or something between. */
static void right_value(const Outrider__KnobInfo *info, char *out, size_t bytes)
{
	static const char *const times[] = {"auto", "0", "2us", "50us", "1ms"};
	static const char *const policies[] = {
		"cascade", "yield", "static:0", "static:1", "static:3", "static:7", "static:15"};
	const char *to = strstr(info->range, " to ");
	long long low, high;

	/* Its answers are to be made, and not refused. */
	if (strcmp(info->name, "admit") == 0)
		snprintf(out, bytes, "yes");
	else if (strstr(info->name, "spin"))
		snprintf(out, bytes, "%s", times[dice(5)]);
	else if (strcmp(info->name, "policy") == 0)
		snprintf(out, bytes, "%s", policies[dice(6)]);
	else if (info->n_choices > 0)
		snprintf(out, bytes, "%s", info->choices[dice(info->n_choices)]);
	else if (to && strcmp(info->type, "integer") == 0 &&
		 sscanf(info->range, "%lld to %lld", &low, &high) == 2 && dice(3))
		snprintf(out, bytes, "%lld",
			low + (long long)dice((uint64_t)((high < 64 ? high : 64) - low + 1)));
	else if (to && dice(3) == 0)
		snprintf(out, bytes, "%.*s", (int)(to - info->range), info->range);
	else
		snprintf(out, bytes, "%s", dice(2) ? info->fallback : info->value);
}

/* One after the other until each had its turn, then mostly one that may change now. An index into the list. */
static size_t any_knob(struct process *process)
{
	const Outrider__Knobs *all = process->list->knobs;
	size_t i = dice(all->n_knobs);

	if (process->tried < all->n_knobs)
		return process->tried++;
	for (int tries = 0; tries < 8 && !all->knobs[i]->live && dice(10); tries++)
		i = dice(all->n_knobs);
	return i;
}

/* A batch of 1 to 3 changes for one process, as right as dice have it. */
static void one(struct process *process, const uint64_t *uids, size_t n_uids)
{
	static char values[3][512], names[3][64];
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT, *reply;
	Outrider__KnobSet set = OUTRIDER__KNOB_SET__INIT;
	Outrider__KnobChange changes[3], *all[3];
	size_t which[3];

	set.changes = all;
	set.n_changes = 1 + dice(3);
	for (size_t i = 0; i < set.n_changes; i++) {
		which[i] = any_knob(process);
		const Outrider__KnobInfo *info = process->list->knobs->knobs[which[i]];

		outrider__knob_change__init(&changes[i]);
		snprintf(names[i], sizeof names[i], "%s%s", info->name, dice(40) ? "" : "x");
		if (only_wrong(info) || dice(8) == 0)
			wrong_value(values[i], sizeof values[i]);
		else
			right_value(info, values[i], sizeof values[i]);
		changes[i].name = names[i];
		changes[i].value = values[i];
		changes[i].has_expected = dice(8) == 0;
		changes[i].expected = info->value;
		all[i] = &changes[i];
	}
	if (dice(4) == 0)
		set.for_ns = 1000000 + dice(300000000);
	if (n_uids && dice(4) == 0)
		set.session_uid = dice(10) ? uids[dice(n_uids)] : dice(1000);
	set.reset = dice(10) == 0;
	request.body_case = OUTRIDER__ENVELOPE__BODY_KNOB_SET;
	request.knob_set = &set;
	reply = call(process, &request);
	counts.sent += set.n_changes;
	counts.batches++;
	if (reply->body_case == OUTRIDER__ENVELOPE__BODY_KNOB_DONE) {
		if (reply->knob_done->n_results != set.n_changes)
			die(process->name, "a part of a batch was done");
		counts.done += set.n_changes;
		for (size_t i = 0; i < set.n_changes; i++)
			process->changed[which[i]] = true;
	} else if (reply->body_case == OUTRIDER__ENVELOPE__BODY_FAILURE) {
		if (!reply->failure->message[0] || reply->failure->code <= 0)
			die(process->name, "a refusal without a reason");
		counts.refused += set.n_changes;
	} else {
		die(process->name, "an answer that is none");
	}
	bus_free(&reply);
}

static int storm(uint64_t count, const uint64_t *uids, size_t n_uids)
{
	struct process *with[4];
	size_t n = 0, knobs = 0, tried = 0, changed = 0;

	for (size_t i = 0; i < 4; i++) {
		list(&processes[i]);
		if (!processes[i].list)
			continue;
		if (processes[i].list->knobs->n_knobs > KNOBS_MAX)
			die(processes[i].name, "more knobs than are counted");
		with[n++] = &processes[i];
	}
	if (n == 0)
		die("storm", "no process has knobs");
	uint64_t start_ns = clock_ns();

	while (counts.sent < count) {
		one(with[dice(n)], uids, n_uids);
		/* Some at once, and the whole over many iterations. */
		usleep((useconds_t)(dice(2) * dice(PAUSE_US_MAX)));
	}
	for (size_t i = 0; i < n; i++) {
		knobs += with[i]->list->knobs->n_knobs;
		tried += with[i]->tried;
		for (size_t j = 0; j < KNOBS_MAX; j++)
			changed += with[i]->changed[j];
	}
	printf("{\"processes\": %zu, \"knobs\": %zu, \"tried\": %zu, \"changed\": %zu, "
	       "\"changes\": %" PRIu64 ", \"batches\": %" PRIu64 ", \"done\": %" PRIu64
	       ", \"refused\": %" PRIu64 ", \"seconds\": %.3f}\n",
		n, knobs, tried, changed, counts.sent, counts.batches, counts.done, counts.refused,
		(double)(clock_ns() - start_ns) / 1e9);
	for (size_t i = 0; i < 4; i++)
		bus_free(&processes[i].list);
	return 0;
}

static struct process *named(const char *name)
{
	for (size_t i = 0; i < 4; i++)
		if (strcmp(processes[i].name, name) == 0)
			return &processes[i];
	abort();
}

/* The verifier's view of the session: false when it has ended. */
static bool look(uint64_t uid, uint32_t *k, uint64_t *iterations)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT, *reply;
	Outrider__SessionsRequest body = OUTRIDER__SESSIONS_REQUEST__INIT;
	bool found = false;

	request.body_case = OUTRIDER__ENVELOPE__BODY_SESSIONS_REQUEST;
	request.sessions_request = &body;
	reply = call(named(PEER_VERIFIER), &request);
	for (size_t i = 0; i < reply->sessions->n_sessions; i++) {
		const Outrider__Session *s = reply->sessions->sessions[i];

		if (s->uid != uid || strcmp(s->state, "running") != 0)
			continue;
		*k = s->k;
		*iterations = s->iterations;
		found = true;
	}
	bus_free(&reply);
	return found;
}

static void set_k(uint64_t uid, uint32_t k)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT, *reply;
	Outrider__KnobSet set = OUTRIDER__KNOB_SET__INIT;
	Outrider__KnobChange change = OUTRIDER__KNOB_CHANGE__INIT, *all = &change;
	char value[32], name[] = "policy";

	snprintf(value, sizeof value, "static:%u", k);
	change.name = name;
	change.value = value;
	set.changes = &all;
	set.n_changes = 1;
	set.session_uid = uid;
	request.body_case = OUTRIDER__ENVELOPE__BODY_KNOB_SET;
	request.knob_set = &set;
	reply = call(named(PEER_POLICY), &request);
	if (reply->body_case != OUTRIDER__ENVELOPE__BODY_KNOB_DONE)
		die("set", reply->body_case == OUTRIDER__ENVELOPE__BODY_FAILURE
				   ? reply->failure->message
				   : "?");
	bus_free(&reply);
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static uint64_t part(uint64_t *samples, size_t n, double share)
{
	qsort(samples, n, sizeof *samples, by_number);
	return samples[(size_t)(share * (double)(n - 1))];
}

/* iterations: those of the session that still ended with the old K after the set was answered; one was running then. */
static int latency(uint64_t count, uint64_t uid)
{
	static uint64_t iterations[SAMPLES_MAX], ns[SAMPLES_MAX];
	size_t n = 0;
	uint32_t k = 0, seen;
	uint64_t before, after;

	while (n < count && n < SAMPLES_MAX) {
		k = k % 5 + 1;
		set_k(uid, k);
		uint64_t set_ns = clock_ns();
		if (!look(uid, &seen, &before))
			break;
		after = before;
		while (seen != k)
			if (!look(uid, &seen, &after))
				goto ended;
		iterations[n] = after > before ? after - before - 1 : 0;
		ns[n++] = clock_ns() - set_ns;
	}
ended:
	if (n == 0)
		die("latency", "the session ended");
	printf("{\"sets\": %zu, \"iterations_p25\": %" PRIu64 ", \"iterations_p50\": %" PRIu64
	       ", \"iterations_p99\": %" PRIu64 ", \"iterations_max\": %" PRIu64
	       ", \"us_p50\": %.1f, \"us_p99\": %.1f}\n",
		n, part(iterations, n, 0.25), part(iterations, n, 0.5), part(iterations, n, 0.99),
		part(iterations, n, 1), (double)part(ns, n, 0.5) / 1e3,
		(double)part(ns, n, 0.99) / 1e3);
	return 0;
}

int main(int argc, char **argv)
{
	uint64_t uids[64];
	size_t n_uids = 0;
	struct error err = {""};
	int status;

	if (argc < 5)
		die("usage", "knob-storm RUNTIME_DIR storm|latency COUNT SEED|UID [UID...]");
	if (bus_context(&zmq, &err) < 0)
		die("ZeroMQ", err.text);
	for (size_t i = 0; i < 4; i++) {
		char endpoint[300];

		processes[i].name = peers_all[i];
		peers_admin_endpoint(argv[1], peers_all[i], endpoint, sizeof endpoint);
		if (bus_client(zmq, endpoint, &processes[i].socket, &err) < 0)
			die(endpoint, err.text);
	}
	seed = strtoull(argv[4], NULL, 10);
	for (int i = 5; i < argc && n_uids < 64; i++)
		uids[n_uids++] = strtoull(argv[i], NULL, 10);
	status = strcmp(argv[2], "storm") == 0 ? storm(strtoull(argv[3], NULL, 10), uids, n_uids)
					       : latency(strtoull(argv[3], NULL, 10), seed);
	for (size_t i = 0; i < 4; i++)
		bus_close(&processes[i].socket);
	zmq_ctx_term(zmq);
	return status;
}
