/* A child's life under `outrider up`. */
#include "client/cli/supervisor.h"

#include "shared/base/clock.h"
#include "shared/base/memory.h"
#include "shared/base/units.h"
#include "shared/ipc/peers.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#define MS UINT64_C(1000000)
#define BACKOFF_NS_MIN (50 * MS)
#define BACKOFF_NS_MAX (1000 * MS)
#define LIFE_NS_GOOD (2000 * MS)
#define START_NS_MAX (90000 * MS) /* until READY=1, unless extended: systemd's default */
/* a life that was longer than this was of use before memory ran out */
#define FED_NS_GOOD (60000 * MS)
#define ABORT_NS_MAX (2000 * MS) /* from SIGABRT to SIGKILL */

enum { FIRST_PASSED_FD = 3 };

bool child_argument(struct child *child, const char *argument)
{
	if (child->n_arguments == CHILD_ARGUMENTS_MAX)
		return false;
	child->arguments[child->n_arguments++] = argument;
	return true;
}

int child_prepare(struct child *child, struct error *err)
{
	child->output_fd = -1;
	child->state = CHILD_WAITING;
	child->backoff_ns = BACKOFF_NS_MIN;
	return notify_open(child, err);
}

/* Passes the stored descriptors as 3, 4, ...: first moves them out of each other's way, then into
 * place. */
static void pass_stored(const struct child *child)
{
	int spare[CHILD_STORE_MAX] = {0};
	char text[32], names[CHILD_STORE_MAX * sizeof child->store[0].name] = "";
	size_t used = 0;

	for (size_t i = 0; i < child->n_stored; i++) {
		spare[i] = fcntl(child->store[i].fd, F_DUPFD_CLOEXEC,
			FIRST_PASSED_FD + (int)child->n_stored);
		if (spare[i] < 0)
			_exit(EX_OSERR);
	}
	for (size_t i = 0; i < child->n_stored; i++) {
		if (dup2(spare[i], FIRST_PASSED_FD + (int)i) < 0)
			_exit(EX_OSERR);
		used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ":" : "",
			child->store[i].name);
	}
	snprintf(text, sizeof text, "%zu", child->n_stored);
	setenv("LISTEN_FDS", text, 1);
	snprintf(text, sizeof text, "%ld", (long)getpid());
	setenv("LISTEN_PID", text, 1);
	setenv("LISTEN_FDNAMES", names, 1);
}

static void set_environment(const struct supervisor *supervisor, const struct child *child)
{
	char text[32];

	/* These are about this process, in case it is supervised too. */
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDNAMES");
	unsetenv("WATCHDOG_USEC");
	unsetenv("WATCHDOG_PID");
	setenv("NOTIFY_SOCKET", child->notify_name, 1);
	if (supervisor->watchdog_ns) {
		snprintf(text, sizeof text, "%llu",
			(unsigned long long)(supervisor->watchdog_ns / 1000));
		setenv("WATCHDOG_USEC", text, 1);
		snprintf(text, sizeof text, "%ld", (long)getpid());
		setenv("WATCHDOG_PID", text, 1);
	}
	if (child->n_stored)
		pass_stored(child);
}

void child_stdio(int output, pid_t parent)
{
	int null = open("/dev/null", O_RDONLY);

	/* Its state is in regions, so it loses nothing when it is killed, and it must not outlive
	 * this process. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(EX_UNAVAILABLE);
	signal(SIGPIPE, SIG_DFL);
	signal(SIGXFSZ, SIG_DFL);
	stop_unblock();
	setenv(PEERS_TOGETHER, "1", 1);
	dup2(null, 0);
	dup2(output, 1);
	dup2(output, 2);
	if (null > 2)
		close(null);
}

static void become(const struct supervisor *supervisor, const struct child *child, int output,
	pid_t parent) __attribute__((noreturn));

static void become(
	const struct supervisor *supervisor, const struct child *child, int output, pid_t parent)
{
	child_stdio(output, parent);
	/* The terminal's Ctrl-C is for this process, which tells its children. */
	setpgid(0, 0);
	set_environment(supervisor, child);
	execvp(child->arguments[0], (char *const *)child->arguments);
	/* Into the pipe: the parent passes it on to its stderr (up_log.c). */
	dprintf(STDERR_FILENO, "outrider up: %s: %s\n", child->arguments[0], strerror(errno));
	_exit(EX_OSFILE);
}

int child_start(struct supervisor *supervisor, struct child *child)
{
	pid_t parent = getpid();
	int pipes[2];

	if (pipe2(pipes, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	/* Only our end does not block. */
	fcntl(pipes[1], F_SETFL, 0);
	child->pid = fork();
	if (child->pid == 0)
		become(supervisor, child, pipes[1], parent);
	close(pipes[1]);
	if (child->pid < 0) {
		child->pid = 0;
		close(pipes[0]);
		return -errno;
	}
	if (child->output_fd >= 0)
		close(child->output_fd);
	child->output_fd = pipes[0];
	child->state = CHILD_STARTING;
	child->start_ns = clock_ns();
	child->deadline_ns = child->start_ns + START_NS_MAX;
	child->kill_ns = 0;
	child->killed = false;
	child->line_bytes = 0;
	child->last_line[0] = '\0';
	child->degraded[0] = '\0';
	return 0;
}

static void end_line(struct child *child)
{
	child->line[child->line_bytes] = '\0';
	bool error = strstr(child->line, CHILD_ERROR_MARK) != NULL;
	if (child->line_bytes && (error || !strstr(child->last_line, CHILD_ERROR_MARK)))
		memcpy(child->last_line, child->line, child->line_bytes + 1);
	if (child->quiet && error)
		fprintf(stderr, "%s\n", child->line);
	child->line_bytes = 0;
}

void child_output(struct child *child)
{
	char text[4096];
	ssize_t n;

	while (child->output_fd >= 0 && (n = read(child->output_fd, text, sizeof text)) != 0) {
		if (n < 0)
			return;
		if (!child->quiet)
			fwrite(text, 1, (size_t)n, stderr);
		for (ssize_t i = 0; i < n; i++)
			if (text[i] == '\n')
				end_line(child);
			else if (child->line_bytes < sizeof child->line - 1)
				child->line[child->line_bytes++] = text[i];
	}
	if (child->output_fd >= 0)
		close(child->output_fd);
	child->output_fd = -1;
}

/* Whether another start can only fail: the child never came up, and its status says that its input
 * is wrong. */
static bool hopeless(const struct child *child, int status)
{
	return !child->was_ready && WIFEXITED(status) && WEXITSTATUS(status) >= EX__BASE &&
	       WEXITSTATUS(status) <= EX__MAX && WEXITSTATUS(status) != EX_TEMPFAIL;
}

/* The same for a child that came up before, so its input has changed or was overwritten. It gets a
 * few attempts, for a file that is just being replaced. A missing file, or memory, may come back:
 * those attempts go on. */
static bool refuses(struct child *child, int status, bool was_up)
{
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : EX_OK;

	if (was_up || !error_status_is_final(code) || code == EX_OSERR)
		child->refusals = 0;
	else
		child->refusals++;
	return child->refusals >= CHILD_REFUSALS_MAX;
}

/* True after the last end that a child may have before it was ever ready: another start would most
 * likely fail in the same way. */
static bool never_starts(struct child *child)
{
	if (child->was_ready)
		return false;
	return ++child->early >= CHILD_EARLY_MAX;
}

/* Whether the kernel ended it for lack of memory; counts these ends. */
static bool starved(const struct supervisor *supervisor, struct child *child, int status)
{
	bool now = supervisor->starving && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;

	if (clock_ns() - child->start_ns >= FED_NS_GOOD || !now)
		child->starved = 0;
	child->starved += now;
	return now;
}

/* Whether its last line was printed. */
static bool said(const struct child *child)
{
	return child->last_line[0] && (!child->quiet || strstr(child->last_line, CHILD_ERROR_MARK));
}

/* why: NULL for its own last line. Returns as child_ended. */
static int give_up(
	struct supervisor *supervisor, struct child *child, const char *how, const char *why)
{
	bool all = child->needed || !child->was_ready;
	/* Mostly its last line was passed on already. */
	bool known = !why && said(child);

	if (!why)
		why = child->last_line[0] ? child->last_line : "it printed no reason";
	fprintf(stderr, "outrider up: %s %s, giving up%s%s%s\n", child->name, how,
		all ? "" : " on it; the others go on", known ? "" : ": ", known ? "" : why);
	child->state = CHILD_GIVEN_UP;
	child->start_ns = UINT64_MAX;
	if (!all)
		return 0;
	snprintf(supervisor->cause, sizeof supervisor->cause, "%s %s: %s", child->name, how, why);
	if (supervisor->on_failure)
		supervisor->on_failure(supervisor->arg, supervisor->cause);
	if (!WIFEXITED(child->status))
		return EX_OSERR;
	/* Only the child knows what another status means, 0 included. */
	int code = WEXITSTATUS(child->status);
	return code >= EX__BASE && code <= EX__MAX ? code : EX_SOFTWARE;
}

static void describe_starved(char *out, size_t out_bytes)
{
	struct memory_limit limit;

	memory_limit_now(&limit);
	snprintf(out, out_bytes, "ended by the kernel for lack of memory: %s has %s", limit.where,
		UNITS_SIZE(limit.bytes));
}

static int give_up_starved(struct supervisor *supervisor, struct child *child)
{
	struct memory_limit limit;
	char how[96], why[512];

	memory_limit_now(&limit);
	snprintf(how, sizeof how, "ended by the kernel for lack of memory %d times in a row",
		child->starved);
	snprintf(why, sizeof why,
		"%s has %s: give it more, set a smaller context, kv_tokens, sessions_max or "
		"budget, or serve a smaller model",
		limit.where, UNITS_SIZE(limit.bytes));
	child->needed |= child->holds_memory;
	return give_up(supervisor, child, how, why);
}

static void describe_end(int status, char *out, size_t bytes)
{
	if (WIFSIGNALED(status))
		snprintf(out, bytes, "killed by signal %d (%s)", WTERMSIG(status),
			strsignal(WTERMSIG(status)));
	else
		snprintf(out, bytes, "ended with status %d", WEXITSTATUS(status));
}

/* Whether the process itself is at fault for its end, not somebody who sent it a signal. */
static bool crashed(const struct child *child)
{
	static const int faults[] = {SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE, SIGSYS, SIGTRAP};

	if (!WIFSIGNALED(child->status) || child->killed)
		return false;
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
		if (WTERMSIG(child->status) == faults[i])
			return true;
	return false;
}

/* Its end, when everything ends. A crash is a bug that nobody else would see. */
static void ended_last(struct supervisor *supervisor, const struct child *child, pid_t pid)
{
	char how[96];

	if (!crashed(child))
		return;
	describe_end(child->status, how, sizeof how);
	fprintf(stderr,
		"outrider up: %s %s as it ended. This is a bug in %s: please report it with the "
		"lines above and, if the machine keeps core dumps, the output of `coredumpctl "
		"info %ld`\n",
		child->name, how, child->arguments[0], (long)pid);
	if (supervisor->exit_status == EX_OK)
		supervisor->exit_status = EX_SOFTWARE;
}

int child_ended(struct supervisor *supervisor, struct child *child, int status)
{
	uint64_t now = clock_ns();
	bool was_up = child->state == CHILD_READY;
	pid_t pid = child->pid;
	char how[384];

	child_output(child);
	end_line(child);
	notify_receive(supervisor, child);
	child->pid = 0;
	child->state = CHILD_WAITING;
	child->status = status;
	child->deadline_ns = child->kill_ns = 0;
	if (supervisor->stopping) {
		ended_last(supervisor, child, pid);
		return 0;
	}
	describe_end(status, how, sizeof how);
	if (starved(supervisor, child, status)) {
		if (child->starved >= CHILD_STARVED_MAX)
			return give_up_starved(supervisor, child);
		describe_starved(how, sizeof how);
	}
	if (hopeless(child, status))
		return give_up(supervisor, child, how, NULL);
	if (refuses(child, status, was_up)) {
		snprintf(how, sizeof how, "ended with status %d %d times in a row",
			WEXITSTATUS(status), child->refusals);
		return give_up(supervisor, child, how, NULL);
	}
	if (never_starts(child)) {
		size_t n = strlen(how);

		snprintf(how + n, sizeof how - n, ", for the %dth time before it was ready",
			child->early);
		return give_up(supervisor, child, how, NULL);
	}
	if (now - child->start_ns >= LIFE_NS_GOOD)
		child->backoff_ns = BACKOFF_NS_MIN;
	child->start_ns = now + child->backoff_ns;
	fprintf(stderr, "outrider up: %s %s; it restarts in %llu ms\n", child->name, how,
		(unsigned long long)(child->backoff_ns / MS));
	child->backoff_ns *= 2;
	if (child->backoff_ns > BACKOFF_NS_MAX)
		child->backoff_ns = BACKOFF_NS_MAX;
	return 0;
}

/* For a process or a pipe that the kernel refused. */
static int not_started(
	struct supervisor *supervisor, struct child *child, int code, uint64_t now_ns)
{
	char how[64];

	child->status = EX_OSERR << 8;
	snprintf(child->last_line, sizeof child->last_line, "%s", strerror(-code));
	if (never_starts(child)) {
		snprintf(how, sizeof how, "could not be started %d times", child->early);
		return give_up(supervisor, child, how, child->last_line);
	}
	fprintf(stderr, "outrider up: cannot start %s: %s\n", child->name, child->last_line);
	child->start_ns = now_ns + BACKOFF_NS_MAX;
	return 0;
}

static void kill_child(struct child *child, int number)
{
	child->killed = true;
	kill(child->pid, number);
}

int child_tick(struct supervisor *supervisor, struct child *child, uint64_t now_ns)
{
	if (!child->pid) {
		if (supervisor->stopping || now_ns < child->start_ns)
			return 0;
		int code = child_start(supervisor, child);

		return code < 0 ? not_started(supervisor, child, code, now_ns) : 0;
	}
	if (child->kill_ns && now_ns >= child->kill_ns) {
		/* After a second signal, or when it was aborted, it was killed before. */
		if (supervisor->stopping && !child->killed)
			fprintf(stderr,
				"outrider up: %s had not ended %d s after SIGTERM and was killed\n",
				child->name, CHILD_STOP_S_MAX);
		kill_child(child, SIGKILL);
		child->kill_ns = 0;
	}
	if (child->deadline_ns && now_ns >= child->deadline_ns && !supervisor->stopping) {
		fprintf(stderr, "outrider up: %s %s; it is aborted\n", child->name,
			child->state == CHILD_READY ? "missed its watchdog"
						    : "was not ready in time");
		kill_child(child, SIGABRT);
		/* A stopped process does not handle SIGABRT. */
		kill(child->pid, SIGCONT);
		child->deadline_ns = 0;
		child->kill_ns = now_ns + ABORT_NS_MAX;
	}
	return 0;
}

void child_forgive(struct child *child, uint64_t now_ns, uint64_t late_ns, uint64_t watchdog_ns)
{
	/* 1: it asked for its own end (WATCHDOG=trigger). */
	if (!child->pid || child->deadline_ns <= 1)
		return;
	if (child->state == CHILD_READY)
		child->deadline_ns = now_ns + watchdog_ns;
	else
		child->deadline_ns += late_ns;
}

uint64_t child_next_ns(const struct child *child)
{
	uint64_t next = UINT64_MAX;

	if (!child->pid)
		return child->start_ns;
	if (child->deadline_ns)
		next = child->deadline_ns;
	if (child->kill_ns && child->kill_ns < next)
		next = child->kill_ns;
	return next;
}

void child_close(struct child *child)
{
	if (child->output_fd >= 0)
		close(child->output_fd);
	close(child->notify_fd);
	store_close(child);
}
