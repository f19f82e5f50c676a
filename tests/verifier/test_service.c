/* The whole verifier: the real process on the demo model, against the same tokens computed here one at a time. */
#include "tests/verifier/service.h"

#include "kernels/kernels.h"

static struct answer answers[SERVICE_ANSWERS];

static int group_setup(void **state)
{
	struct rig rig;

	(void)state;
	if (!service_binary() || access(SERVICE_MODEL, R_OK) != 0)
		return 0;
	rig_open(&rig, SERVICE_MODEL, "auto", 1, KV_Q16_0);
	for (uint32_t i = 0; i < SERVICE_ANSWERS; i++)
		answer_make(&rig, &answers[i], 100 + i, 3 + 13 * (i % 9), i % 2 ? 0.8f : 0, 96);
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

/* Loading takes its time on a busy machine: what is timed begins after it. */
static void ready(struct service *s)
{
	struct call c;

	call_init(&c, &answers[3], 2);
	call_generate(s, &c);
	assert_true(calls_until(s, &c, 1, all_over, SERVICE_PATIENCE_NS));
	call_check(&c);
}

/* The drafter of the test has what it needs to draft, and so keeps the regions for a successor of the verifier. */
static void drafter_ready(struct service *s)
{
	uint64_t end_ns = clock_ns() + SERVICE_PATIENCE_NS;
	struct call c;

	do {
		call_init(&c, &answers[3], 8);
		c.k = 3;
		call_generate(s, &c);
		assert_true(calls_until(s, &c, 1, all_over, SERVICE_PATIENCE_NS));
		call_check(&c);
		assert_true(clock_ns() < end_ns);
	} while (c.drafted == 0);
}

static void run_all(struct service *s, struct call *calls, size_t n)
{
	for (size_t i = 0; i < n; i++)
		call_generate(s, &calls[i]);
	assert_true(calls_until(s, calls, n, all_over, SERVICE_PATIENCE_NS));
	for (size_t i = 0; i < n; i++)
		call_check(&calls[i]);
}

static void eight_sessions_at_once_give_the_tokens_and_logits_of_one_alone(void **state)
{
	struct service s;
	struct call calls[8];

	(void)state;
	need();
	service_open(&s, (const char *const[]){"threads=2", "prefill_chunk=7", NULL});
	for (uint32_t i = 0; i < 8; i++) {
		call_init(&calls[i], &answers[i], 60);
		calls[i].hashes = true;
	}
	run_all(&s, calls, 8);
	service_close(&s);
}

static void sessions_that_must_share_few_kv_pages_give_the_same_tokens(void **state)
{
	struct service s;
	struct call calls[8];

	(void)state;
	need();
	service_open(&s, (const char *const[]){"threads=1", "context=256", "kv_tokens=320",
				 "sessions_max=4", NULL});
	for (uint32_t i = 0; i < 8; i++) {
		call_init(&calls[i], &answers[8 + i], 96);
		calls[i].hashes = i % 2;
	}
	run_all(&s, calls, 8);
	service_close(&s);
}

static void drafts(const char *name, uint32_t wrong, bool tree, bool rubbish)
{
	struct service s;
	struct call calls[8];
	uint32_t drafted = 0, accepted = 0;

	need();
	service_open(&s, (const char *const[]){"threads=1", "context=256", "draft_wait=2s", NULL});
	service_drafter(&s, answers, SERVICE_ANSWERS, wrong, tree, rubbish);
	/* Rubbish is never taken for a draft: for it to be there in time is all that can be hoped for. */
	if (rubbish)
		usleep(300000);
	else
		drafter_ready(&s);
	for (uint32_t i = 0; i < 8; i++) {
		call_init(&calls[i], &answers[i], 60);
		calls[i].hashes = true;
		calls[i].k = (int32_t)(i < 4 ? 4 : 15);
		calls[i].width = tree ? 2 : 0;
	}
	run_all(&s, calls, 8);
	for (uint32_t i = 0; i < 8; i++) {
		drafted += calls[i].drafted;
		accepted += calls[i].accepted;
	}
	print_message("# %s: %u drafted, %u accepted\n", name, drafted, accepted);
	if (rubbish) {
		assert_int_equal(drafted, 0);
	} else {
		assert_true(accepted > 100);
		assert_true(wrong || tree ? accepted < drafted : accepted == drafted);
	}
	service_close(&s);
}

static void right_drafts_change_no_token(void **state)
{
	(void)state;
	drafts("right", 0, false, false);
}

static void wrong_drafts_change_no_token(void **state)
{
	(void)state;
	drafts("every third wrong", 3, false, false);
}

static void tree_drafts_change_no_token(void **state)
{
	(void)state;
	drafts("trees, every fifth wrong", 5, true, false);
}

/* Eight sessions, and for one of them the drafter takes late_ns. How many of the others' drafts were accepted, and of its own. */
static void one_is_late(uint64_t late_ns, uint64_t patience_ns, uint32_t *others, uint32_t *own)
{
	struct service s;
	struct call calls[8];

	need();
	/* Passes that waited for all drafts would wait for ten seconds, or until it comes. */
	service_open(&s, (const char *const[]){"threads=1", "context=256", "draft_wait=10s", NULL});
	service_late_drafter(&s, answers, SERVICE_ANSWERS, 5, late_ns);
	drafter_ready(&s);
	for (uint32_t i = 0; i < 8; i++) {
		call_init(&calls[i], &answers[i], 60);
		calls[i].k = 7;
		call_generate(&s, &calls[i]);
	}
	assert_true(calls_until(&s, calls, 8, all_over, patience_ns));
	*others = 0;
	for (uint32_t i = 0; i < 8; i++) {
		call_check(&calls[i]);
		*others += i == 5 ? 0 : calls[i].accepted;
	}
	*own = calls[5].accepted;
	print_message("# %u accepted of the others', %u of its own\n", *others, *own);
	service_close(&s);
}

static void a_draft_that_never_comes_delays_nobody(void **state)
{
	uint32_t others, own;

	(void)state;
	one_is_late(3600000000000u, 5000000000u, &others, &own);
	assert_true(others > 100);
	assert_int_equal(own, 0);
}

static void a_draft_that_is_late_delays_nobody_and_is_used_or_not(void **state)
{
	uint32_t others, own;

	(void)state;
	one_is_late(6000000, SERVICE_PATIENCE_NS, &others, &own);
	assert_true(others > 100);
}

static void rubbish_drafts_are_refused_and_change_no_token(void **state)
{
	(void)state;
	drafts("rubbish", 0, false, true);
}

static bool some_tokens(const struct call *calls, size_t n)
{
	uint32_t total = 0;

	for (size_t i = 0; i < n; i++)
		total += calls[i].n;
	return total >= n * 10;
}

/* Killed again and again in the middle; keeper: the regions survive in a drafter, else all is lost. */
static void crash(bool keeper, bool hashes, int32_t k)
{
	struct service s;
	struct call calls[4];

	need();
	service_open(
		&s, (const char *const[]){"threads=1", "context=256", "stream_interval=0", NULL});
	if (keeper) {
		service_drafter(&s, answers, SERVICE_ANSWERS, 4, false, false);
		drafter_ready(&s);
	}
	for (uint32_t i = 0; i < 4; i++) {
		call_init(&calls[i], &answers[4 + i], 96);
		calls[i].hashes = hashes;
		calls[i].k = k;
		calls[i].credit = 12;
		call_generate(&s, &calls[i]);
	}
	assert_true(calls_until(&s, calls, 4, some_tokens, SERVICE_PATIENCE_NS));
	for (int round = 0; round < 3; round++) {
		service_kill(&s.pid, SIGKILL);
		service_start(&s);
		for (uint32_t i = 0; i < 4; i++) {
			calls[i].credit += 20;
			calls[i].have = calls[i].n;
			if (keeper)
				call_resume(&s, &calls[i]);
			else
				call_generate(&s, &calls[i]);
		}
		usleep((useconds_t)round * 5000);
	}
	for (uint32_t i = 0; i < 4; i++) {
		/* An answer of the service that was killed may still be on its way. */
		call_credit(&s, &calls[i], 1000);
		calls[i].have = calls[i].n;
	}
	assert_true(calls_until(&s, calls, 4, all_over, SERVICE_PATIENCE_NS));
	for (uint32_t i = 0; i < 4; i++) {
		call_check(&calls[i]);
		assert_int_equal(calls[i].restarts, keeper ? 1 : 0);
	}
	service_close(&s);
}

static void a_killed_verifier_goes_on_from_its_pages(void **state)
{
	(void)state;
	crash(true, false, 0);
}

static void a_killed_verifier_goes_on_with_drafts_and_makes_its_hashes_again(void **state)
{
	(void)state;
	crash(true, true, 5);
}

static bool a_few(const struct call *calls, size_t n)
{
	(void)n;
	return calls[0].n == calls[0].credit;
}

static void a_finished_answer_keeps_its_hashes_when_the_verifier_is_killed(void **state)
{
	struct service s;
	struct call c;

	(void)state;
	need();
	service_open(&s, (const char *const[]){"threads=1", "context=256", NULL});
	service_drafter(&s, answers, SERVICE_ANSWERS, 4, false, false);
	drafter_ready(&s);
	call_init(&c, &answers[5], 96);
	c.hashes = true;
	c.credit = 12;
	call_generate(&s, &c);
	assert_true(calls_until(&s, &c, 1, a_few, SERVICE_PATIENCE_NS));
	/* To its end, of which the client has taken nothing. */
	usleep(1500000);
	for (int round = 0; round < 2; round++) {
		service_kill(&s.pid, SIGKILL);
		service_start(&s);
		call_resume(&s, &c);
		usleep(50000);
	}
	call_credit(&s, &c, 1000);
	assert_true(calls_until(&s, &c, 1, all_over, SERVICE_PATIENCE_NS));
	call_check(&c);
	service_close(&s);
}

static void an_answer_that_was_finished_is_not_cancelled_while_its_hashes_are_made_again(
	void **state)
{
	struct service s;
	struct call c;

	(void)state;
	need();
	service_open(&s, (const char *const[]){"threads=1", "context=256", NULL});
	service_drafter(&s, answers, SERVICE_ANSWERS, 4, false, false);
	drafter_ready(&s);
	call_init(&c, &answers[5], 96);
	c.hashes = true;
	call_generate(&s, &c);
	assert_true(calls_until(&s, &c, 1, all_over, SERVICE_PATIENCE_NS));
	call_check(&c);
	service_kill(&s.pid, SIGKILL);
	service_start(&s);
	c.n = 0;
	c.n_text = 0;
	for (int round = 0; round < 2; round++) {
		/* The first is stopped half-way, if not before. The second is not. */
		c.done = false;
		c.n = 0;
		c.n_text = 0;
		memset(c.hash, 0, sizeof(c.hash));
		call_resume(&s, &c);
		if (round == 0)
			call_cancel(&s, &c);
		assert_true(calls_until(&s, &c, 1, all_over, SERVICE_PATIENCE_NS));
		assert_int_equal(c.end, SESSION_END_LENGTH);
	}
	call_check(&c);
	service_close(&s);
}

/* As many finished answers as there are places; then the verifier is killed and the next requests come at once. */
static void finished_and_killed(bool hashes)
{
	struct service s;
	struct call calls[16];

	need();
	service_open(&s, (const char *const[]){"threads=1", "context=256", NULL});
	service_drafter(&s, answers, SERVICE_ANSWERS, 0, false, false);
	drafter_ready(&s);
	for (int round = 0; round < SESSIONS_USED / 16; round++) {
		for (uint32_t i = 0; i < 16; i++) {
			call_init(&calls[i], &answers[i], 30);
			calls[i].hashes = hashes;
		}
		run_all(&s, calls, 16);
	}
	/* This one says that it got five tokens of its answer. */
	struct call unread = calls[15];
	unread.n = 5;
	unread.done = false;
	unread.n_text = 0;
	memset(unread.hash + 5, 0, sizeof(unread.hash) - 5 * sizeof(unread.hash[0]));
	service_kill(&s.pid, SIGKILL);
	service_start(&s);
	call_resume(&s, &unread);
	for (uint32_t i = 0; i < 15; i++) {
		call_init(&calls[i], &answers[i], 2);
		call_generate(&s, &calls[i]);
	}
	calls[15] = unread;
	assert_true(calls_until(&s, calls, 16, all_over, SERVICE_PATIENCE_NS));
	for (uint32_t i = 0; i < 16; i++)
		call_check(&calls[i]);
	assert_int_equal(calls[15].restarts, 1);
	service_close(&s);
}

static void finished_answers_of_a_killed_verifier_take_nobodys_place(void **state)
{
	(void)state;
	finished_and_killed(false);
}

static void hashes_are_made_again_only_for_a_client_that_waits_for_them(void **state)
{
	(void)state;
	finished_and_killed(true);
}

static void finished_answers_of_clients_that_vanished_take_nobodys_place(void **state)
{
	struct service s;
	struct call calls[16];
	char endpoint[256];
	struct error err;
	void *stays, *vanishes;

	(void)state;
	need();
	service_open(&s, (const char *const[]){"threads=1", "context=256", "queue_max=48",
				 "client_requests=64", NULL});
	ready(&s);
	peers_client_endpoint(s.dir, endpoint, sizeof(endpoint));
	assert_int_equal(bus_client(s.zmq, endpoint, &vanishes, &err), 0);
	stays = s.socket;
	s.socket = vanishes;
	for (uint32_t i = 0; i < SESSIONS_USED; i++) {
		struct call *c = &calls[i == 0 ? 0 : 1];

		call_init(c, &answers[i % 16], 24);
		call_generate(&s, c);
	}
	assert_true(calls_until(&s, calls, 1, some_tokens, SERVICE_PATIENCE_NS));
	bus_close(&vanishes);
	s.socket = stays;
	/* Until its end is known here. */
	sleep(2);
	for (uint32_t i = 0; i < 16; i++)
		call_init(&calls[i], &answers[i], 2);
	run_all(&s, calls, 16);
	service_close(&s);
}

static void a_client_goes_on_when_a_killed_verifier_lost_everything(void **state)
{
	(void)state;
	crash(false, true, 0);
}

/* The region of sessions that a process keeps, open for writing. */
static int open_sessions_of(pid_t pid)
{
	char path[64], link[300];

	for (int fd = 0; fd < 256; fd++) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, fd);
		ssize_t n = readlink(path, link, sizeof(link) - 1);
		if (n <= 0)
			continue;
		link[n] = '\0';
		if (strstr(link, "memfd:") && strstr(link, SESSIONS_REGION))
			return open(path, O_RDWR | O_CLOEXEC);
	}
	return -1;
}

/* As if the predecessor had been of another version. */
static void change_arithmetic(pid_t keeper, uint64_t arithmetic)
{
	struct sessions_header header;
	int fd = open_sessions_of(keeper);

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &header, sizeof(header), REGION_DATA), sizeof(header));
	assert_int_equal(header.arithmetic, KERNELS_ARITHMETIC);
	header.arithmetic = arithmetic;
	header.sums[0] = header.sums[1] = sessions_sum(&header);
	assert_int_equal(pwrite(fd, &header, sizeof(header), REGION_DATA), sizeof(header));
	close(fd);
}

static void sessions_of_another_arithmetic_are_not_taken_over(void **state)
{
	struct service s;
	struct call c;

	(void)state;
	need();
	service_open(
		&s, (const char *const[]){"threads=1", "context=256", "stream_interval=0", NULL});
	service_drafter(&s, answers, SERVICE_ANSWERS, 4, false, false);
	drafter_ready(&s);
	/* The same one's are: a_killed_verifier_goes_on_from_its_pages(). */
	call_init(&c, &answers[4], 96);
	c.credit = 12;
	call_generate(&s, &c);
	assert_true(calls_until(&s, &c, 1, a_few, SERVICE_PATIENCE_NS));
	service_kill(&s.pid, SIGKILL);
	change_arithmetic(s.drafter, 2);
	service_start(&s);
	c.credit = 1000;
	call_resume(&s, &c);
	assert_true(calls_until(&s, &c, 1, all_over, SERVICE_PATIENCE_NS));
	assert_int_equal(c.failure, ENOENT);
	/* Its client knows with what it was begun. */
	c.failure = 0;
	c.arithmetic = 2;
	call_resume(&s, &c);
	assert_true(calls_until(&s, &c, 1, all_over, SERVICE_PATIENCE_NS));
	assert_int_equal(c.failure, ESTALE);
	assert_non_null(strstr(c.message, "with arithmetic 2"));
	service_close(&s);
}

static bool first_over(const struct call *calls, size_t n)
{
	(void)n;
	return calls[0].done;
}

static bool third_over(const struct call *calls, size_t n)
{
	(void)n;
	return calls[2].done || calls[2].failure != 0;
}

static bool never(const struct call *calls, size_t n)
{
	(void)calls;
	(void)n;
	return false;
}

static bool all_granted(const struct call *calls, size_t n)
{
	(void)n;
	return calls[0].n == calls[0].credit;
}

static void a_client_that_takes_nothing_stalls_only_itself(void **state)
{
	struct service s;
	struct call calls[2];

	(void)state;
	need();
	service_open(&s, (const char *const[]){"threads=1", "ahead_max=5", "sessions_max=1",
				 "client_timeout=30s", NULL});
	ready(&s);
	call_init(&calls[0], &answers[0], 90);
	call_init(&calls[1], &answers[1], 90);
	calls[1].credit = 7;
	call_generate(&s, &calls[1]);
	assert_true(calls_until(&s, &calls[1], 1, all_granted, SERVICE_PATIENCE_NS));
	assert_int_equal(calls[1].n, 7);
	call_generate(&s, &calls[0]);
	assert_true(calls_until(&s, calls, 2, first_over, SERVICE_PATIENCE_NS));
	call_check(&calls[0]);
	assert_int_equal(calls[1].n, 7);
	call_credit(&s, &calls[1], 90);
	assert_true(calls_until(&s, calls, 2, all_over, SERVICE_PATIENCE_NS));
	call_check(&calls[1]);
	service_close(&s);
}

static void a_silent_client_is_cancelled_and_a_full_queue_refuses(void **state)
{
	struct service s;
	struct call calls[3];

	(void)state;
	need();
	service_open(&s, (const char *const[]){"threads=1", "ahead_max=900", "sessions_max=1",
				 "queue_max=1", "client_timeout=2s", NULL});
	for (uint32_t i = 0; i < 3; i++) {
		call_init(&calls[i], &answers[i], 0);
		calls[i].credit = 5;
	}
	ready(&s);
	for (uint32_t i = 0; i < 3; i++)
		call_generate(&s, &calls[i]);
	assert_true(calls_until(&s, calls, 3, third_over, SERVICE_PATIENCE_NS));
	assert_int_equal(calls[2].failure, EAGAIN);
	assert_non_null(strstr(calls[2].message, "limit 1"));
	call_cancel(&s, &calls[0]);
	call_credit(&s, &calls[0], 1000);
	assert_true(calls_until(&s, calls, 2, first_over, SERVICE_PATIENCE_NS));
	/* The other one never says a word again. */
	assert_false(calls_until(&s, calls, 3, never, 3500000000u));
	assert_int_equal(calls[1].n, 5);
	call_credit(&s, &calls[1], 1000);
	assert_true(calls_until(&s, calls + 1, 1, all_over, SERVICE_PATIENCE_NS));
	assert_int_equal(calls[1].end, SESSION_END_CANCELLED);
	service_close(&s);
}

static bool second_granted(const struct call *calls, size_t n)
{
	(void)n;
	return calls[1].n == calls[1].credit;
}

static void a_client_that_had_to_wait_has_all_of_client_timeout(void **state)
{
	struct service s;
	struct call calls[2];

	(void)state;
	need();
	/* The first one takes longer than that, in which the second waits with tokens granted. */
	service_open(&s, (const char *const[]){"threads=1", "kernels=scalar", "sessions_max=1",
				 "ahead_max=0", "client_timeout=1s", NULL});
	ready(&s);
	call_init(&calls[0], &answers[0], 600 / SERVICE_SLOWER);
	call_init(&calls[1], &answers[1], 60);
	calls[1].credit = 5;
	call_generate(&s, &calls[0]);
	call_generate(&s, &calls[1]);
	assert_true(calls_until(&s, calls, 2, second_granted, SERVICE_PATIENCE_NS));
	assert_true(calls[0].done);
	/* It is its turn now: for half of the time it says nothing. */
	assert_false(calls_until(&s, calls, 2, never, 500000000u));
	call_credit(&s, &calls[1], 1000);
	assert_true(calls_until(&s, calls, 2, all_over, SERVICE_PATIENCE_NS));
	call_check(&calls[1]);
	service_close(&s);
}

/* Answers that nobody reads, until there is room for no more: of so many, however small, those that still lie between client
 * and service are a small part. */
static void fill_socket(struct service *s)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Cancel nobodys = OUTRIDER__CANCEL__INIT;
	int sent = 0;

	nobodys.session_uid = 1;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_CANCEL;
	envelope.cancel = &nobodys;
	while (sent < 60000) {
		int rc = bus_send(s->socket, &envelope);

		assert_true(rc == 0 || rc == -EAGAIN);
		if (rc == 0)
			sent++;
		else
			poll(NULL, 0, 1);
	}
}

static void an_answer_that_had_to_wait_for_its_reader_is_kept_as_long_as_any(void **state)
{
	struct service s;
	struct call unread, other;
	void *reads_nothing, *reads;
	char endpoint[256];
	struct error err;

	(void)state;
	need();
	service_open(&s, (const char *const[]){"threads=1", "sessions_max=1", NULL});
	ready(&s);
	reads_nothing = s.socket;
	peers_client_endpoint(s.dir, endpoint, sizeof(endpoint));
	assert_int_equal(bus_client(s.zmq, endpoint, &reads, &err), 0);
	call_init(&unread, &answers[0], 40);
	unread.credit = 0;
	call_generate(&s, &unread);
	fill_socket(&s);
	s.socket = reads;
	call_credit(&s, &unread, 40);
	/* What came before it has been seen to when it is answered. */
	call_init(&other, &answers[1], 40);
	call_generate(&s, &other);
	assert_true(calls_until(&s, &other, 1, all_over, SERVICE_PATIENCE_NS));
	call_check(&other);
	s.socket = reads_nothing;
	assert_true(calls_until(&s, &unread, 1, all_over, SERVICE_PATIENCE_NS));
	call_check(&unread);
	/* The client asks again, as one does that lost its connection. */
	unread.done = false;
	unread.n = 0;
	unread.n_text = 0;
	call_resume(&s, &unread);
	assert_true(calls_until(&s, &unread, 1, all_over, SERVICE_PATIENCE_NS));
	call_check(&unread);
	bus_close(&reads);
	service_close(&s);
}

static void a_deadline_ends_a_session(void **state)
{
	struct service s;
	struct call c;

	(void)state;
	need();
	service_open(&s, (const char *const[]){"threads=1", "ahead_max=20", NULL});
	call_init(&c, &answers[0], 0);
	c.credit = 3; /* so it is paused, not finished, when its time is over */
	c.deadline_ms = 1500;
	ready(&s);
	call_generate(&s, &c);
	assert_false(calls_until(&s, &c, 1, never, 2500000000u));
	assert_int_equal(c.n, 3);
	call_credit(&s, &c, 1000);
	assert_true(calls_until(&s, &c, 1, all_over, SERVICE_PATIENCE_NS));
	assert_int_equal(c.end, SESSION_END_DEADLINE);
	assert_in_range(c.n, 3, 24);
	assert_memory_equal(c.token, answers[0].token, c.n * sizeof(*c.token));
	service_close(&s);
}

static void a_stop_string_across_tokens_ends_the_answer_before_it(void **state)
{
	struct service s;
	struct call whole, stopped;
	char stop[8];

	(void)state;
	need();
	service_open(&s, (const char *const[]){"threads=1", "stream_interval=0", NULL});
	call_init(&whole, &answers[2], 60);
	run_all(&s, &whole, 1);
	/* Seven bytes from the middle of the answer, so that they begin and end inside tokens. */
	assert_true(whole.n_text > 60);
	size_t at = whole.n_text / 2;
	while (at < whole.n_text - 7 && ((unsigned char)whole.text[at] & 0xc0) == 0x80)
		at++;
	memcpy(stop, whole.text + at, 7);
	stop[7] = '\0';
	for (int i = 0; i < 7; i++)
		assert_true(stop[i] != '\0');
	at = (size_t)(strstr(whole.text, stop) - whole.text);
	call_init(&stopped, &answers[2], 60);
	stopped.stop = stop;
	call_generate(&s, &stopped);
	assert_true(calls_until(&s, &stopped, 1, all_over, SERVICE_PATIENCE_NS));
	assert_int_equal(stopped.end, SESSION_END_STOP);
	assert_string_equal(stopped.stopped_by, stop);
	assert_int_equal(stopped.n_text, at);
	assert_memory_equal(stopped.text, whole.text, at);
	assert_true(stopped.n < 60);
	assert_memory_equal(stopped.token, whole.token, stopped.n * sizeof(*stopped.token));
	service_close(&s);
}

static void refused(struct service *s, struct call *c, int failure, const char *word)
{
	call_generate(s, c);
	assert_true(calls_until(s, c, 1, all_over, SERVICE_PATIENCE_NS));
	assert_int_equal(c->failure, failure);
	if (!strstr(c->message, word))
		fail_msg("\"%s\" does not say \"%s\"", c->message, word);
}

static void bad_requests_are_refused_with_the_reason_and_harm_nobody(void **state)
{
	struct service s;
	struct call c;
	struct answer bad = answers[0];
	static char long_stop[5000];

	(void)state;
	need();
	service_open(&s, (const char *const[]){"threads=1", "context=64", NULL});
	bad.n_prompt = 0;
	call_init(&c, &bad, 5);
	refused(&s, &c, EINVAL, "empty");
	bad = answers[0];
	bad.n_prompt = 100;
	call_init(&c, &bad, 5);
	refused(&s, &c, E2BIG, "100 tokens, but the context (the verifier's setting) has 64");
	bad = answers[0];
	bad.prompt[1] = 4096;
	call_init(&c, &bad, 5);
	refused(&s, &c, EINVAL, "token 1 is 4096");
	bad = answers[0];
	bad.sampling.temperature = -1;
	call_init(&c, &bad, 5);
	refused(&s, &c, EINVAL, "temperature");
	memset(long_stop, 'x', sizeof(long_stop));
	long_stop[sizeof(long_stop) - 1] = '\0';
	call_init(&c, &answers[0], 5);
	c.stop = long_stop;
	refused(&s, &c, EINVAL, "4999 bytes");
	call_init(&c, &answers[0], 5);
	c.k = 64;
	refused(&s, &c, EINVAL, "k_plus_one");
	call_init(&c, &answers[0], 5);
	c.uid = 0;
	refused(&s, &c, EINVAL, "session_uid");
	/* Where the drafts decide too, nobody can go on with an answer whose session is gone. */
	bad = answers[1];
	bad.sampling.coupling = COUPLING_MAXIMAL;
	call_init(&c, &bad, 20);
	c.have = 5;
	call_generate(&s, &c);
	assert_true(calls_until(&s, &c, 1, all_over, SERVICE_PATIENCE_NS));
	assert_int_equal(c.failure, ESTALE);
	assert_non_null(strstr(c.message, "maximal"));
	/* Nor where its first tokens were computed with other numbers. */
	call_init(&c, &answers[0], 20);
	c.have = 5;
	c.arithmetic = KERNELS_ARITHMETIC - 1;
	refused(&s, &c, ESTALE,
		"begun with arithmetic 2, but this verifier computes with arithmetic 3");
	/* Not a message at all. */
	call_init(&c, &answers[0], 5);
	assert_int_equal(zmq_send(s.socket, "\xff\xff\xff rubbish", 11, 0), 11);
	assert_true(calls_until(&s, &c, 1, all_over, SERVICE_PATIENCE_NS));
	assert_int_equal(c.failure, EPROTO);
	call_init(&c, &answers[0], 20);
	run_all(&s, &c, 1);
	service_close(&s);
}

static void a_second_verifier_in_the_directory_is_refused(void **state)
{
	struct service s, second;
	struct call c;
	int status;

	(void)state;
	need();
	service_open(&s, (const char *const[]){"threads=1", NULL});
	call_init(&c, &answers[0], 20);
	run_all(&s, &c, 1);
	second = s;
	service_start(&second);
	assert_int_equal(waitpid(second.pid, &status, 0), second.pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 0);
	call_init(&c, &answers[1], 20);
	run_all(&s, &c, 1);
	service_close(&s);
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "--drafter") == 0)
		return service_drafter_main(atoi(argv[2]));

	const struct CMUnitTest tests[] = {
		cmocka_unit_test(eight_sessions_at_once_give_the_tokens_and_logits_of_one_alone),
		cmocka_unit_test(sessions_that_must_share_few_kv_pages_give_the_same_tokens),
		cmocka_unit_test(right_drafts_change_no_token),
		cmocka_unit_test(wrong_drafts_change_no_token),
		cmocka_unit_test(tree_drafts_change_no_token),
		cmocka_unit_test(a_draft_that_never_comes_delays_nobody),
		cmocka_unit_test(a_draft_that_is_late_delays_nobody_and_is_used_or_not),
		cmocka_unit_test(rubbish_drafts_are_refused_and_change_no_token),
		cmocka_unit_test(a_killed_verifier_goes_on_from_its_pages),
		cmocka_unit_test(a_killed_verifier_goes_on_with_drafts_and_makes_its_hashes_again),
		cmocka_unit_test(a_finished_answer_keeps_its_hashes_when_the_verifier_is_killed),
		cmocka_unit_test(
			an_answer_that_was_finished_is_not_cancelled_while_its_hashes_are_made_again),
		cmocka_unit_test(finished_answers_of_a_killed_verifier_take_nobodys_place),
		cmocka_unit_test(hashes_are_made_again_only_for_a_client_that_waits_for_them),
		cmocka_unit_test(finished_answers_of_clients_that_vanished_take_nobodys_place),
		cmocka_unit_test(a_client_goes_on_when_a_killed_verifier_lost_everything),
		cmocka_unit_test(sessions_of_another_arithmetic_are_not_taken_over),
		cmocka_unit_test(a_client_that_takes_nothing_stalls_only_itself),
		cmocka_unit_test(a_silent_client_is_cancelled_and_a_full_queue_refuses),
		cmocka_unit_test(a_client_that_had_to_wait_has_all_of_client_timeout),
		cmocka_unit_test(an_answer_that_had_to_wait_for_its_reader_is_kept_as_long_as_any),
		cmocka_unit_test(a_deadline_ends_a_session),
		cmocka_unit_test(a_stop_string_across_tokens_ends_the_answer_before_it),
		cmocka_unit_test(bad_requests_are_refused_with_the_reason_and_harm_nobody),
		cmocka_unit_test(a_second_verifier_in_the_directory_is_refused),
	};

	return cmocka_run_group_tests(tests, group_setup, NULL);
}
