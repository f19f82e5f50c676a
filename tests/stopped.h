/* Stops the test itself, as who presses ^Z or closes the lid does: another process does it, and
 * wakes it again. */
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* This process is stopped `times` times for so long, the first time 100 ms from now; then `also`
 * (0: none), which was stopped before, is woken, 300 ms later. Returns the pid of who does it, for
 * stopped_end. */
static inline pid_t stopped_begin(int times, unsigned ms, pid_t also)
{
	pid_t self = getpid(), pid = fork();

	if (pid != 0)
		return pid;
	/* A copy of a process with threads: nothing but system calls. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 0; i < times; i++) {
		usleep(100000);
		kill(self, SIGSTOP);
		usleep(ms * 1000);
		kill(self, SIGCONT);
	}
	usleep(300000);
	if (also)
		kill(also, SIGCONT);
	_exit(0);
}

static inline void stopped_end(pid_t pid)
{
	waitpid(pid, NULL, 0);
}
