#include "client/cli/pidfile.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static void path_of(const char *runtime_dir, char *out, size_t bytes)
{
	snprintf(out, bytes, "%s/up.pid", runtime_dir);
}

static pid_t read_pid(int fd)
{
	char text[32];
	ssize_t n = pread(fd, text, sizeof text - 1, 0);

	text[n > 0 ? n : 0] = '\0';
	return (pid_t)strtol(text, NULL, 10);
}

/* Whether the name still leads to the open file. */
static bool is_at(const char *path, int fd)
{
	struct stat open_file, named;

	return fstat(fd, &open_file) == 0 && stat(path, &named) == 0 &&
	       open_file.st_dev == named.st_dev && open_file.st_ino == named.st_ino;
}

/* 0 with the lock on the file that was there at that moment. */
static int open_locked(const char *runtime_dir, const char *path, int *out, struct error *err)
{
	int code, fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (fd < 0)
		return error_set(err, errno, "%s: %s", path, strerror(errno));
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		code = errno == EWOULDBLOCK
			       ? error_set(err, EADDRINUSE,
					 "runtime directory %s: `outrider up` runs there already, "
					 "process %ld",
					 runtime_dir, (long)read_pid(fd))
			       : error_set(err, errno, "%s: %s", path, strerror(errno));
		close(fd);
		return code;
	}
	*out = fd;
	return 0;
}

int pidfile_take(const char *runtime_dir, int *out, struct error *err)
{
	char path[300];

	path_of(runtime_dir, path, sizeof path);
	for (;;) {
		int fd = -1, code = open_locked(runtime_dir, path, &fd, err);

		if (code < 0)
			return code;
		if (is_at(path, fd)) {
			*out = fd;
			return 0;
		}
		/* One that ended removed it between our open and our lock: who comes next would lock another file. */
		close(fd);
	}
}

void pidfile_write(int fd)
{
	char text[32];
	int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());

	/* `down` says so when it finds no number. */
	if (ftruncate(fd, 0) < 0 || pwrite(fd, text, (size_t)n, 0) != n)
		perror("outrider up: up.pid");
}

void pidfile_remove(const char *runtime_dir, int *fd)
{
	char path[300];

	path_of(runtime_dir, path, sizeof path);
	/* Before the lock goes: after it, the name could be another's. */
	unlink(path);
	close(*fd);
	*fd = -1;
}

bool pidfile_alive(const char *runtime_dir, pid_t *pid)
{
	char path[300];
	bool alive;
	int fd;

	*pid = 0;
	path_of(runtime_dir, path, sizeof path);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return false;
	alive = flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
	if (alive)
		*pid = read_pid(fd);
	close(fd);
	return alive;
}
