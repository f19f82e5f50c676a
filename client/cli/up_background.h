/* `outrider up --detach`: the foreground process, for which the shell waits, and the background
 * process, which stays. */
#pragma once

#include <sys/types.h>

struct up_background {
	pid_t pid;
	int wait_fd; /* the foreground's end of the pipe from it */
};

/* Before any thread is made. Returns 1 in the foreground process; 0 in the background process,
 * which gets SIGTERM if the other ends before up_background_ready; -errno after printing the
 * reason. *ready_fd: the background's end of the pipe. */
int up_background_begin(struct up_background *background, int *ready_fd);
/* In the background: all children are ready, so the foreground process may end. */
void up_background_ready(int *ready_fd);
/* In the foreground: waits until the other process is ready or has ended. Returns the exit status.
 * A signal that stops this process stops both. */
int up_background_wait(const struct up_background *background, int stop_fd);
