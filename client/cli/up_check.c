#include "client/cli/up_check.h"

#include "client/cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

struct checker {
	const struct child *child;
	pid_t pid; /* 0: it could not be started */
	FILE *output;
};

static void become(const struct child *child, int output, pid_t parent) __attribute__((noreturn));

static void become(const struct child *child, int output, pid_t parent)
{
	static const char flag[] = "--check";
	const char *arguments[CHILD_ARGUMENTS_MAX + 2];
	int null = open("/dev/null", O_RDONLY);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(EX_UNAVAILABLE);
	signal(SIGPIPE, SIG_DFL);
	dup2(null, 0);
	dup2(output, 1);
	dup2(output, 2);
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

	*checker = (struct checker){.child = child};
	if (pipe2(pipes, O_CLOEXEC) < 0)
		return -errno;
	checker->pid = fork();
	if (checker->pid == 0)
		become(child, pipes[1], parent);
	int code = checker->pid < 0 ? -errno : 0;
	close(pipes[1]);
	checker->output = code == 0 ? fdopen(pipes[0], "r") : NULL;
	if (!checker->output)
		close(pipes[0]);
	if (checker->pid < 0)
		checker->pid = 0;
	return code;
}

/* What was said so far: two processes may find the same wrong with the same file. */
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

/* Passes its errors on, of one that fails without its last words; its status, 0 when all is well. */
static int end(struct checker *checker, struct said *said)
{
	char *line = NULL, last[512] = "it did not say why";
	size_t room = 0;
	bool any = false;
	int status = 0;

	while (checker->output && getline(&line, &room, checker->output) > 0) {
		line[strcspn(line, "\n")] = '\0';
		const char *error = strstr(line, CHILD_ERROR_MARK);

		if (error)
			say(said, checker->child->name, error + strlen(CHILD_ERROR_MARK));
		any |= error != NULL;
		snprintf(last, sizeof last, "%s", line);
	}
	free(line);
	if (checker->output)
		fclose(checker->output);
	while (waitpid(checker->pid, &status, 0) < 0 && errno == EINTR)
		;
	/* One that was killed says nothing about settings: its start will show. */
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
	if (code != 0 && !any)
		say(said, checker->child->name, last);
	return code;
}

int up_check(const struct supervisor *supervisor)
{
	struct checker checkers[SUPERVISOR_CHILDREN_MAX];
	struct said said = {.n = 0};
	int code = 0, status = 0, n = 0;

	for (; code == 0 && n < supervisor->n_children; n++)
		code = begin(&supervisor->children[n], &checkers[n]);
	for (int i = 0; i < n; i++) {
		int own = checkers[i].pid ? end(&checkers[i], &said) : 0;

		status = status ? status : own;
	}
	if (code < 0)
		return cli_fail(
			EX_OSERR, "up: the settings cannot be checked: %s", strerror(-code));
	return status;
}
