#include "shared/base/limits.h"
#include "shared/ipc/bus.h"
#include "tests/stopped.h"
#include "tests/until.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include <cmocka.h>

struct board {
	_Atomic int ready, served, dropped, unreachable;
	_Atomic pid_t server;
};

static char path[64], endpoint[80];
static struct board *board;
/* Forks the servers: a process that has ZeroMQ's threads, as the tests do, had better not. */
static pid_t nursery;
static int orders;

/* Answers a status request with its request number as generation and a model request with a Failure; what was dropped with
 * a Failure too. A cancel is answered late: when its sender is gone. */
static void answer(struct bus_server *server)
{
	Outrider__Envelope *request, reply = OUTRIDER__ENVELOPE__INIT;
	Outrider__Failure failure = OUTRIDER__FAILURE__INIT;
	Outrider__Status status = OUTRIDER__STATUS__INIT;
	struct bus_address from;
	struct error err = {""};
	int code = bus_receive_from(server, &from, &request, &err);

	if (code == -EAGAIN)
		return;
	reply.body_case = OUTRIDER__ENVELOPE__BODY_FAILURE;
	reply.failure = &failure;
	failure.message = err.text;
	if (code < 0) {
		board->dropped++;
		bus_send_to(server, &from, &reply);
		return;
	}
	reply.request_id = request->request_id;
	if (request->body_case == OUTRIDER__ENVELOPE__BODY_STATUS_REQUEST) {
		status.generation = request->request_id;
		reply.body_case = OUTRIDER__ENVELOPE__BODY_STATUS;
		reply.status = &status;
	} else {
		failure.message = "no model is loaded";
	}
	if (request->body_case == OUTRIDER__ENVELOPE__BODY_CANCEL) {
		usleep(100000);
		while (bus_send_to(server, &from, &reply) == 0)
			usleep(1000);
		board->unreachable++;
	} else if (bus_send_to(server, &from, &reply) == 0) {
		board->served++;
	}
	bus_free(&request);
}

static void run_server(void)
{
	struct error err = {""};
	struct bus_server *server;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (bus_server(endpoint, BUS_CLIENTS, &server, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		_exit(1);
	}
	board->ready++;
	for (;;) {
		struct pollfd item = {.fd = bus_fd(server), .events = POLLIN};

		poll(&item, 1, bus_pending(server) ? 0 : -1);
		answer(server);
	}
}

static _Noreturn void run_nursery(int from)
{
	char order;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGCHLD, SIG_IGN); /* nobody waits for the servers */
	while (read(from, &order, 1) == 1) {
		pid_t pid = fork();

		if (pid == 0)
			run_server();
		board->server = pid;
	}
	_exit(0);
}

static void start_server(void)
{
	int before = board->ready;

	board->server = 0;
	assert_int_equal(write(orders, "x", 1), 1);
	UNTIL(board->ready == before + 1 && board->server != 0);
}

static void kill_server(void)
{
	kill(board->server, SIGKILL);
	UNTIL(kill(board->server, 0) < 0);
}

static int setup(void **state)
{
	int pipes[2];

	(void)state;
	snprintf(path, sizeof path, "/tmp/outrider-test-%d.bus", (int)getpid());
	snprintf(endpoint, sizeof endpoint, "ipc://%s", path);
	board = mmap(
		NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (board == MAP_FAILED || pipe(pipes) < 0)
		return -1;
	nursery = fork();
	if (nursery == 0) {
		close(pipes[1]);
		run_nursery(pipes[0]);
	}
	close(pipes[0]);
	orders = pipes[1];
	start_server();
	return nursery < 0 ? -1 : 0;
}

static int teardown(void **state)
{
	(void)state;
	kill_server();
	close(orders);
	waitpid(nursery, NULL, 0);
	unlink(path);
	munmap(board, sizeof *board);
	return 0;
}

static int call_told(void *zmq, Outrider__Envelope__BodyCase body, int timeout_ms,
	const struct bus_late *late, Outrider__Envelope **reply, struct error *err)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT;
	Outrider__StatusRequest status = OUTRIDER__STATUS_REQUEST__INIT;
	Outrider__ModelRequest model = OUTRIDER__MODEL_REQUEST__INIT;

	request.body_case = body;
	request.request_id = 4711;
	if (body == OUTRIDER__ENVELOPE__BODY_STATUS_REQUEST)
		request.status_request = &status;
	else
		request.model_request = &model;
	return bus_call(zmq, endpoint, &request, timeout_ms, late, reply, err);
}

static int call(void *zmq, Outrider__Envelope__BodyCase body, int timeout_ms,
	Outrider__Envelope **reply, struct error *err)
{
	return call_told(zmq, body, timeout_ms, NULL, reply, err);
}

static void the_server_still_answers(void *zmq)
{
	Outrider__Envelope *reply;
	struct error err = {""};

	assert_int_equal(
		call(zmq, OUTRIDER__ENVELOPE__BODY_STATUS_REQUEST, 10000, &reply, &err), 0);
	assert_int_equal(reply->body_case, OUTRIDER__ENVELOPE__BODY_STATUS);
	assert_int_equal(reply->status->generation, 4711);
	bus_free(&reply);
	assert_null(reply);
}

static void a_request_gets_its_reply(void **state)
{
	void *zmq = zmq_ctx_new();

	(void)state;
	for (int i = 0; i < 5; i++)
		the_server_still_answers(zmq);
	/* The server counts an answer after it has sent it. */
	for (int i = 0; i < 10000 && board->served < 5; i++)
		usleep(1000);
	assert_int_equal(board->served, 5);
	zmq_ctx_term(zmq);
}

static void a_failure_comes_back_as_its_text(void **state)
{
	void *zmq = zmq_ctx_new();
	Outrider__Envelope *reply;
	struct error err = {""};

	(void)state;
	assert_int_equal(
		call(zmq, OUTRIDER__ENVELOPE__BODY_MODEL_REQUEST, 10000, &reply, &err), -EREMOTEIO);
	assert_string_equal(err.text, "no model is loaded");
	assert_null(reply);
	zmq_ctx_term(zmq);
}

static void a_server_that_is_gone_or_stopped_is_said_so(void **state)
{
	void *zmq = zmq_ctx_new();
	Outrider__Envelope *reply;
	struct error err = {""};

	(void)state;
	kill(board->server, SIGSTOP);
	assert_int_equal(
		call(zmq, OUTRIDER__ENVELOPE__BODY_STATUS_REQUEST, 100, &reply, &err), -ETIMEDOUT);
	assert_non_null(strstr(err.text, "100 ms"));
	kill_server();
	assert_int_equal(call(zmq, OUTRIDER__ENVELOPE__BODY_STATUS_REQUEST, 100, &reply, &err),
		-ECONNREFUSED);
	assert_non_null(strstr(err.text, path));
	start_server(); /* over the dead one's socket file */
	the_server_still_answers(zmq);
	zmq_ctx_term(zmq);
}

static void wake(void *arg)
{
	++*(int *)arg;
	kill(board->server, SIGCONT);
}

/* The server goes on when it is told: the answer comes because of that. */
static void who_waits_for_long_is_told_once(void **state)
{
	void *zmq = zmq_ctx_new();
	Outrider__Envelope *reply = NULL;
	struct error err = {""};
	int told = 0;
	const struct bus_late late = {20000000, wake, &told};

	(void)state;
	kill(board->server, SIGSTOP);
	assert_int_equal(
		call_told(zmq, OUTRIDER__ENVELOPE__BODY_STATUS_REQUEST, 60000, &late, &reply, &err),
		0);
	assert_int_equal(told, 1);
	bus_free(&reply);
	zmq_ctx_term(zmq);
}

/* Both are stopped, for longer than is waited, and the server wakes later. */
static void a_time_in_which_it_was_stopped_is_not_waited(void **state)
{
	void *zmq = zmq_ctx_new();
	Outrider__Envelope *reply = NULL;
	struct error err = {""};
	pid_t other;
	int code;

	(void)state;
	kill(board->server, SIGSTOP);
	other = stopped_begin(1, 3000, board->server);
	assert_true(other > 0);
	code = call(zmq, OUTRIDER__ENVELOPE__BODY_STATUS_REQUEST, 2000, &reply, &err);
	stopped_end(other);
	if (code < 0)
		fail_msg("%s", err.text);
	bus_free(&reply);
	zmq_ctx_term(zmq);
}

static void a_live_server_is_not_displaced(void **state)
{
	void *zmq = zmq_ctx_new();
	struct bus_server *server;
	struct error err = {""};
	struct stat st;
	char want[32];

	(void)state;
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(bus_server(endpoint, BUS_CLIENTS, &server, &err), -EADDRINUSE);
	snprintf(want, sizeof want, "process %d", (int)board->server);
	assert_non_null(strstr(err.text, want));
	assert_null(server);
	the_server_still_answers(zmq);
	zmq_ctx_term(zmq);
}

static void *raw_client(void *zmq)
{
	void *socket = zmq_socket(zmq, ZMQ_DEALER);
	int linger = 0;

	assert_non_null(socket);
	zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
	assert_int_equal(zmq_connect(socket, endpoint), 0);
	return socket;
}

static void expect_failure(void *socket, const char *why)
{
	Outrider__Envelope *reply;

	assert_int_equal(bus_receive(socket, 10000, &reply, NULL), 0);
	assert_int_equal(reply->body_case, OUTRIDER__ENVELOPE__BODY_FAILURE);
	assert_non_null(strstr(reply->failure->message, why));
	bus_free(&reply);
}

static void rubbish_is_dropped_and_answered_with_why(void **state)
{
	void *zmq = zmq_ctx_new(), *socket = raw_client(zmq);
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	uint8_t bytes[256];
	size_t n;

	(void)state;
	memset(bytes, 0xff, sizeof bytes);
	assert_true(zmq_send(socket, bytes, sizeof bytes, 0) >= 0);
	expect_failure(socket, "256 bytes is not an Envelope");
	assert_true(
		zmq_send(socket, bytes, 0, 0) >= 0); /* empty is a valid Envelope, of version 0 */
	expect_failure(socket, "version 0, this is version 1");
	envelope.version = BUS_VERSION + 1;
	n = outrider__envelope__pack(&envelope, bytes);
	assert_true(zmq_send(socket, bytes, n, 0) >= 0);
	expect_failure(socket, "version 2, this is version 1");
	for (int frames = 2; frames < 6; frames++) {
		char want[32];

		for (int i = 0; i < frames; i++)
			assert_true(
				zmq_send(socket, "xyz", 3, i < frames - 1 ? ZMQ_SNDMORE : 0) >= 0);
		snprintf(want, sizeof want, "%d frames", frames);
		expect_failure(socket, want);
	}
	assert_int_equal(board->dropped, 7);
	the_server_still_answers(zmq);
	bus_close(&socket);
	zmq_ctx_term(zmq);
}

static void every_cut_of_a_message_is_survived(void **state)
{
	void *zmq = zmq_ctx_new(), *socket = raw_client(zmq);
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT, *reply;
	Outrider__Generate generate = OUTRIDER__GENERATE__INIT;
	char *stops[] = {"one", "two"};
	uint8_t bytes[256];
	size_t n;

	(void)state;
	generate.session_uid = 77;
	generate.input_case = OUTRIDER__GENERATE__INPUT_PROMPT;
	generate.prompt = "a prompt";
	generate.stop = stops;
	generate.n_stop = 2;
	envelope.version = BUS_VERSION;
	envelope.request_id = 1;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_GENERATE;
	envelope.generate = &generate;
	n = outrider__envelope__pack(&envelope, bytes);
	for (size_t cut = 0; cut < n; cut++) {
		assert_true(zmq_send(socket, bytes, cut, 0) >= 0);
		assert_int_equal(bus_receive(socket, 10000, &reply, NULL), 0);
		assert_int_equal(reply->body_case, OUTRIDER__ENVELOPE__BODY_FAILURE);
		bus_free(&reply);
	}
	assert_true(board->dropped > 0);
	the_server_still_answers(zmq);
	bus_close(&socket);
	zmq_ctx_term(zmq);
}

static void a_message_too_large_is_told_the_limit(void **state)
{
	void *zmq = zmq_ctx_new(), *socket = raw_client(zmq);
	char *large = calloc(1, LIMIT_MESSAGE_BYTES + 1);

	(void)state;
	assert_non_null(large);
	assert_true(zmq_send(socket, large, LIMIT_MESSAGE_BYTES + 1, 0) >= 0);
	expect_failure(socket, "message of 4194305 bytes: at most 4194304 are allowed");
	the_server_still_answers(zmq);
	free(large);
	bus_close(&socket);
	zmq_ctx_term(zmq);
}

static void a_huge_message_ends_only_its_senders_connection(void **state)
{
	void *zmq = zmq_ctx_new(), *socket = raw_client(zmq);
	char *huge = calloc(1, LIMIT_MESSAGE_CUT + 1);
	Outrider__Envelope *reply;

	(void)state;
	assert_non_null(huge);
	assert_true(zmq_send(socket, huge, LIMIT_MESSAGE_CUT + 1, 0) >= 0);
	assert_int_equal(bus_receive(socket, 300, &reply, NULL), -EAGAIN);
	the_server_still_answers(zmq);
	assert_int_equal(board->dropped, 0); /* it never became a message */
	assert_true(zmq_send(socket, huge, LIMIT_MESSAGE_BYTES, 0) >=
		    0); /* the largest legal one is rubbish */
	expect_failure(socket, "not an Envelope");
	free(huge);
	bus_close(&socket);
	zmq_ctx_term(zmq);
}

static void too_large_an_envelope_is_not_sent(void **state)
{
	void *zmq = zmq_ctx_new(), *socket;
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Failure failure = OUTRIDER__FAILURE__INIT;
	char *text = malloc(LIMIT_MESSAGE_BYTES + 1);

	(void)state;
	assert_non_null(text);
	memset(text, 'x', LIMIT_MESSAGE_BYTES);
	text[LIMIT_MESSAGE_BYTES] = '\0';
	failure.message = text;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_FAILURE;
	envelope.failure = &failure;
	assert_int_equal(bus_client(zmq, endpoint, &socket, NULL), 0);
	assert_int_equal(bus_send(socket, &envelope), -EMSGSIZE);
	free(text);
	bus_close(&socket);
	zmq_ctx_term(zmq);
}

/* Writes bytes that are not ZeroMQ's protocol at all. */
static void strangers_to_the_protocol_are_survived(void **state)
{
	static const char *const greetings[] = {
		"GET / HTTP/1.1\r\n\r\n", "", "\xff\0\0\0\0\0\0\0\1\x7f"};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	void *zmq = zmq_ctx_new();

	(void)state;
	strcpy(address.sun_path, path);
	for (size_t i = 0; i < sizeof greetings / sizeof greetings[0]; i++) {
		int fd = socket(AF_UNIX, SOCK_STREAM, 0);

		assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
		assert_true(send(fd, greetings[i], strlen(greetings[i]), MSG_NOSIGNAL) >= 0);
		the_server_still_answers(zmq);
		close(fd);
	}
	the_server_still_answers(zmq);
	zmq_ctx_term(zmq);
}

static void sending_to_one_who_left_is_an_error(void **state)
{
	void *zmq = zmq_ctx_new(), *socket;
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT;
	Outrider__Cancel cancel = OUTRIDER__CANCEL__INIT;

	(void)state;
	request.body_case = OUTRIDER__ENVELOPE__BODY_CANCEL;
	request.cancel = &cancel;
	assert_int_equal(bus_client(zmq, endpoint, &socket, NULL), 0);
	assert_int_equal(bus_send(socket, &request), 0);
	bus_close(&socket); /* its last message still leaves */
	zmq_ctx_term(zmq);
	UNTIL(board->unreachable == 1);
	zmq = zmq_ctx_new();
	the_server_still_answers(zmq);
	zmq_ctx_term(zmq);
}

static void a_client_reconnects_to_the_next_server(void **state)
{
	void *zmq = zmq_ctx_new(), *socket;
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT, *reply;
	Outrider__StatusRequest status = OUTRIDER__STATUS_REQUEST__INIT;

	(void)state;
	request.body_case = OUTRIDER__ENVELOPE__BODY_STATUS_REQUEST;
	request.status_request = &status;
	assert_int_equal(bus_client(zmq, endpoint, &socket, NULL), 0);
	for (int life = 0; life < 3; life++) {
		request.request_id = (uint64_t)life + 10;
		assert_int_equal(bus_send(socket, &request), 0);
		assert_int_equal(bus_receive(socket, 10000, &reply, NULL), 0);
		assert_int_equal(reply->request_id, life + 10);
		bus_free(&reply);
		kill_server();
		usleep(50000);
		start_server();
	}
	bus_close(&socket);
	zmq_ctx_term(zmq);
}

/* libzmq aborts where it finds none. Each limit is tried in a process of its own. */
static void too_few_descriptors_for_a_context_are_an_error(void **state)
{
	unsigned refused = 0;

	(void)state;
	for (rlim_t limit = 3; limit < 24; limit++) {
		int status;
		pid_t pid = fork();

		assert_true(pid >= 0);
		if (pid == 0) {
			const struct rlimit few = {.rlim_cur = limit, .rlim_max = limit};
			struct error err = {""};
			void *zmq, *socket;

			for (int fd = 3; fd < 1024; fd++)
				close(fd);
			if (setrlimit(RLIMIT_NOFILE, &few) < 0)
				_exit(3);
			if (bus_context(&zmq, &err) < 0)
				_exit(strstr(err.text, "ulimit -n") ? 1 : 2);
			_exit(bus_client(zmq, "ipc:///tmp/outrider-nobody", &socket, &err) < 0 ? 2
											       : 0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
		refused += WEXITSTATUS(status) == 1;
	}
	assert_in_range(refused, 5, 15);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(too_few_descriptors_for_a_context_are_an_error),
		TEST(a_request_gets_its_reply),
		TEST(a_failure_comes_back_as_its_text),
		TEST(a_server_that_is_gone_or_stopped_is_said_so),
		TEST(who_waits_for_long_is_told_once),
		TEST(a_time_in_which_it_was_stopped_is_not_waited),
		TEST(a_live_server_is_not_displaced),
		TEST(rubbish_is_dropped_and_answered_with_why),
		TEST(every_cut_of_a_message_is_survived),
		TEST(a_message_too_large_is_told_the_limit),
		TEST(a_huge_message_ends_only_its_senders_connection),
		TEST(too_large_an_envelope_is_not_sent),
		TEST(strangers_to_the_protocol_are_survived),
		TEST(sending_to_one_who_left_is_an_error),
		TEST(a_client_reconnects_to_the_next_server),
	};

	return cmocka_run_group_tests_name("bus", tests, NULL, NULL);
}
