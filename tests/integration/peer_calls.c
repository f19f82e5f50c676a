/*
 * Counts the system calls for communication between the processes of a service, for the integration tests: a shared object that
 * is loaded before the C library (LD_PRELOAD). The counts of process N lie in file N of the folder that OUTRIDER_PEER_CALLS names,
 * which tests/integration/peers.t reads while the process runs.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* As in peers.t: by the socket's name, which one of its two ends has. */
static struct calls {
	_Atomic uint64_t ctl, sock, others;
} * calls;

__attribute__((constructor)) static void begin(void)
{
	const char *folder = getenv("OUTRIDER_PEER_CALLS");
	char path[4096];

	if (!folder)
		return;
	snprintf(path, sizeof(path), "%s/%d", folder, (int)getpid());
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, sizeof(*calls)) != 0)
		abort();
	void *map = mmap(NULL, sizeof(*calls), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		abort();
	close(fd);
	calls = map;
}

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);

	return n >= m && strcmp(text + n - m, end) == 0;
}

static void count(int fd)
{
	struct sockaddr_un name[2];

	if (!calls)
		return;
	memset(name, 0, sizeof(name));
	for (int i = 0; i < 2; i++) {
		socklen_t n = sizeof(name[i]) - 1;
		int (*ask)(int, struct sockaddr *, socklen_t *) =
			i == 0 ? getsockname : getpeername;

		if (ask(fd, (struct sockaddr *)&name[i], &n) < 0 || name[i].sun_family != AF_UNIX)
			name[i].sun_path[0] = '\0';
	}
	if (ends_with(name[0].sun_path, ".ctl") || ends_with(name[1].sun_path, ".ctl"))
		atomic_fetch_add(&calls->ctl, 1);
	else if (ends_with(name[0].sun_path, ".sock") || ends_with(name[1].sun_path, ".sock"))
		atomic_fetch_add(&calls->sock, 1);
	else
		atomic_fetch_add(&calls->others, 1);
}

static void *next(const char *name)
{
	void *function = dlsym(RTLD_NEXT, name);

	if (!function)
		abort();
	return function;
}

ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
	static ssize_t (*real)(int, const void *, size_t, int);

	if (!real)
		real = (ssize_t(*)(int, const void *, size_t, int))next("send");
	count(fd);
	return real(fd, data, bytes, flags);
}

ssize_t recv(int fd, void *data, size_t bytes, int flags)
{
	static ssize_t (*real)(int, void *, size_t, int);

	if (!real)
		real = (ssize_t(*)(int, void *, size_t, int))next("recv");
	count(fd);
	return real(fd, data, bytes, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	static ssize_t (*real)(int, const struct msghdr *, int);

	if (!real)
		real = (ssize_t(*)(int, const struct msghdr *, int))next("sendmsg");
	count(fd);
	return real(fd, message, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	static ssize_t (*real)(int, struct msghdr *, int);

	if (!real)
		real = (ssize_t(*)(int, struct msghdr *, int))next("recvmsg");
	count(fd);
	return real(fd, message, flags);
}
