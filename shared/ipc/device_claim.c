#include "shared/ipc/device_claim.h"

#include "shared/base/checksum.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define PREFIX "outrider-device"
/* How long somebody else may take to look round and to bind: TURNS naps of NAP_NS. */
enum { TURNS = 2000 };
#define NAP_NS 1000000
#define NAMES "/proc/self/net/unix"

/* Binds a socket to an abstract name. Returns its descriptor or -errno. */
static int bind_name(const char *name)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	size_t n = strlen(name);
	if (n + 1 > sizeof(at.sun_path))
		return -ENAMETOOLONG;
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	memcpy(at.sun_path + 1, name, n);
	if (bind(fd, (const struct sockaddr *)&at,
		    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)) == 0)
		return fd;
	int rc = -errno;
	close(fd);
	return rc;
}

/* One process looks round and binds at a time, so that of two that come together one sees the other.
 * -EADDRINUSE: somebody has not ended with that. */
static int take_turn(const char *uuid)
{
	char name[108];
	int fd = -EADDRINUSE;
	snprintf(name, sizeof(name), PREFIX "/%.48s", uuid);
	for (int i = 0; i < TURNS && fd == -EADDRINUSE; i++) {
		const struct timespec nap = {.tv_nsec = NAP_NS};
		if (i > 0)
			nanosleep(&nap, NULL);
		fd = bind_name(name);
	}
	return fd;
}

/* Reads SERVICE/PROCESS/PID, the end of a claim's name. Any process can bind a name that begins like
 * one: false where the rest is not what device_claim writes. */
static bool read_claim(const char *text, uint64_t *service, char process[static 32], int *pid)
{
	char *end;
	errno = 0;
	*service = strtoull(text, &end, 16);
	if (end == text || *end != '/')
		return false;
	const char *name = end + 1;
	size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz-");
	if (n == 0 || n >= 32 || name[n] != '/')
		return false;
	long number = strtol(name + n + 1, NULL, 10);
	if (errno != 0 || number <= 0 || number > INT_MAX)
		return false;
	snprintf(process, 32, "%.*s", (int)n, name);
	*pid = (int)number;
	return true;
}

struct found {
	bool ours; /* a process of the same service has a claim */
	int pid; /* a process of another service, and its name; 0: there is none */
	char process[32];
};

/* Nothing is found where names cannot be read. */
static void look_round(const char *uuid, uint64_t service, struct found *out)
{
	char line[512], prefix[96], process[32];
	FILE *file = fopen(NAMES, "re");
	*out = (struct found){0};
	if (file == NULL)
		return;
	snprintf(prefix, sizeof(prefix), "@" PREFIX "/%.48s/", uuid);
	while (fgets(line, sizeof(line), file) != NULL) {
		const char *name = strstr(line, prefix);
		uint64_t of;
		int pid;
		if (name == NULL || !read_claim(name + strlen(prefix), &of, process, &pid))
			continue;
		out->ours |= of == service;
		if (of == service)
			continue;
		out->pid = pid;
		memcpy(out->process, process, sizeof(process));
	}
	fclose(file);
}

static uint64_t service_of(const char *runtime_dir)
{
	struct stat st = {.st_ino = 0};
	(void)stat(runtime_dir, &st);
	const uint64_t of[2] = {(uint64_t)st.st_dev, (uint64_t)st.st_ino};
	return checksum(1, of, sizeof(of));
}

int device_claim(const char *uuid, const char *device_name, const char *runtime_dir,
	const char *process, bool shared, int *fd, struct error *err)
{
	uint64_t service = service_of(runtime_dir);
	struct found found;
	char name[108];
	int rc = 0;
	*fd = -1;
	if (uuid[0] == '\0')
		return 0;
	int turn = take_turn(uuid);
	look_round(uuid, service, &found);
	if (!shared && !found.ours && found.pid != 0)
		rc = error_set(err, EBUSY,
			"%s (%s) is in use by the %s of another service, process %d: end that one, "
			"or choose another device; both may use it with device_shared = yes and a "
			"device_budget for each",
			device_name, uuid, found.process, found.pid);
	snprintf(name, sizeof(name), PREFIX "/%.48s/%016" PRIx64 "/%.20s/%d", uuid, service,
		process, (int)getpid());
	if (rc == 0)
		*fd = bind_name(name);
	if (turn >= 0)
		close(turn);
	if (rc == 0 && *fd < 0)
		rc = error_set(err, -*fd, "%s cannot be claimed: %s", device_name, strerror(-*fd));
	if (rc < 0)
		*fd = -1;
	return rc;
}
