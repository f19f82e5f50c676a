#include "shared/ipc/given_up.h"

#include "shared/base/file.h"
#include "shared/ipc/peers.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void path_of(const char *runtime_dir, char *out, size_t bytes)
{
	snprintf(out, bytes, "%s/given-up", runtime_dir);
}

static uint64_t written_ns(const struct stat *st)
{
	return (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec;
}

void given_up_write(const char *runtime_dir, const char *why)
{
	char path[300], fresh[320];
	FILE *file;
	int fd;

	path_of(runtime_dir, path, sizeof path);
	snprintf(fresh, sizeof fresh, "%s.new", path);
	/* Anything at this path is left of an earlier attempt, or is not a file at all. */
	unlink(fresh);
	if (file_open_own(fresh, O_WRONLY | O_CREAT | O_EXCL, &fd, NULL) < 0)
		return;
	file = fdopen(fd, "w");
	if (!file) {
		close(fd);
		unlink(fresh);
		return;
	}
	fprintf(file, "%s\n", why);
	/* Written whole or not at all: it may be read at any moment. */
	if (fclose(file) != 0 || rename(fresh, path) < 0)
		unlink(fresh);
}

void given_up_clear(const char *runtime_dir)
{
	char path[300];

	path_of(runtime_dir, path, sizeof path);
	unlink(path);
}

bool given_up_read(
	const char *runtime_dir, uint64_t since_ns, bool *recent, char *why, size_t bytes)
{
	char path[300];
	struct stat st, socket;
	ssize_t n = -1;
	int fd;

	path_of(runtime_dir, path, sizeof path);
	if (file_open_own(path, O_RDONLY, &fd, NULL) < 0)
		return false;
	if (fstat(fd, &st) == 0)
		n = read(fd, why, bytes - 1);
	close(fd);
	if (n <= 0)
		return false;
	why[n] = '\0';
	why[strcspn(why, "\n")] = '\0';
	*recent = written_ns(&st) > since_ns;
	/* A verifier may have been started since by other means than `outrider up`. */
	peers_socket_path(runtime_dir, PEER_VERIFIER, path, sizeof path);
	return stat(path, &socket) < 0 || written_ns(&socket) <= written_ns(&st);
}
