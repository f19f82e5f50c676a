#include "client/cli/up_check.h"

#include "client/cli/cli.h"

#include "shared/base/patience.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

/* For all checks together. A check reads the heads of a model's files, which takes seconds on a
 * slow disk. */
enum { CHECK_MS_MAX = 60000 };

struct checker {
	const struct child *child;
	pid_t pid; /* 0: it could not be started */
	int output; /* its output; -1: closed */
	char line[2048]; /* the unfinished line; what is too long is cut */
	size_t line_bytes;
	char last[512]; /* the last whole one */
	bool any; /* an error was passed on */
};

static void become(const struct child *child, int output, pid_t parent) __attribute__((noreturn));

static void become(const struct child *child, int output, pid_t parent)
{
	static const char flag[] = "--check";
	const char *arguments[CHILD_ARGUMENTS_MAX + 2];

	child_stdio(output, parent);
	memcpy(arguments, child->arguments, (size_t)child->n_arguments * sizeof *arguments);
	arguments[child->n_arguments] = flag;
	arguments[child->n_arguments + 1] = NULL;
	execvp(arguments[0], (char *const *)arguments);
	fprintf(stderr, "%s: %s\n", arguments[0], strerror(errno));
	_exit(EX_OSFILE);
}

static int begin(const struct child *child, struct checker *checker)
{
	pid_t parent = getpid();
	int pipes[2];

	*checker = (struct checker){.child = child, .output = -1, .last = "it printed no reason"};
	if (pipe2(pipes, O_CLOEXEC) < 0)
		return -errno;
	checker->pid = fork();
	if (checker->pid == 0)
		become(child, pipes[1], parent);
	int code = checker->pid < 0 ? -errno : 0;
	close(pipes[1]);
	if (code == 0)
		checker->output = pipes[0];
	else
		close(pipes[0]);
	if (checker->pid < 0)
		checker->pid = 0;
	return code;
}

/* What was printed so far, because two processes may report the same problem of the same file. */
struct said {
	char text[SUPERVISOR_CHILDREN_MAX][1024];
	int n;
};

static void say(struct said *said, const char *name, const char *text)
{
	for (int i = 0; i < said->n; i++)
		if (strncmp(said->text[i], text, sizeof said->text[i] - 1) == 0)
			return;
	if (said->n < SUPERVISOR_CHILDREN_MAX)
		snprintf(said->text[said->n++], sizeof said->text[0], "%s", text);
	cli_fail(0, "up: %s: %s", name, text);
}

static void take_line(struct checker *checker, struct said *said)
{
	const char *error;

	if (checker->line_bytes == 0)
		return;
	checker->line[checker->line_bytes] = '\0';
	checker->line_bytes = 0;
	error = strstr(checker->line, CHILD_ERROR_MARK);
	if (error)
		say(said, checker->child->name, error + strlen(CHILD_ERROR_MARK));
	checker->any |= error != NULL;
	snprintf(checker->last, sizeof checker->last, "%.511s", checker->line);
}

/* Reads one piece of its output; false at the end. */
static bool read_some(struct checker *checker, struct said *said)
{
	char piece[4096];
	ssize_t n = read(checker->output, piece, sizeof piece);

	if (n < 0 && errno == EINTR)
		return true;
	for (ssize_t i = 0; i < n; i++) {
		if (piece[i] == '\n')
			take_line(checker, said);
		else if (checker->line_bytes < sizeof checker->line - 1)
			checker->line[checker->line_bytes++] = piece[i];
	}
	if (n <= 0)
		take_line(checker, said);
	return n > 0;
}

/* What all of them share. */
struct checking {
	int stop_fd;
	struct stop stop; /* number 0: nothing asked to stop */
	struct patience patience;
	struct said said;
};

/* Reads until it has ended; false when the time is over, or all must stop. *status: as from
 * waitpid. */
static bool follow(struct checker *checker, struct checking *all, int *status)
{
	for (;;) {
		int step_ms = patience_step_ms(&all->patience);
		bool closed = checker->output < 0;
		struct pollfd fds[] = {{.fd = checker->output, .events = POLLIN},
			{.fd = all->stop_fd, .events = POLLIN}};

		/* A check that has closed its output has ended, or will in a moment. */
		if (poll(fds, 2, closed && step_ms > 0 ? 1 : step_ms) > 0 && fds[0].revents &&
			!read_some(checker, &all->said)) {
			close(checker->output);
			checker->output = -1;
		}
		if (fds[1].revents && stop_taken(all->stop_fd, &all->stop))
			return false;
		if (checker->output < 0 && waitpid(checker->pid, status, WNOHANG) != 0)
			return true;
		if (step_ms == 0 && fds[0].revents == 0)
			return false;
	}
}

/* Does not wait for it: it may hang where it cannot be ended. */
static int give_up(struct checker *checker, const struct stop *stop)
{
	kill(checker->pid, SIGKILL);
	if (checker->output >= 0)
		close(checker->output);
	if (stop->number)
		return stop_status(stop);
	return cli_fail(EX_UNAVAILABLE,
		"up: %s: %s --check has not ended in %d s and was killed: a file that it reads, "
		"such as the model, may be on a disk or a server that does not answer",
		checker->child->name, checker->child->arguments[0], CHECK_MS_MAX / 1000);
}

/* Passes its errors on; if it fails without any, its last output. Returns its status, 0 when all is
 * well. */
static int end(struct checker *checker, struct checking *all)
{
	int status = 0;

	/* All other checks end too. */
	if (all->stop.number || !follow(checker, all, &status))
		return give_up(checker, &all->stop);
	/* A check that was killed says nothing about settings: the start will show. */
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
	if (code != 0 && !checker->any)
		say(&all->said, checker->child->name, checker->last);
	return code;
}

int up_check(const struct supervisor *supervisor)
{
	struct checker checkers[SUPERVISOR_CHILDREN_MAX];
	struct checking all = {.stop_fd = supervisor->stop_fd};
	char text[64];
	int code = 0, status = 0, n = 0;

	patience_init(&all.patience, CHECK_MS_MAX);
	for (; code == 0 && n < supervisor->n_children; n++)
		code = begin(&supervisor->children[n], &checkers[n]);
	for (int i = 0; i < n; i++) {
		int own = checkers[i].pid ? end(&checkers[i], &all) : 0;

		status = status ? status : own;
	}
	if (code < 0)
		return cli_fail(
			EX_OSERR, "up: the settings cannot be checked: %s", strerror(-code));
	if (all.stop.number)
		return cli_fail(stop_status(&all.stop), "up: stopped by %s before it was ready",
			stop_text(&all.stop, text, sizeof text));
	return status;
}
