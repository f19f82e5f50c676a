#include "shared/base/clock.h"
#include "shared/ipc/broker.h"
#include "shared/ipc/hello.h"
#include "shared/ipc/link.h"
#include "shared/ipc/peers.h"
#include "tests/until.h"

#include <errno.h>
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
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <zmq.h>

#include "tests/ipc/registrant.h"

/* What the processes of a test tell the test. */
struct board {
	_Atomic int owner_ready, owner_adopted, joined, left, regions, n_regions, lost, alive,
		offer_more, withdrawn, few_files, no_room;
	_Atomic uint64_t uid, generation, value;
};

static char dir[64];
static struct board *board;

struct process {
	struct daemon *daemon;
	struct broker *broker;
	struct link *link;
	struct region region, second;
	bool few_files;
};

static int setup(void **state)
{
	char command[128];

	(void)state;
	/* Not in the service manager's hands, whoever runs the tests. */
	unsetenv("NOTIFY_SOCKET");
	snprintf(dir, sizeof dir, "/tmp/outrider-test-%d", (int)getpid());
	snprintf(command, sizeof command, "rm -rf %s", dir);
	if (system(command) != 0 || mkdir(dir, 0700) < 0)
		return -1;
	board = mmap(
		NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return board == MAP_FAILED ? -1 : 0;
}

static int teardown(void **state)
{
	char command[128];

	(void)state;
	munmap(board, sizeof *board);
	snprintf(command, sizeof command, "rm -rf %s", dir);
	return system(command);
}

static void start(struct process *process, const char *name)
{
	struct daemon_options options = {.name = name, .runtime_dir = dir};
	struct error err = {""};

	memset(process, 0, sizeof *process);
	if (daemon_create(&options, &process->daemon, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		_exit(2);
	}
}

static void on_joined(void *arg, const char *peer, int pid, uint64_t generation)
{
	(void)arg;
	(void)pid;
	if (strcmp(peer, PEER_DRAFTER) == 0 && generation != 0)
		board->joined++;
}

static void on_left(void *arg, const char *peer)
{
	(void)arg;
	if (strcmp(peer, PEER_DRAFTER) == 0)
		board->left++;
}

static void offer_more(void *arg)
{
	struct process *p = arg;

	if (board->offer_more == 1) {
		board->offer_more = 2;
		if (region_create("draft", 1, 4096, 0, &p->second, NULL) < 0)
			_exit(3);
		broker_offer(p->broker, &p->second);
	}
}

/* The verifier: its "sessions" region is recovered or made, and offered. */
static void run_owner(void)
{
	struct broker_events events = {.joined = on_joined, .left = on_left};
	struct process p;
	struct error err = {""};
	int fd;

	start(&p, PEER_VERIFIER);
	if (broker_recover(p.daemon, "sessions", &fd) == 0) {
		if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY)
			_exit(9);
		if (region_adopt(fd, "sessions", 1, 0, &p.region, &err) < 0)
			_exit(4);
		board->owner_adopted++;
	} else if (region_create("sessions", 1, 8192, 0, &p.region, &err) < 0) {
		_exit(5);
	}
	*(uint64_t *)region_payload(&p.region) += 41;
	if (broker_open(p.daemon, &events, &p.broker, &err) < 0 ||
		daemon_admin_open(p.daemon, NULL, NULL, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		_exit(6);
	}
	if (!board->withdrawn)
		broker_offer(p.broker, &p.region);
	daemon_add_timer(p.daemon, 5000000, offer_more, &p);
	board->owner_ready++;
	daemon_run(p.daemon);
	broker_close(&p.broker);
	region_close(&p.region);
	region_close(&p.second);
	daemon_destroy(&p.daemon);
	exit(0);
}

enum { MANY_FILES = 1000 };

/* Lets this process open n more files. */
static void limit_files(int n)
{
	struct rlimit limit;
	int next = dup(0);

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		_exit(10);
	close(next);
	limit.rlim_cur = (rlim_t)(next + n);
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		_exit(10);
}

/* 0, or -errno where a descriptor is missing. */
static int take(struct process *p, const char *name, int from)
{
	int fd = dup(from);

	if (fd < 0)
		return -errno;
	region_close(&p->region);
	if (region_attach(fd, name, 1, 0, false, &p->region, NULL) < 0)
		_exit(8);
	return broker_keep(p->broker, &p->region);
}

static int on_regions(
	void *arg, const char *peer, const char *const *names, const int *fds, size_t n)
{
	struct process *p = arg;

	if (strcmp(peer, PEER_VERIFIER) != 0)
		_exit(7);
	for (size_t i = 0; i < n; i++) {
		/* The drafter writes to the rings alone. */
		int right = strcmp(names[i], "draft") == 0 ? O_RDWR : O_RDONLY;

		if ((fcntl(fds[i], F_GETFL) & O_ACCMODE) != right)
			_exit(9);
		if (strcmp(names[i], "sessions") != 0)
			continue;
		int code = take(p, names[i], fds[i]);

		if (code < 0) {
			board->no_room++;
			return code;
		}
		board->uid = p->region.header->uid;
		board->generation = p->region.header->generation;
		board->value = *(uint64_t *)region_payload(&p->region);
	}
	broker_keep_only(p->broker, peer, names, n);
	board->n_regions = (int)n;
	board->regions++;
	return 0;
}

static void on_lost(void *arg, const char *peer)
{
	(void)arg;
	if (strcmp(peer, PEER_VERIFIER) == 0)
		board->lost++;
}

static void report_alive(void *arg)
{
	struct process *p = arg;

	board->alive = link_alive(p->link);
	if (p->few_files && board->few_files == 0)
		limit_files(MANY_FILES);
}

/* The drafter: takes and keeps what the verifier offers. */
static void run_peer(void)
{
	struct process p;
	struct link_events events = {.regions = on_regions, .lost = on_lost, .arg = &p};
	struct error err = {""};

	start(&p, PEER_DRAFTER);
	if (broker_open(p.daemon, NULL, &p.broker, &err) < 0 ||
		daemon_admin_open(p.daemon, NULL, NULL, &err) < 0 ||
		link_open(p.daemon, PEER_VERIFIER, &events, &p.link, &err) < 0)
		_exit(9);
	daemon_add_timer(p.daemon, 2000000, report_alive, &p);
	p.few_files = board->few_files > 0;
	if (p.few_files)
		limit_files(board->few_files - 1);
	daemon_run(p.daemon);
	link_close(&p.link);
	broker_close(&p.broker);
	region_close(&p.region);
	daemon_destroy(&p.daemon);
	exit(0);
}

static pid_t spawn(void (*run)(void))
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves nobody behind */
		run();
	}
	return pid;
}

static void end(pid_t pid, int signal)
{
	int status;

	assert_int_equal(kill(pid, signal), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (signal == SIGTERM)
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void a_region_outlives_its_killed_owner_at_a_peer(void **state)
{
	pid_t owner, peer;
	uint64_t uid;

	(void)state;
	peer = spawn(run_peer); /* first: it has to try again until the owner comes */
	usleep(60000);
	assert_int_equal(board->alive, 0);
	owner = spawn(run_owner);
	UNTIL(board->regions == 1 && board->joined == 1 && board->alive == 1);
	assert_int_equal(board->value, 41);
	assert_int_equal(board->generation, 1);
	assert_int_equal(board->owner_adopted, 0);
	uid = board->uid;
	for (int life = 1; life <= 3; life++) {
		end(owner, SIGKILL);
		UNTIL(board->lost == life && board->alive == 0);
		owner = spawn(run_owner);
		UNTIL(board->regions == life + 1);
		assert_int_equal(board->owner_adopted, life);
		assert_int_equal(board->uid, uid); /* the very same memory */
		assert_int_equal(board->generation, life + 1);
		assert_int_equal(board->value, 41 * (life + 1));
	}
	end(peer, SIGKILL);
	UNTIL(board->left == 1);
	end(owner, SIGTERM);
}

static void a_region_offered_later_comes_later(void **state)
{
	pid_t owner = spawn(run_owner), peer = spawn(run_peer);

	(void)state;
	UNTIL(board->regions == 1);
	assert_int_equal(board->n_regions, 1);
	board->offer_more = 1;
	UNTIL(board->regions == 2);
	assert_int_equal(board->n_regions, 2);
	end(peer, SIGTERM);
	UNTIL(board->left == 1);
	end(owner, SIGTERM);
}

/* One descriptor is for the region that comes, and two are for the peer's copies of it. */
static void a_peer_without_room_for_a_region_gets_it_once_there_is(void **state)
{
	enum { ENOUGH = 3 };

	(void)state;
	for (int n = 0; n <= ENOUGH; n++) {
		pid_t owner, peer;

		memset(board, 0, sizeof *board);
		board->few_files = n + 1;
		owner = spawn(run_owner);
		UNTIL(board->owner_ready == 1);
		peer = spawn(run_peer);
		UNTIL(board->joined == 1);
		if (n > 0 && n < ENOUGH)
			UNTIL(board->no_room > 1);
		if (n < ENOUGH)
			assert_int_equal(board->regions, 0);
		board->few_files = 0;
		UNTIL(board->regions == 1);
		assert_int_equal(board->value, 41);
		/* All that over one connection. */
		assert_int_equal(board->joined, 1);
		assert_int_equal(board->lost, 0);
		end(peer, SIGTERM);
		end(owner, SIGTERM);
	}
}

static void a_second_process_of_a_name_is_refused_with_the_pid_of_the_first(void **state)
{
	struct daemon_options options = {.name = PEER_VERIFIER, .runtime_dir = dir};
	pid_t owner = spawn(run_owner), second;
	int status;

	(void)state;
	UNTIL(board->owner_ready == 1);
	second = fork();
	assert_true(second >= 0);
	if (second == 0) {
		struct daemon *daemon;
		struct broker *broker;
		struct error err = {""};
		char want[64];
		int code;

		snprintf(want, sizeof want, "process %d", (int)owner);
		if (daemon_create(&options, &daemon, &err) < 0)
			_exit(1);
		code = broker_open(daemon, NULL, &broker, &err);
		_exit(code == -EADDRINUSE && strstr(err.text, want) ? 0 : 1);
	}
	assert_int_equal(waitpid(second, &status, 0), second);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	end(owner, SIGKILL);
	owner = spawn(run_owner); /* over the stale socket and lock file */
	UNTIL(board->owner_ready == 2);
	end(owner, SIGTERM);
}

static int connect_to(const char *name)
{
	char path[128];
	int fd;

	peers_socket_path(dir, name, path, sizeof path);
	assert_int_equal(hello_connect(path, &fd), 0);
	return fd;
}

/* The one answer to a packet; 0 or what hello_answer_receive says. */
static int ask(int fd, const void *packet, size_t bytes, struct hello_answer *answer)
{
	int fds[LIMIT_REGIONS], code;
	struct pollfd item = {.fd = fd, .events = POLLIN};

	assert_int_equal(hello_send(fd, packet, bytes, NULL, 0), 0);
	assert_int_equal(poll(&item, 1, 10000), 1);
	code = hello_answer_receive(fd, answer, fds, NULL);
	for (size_t i = 0; code == 0 && i < answer->n; i++)
		close(fds[i]);
	close(fd);
	return code;
}

/* Whether the drafter still has "sessions" for the verifier's successor. */
static bool is_kept(void)
{
	struct hello_answer answer;
	struct hello hello;

	hello_init(&hello, HELLO_RECOVER, PEER_VERIFIER, 1);
	strcpy(hello.region, "sessions");
	assert_int_equal(ask(connect_to(PEER_DRAFTER), &hello, sizeof hello, &answer), 0);
	assert_int_equal(answer.kind, HELLO_REGIONS);
	return answer.n == 1;
}

static void a_region_its_owner_offers_no_longer_is_not_kept(void **state)
{
	pid_t owner = spawn(run_owner), peer = spawn(run_peer);

	(void)state;
	UNTIL(board->regions == 1);
	assert_true(is_kept());
	end(owner, SIGKILL);
	assert_true(is_kept());
	board->withdrawn = 1;
	owner = spawn(run_owner);
	UNTIL(board->regions >= 2);
	assert_false(is_kept());
	end(peer, SIGTERM);
	end(owner, SIGTERM);
}

static void an_owner_has_its_peers_forget_a_region_at_once(void **state)
{
	pid_t owner = spawn(run_owner), peer = spawn(run_peer);
	struct hello_answer answer;
	struct hello hello;

	(void)state;
	UNTIL(board->regions == 1);
	end(owner, SIGKILL);
	UNTIL(board->lost == 1);
	hello_init(&hello, HELLO_FORGET, PEER_POLICY, 1);
	strcpy(hello.region, "sessions");
	assert_int_equal(ask(connect_to(PEER_DRAFTER), &hello, sizeof hello, &answer), 0);
	assert_int_equal(answer.kind, HELLO_REFUSED); /* another's it cannot */
	assert_true(is_kept());
	hello_init(&hello, HELLO_FORGET, PEER_VERIFIER, 1);
	strcpy(hello.region, "sessions");
	assert_int_equal(ask(connect_to(PEER_DRAFTER), &hello, sizeof hello, &answer), 0);
	assert_int_equal(answer.kind, HELLO_REGIONS);
	assert_int_equal(answer.n, 0);
	assert_false(is_kept());
	end(peer, SIGTERM);
}

static void refused(const void *packet, size_t bytes, const char *why)
{
	struct hello_answer answer;

	assert_int_equal(ask(connect_to(PEER_VERIFIER), packet, bytes, &answer), 0);
	assert_int_equal(answer.kind, HELLO_REFUSED);
	assert_non_null(strstr(answer.reason, why));
}

static void hellos_that_should_not_be_are_refused_with_the_reason(void **state)
{
	pid_t owner = spawn(run_owner);
	struct hello hello;
	char rubbish[sizeof hello + 100];
	struct hello_answer answer;
	struct registrant registrant;
	struct peer_card card;

	(void)state;
	UNTIL(board->owner_ready == 1);
	hello_init(&hello, HELLO_JOIN, PEER_DRAFTER, 1);
	hello.version = HELLO_VERSION + 1;
	refused(&hello, sizeof hello, "version 2, this is version 1");
	hello_init(&hello, HELLO_JOIN, PEER_DRAFTER, 1);
	hello.version = HELLO_VERSION + 1;
	refused(&hello, sizeof hello - 40,
		"version 2, this is version 1"); /* also of another size */
	hello_init(&hello, HELLO_JOIN, "intruder", 1);
	refused(&hello, sizeof hello, "\"intruder\" is not a process");
	hello_init(&hello, HELLO_JOIN, PEER_POLICY, 1);
	refused(&hello, sizeof hello, "policy may not connect to verifier");
	hello_init(&hello, HELLO_RECOVER, PEER_DRAFTER, 1);
	strcpy(hello.region, "sessions");
	refused(&hello, sizeof hello, "\"sessions\" is not drafter's");
	hello_init(&hello, 77, PEER_DRAFTER, 1);
	refused(&hello, sizeof hello, "unknown kind 77");
	memset(rubbish, 'x', sizeof rubbish);
	refused(rubbish, 3, "3 bytes");
	refused(rubbish, sizeof hello, "not a hello");
	refused(rubbish, sizeof rubbish, "expected");
	/* A name without an end. */
	hello_init(&hello, HELLO_JOIN, PEER_DRAFTER, 1);
	memset(hello.name, 'd', sizeof hello.name);
	refused(&hello, sizeof hello, "not a process");
	/* Right in itself, but of a process that has not registered. */
	hello_init(&hello, HELLO_JOIN, PEER_DRAFTER, 1);
	refused(&hello, sizeof hello, "drafter has not registered with verifier");
	card = registrant_card(PEER_DRAFTER, 2);
	registrant_start(&registrant, dir, PEER_VERIFIER, &card);
	refused(&hello, sizeof hello, "drafter has not registered with verifier");
	/* After all that a good one is served. */
	hello_init(&hello, HELLO_JOIN, PEER_DRAFTER, 2);
	assert_int_equal(ask(connect_to(PEER_VERIFIER), &hello, sizeof hello, &answer), 0);
	assert_int_equal(answer.kind, HELLO_REGIONS);
	assert_int_equal(answer.n, 1);
	assert_string_equal(answer.regions[0], "sessions");
	registrant_close(&registrant);
	end(owner, SIGTERM);
}

static void the_silent_do_not_keep_peers_out(void **state)
{
	pid_t owner = spawn(run_owner);
	int silent[3 * LIMIT_PEERS];
	struct hello_answer answer;
	struct registrant registrant;
	struct peer_card card = registrant_card(PEER_DRAFTER, 1);
	struct hello hello;

	(void)state;
	UNTIL(board->owner_ready == 1);
	registrant_start(&registrant, dir, PEER_VERIFIER, &card);
	for (size_t i = 0; i < sizeof silent / sizeof silent[0]; i++) {
		silent[i] = connect_to(PEER_VERIFIER);
		usleep(2000); /* the backlog is as long as the table */
	}
	hello_init(&hello, HELLO_JOIN, PEER_DRAFTER, 1);
	assert_int_equal(ask(connect_to(PEER_VERIFIER), &hello, sizeof hello, &answer), 0);
	assert_int_equal(answer.kind, HELLO_REGIONS);
	for (size_t i = 0; i < sizeof silent / sizeof silent[0]; i++)
		close(silent[i]);
	registrant_close(&registrant);
	end(owner, SIGTERM);
}

static void descriptors_nobody_asked_for_are_closed(void **state)
{
	pid_t owner = spawn(run_owner);
	struct hello_answer answer;
	struct hello hello;
	int pipes[2], fd;
	char byte;

	(void)state;
	UNTIL(board->owner_ready == 1);
	assert_int_equal(pipe(pipes), 0);
	fd = connect_to(PEER_VERIFIER);
	hello_init(&hello, HELLO_RECOVER, PEER_VERIFIER, 1);
	strcpy(hello.region, "kv");
	assert_int_equal(hello_send(fd, &hello, sizeof hello, &pipes[1], 1), 0);
	close(pipes[1]);
	assert_int_equal(
		read(pipes[0], &byte, 1), 0); /* the end: no process holds the other side */
	assert_int_equal(ask(fd, &hello, sizeof hello, &answer), 0);
	assert_int_equal(
		answer.n, 0); /* asked for a region that is not kept: no region, no refusal */
	close(pipes[0]);
	end(owner, SIGTERM);
}

static int look_as(const char *name, const char *region, bool offered)
{
	struct process p;
	struct region found;
	struct error err;
	int fd = -1, code = -ETIMEDOUT;

	start(&p, name);
	/* One that had no time to answer does so another time. */
	for (int i = 0; (code == -ETIMEDOUT || (offered && code != 0)) && i < 100; i++)
		code = broker_look(p.daemon, PEER_VERIFIER, region, &fd, &err);
	if (code == 0 && (region_attach(fd, region, 1, 0, false, &found, NULL) < 0 ||
				 *(uint64_t *)region_payload(&found) != 41))
		code = -EIO;
	return code;
}

/* Only what is offered, and only by who may join. */
static void who_looks_at_a_region_gets_it_without_joining(void **state)
{
	static const struct {
		const char *name, *region;
		int code;
	} cases[] = {{PEER_DRAFTER, "sessions", 0}, {PEER_DRAFTER, "draft", -EAGAIN},
		{PEER_POLICY, "sessions", -EPERM}};
	pid_t owner = spawn(run_owner);

	(void)state;
	UNTIL(board->owner_ready == 1);
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		int status = 0;
		pid_t pid = fork();

		assert_true(pid >= 0);
		if (pid == 0)
			_exit(-look_as(cases[i].name, cases[i].region, cases[i].code == 0));
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), -cases[i].code);
	}
	assert_int_equal(board->joined, 0);
	end(owner, SIGTERM);
}

/* What a look at the owner's region fails with, in a process of its own; want: what it would be. */
static void look_fails(int want)
{
	int status = 0;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		struct process p;
		struct error err;
		int fd, code;

		start(&p, PEER_DRAFTER);
		code = broker_look(p.daemon, PEER_VERIFIER, "sessions", &fd, &err);
		_exit(code < 0 && err.text[0] ? -code : 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), -want);
}

static void who_is_not_there_is_told_from_who_does_not_answer(void **state)
{
	char path[128];
	int fd;

	(void)state;
	peers_socket_path(dir, PEER_VERIFIER, path, sizeof path);
	look_fails(-ENOENT);
	pid_t owner = spawn(run_owner);
	UNTIL(board->owner_ready == 1);
	kill(owner, SIGSTOP);
	look_fails(-ETIMEDOUT);
	while (hello_connect(path, &fd) == 0)
		continue; /* until its backlog is full */
	look_fails(-EAGAIN);
	end(owner, SIGKILL);
	look_fails(-ENOENT); /* its socket is still there */
}

static void there_is_nothing_to_recover_from_nobody(void **state)
{
	pid_t pid = fork();
	int status;

	(void)state;
	assert_true(pid >= 0);
	if (pid == 0) {
		struct process p;
		int fd;

		start(&p, PEER_VERIFIER);
		_exit(broker_recover(p.daemon, "sessions", &fd) == -ENOENT ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void a_peer_that_never_answers_costs_300_ms(void **state)
{
	pid_t owner = spawn(run_peer), pid;
	char path[128];
	int status, fd;

	(void)state;
	peers_socket_path(dir, PEER_DRAFTER, path, sizeof path);
	UNTIL(hello_connect(path, &fd) == 0);
	close(fd);
	kill(owner, SIGSTOP);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct process p;
		uint64_t start_ns, took_ns;
		int code;

		start(&p, PEER_VERIFIER);
		/* It costs more where nobody had time to look; not every time. */
		for (int i = 0; i < 10; i++) {
			start_ns = clock_ns();
			code = broker_recover(p.daemon, "sessions", &fd);
			took_ns = clock_ns() - start_ns;
			if (code != -ENOENT || took_ns <= 250000000)
				_exit(1);
			if (took_ns < 5000000000)
				_exit(0);
		}
		_exit(1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	end(owner, SIGKILL);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_region_outlives_its_killed_owner_at_a_peer),
		TEST(a_region_its_owner_offers_no_longer_is_not_kept),
		TEST(an_owner_has_its_peers_forget_a_region_at_once),
		TEST(a_region_offered_later_comes_later),
		TEST(a_peer_without_room_for_a_region_gets_it_once_there_is),
		TEST(a_second_process_of_a_name_is_refused_with_the_pid_of_the_first),
		TEST(hellos_that_should_not_be_are_refused_with_the_reason),
		TEST(the_silent_do_not_keep_peers_out),
		TEST(descriptors_nobody_asked_for_are_closed),
		TEST(who_looks_at_a_region_gets_it_without_joining),
		TEST(who_is_not_there_is_told_from_who_does_not_answer),
		TEST(there_is_nothing_to_recover_from_nobody),
		TEST(a_peer_that_never_answers_costs_300_ms),
	};

	return cmocka_run_group_tests_name("broker", tests, NULL, NULL);
}
