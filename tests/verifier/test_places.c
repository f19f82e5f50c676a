/* Clients that ask for too much, vanish, or take nothing, beside one that lives: the real verifier on the demo model. */
#include "tests/verifier/service.h"

enum { PROMPT_BYTES = 2000000 / SERVICE_SLOWER, PIPELINED = 64 };
/* What took half a minute and more takes less than this, on a machine that does something else too. */
#define SOON_NS (10000000000u * SERVICE_SLOWER)

static struct answer answers[SERVICE_ANSWERS];

static int group_setup(void **state)
{
	struct rig rig;

	(void)state;
	if (!service_binary() || access(SERVICE_MODEL, R_OK) != 0)
		return 0;
	rig_open(&rig, SERVICE_MODEL, "auto", 1, KV_Q16_0);
	for (uint32_t i = 0; i < 8; i++)
		answer_make(&rig, &answers[i], 100 + i, 3 + 13 * i, i % 2 ? 0.8f : 0, 64);
	rig_close(&rig);
	return 0;
}

static void need(void)
{
	if (!service_binary() || access(SERVICE_MODEL, R_OK) != 0) {
		print_message("# no outrider-verifier in the build folder, or no demo model\n");
		skip();
	}
}

/* ---- Other clients are other processes: this program with arguments. It writes a byte when it has done its part. ---- */

struct neighbour {
	pid_t pid;
	int told;
};

static struct neighbour neighbour_start(const struct service *s, const char *what, uint32_t n)
{
	struct neighbour other;
	int ends[2];
	char fd[16], number[16];

	assert_int_equal(pipe(ends), 0);
	snprintf(fd, sizeof(fd), "%d", ends[1]);
	snprintf(number, sizeof(number), "%u", n);
	other.pid = fork();
	assert_true(other.pid >= 0);
	if (other.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ends[0]);
		execl("/proc/self/exe", "neighbour", what, s->dir, fd, number, (char *)NULL);
		_exit(127);
	}
	close(ends[1]);
	other.told = ends[0];
	return other;
}

/* Waits until it has done its part; what it then says of it. */
static char neighbour_wait(const struct neighbour *other)
{
	struct pollfd ready = {.fd = other->told, .events = POLLIN};
	char byte = '\0';

	assert_int_equal(poll(&ready, 1, (int)(SERVICE_PATIENCE_NS / 1000000)), 1);
	assert_int_equal(read(other->told, &byte, 1), 1);
	return byte;
}

static void neighbour_end(struct neighbour *other)
{
	kill(other->pid, SIGKILL);
	waitpid(other->pid, NULL, 0);
	close(other->told);
}

static void neighbour_ask(struct service *s, uint64_t uid, uint32_t credit, char *text)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Generate generate = OUTRIDER__GENERATE__INIT;
	Outrider__TokenList tokens = OUTRIDER__TOKEN_LIST__INIT;
	int32_t ids[] = {600, 700, 800};

	tokens.n_ids = 3;
	tokens.ids = ids;
	generate.session_uid = uid;
	generate.ignore_eos = 1;
	generate.credit = credit;
	if (text) {
		generate.input_case = OUTRIDER__GENERATE__INPUT_PROMPT;
		generate.prompt = text;
	} else {
		generate.input_case = OUTRIDER__GENERATE__INPUT_TOKENS;
		generate.tokens = &tokens;
	}
	envelope.request_id = uid;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_GENERATE;
	envelope.generate = &generate;
	while (bus_send(s->socket, &envelope) == -EAGAIN)
		poll(NULL, 0, 1);
}

/* The next message; NULL when none came. */
static Outrider__Envelope *neighbour_hear(struct service *s)
{
	Outrider__Envelope *heard;

	return bus_receive(s->socket, 100, &heard, NULL) == 0 ? heard : NULL;
}

/* n sessions, taken in when each was accepted; "served": when each has its first token. */
static void hold(struct service *s, uint64_t uid, uint32_t n, uint32_t credit, bool served)
{
	for (uint32_t i = 0; i < n; i++)
		neighbour_ask(s, uid + i, credit, NULL);
	for (uint32_t heard = 0; heard < n;) {
		Outrider__Envelope *e = neighbour_hear(s);

		if (e && e->body_case == OUTRIDER__ENVELOPE__BODY_FAILURE) {
			fprintf(stderr, "neighbour: %s\n", e->failure->message);
			_exit(1);
		}
		if (e && served)
			heard += e->body_case == OUTRIDER__ENVELOPE__BODY_TOKENS &&
				 e->tokens->first == 0;
		else
			heard += e && e->body_case == OUTRIDER__ENVELOPE__BODY_ACCEPTED;
		bus_free(&e);
	}
}

enum { READ_WITHOUT_REFUSAL = 6 };

/* Prompts that take half a second each to read and are too long then, always as many under way as it can have. */
static void pipeline(struct service *s, uint64_t uid, int told)
{
	char *text = malloc(PROMPT_BYTES + 1);
	/* A slow machine takes as long to receive a message as to read its text: then what comes next waits in the socket, and
	 * none is refused for its bytes. */
	bool bytes = false;
	uint32_t read = 0;
	char said = 'x';

	memset(text, ' ', PROMPT_BYTES);
	text[PROMPT_BYTES] = '\0';
	for (uint32_t i = 0; i < PIPELINED; i++)
		neighbour_ask(s, uid + i, 100, text);
	for (uid += PIPELINED;;) {
		Outrider__Envelope *e = neighbour_hear(s);

		if (!e)
			continue;
		if (e->body_case == OUTRIDER__ENVELOPE__BODY_FAILURE) {
			bytes |= e->failure->code == EAGAIN &&
				 strstr(e->failure->message, "wait to be read have") != NULL;
			read += e->failure->code == E2BIG &&
				strstr(e->failure->message, "context") != NULL;
			/* As many are refused for their bytes alone as it sends: not faster than a few a second. */
			if (e->failure->code == EAGAIN)
				poll(NULL, 0, 100);
			neighbour_ask(s, uid++, 100, text);
		}
		bus_free(&e);
		if ((bytes ? read >= 1 : read >= READ_WITHOUT_REFUSAL) && said == 'x' &&
			write(told, "y", 1) == 1)
			said = 'y';
	}
}

static int neighbour_main(char **argv)
{
	struct service s = {.zmq = zmq_ctx_new()};
	int told = atoi(argv[3]);
	uint32_t n = (uint32_t)atoi(argv[4]);
	uint64_t uid = (uint64_t)getpid() << 32;
	char endpoint[256];

	peers_client_endpoint(argv[2], endpoint, sizeof(endpoint));
	if (bus_client(s.zmq, endpoint, &s.socket, NULL) != 0)
		return 1;
	if (strcmp(argv[1], "--pipeline") == 0)
		pipeline(&s, uid, told);
	else if (strcmp(argv[1], "--hold") == 0)
		hold(&s, uid, n, 100000, false);
	else if (strcmp(argv[1], "--deaf") == 0)
		hold(&s, uid, n, 0, false);
	else
		hold(&s, uid, n, 100000, true);
	if (write(told, "y", 1) != 1)
		return 1;
	for (;;)
		pause();
}

/* ---- The tests. ---- */

static void ready(struct service *s)
{
	struct call c;

	call_init(&c, &answers[1], 2);
	call_generate(s, &c);
	assert_true(calls_until(s, &c, 1, all_over, SERVICE_PATIENCE_NS));
	call_check(&c);
}

static void status_is_answered(struct service *s)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT, *reply;
	Outrider__StatusRequest request = OUTRIDER__STATUS_REQUEST__INIT;
	struct error err = {""};
	char endpoint[256];

	peers_admin_endpoint(s->dir, PEER_VERIFIER, endpoint, sizeof(endpoint));
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_STATUS_REQUEST;
	envelope.status_request = &request;
	if (bus_call(s->zmq, endpoint, &envelope, (int)(SOON_NS / 1000000), NULL, &reply, &err) < 0)
		fail_msg("status: %s", err.text);
	bus_free(&reply);
}

static bool has_all(const struct call *calls, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (calls[i].n < calls[i].credit)
			return false;
	return true;
}

static void a_client_that_sends_prompts_of_2_mb_delays_itself_alone(void **state)
{
	struct service s;
	struct neighbour other;
	struct call c;

	(void)state;
	need();
	service_open(&s, (const char *const[]){"threads=1", "context=256", NULL});
	ready(&s);
	other = neighbour_start(&s, "--pipeline", 0);
	assert_int_equal(neighbour_wait(&other), 'y');
	call_init(&c, &answers[2], 60);
	c.credit = 4;
	call_generate(&s, &c);
	/* Each of these needs an answer of the service: to its request, to what it grants, and to an administrator. */
	for (; c.credit <= 60; c.credit += 8) {
		call_credit(&s, &c, c.credit);
		assert_true(calls_until(&s, &c, 1, has_all, SOON_NS));
		status_is_answered(&s);
	}
	call_credit(&s, &c, 1000);
	assert_true(calls_until(&s, &c, 1, all_over, SOON_NS));
	call_check(&c);
	neighbour_end(&other);
	/* What it left behind is read, and then others are alone. */
	ready(&s);
	service_close(&s);
}

static void a_client_is_told_how_many_requests_it_may_have(void **state)
{
	struct service s;
	struct call calls[5];

	(void)state;
	need();
	service_open(&s, (const char *const[]){"threads=1", "client_requests=3", NULL});
	ready(&s);
	for (uint32_t i = 0; i < 4; i++) {
		call_init(&calls[i], &answers[i], 60);
		calls[i].credit = 2;
		call_generate(&s, &calls[i]);
	}
	assert_false(calls_until(&s, calls, 4, all_over, 500000000u));
	assert_int_equal(calls[3].failure, EAGAIN);
	assert_non_null(strstr(calls[3].message, "3 requests of this client"));
	assert_non_null(strstr(calls[3].message, "client_requests"));
	/* Another process has a bound of its own. */
	struct neighbour other = neighbour_start(&s, "--served", 3);
	assert_int_equal(neighbour_wait(&other), 'y');
	neighbour_end(&other);
	for (uint32_t i = 0; i < 3; i++)
		call_credit(&s, &calls[i], 1000);
	assert_true(calls_until(&s, calls, 3, all_over, SERVICE_PATIENCE_NS));
	for (uint32_t i = 0; i < 3; i++)
		call_check(&calls[i]);
	call_init(&calls[4], &answers[4], 20);
	call_generate(&s, &calls[4]);
	assert_true(calls_until(&s, &calls[4], 1, all_over, SERVICE_PATIENCE_NS));
	call_check(&calls[4]);
	service_close(&s);
}

/* A client with as many long answers under way as it may have, and two places: another one has its turn all the same. */
static void clients_take_turns_in_the_batch(void **state)
{
	struct service s;
	struct neighbour other;
	struct call calls[3];

	(void)state;
	need();
	service_open(&s, (const char *const[]){"threads=1", "kernels=scalar", "sessions_max=2",
				 "queue_max=62", NULL});
	ready(&s);
	other = neighbour_start(&s, "--hold", 32);
	assert_int_equal(neighbour_wait(&other), 'y');
	for (uint32_t i = 0; i < 3; i++) {
		call_init(&calls[i], &answers[i], 8);
		call_generate(&s, &calls[i]);
	}
	assert_true(calls_until(&s, calls, 3, all_over, SOON_NS));
	for (uint32_t i = 0; i < 3; i++)
		call_check(&calls[i]);
	neighbour_end(&other);
	service_close(&s);
}

static bool first_token(const struct call *calls, size_t n)
{
	(void)n;
	return calls[0].n > 0 || calls[0].failure != 0;
}

/* They have all places, of the batch and of the queue, for answers as long as the context. */
static void killed_clients_give_way(void **state)
{
	enum { CLIENTS = 12, EACH = 4 };
	struct service s;
	struct neighbour others[CLIENTS];
	struct call c;

	(void)state;
	need();
	service_open(&s, (const char *const[]){"threads=1", "kernels=scalar", NULL});
	ready(&s);
	for (uint32_t i = 0; i < CLIENTS; i++)
		others[i] = neighbour_start(&s, "--hold", EACH);
	for (uint32_t i = 0; i < CLIENTS; i++)
		assert_int_equal(neighbour_wait(&others[i]), 'y');
	call_init(&c, &answers[1], 8);
	call_generate(&s, &c);
	assert_true(calls_until(&s, &c, 1, first_token, SOON_NS));
	assert_int_equal(c.failure, EAGAIN);
	for (uint32_t i = 0; i < CLIENTS; i++)
		kill(others[i].pid, SIGKILL);
	for (uint32_t i = 0; i < CLIENTS; i++)
		neighbour_end(&others[i]);
	/* Between the kernel's knowing and the service's. */
	usleep(200000);
	call_init(&c, &answers[1], 8);
	call_generate(&s, &c);
	assert_true(calls_until(&s, &c, 1, all_over, SOON_NS));
	call_check(&c);
	service_close(&s);
}

static void sessions_that_grant_nothing_give_way(void **state)
{
	struct service s;
	struct neighbour others[2];
	struct call c;

	(void)state;
	need();
	service_open(&s, (const char *const[]){"threads=1", "sessions_max=32", NULL});
	ready(&s);
	for (uint32_t i = 0; i < 2; i++) {
		others[i] = neighbour_start(&s, "--deaf", 32);
		assert_int_equal(neighbour_wait(&others[i]), 'y');
	}
	/* For that long they may be clients that are busy. */
	usleep(1500000);
	for (uint32_t i = 0; i < 3; i++) {
		call_init(&c, &answers[i], 20);
		call_generate(&s, &c);
		assert_true(calls_until(&s, &c, 1, all_over, SOON_NS));
		call_check(&c);
	}
	for (uint32_t i = 0; i < 2; i++)
		neighbour_end(&others[i]);
	service_close(&s);
}

/* All places are this client's, which grants no more; then others take most of them; then it goes on. */
static void given_up_and_gone_on(bool hashes, bool reconnects)
{
	static struct call calls[SESSIONS_USED];
	struct service s;
	struct neighbour other;
	char endpoint[256];
	struct error err;

	need();
	service_open(&s, (const char *const[]){"threads=1", "context=256", "ahead_max=2",
				 "client_requests=64", "sessions_max=32", "queue_max=32",
				 "client_timeout=1h", NULL});
	ready(&s);
	for (uint32_t i = 0; i < SESSIONS_USED; i++) {
		call_init(&calls[i], &answers[i % 8], 10 + i % 30);
		calls[i].hashes = hashes;
		calls[i].k = 0;
		calls[i].credit = i % 9;
		call_generate(&s, &calls[i]);
	}
	assert_true(calls_until(&s, calls, SESSIONS_USED, has_all, SERVICE_PATIENCE_NS));
	usleep(1500000);
	other = neighbour_start(&s, "--served", 60);
	assert_int_equal(neighbour_wait(&other), 'y');
	if (reconnects) {
		bus_close(&s.socket);
		peers_client_endpoint(s.dir, endpoint, sizeof(endpoint));
		assert_int_equal(bus_client(s.zmq, endpoint, &s.socket, &err), 0);
	}
	/* A uid of a session without a place is still that of its request. */
	for (uint32_t i = 0; i < SESSIONS_USED; i += 7) {
		struct call another = calls[i];

		another.answer = &answers[(i + 1) % 8];
		call_generate(&s, &another);
		assert_true(calls_until(&s, &another, 1, all_over, SERVICE_PATIENCE_NS));
		assert_int_equal(another.failure, EEXIST);
		calls[i].request = another.request;
	}
	/* One that is not wanted any more ends, wherever it is. */
	call_cancel(&s, &calls[62]);
	call_credit(&s, &calls[62], 1000);
	assert_true(calls_until(&s, &calls[62], 1, all_over, SERVICE_PATIENCE_NS));
	assert_int_equal(calls[62].end, SESSION_END_CANCELLED);
	for (uint32_t i = 0; i < SESSIONS_USED; i++) {
		if (i == 62)
			continue;
		calls[i].credit = 1000;
		if (reconnects && i % 2) {
			calls[i].have = calls[i].n;
			call_generate(&s, &calls[i]);
		} else if (reconnects) {
			call_resume(&s, &calls[i]);
		} else {
			calls[i].request = i % 7 == 0 ? calls[i].request - 1 : calls[i].request;
			call_credit(&s, &calls[i], 1000);
		}
	}
	neighbour_end(&other);
	assert_true(calls_until(&s, calls, SESSIONS_USED, all_over, SERVICE_PATIENCE_NS));
	for (uint32_t i = 0; i < SESSIONS_USED; i++)
		if (i != 62)
			call_check(&calls[i]);
	service_close(&s);
}

static void a_session_that_gave_way_goes_on_when_its_client_grants_more(void **state)
{
	(void)state;
	given_up_and_gone_on(false, false);
}

static void a_session_that_gave_way_goes_on_when_its_client_comes_back(void **state)
{
	(void)state;
	given_up_and_gone_on(false, true);
}

static void a_session_that_gave_way_has_its_hashes_too(void **state)
{
	(void)state;
	given_up_and_gone_on(true, true);
}

static void conflicts(struct service *s, struct call *c, const char *what)
{
	uint64_t request = c->request;

	call_generate(s, c);
	assert_true(calls_until(s, c, 1, all_over, SERVICE_PATIENCE_NS));
	if (c->failure != EEXIST || !strstr(c->message, "another request"))
		fail_msg("%s: failure %d, \"%s\"", what, c->failure, c->message);
	assert_true(c->request > request);
}

static void a_uid_names_one_request_alone(void **state)
{
	struct service s;
	struct call first, c;
	struct answer other;

	(void)state;
	need();
	service_open(&s, (const char *const[]){"threads=1", "context=256", NULL});
	service_drafter(&s, answers, 8, 0, false, false);
	call_init(&first, &answers[3], 60);
	first.credit = 5;
	call_generate(&s, &first);
	assert_true(calls_until(&s, &first, 1, has_all, SERVICE_PATIENCE_NS));
	for (int round = 0; round < 3; round++) {
		const struct {
			const char *what;
			uint64_t seed;
			float temperature, top_p;
			uint32_t max_tokens;
			int32_t token;
			bool hashes;
			const char *stop;
		} cases[] = {
			{"a token", 0, 0, 0, 0, 1, false, NULL},
			{"the seed", 1, 0, 0, 0, 0, false, NULL},
			{"the temperature", 0, 0.1f, 0, 0, 0, false, NULL},
			{"top_p", 0, 0, -0.1f, 0, 0, false, NULL},
			{"the length", 0, 0, 0, 1, 0, false, NULL},
			{"hashes", 0, 0, 0, 0, 0, true, NULL},
			{"a stop string", 0, 0, 0, 0, 0, false, "x"},
		};
		for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
			c = first;
			c.done = false;
			other = answers[3];
			other.prompt[other.n_prompt - 1] += cases[i].token;
			other.sampling.seed += cases[i].seed;
			other.sampling.temperature += cases[i].temperature;
			other.sampling.top_p += cases[i].top_p;
			c.answer = &other;
			c.max_tokens += cases[i].max_tokens;
			c.hashes = cases[i].hashes;
			c.stop = cases[i].stop;
			c.request += 100;
			conflicts(&s, &c, cases[i].what);
		}
		/* What changes nothing in the answer may differ: how far the client is, how drafts are made, its time. */
		first.k = round;
		first.deadline_ms = 3600000u + (uint64_t)round;
		first.credit = round == 0 ? 20 : 1000;
		first.done = false;
		if (round == 2)
			first.n = 0;
		first.have = first.n;
		first.n_text = 0;
		call_generate(&s, &first);
		if (round == 0)
			assert_true(calls_until(&s, &first, 1, has_all, SERVICE_PATIENCE_NS));
		else
			assert_true(calls_until(&s, &first, 1, all_over, SERVICE_PATIENCE_NS));
		/* The next round finds the page of a predecessor; the last one a finished answer. */
		if (round == 0) {
			service_kill(&s.pid, SIGKILL);
			service_start(&s);
		}
	}
	call_check(&first);
	service_close(&s);
}

int main(int argc, char **argv)
{
	if (argc == 5)
		return neighbour_main(argv);
	if (argc == 3 && strcmp(argv[1], "--drafter") == 0)
		return service_drafter_main(atoi(argv[2]));

	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_client_that_sends_prompts_of_2_mb_delays_itself_alone),
		cmocka_unit_test(a_client_is_told_how_many_requests_it_may_have),
		cmocka_unit_test(clients_take_turns_in_the_batch),
		cmocka_unit_test(killed_clients_give_way),
		cmocka_unit_test(sessions_that_grant_nothing_give_way),
		cmocka_unit_test(a_session_that_gave_way_goes_on_when_its_client_grants_more),
		cmocka_unit_test(a_session_that_gave_way_goes_on_when_its_client_comes_back),
		cmocka_unit_test(a_session_that_gave_way_has_its_hashes_too),
		cmocka_unit_test(a_uid_names_one_request_alone),
	};

	return cmocka_run_group_tests_name("places", tests, group_setup, NULL);
}
