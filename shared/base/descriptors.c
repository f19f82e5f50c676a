#include "shared/base/descriptors.h"

#include "shared/base/limits.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

uint64_t descriptors_limit(void)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_NOFILE, &limit) < 0 ? UINT64_MAX : limit.rlim_cur;
}

int descriptors_need(const char *process, uint64_t more, struct error *err)
{
	unsigned long long least = LIMIT_DESCRIPTORS + more;
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return error_set(err, errno, "limit of open files: %s", strerror(errno));
	/* The usual soft limit, 1024, is what select(2) can handle; the hard limit is what the
	 * parent process allows. */
	if (limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
			return error_set(err, errno, "limit of open files: %s", strerror(errno));
	}
	if (limit.rlim_cur >= least)
		return 0;
	return error_set(err, EMFILE,
		"%s needs a limit of at least %llu open files, and has %llu: raise it with ulimit "
		"-n, or LimitNOFILE of a unit",
		process, least, (unsigned long long)limit.rlim_cur);
}
