#include "client/cli/pidfile.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
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

int pidfile_take(const char *runtime_dir, int *out, struct error *err)
{
	char path[300];
	int fd, code;

	path_of(runtime_dir, path, sizeof path);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
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
