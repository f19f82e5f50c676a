#include "client/cli/up_background.h"

#include "client/cli/cli.h"
#include "client/cli/stop.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

static void become_background(const int pipes[2], pid_t parent)
{
	int null;

	close(pipes[0]);
	setsid();
	/* When the foreground process ends, even by SIGKILL, this start is not wanted any more. */
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		raise(SIGTERM);
	null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (null >= 0)
		dup2(null, STDIN_FILENO);
	if (null > STDIN_FILENO)
		close(null);
}

int up_background_begin(struct up_background *background, int *ready_fd)
{
	pid_t parent = getpid();
	int pipes[2], code;

	if (pipe2(pipes, O_CLOEXEC) < 0) {
		code = -errno;
		cli_fail(EX_OSERR, "up: %s", strerror(-code));
		return code;
	}
	background->pid = fork();
	background->wait_fd = pipes[0];
	*ready_fd = pipes[1];
	if (background->pid == 0) {
		become_background(pipes, parent);
		return 0;
	}
	code = background->pid < 0 ? -errno : 1;
	close(pipes[1]);
	if (code < 0) {
		close(pipes[0]);
		cli_fail(EX_OSERR, "up: %s", strerror(-code));
	}
	return code;
}

void up_background_ready(int *ready_fd)
{
	unsigned char status = EX_OK;

	prctl(PR_SET_PDEATHSIG, 0);
	if (write(*ready_fd, &status, 1) < 0)
		perror("outrider up");
	close(*ready_fd);
	*ready_fd = -1;
}

/* The exit status for a background process that should have stayed, but ended. */
static int ended_status(pid_t pid)
{
	int how;

	if (waitpid(pid, &how, 0) != pid)
		return EX_SOFTWARE;
	if (WIFSIGNALED(how))
		return cli_fail(EX_SOFTWARE,
			"up: the process in the background was killed by signal %d (%s) before it "
			"was "
			"ready",
			WTERMSIG(how), strsignal(WTERMSIG(how)));
	/* The process has printed the reason. */
	return WEXITSTATUS(how) ? WEXITSTATUS(how) : EX_UNAVAILABLE;
}

int up_background_wait(const struct up_background *background, int stop_fd)
{
	struct pollfd fds[] = {
		{.fd = background->wait_fd, .events = POLLIN}, {.fd = stop_fd, .events = POLLIN}};
	struct stop stop, first = {0, 0};
	unsigned char status;

	for (;;) {
		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			break;
		while (stop_taken(stop_fd, &stop)) {
			first = first.number ? first : stop;
			/* A second signal makes it kill its children. */
			kill(background->pid, SIGTERM);
		}
		if (fds[0].revents == 0)
			continue;
		/* If it became ready just as it was stopped, it ends all the same. */
		if (read(background->wait_fd, &status, 1) == 1 && !first.number)
			return status;
		break;
	}
	int ended = ended_status(background->pid);
	return first.number ? stop_status(&first) : ended;
}
