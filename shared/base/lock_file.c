#include "shared/base/lock_file.h"

#include "shared/base/file.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Between taking the lock and writing the pid there is a moment, which is longer on a busy machine.
 */
enum { LOOKS = 50 };
static const struct timespec look_pause = {.tv_nsec = 2000000};

static pid_t read_pid(int fd)
{
	for (int i = 0; i < LOOKS; i++) {
		char text[32];
		ssize_t n = pread(fd, text, sizeof text - 1, 0);
		text[n > 0 ? n : 0] = '\0';
		long pid = strtol(text, NULL, 10);

		if (pid > 0 && pid <= INT32_MAX)
			return (pid_t)pid;
		nanosleep(&look_pause, NULL);
	}
	return 0;
}

/* True when the name still leads to the open file. */
static bool is_at(const char *path, int fd)
{
	struct stat open_file, named;

	return fstat(fd, &open_file) == 0 && lstat(path, &named) == 0 &&
	       open_file.st_dev == named.st_dev && open_file.st_ino == named.st_ino;
}

int lock_file_write(int fd)
{
	char text[32];
	int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());

	/* Truncated behind the pid after writing it, so that a reader always finds one. */
	if (pwrite(fd, text, (size_t)n, 0) != n || ftruncate(fd, n) < 0)
		return -errno;
	return 0;
}

/* lock_file_held takes the lock for a moment, so this tries again. */
static int lock(int fd)
{
	for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; i++) {
		if (errno != EWOULDBLOCK || i == LOOKS)
			return -errno;
		nanosleep(&look_pause, NULL);
	}
	return 0;
}

int lock_file_take(const char *path, int *out, pid_t *holder, struct error *err)
{
	*holder = 0;
	for (;;) {
		int code = file_open_own(path, O_RDWR | O_CREAT, out, err);

		if (code < 0)
			return code;
		code = lock(*out);
		if (code == -EWOULDBLOCK)
			*holder = read_pid(*out);
		bool ours = code == 0 && is_at(path, *out);
		if (ours)
			code = lock_file_write(*out);
		if (ours && code == 0)
			return 0;
		close(*out);
		*out = -1;
		/* The holder removed the file between our open and our lock. The next process would
		 * lock another file, so this opens it again. */
		if (code < 0)
			return error_set(err, -code, "%s: %s", path, strerror(-code));
	}
}

void lock_file_remove(const char *path, int *fd)
{
	/* Unlinked before the lock is released: afterwards the name could belong to another
	 * process. */
	unlink(path);
	close(*fd);
	*fd = -1;
}

bool lock_file_held(const char *path, pid_t *holder)
{
	bool held;
	int fd;

	*holder = 0;
	if (file_open_own(path, O_RDONLY, &fd, NULL) < 0)
		return false;
	held = flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
	if (held)
		*holder = read_pid(fd);
	close(fd);
	return held;
}
