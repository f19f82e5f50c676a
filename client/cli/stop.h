/* The signals that ask `outrider up` to stop, SIGINT, SIGTERM and SIGHUP, as a descriptor to wait for beside others. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* What asked, and who: 0 where the kernel did, for a key or a terminal that went away. */
struct stop {
	int number;
	pid_t sender;
};

/* Blocks them in this process and all it starts, but for a SIGHUP that is ignored already; the descriptor, or -errno. */
int stop_open(void);
/* In a new process of ours that is to be another program: none is blocked. */
void stop_unblock(void);
/* The next that came; false: none. */
bool stop_taken(int fd, struct stop *stop);
/* "SIGTERM from process 123" */
const char *stop_text(const struct stop *stop, char *out, size_t bytes);
/* As a shell counts the ends by a signal. */
int stop_status(const struct stop *stop);
