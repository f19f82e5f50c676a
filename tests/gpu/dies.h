/* For tests of what ends the process: the emulation names what is wrong, and aborts. Include after
 * cmocka.h. */
#pragma once

#include <csignal>
#include <cstdio>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

/* run(), in a process of its own, must end by SIGABRT, with a message that has `text`. */
template <class RUN> static void dies(RUN run, const char *text)
{
	int pipes[2], status;
	char said[512] = "";

	assert_int_equal(pipe(pipes), 0);
	pid_t child = fork();
	if (child == 0) {
		dup2(pipes[1], STDERR_FILENO);
		run();
		_exit(0);
	}
	close(pipes[1]);
	assert_true(child > 0);
	size_t have = 0;
	ssize_t n;
	while (have < sizeof(said) - 1 &&
		(n = read(pipes[0], said + have, sizeof(said) - 1 - have)) > 0)
		have += static_cast<size_t>(n);
	close(pipes[0]);
	assert_int_equal(waitpid(child, &status, 0), child);
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT || !strstr(said, text))
		fail_msg("status %d, said: %s", status, said);
}
