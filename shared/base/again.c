#include "shared/base/again.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

int again_run(const char *name, const char *value, char **argv)
{
	if (setenv(name, value, 1) != 0)
		return -errno;
	/* What a driver has open keeps memory of its device; not every descriptor of it is closed by
	 * an exec. */
	(void)close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
	execv("/proc/self/exe", argv);
	return -errno;
}
