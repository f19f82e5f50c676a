#include "client/cli/up_log.h"

#include "client/cli/cli.h"

#include "shared/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sysexits.h>
#include <unistd.h>

static int log_fd = -1; /* the log, while the terminal gets the same */

/* A terminal that is gone, or a full disk, does not keep the text from the other. */
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

int up_log_open(const char *path)
{
	struct error err = {""};
	FILE *both;
	int code = file_open_own(path, O_WRONLY | O_CREAT | O_APPEND, &log_fd, &err);

	if (code == -EEXIST) {
		cli_fail(EX_CANTCREAT, "up: %s", err.text);
		return code;
	}
	if (code < 0) {
		fprintf(stderr, "outrider up: %s: there is no log\n", err.text);
		return 0;
	}
	both = fopencookie(NULL, "w", (cookie_io_functions_t){.write = write_both});
	if (!both)
		return 0;
	setvbuf(both, NULL, _IONBF, 0);
	stderr = both;
	return 0;
}

void up_log_alone(void)
{
	int fd = log_fd >= 0 ? log_fd : open("/dev/null", O_WRONLY | O_CLOEXEC);

	log_fd = -1;
	dup2(fd, STDOUT_FILENO);
	dup2(fd, STDERR_FILENO);
	close(fd);
}
