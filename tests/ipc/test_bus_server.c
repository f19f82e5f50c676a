/* A bus server in this thread, with libzmq's clients. */
#include "shared/base/limits.h"
#include "shared/ipc/bus.h"
#include "tests/until.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include <cmocka.h>

struct own {
	char endpoint[96], path[88];
	struct bus_server *server;
	struct bus_address gone[8];
	size_t n_gone;
};

static void count_gone(void *arg, const struct bus_address *who)
{
	struct own *own = arg;

	assert_true(own->n_gone < sizeof own->gone / sizeof own->gone[0]);
	own->gone[own->n_gone++] = *who;
}

static void own_open(struct own *own)
{
	struct error err = {""};

	memset(own, 0, sizeof *own);
	snprintf(own->path, sizeof own->path, "/tmp/outrider-test-%d.own", (int)getpid());
	snprintf(own->endpoint, sizeof own->endpoint, "ipc://%s", own->path);
	if (bus_server(own->endpoint, BUS_CLIENTS, &own->server, &err) < 0)
		fail_msg("%s", err.text);
	bus_on_gone(own->server, count_gone, own);
}

/* The next message, as bus_receive_from gives it. */
static int own_hear(struct own *own, struct bus_address *from, uint64_t *request_id)
{
	Outrider__Envelope *envelope = NULL;
	struct patience patience;
	struct error err = {""};
	int code = -EAGAIN;

	patience_init(&patience, 30000);
	while (code == -EAGAIN && patience_step_ms(&patience) > 0) {
		code = bus_receive_from(own->server, from, &envelope, &err);
		if (code == -EAGAIN)
			usleep(1000);
	}
	if (code == 0)
		*request_id = envelope->request_id;
	bus_free(&envelope);
	return code;
}

static void *own_client(void *zmq, const struct own *own)
{
	struct error err = {""};
	void *socket;

	if (bus_client(zmq, own->endpoint, &socket, &err) < 0)
		fail_msg("%s", err.text);
	return socket;
}

static void ask(void *socket, uint64_t request_id)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT;
	Outrider__StatusRequest status = OUTRIDER__STATUS_REQUEST__INIT;

	request.request_id = request_id;
	request.body_case = OUTRIDER__ENVELOPE__BODY_STATUS_REQUEST;
	request.status_request = &status;
	assert_int_equal(bus_send(socket, &request), 0);
}

static int answer_to(struct own *own, const struct bus_address *to, const char *text)
{
	Outrider__Envelope reply = OUTRIDER__ENVELOPE__INIT;
	Outrider__Failure failure = OUTRIDER__FAILURE__INIT;

	failure.message = (char *)text;
	reply.body_case = OUTRIDER__ENVELOPE__BODY_FAILURE;
	reply.failure = &failure;
	return bus_send_to(own->server, to, &reply);
}

static void who_connected_and_that_it_left_is_told(void **state)
{
	void *zmq = zmq_ctx_new(), *clients[2];
	struct bus_address from[2], none = {0};
	uint32_t uid = 0, pid = 0;
	uint64_t number = 0;
	struct own own;

	(void)state;
	own_open(&own);
	for (size_t i = 0; i < 2; i++) {
		clients[i] = own_client(zmq, &own);
		ask(clients[i], i);
		assert_int_equal(own_hear(&own, &from[i], &number), 0);
		assert_int_equal(number, i);
		assert_true(bus_peer(&from[i], &uid, &pid));
		assert_int_equal(uid, getuid());
		assert_int_equal(pid, getpid());
	}
	assert_true(bus_same(&from[0], &from[0]));
	assert_false(bus_same(&from[0], &from[1]));
	assert_false(bus_same(&none, &none));
	/* Its last message comes before its end. */
	ask(clients[0], 7);
	bus_close(&clients[0]);
	assert_int_equal(own_hear(&own, &none, &number), 0);
	assert_int_equal(number, 7);
	assert_true(bus_same(&none, &from[0]));
	for (int i = 0; i < 10000 && own.n_gone == 0; i++) {
		Outrider__Envelope *nothing;

		assert_int_equal(bus_receive_from(own.server, &none, &nothing, NULL), -EAGAIN);
		usleep(1000);
	}
	assert_int_equal(own.n_gone, 1);
	assert_true(bus_same(&own.gone[0], &from[0]));
	assert_int_equal(answer_to(&own, &from[0], "too late"), -EHOSTUNREACH);
	assert_int_equal(answer_to(&own, &from[1], "here"), 0);
	/* Another one in its place is not it. */
	clients[0] = own_client(zmq, &own);
	ask(clients[0], 8);
	assert_int_equal(own_hear(&own, &none, &number), 0);
	assert_false(bus_same(&none, &from[0]));
	assert_int_equal(answer_to(&own, &from[0], "too late"), -EHOSTUNREACH);
	bus_server_close(&own.server);
	assert_int_equal(access(own.path, F_OK), -1);
	bus_close(&clients[0]);
	bus_close(&clients[1]);
	zmq_ctx_term(zmq);
}

static void one_that_sends_without_end_does_not_keep_others_waiting(void **state)
{
	void *zmq = zmq_ctx_new(), *greedy, *modest;
	uint64_t number = 0, between = 0;
	struct bus_address from;
	struct own own;

	(void)state;
	own_open(&own);
	greedy = own_client(zmq, &own);
	modest = own_client(zmq, &own);
	ask(modest, 1);
	assert_int_equal(own_hear(&own, &from, &number), 0);
	/* Its message may come late on a busy machine, and then all of the others were heard before. */
	for (int i = 0; i < 20 && (between < 1 || between > 3); i++) {
		for (int j = 0; j < 200; j++)
			ask(greedy, 2);
		assert_int_equal(own_hear(&own, &from, &number), 0);
		ask(modest, 3);
		usleep(50000);
		for (between = 0; number != 3; between++)
			assert_int_equal(own_hear(&own, &from, &number), 0);
		for (uint64_t j = between; j < 200; j++)
			assert_int_equal(own_hear(&own, &from, &number), 0);
	}
	assert_in_range(between, 1, 3);
	bus_server_close(&own.server);
	bus_close(&greedy);
	bus_close(&modest);
	zmq_ctx_term(zmq);
}

/* What is kept for one that does not read is bounded, and comes whole when it reads. */
static void answers_that_nobody_reads_are_bounded(void **state)
{
	char *text = malloc(100001);
	void *zmq = zmq_ctx_new(), *client;
	Outrider__Envelope *reply;
	struct bus_address from;
	uint64_t number;
	int sent = 0, read = 0, hwm = 1, code;
	struct own own;

	(void)state;
	assert_non_null(text);
	memset(text, 'x', 100000);
	text[100000] = '\0';
	own_open(&own);
	client = own_client(zmq, &own);
	zmq_setsockopt(client, ZMQ_RCVHWM, &hwm, sizeof hwm);
	ask(client, 1);
	assert_int_equal(own_hear(&own, &from, &number), 0);
	while ((code = answer_to(&own, &from, text)) == 0)
		sent++;
	assert_int_equal(code, -EAGAIN);
	assert_in_range(sent, LIMIT_UNREAD_BYTES / 100000, 2000);
	while (read < sent) {
		assert_int_equal(bus_receive_from(own.server, &from, &reply, NULL), -EAGAIN);
		if (bus_receive(client, 10, &reply, NULL) < 0)
			continue;
		assert_string_equal(reply->failure->message, text);
		bus_free(&reply);
		read++;
	}
	bus_server_close(&own.server);
	bus_close(&client);
	zmq_ctx_term(zmq);
	free(text);
}

/* As a client that wants to know whether the server lives. */
static void a_heartbeat_is_answered(void **state)
{
	void *zmq = zmq_ctx_new(), *socket = zmq_socket(zmq, ZMQ_DEALER), *monitor;
	Outrider__Envelope *reply;
	struct bus_address from;
	int ms = 20, linger = 0;
	unsigned char event[64];
	uint64_t number;
	struct own own;

	(void)state;
	own_open(&own);
	zmq_setsockopt(socket, ZMQ_HEARTBEAT_IVL, &ms, sizeof ms);
	ms = 200;
	zmq_setsockopt(socket, ZMQ_HEARTBEAT_TIMEOUT, &ms, sizeof ms);
	zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
	zmq_socket_monitor(socket, "inproc://heart", ZMQ_EVENT_DISCONNECTED);
	monitor = zmq_socket(zmq, ZMQ_PAIR);
	assert_int_equal(zmq_connect(monitor, "inproc://heart"), 0);
	assert_int_equal(zmq_connect(socket, own.endpoint), 0);
	ask(socket, 1);
	assert_int_equal(own_hear(&own, &from, &number), 0);
	for (int i = 0; i < 60; i++) {
		assert_int_equal(bus_receive_from(own.server, &from, &reply, NULL), -EAGAIN);
		usleep(10000);
	}
	assert_int_equal(zmq_recv(monitor, event, sizeof event, ZMQ_DONTWAIT), -1);
	zmq_close(monitor);
	zmq_close(socket);
	bus_server_close(&own.server);
	zmq_ctx_term(zmq);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_connected_and_that_it_left_is_told),
		cmocka_unit_test(one_that_sends_without_end_does_not_keep_others_waiting),
		cmocka_unit_test(answers_that_nobody_reads_are_bounded),
		cmocka_unit_test(a_heartbeat_is_answered),
	};

	return cmocka_run_group_tests_name("bus server", tests, NULL, NULL);
}
