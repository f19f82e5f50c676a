/* The signals that ask `outrider up` to stop (SIGINT, SIGTERM and SIGHUP), as a descriptor for
 * poll(). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* The signal and its sender; 0 when the kernel sent it, for a key or because the terminal went
 * away. */
struct stop {
	int number;
	pid_t sender;
};

/* Blocks the signals in this process and all that it starts, except a SIGHUP that is ignored
 * already. Returns the descriptor, or -errno. */
int stop_open(void);
/* Unblocks the signals. Call in a new process of ours before it becomes another program. */
void stop_unblock(void);
/* Takes the next signal; false: there is none. */
bool stop_taken(int fd, struct stop *stop);
/* "SIGTERM from process 123" */
const char *stop_text(const struct stop *stop, char *out, size_t bytes);
/* The exit status for an end by this signal, as in a shell. */
int stop_status(const struct stop *stop);
