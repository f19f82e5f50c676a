/* `outrider up --detach`: the process that the shell waits for, in the foreground, and the one that stays. */
#pragma once

#include <sys/types.h>

struct up_background {
	pid_t pid;
	int wait_fd; /* of the pipe from it */
};

/* Before any thread is made. 1 in the foreground process; 0 in the one in the background, which gets SIGTERM when the other ends
 * before up_background_ready; -errno after saying why. *ready_fd: the background's end of the pipe. */
int up_background_begin(struct up_background *background, int *ready_fd);
/* In the background: all are ready, the other may go. */
void up_background_ready(int *ready_fd);
/* In the foreground: waits until the other is ready or has ended; the exit status. A signal that stops this one stops both. */
int up_background_wait(const struct up_background *background, int stop_fd);
