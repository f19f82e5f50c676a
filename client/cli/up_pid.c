#include "client/cli/up_pid.h"

#include "shared/base/lock_file.h"

#include <stdio.h>
#include <string.h>

static void path_of(const char *runtime_dir, char *out, size_t bytes)
{
	snprintf(out, bytes, "%s/up.pid", runtime_dir);
}

int up_pid_take(const char *runtime_dir, int *out, struct error *err)
{
	char path[300];
	pid_t holder;
	int code;

	path_of(runtime_dir, path, sizeof path);
	code = lock_file_take(path, out, &holder, err);
	if (code != -EWOULDBLOCK)
		return code;
	if (holder > 0)
		return error_set(err, EADDRINUSE,
			"runtime directory %s: `outrider up` already runs there as process %ld; "
			"`outrider down` stops it, and --runtime-dir DIR starts another beside it",
			runtime_dir, (long)holder);
	return error_set(err, EADDRINUSE,
		"runtime directory %s: another process holds up.pid but has written no process "
		"number into it",
		runtime_dir);
}

void up_pid_write(int fd)
{
	int code = lock_file_write(fd);

	/* `down` says so when it finds no number. */
	if (code < 0)
		fprintf(stderr, "outrider up: up.pid: %s\n", strerror(-code));
}

void up_pid_remove(const char *runtime_dir, int *fd)
{
	char path[300];

	path_of(runtime_dir, path, sizeof path);
	lock_file_remove(path, fd);
}

bool up_pid_alive(const char *runtime_dir, pid_t *pid)
{
	char path[300];

	path_of(runtime_dir, path, sizeof path);
	return lock_file_held(path, pid);
}
