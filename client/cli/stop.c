#include "client/cli/stop.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

int stop_open(void)
{
	struct sigaction hang_up;
	sigset_t signals;
	int fd;

	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	/* Under nohup(1) the loss of a terminal is no reason to stop. */
	if (sigaction(SIGHUP, NULL, &hang_up) == 0 && hang_up.sa_handler != SIG_IGN)
		sigaddset(&signals, SIGHUP);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
	return fd < 0 ? -errno : fd;
}

void stop_unblock(void)
{
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

bool stop_taken(int fd, struct stop *stop)
{
	struct signalfd_siginfo info;

	if (read(fd, &info, sizeof info) != sizeof info)
		return false;
	*stop = (struct stop){(int)info.ssi_signo, (pid_t)info.ssi_pid};
	return true;
}

const char *stop_text(const struct stop *stop, char *out, size_t bytes)
{
	int n = snprintf(out, bytes, "SIG%s", sigabbrev_np(stop->number));

	if (stop->sender > 0 && n > 0 && (size_t)n < bytes)
		snprintf(out + n, bytes - (size_t)n, " from process %ld", (long)stop->sender);
	return out;
}

int stop_status(const struct stop *stop)
{
	return 128 + stop->number;
}
