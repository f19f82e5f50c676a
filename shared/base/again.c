#include "shared/base/again.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int again_run(const char *name, const char *value, const int *keep, size_t n_keep, char **argv)
{
	if (setenv(name, value, 1) != 0)
		return -errno;
	/* What a driver has open keeps memory of its device; not every descriptor of it is closed by
	 * an exec. */
	(void)close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
	for (size_t i = 0; i < n_keep; i++)
		(void)fcntl(keep[i], F_SETFD, 0);
	execv("/proc/self/exe", argv);
	return -errno;
}
