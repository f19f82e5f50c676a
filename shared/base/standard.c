#include "shared/base/standard.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

void standard_begin(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
		if (fcntl(fd, F_GETFD) >= 0)
			continue;
		/* open returns the lowest free descriptor, which is this one. */
		int opened = open("/dev/null", O_RDONLY | O_NOCTTY);

		/* Even a root directory without devices gives a descriptor that can be neither read
		 * nor written. */
		if (opened < 0)
			opened = open("/", O_PATH);
		if (opened != fd)
			_exit(EX_OSERR);
	}
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
}

static int lost; /* why a flush of stdout first failed */

bool standard_flush(void)
{
	if (fflush(stdout) != 0 && lost == 0)
		lost = errno;
	return lost == 0;
}

int standard_written(FILE *to, struct error *err)
{
	/* If a write failed before this flush, its errno is lost. */
	bool earlier = ferror(to) != 0;

	errno = 0;
	if (fflush(to) == 0 && !earlier)
		return 0;
	int why = to == stdout && lost ? lost : errno;
	return error_set(err, EIO, "standard output: %s",
		why ? strerror(why) : "not all of it could be written");
}

int standard_end_with(int status, int (*fail)(int status, const char *format, ...))
{
	struct error err = {""};

	/* A command that ends with 74 has already reported it. */
	if (status == EX_IOERR || standard_written(stdout, &err) == 0)
		return status;
	return fail(status != EX_OK ? status : EX_IOERR, "%s", err.text);
}

int standard_end(const char *program, int status)
{
	struct error err = {""};
	int code = standard_written(stdout, &err);

	/* A command that ends with 74 has already reported it. */
	if (code < 0 && status != EX_IOERR)
		fprintf(stderr, "%s: %s\n", program, err.text);
	return code < 0 && status == EX_OK ? EX_IOERR : status;
}
