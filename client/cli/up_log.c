#include "client/cli/up_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int log_fd = -1; /* while the terminal is told the same */

/* A terminal that has gone, or a full disk, keeps nothing from the other. */
static ssize_t write_both(void *cookie, const char *text, size_t bytes)
{
	(void)cookie;
	for (int i = 0; i < 2; i++) {
		int fd = i ? log_fd : STDERR_FILENO;
		ssize_t n;

		for (size_t done = 0; fd >= 0 && done < bytes; done += (size_t)n) {
			n = write(fd, text + done, bytes - done);
			if (n < 0 && errno == EINTR)
				n = 0;
			else if (n <= 0)
				break;
		}
	}
	return (ssize_t)bytes;
}

void up_log_open(const char *path)
{
	FILE *both;

	log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (log_fd < 0) {
		fprintf(stderr, "outrider up: %s: %s: there is no log\n", path, strerror(errno));
		return;
	}
	both = fopencookie(NULL, "w", (cookie_io_functions_t){.write = write_both});
	if (!both)
		return;
	setvbuf(both, NULL, _IONBF, 0);
	stderr = both;
}

void up_log_alone(void)
{
	int fd = log_fd >= 0 ? log_fd : open("/dev/null", O_WRONLY | O_CLOEXEC);

	log_fd = -1;
	dup2(fd, STDOUT_FILENO);
	dup2(fd, STDERR_FILENO);
	close(fd);
}
