#include "shared/ipc/listener.h"

#include "shared/base/descriptors.h"
#include "shared/ipc/bus.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int open_at(const char *path, int type, int backlog, int *fd)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	memcpy(address.sun_path, path, strlen(path) + 1);
	*fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* The mode is set before listen; until then nobody can connect. */
	if (*fd < 0 || bind(*fd, (struct sockaddr *)&address, sizeof address) < 0 ||
		chmod(path, 0600) < 0 || listen(*fd, backlog) < 0)
		return -errno;
	return 0;
}

int listener_open(const char *path, int type, int backlog, int *fd, struct error *err)
{
	int pid = 0, code;

	*fd = -1;
	if (strlen(path) >= sizeof((struct sockaddr_un *)0)->sun_path)
		return error_set(err, ENAMETOOLONG, "%s: longer than %zu bytes", path,
			sizeof((struct sockaddr_un *)0)->sun_path - 1);
	if (bus_probe(path, type, &pid) == 0)
		return error_set(err, EADDRINUSE, "%s: in use by process %d", path, pid);
	if (unlink(path) < 0 && errno != ENOENT)
		return error_set(err, errno, "%s: cannot replace it: %s", path, strerror(errno));
	code = open_at(path, type, backlog, fd);
	if (code == 0)
		return 0;
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	return error_set(err, -code, "%s: %s", path, strerror(-code));
}

/* The kernel hands out the lowest free number. This is asked anew each time, because other threads
 * open files and the limit can be changed from outside. */
uint64_t listener_free(int fd)
{
	uint64_t limit = descriptors_limit();
	int lowest = fcntl(fd, F_DUPFD_CLOEXEC, 0);

	if (lowest < 0)
		return 0;
	close(lowest);
	return limit > (uint64_t)lowest ? limit - (uint64_t)lowest : 0;
}

int listener_accept(int fd, uint32_t reserve)
{
	for (;;) {
		int connection;

		if (listener_free(fd) <= reserve)
			return -EMFILE;
		connection = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (connection >= 0)
			return connection;
		switch (errno) {
		case EINTR:
		case ECONNABORTED:
			continue;
		case EAGAIN:
			return -EAGAIN;
		case EMFILE:
			return -EMFILE;
		default:
			return -ENFILE;
		}
	}
}
