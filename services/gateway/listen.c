#include "services/gateway/listen.h"

#include "shared/ipc/bus.h"

#include <errno.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 1024 };

static const char unix_mark[] = "unix:";

/* Splits an address into *host, without brackets, and *port. */
static int split(
	const char *where, char *host, size_t host_bytes, const char **port, struct error *err)
{
	const char *colon = strrchr(where, ':');
	size_t n = colon ? (size_t)(colon - where) : 0;
	bool brackets = n >= 2 && where[0] == '[' && where[n - 1] == ']';

	if (!colon || n == 0 || !colon[1] || strspn(colon + 1, "0123456789") != strlen(colon + 1) ||
		(!brackets && memchr(where, ':', n)))
		return error_set(err, EINVAL,
			"listen = %s: expected ADDRESS:PORT, [ADDRESS]:PORT or unix:PATH", where);
	snprintf(host, host_bytes, "%.*s", (int)(brackets ? n - 2 : n), where + brackets);
	*port = colon + 1;
	if (strlen(*port) > 5 || strtoul(*port, NULL, 10) > UINT16_MAX)
		return error_set(
			err, EINVAL, "listen = %s: a port is at most %d", where, UINT16_MAX);
	return 0;
}

static int resolve(const char *where, struct addrinfo **out, struct error *err)
{
	const struct addrinfo hints = {
		.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
	char host[256];
	const char *port = NULL;
	int code = split(where, host, sizeof host, &port, err);

	if (code < 0)
		return code;
	code = getaddrinfo(host, port, &hints, out);
	if (code)
		return error_set(err, EINVAL, "listen = %s: %s", where, gai_strerror(code));
	return 0;
}

/* What there is to do about an address that cannot be had. */
static int refused(const char *where, int code, struct error *err)
{
	const char *todo = "";

	if (code == EADDRINUSE)
		todo = ": another program listens there; choose another address, or stop that "
		       "program";
	else if (code == EADDRNOTAVAIL)
		todo = ": this machine has no such address; 127.0.0.1 is for programs on this "
		       "machine, 0.0.0.0 for all of its addresses";
	return error_set(err, code, "listen = %s: %s%s", where, strerror(code), todo);
}

static int listen_tcp(const char *where, struct error *err)
{
	struct addrinfo *address;
	int code = resolve(where, &address, err), on = 1;

	if (code < 0)
		return code;
	int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
		bind(fd, address->ai_addr, address->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0) {
		code = refused(where, errno, err);
		if (fd >= 0)
			close(fd);
		fd = code;
	}
	freeaddrinfo(address);
	return fd;
}

static int unix_address(const char *where, struct sockaddr_un *address, struct error *err)
{
	const char *path = where + sizeof unix_mark - 1;

	*address = (struct sockaddr_un){.sun_family = AF_UNIX};
	if (!*path || strlen(path) >= sizeof address->sun_path)
		return error_set(err, EINVAL, "listen = %s: a path has 1 to %zu bytes", where,
			sizeof address->sun_path - 1);
	snprintf(address->sun_path, sizeof address->sun_path, "%s", path);
	return 0;
}

/* Removes a socket that nobody listens on any more. */
static void remove_stale(const char *path)
{
	struct stat st;
	int pid;

	if (lstat(path, &st) == 0 && S_ISSOCK(st.st_mode) && bus_probe(path, SOCK_STREAM, &pid) < 0)
		unlink(path);
}

static int listen_unix(const char *where, struct error *err)
{
	struct sockaddr_un address;
	int code = unix_address(where, &address, err);

	if (code < 0)
		return code;
	remove_stale(address.sun_path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	mode_t before = umask(0177);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 ||
		listen(fd, BACKLOG) < 0) {
		code = refused(where, errno, err);
		if (fd >= 0)
			close(fd);
		fd = code;
	}
	umask(before);
	return fd;
}

static bool is_unix(const char *where)
{
	return strncmp(where, unix_mark, sizeof unix_mark - 1) == 0;
}

int listen_open(const char *where, struct error *err)
{
	return is_unix(where) ? listen_unix(where, err) : listen_tcp(where, err);
}

int listen_check(const char *where, struct error *err)
{
	struct sockaddr_un address;
	struct addrinfo *found;

	if (is_unix(where))
		return unix_address(where, &address, err);
	int code = resolve(where, &found, err);
	if (code == 0)
		freeaddrinfo(found);
	return code;
}
