#include "shared/base/file.h"

#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static bool is_null_device(const struct stat *st)
{
	return S_ISCHR(st->st_mode) && st->st_rdev == makedev(1, 3);
}

static const char *kind_of(const struct stat *st)
{
	return S_ISDIR(st->st_mode)    ? "a directory"
	       : S_ISFIFO(st->st_mode) ? "a pipe"
	       : S_ISSOCK(st->st_mode) ? "a socket"
				       : "a device";
}

int file_open(const char *path, FILE **out, struct error *err)
{
	struct stat st;
	*out = NULL;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0 || fstat(fd, &st) < 0) {
		int code = errno;
		if (fd >= 0)
			close(fd);
		/* What open says of a socket. */
		return code == ENXIO
			       ? error_set(err, EBADMSG, "%s: a socket, not a regular file", path)
			       : error_set(err, code, "%s: %s", path, strerror(code));
	}
	if (!S_ISREG(st.st_mode) && !is_null_device(&st)) {
		close(fd);
		return error_set(err, S_ISDIR(st.st_mode) ? EISDIR : EBADMSG,
			"%s: %s, not a regular file", path, kind_of(&st));
	}
	*out = fdopen(fd, "r");
	if (*out)
		return 0;
	int code = errno;
	close(fd);
	return error_set(err, code, "%s: %s", path, strerror(code));
}
