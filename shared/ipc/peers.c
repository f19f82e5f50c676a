#include "shared/ipc/peers.h"

#include "shared/base/lock_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

const char *const peers_all[] = {PEER_VERIFIER, PEER_DRAFTER, PEER_CACHE, PEER_POLICY, NULL};

static const struct {
	const char *from, *to;
} connections[] = {
	{PEER_DRAFTER, PEER_VERIFIER},
	{PEER_DRAFTER, PEER_CACHE},
	{PEER_DRAFTER, PEER_POLICY},
	{PEER_VERIFIER, PEER_CACHE},
	{PEER_VERIFIER, PEER_POLICY},
};

static const struct {
	const char *region, *owner;
	const char *writers[2]; /* in addition to the owner */
} owners[] = {
	{"sessions", PEER_VERIFIER, {NULL}},
	{"draft", PEER_VERIFIER, {PEER_DRAFTER}},
	{"supports", PEER_VERIFIER, {PEER_DRAFTER}},
	{"hidden", PEER_VERIFIER, {NULL}},
	{"kv", PEER_VERIFIER, {NULL}},
	{"kv.mem", PEER_VERIFIER, {NULL}},
	{"weights", PEER_VERIFIER, {NULL}},
	{"experts", PEER_CACHE, {PEER_VERIFIER}},
	{"experts.dev", PEER_CACHE, {PEER_VERIFIER}},
	{"experts.mem", PEER_CACHE, {PEER_VERIFIER}},
	{"digest", PEER_CACHE, {NULL}},
	{"hints", PEER_CACHE, {PEER_VERIFIER, PEER_DRAFTER}},
	{"policy", PEER_POLICY, {PEER_VERIFIER}},
};

/* The longest socket name in the runtime directory. */
#define LONGEST_SOCKET "/" PEER_CACHE ".sock"

bool peers_may_connect(const char *from, const char *to)
{
	for (size_t i = 0; i < sizeof connections / sizeof connections[0]; i++)
		if (strcmp(connections[i].from, from) == 0 && strcmp(connections[i].to, to) == 0)
			return true;
	return false;
}

bool peers_known(const char *name)
{
	for (size_t i = 0; peers_all[i]; i++)
		if (strcmp(peers_all[i], name) == 0)
			return true;
	return false;
}

const char *peers_region_owner(const char *region)
{
	for (size_t i = 0; i < sizeof owners / sizeof owners[0]; i++)
		if (strcmp(owners[i].region, region) == 0)
			return owners[i].owner;
	return NULL;
}

bool peers_region_writer(const char *region, const char *name)
{
	for (size_t i = 0; i < sizeof owners / sizeof owners[0]; i++) {
		const char *const *writers = owners[i].writers;

		if (strcmp(owners[i].region, region) == 0)
			return (writers[0] && strcmp(writers[0], name) == 0) ||
			       (writers[1] && strcmp(writers[1], name) == 0);
	}
	return false;
}

bool peers_region_memory(const char *region)
{
	const char *dot = strrchr(region, '.');

	return dot && strcmp(dot, ".mem") == 0;
}

static const char *given(const char *variable)
{
	const char *value = getenv(variable);

	return value && *value ? value : NULL;
}

/* Finds the directory's absolute path; returns the length it needs, like snprintf. */
static int find(const char *flag, char *out, size_t out_bytes)
{
	char cwd[4096] = "";
	const char *dir = flag && *flag ? flag : given("OUTRIDER_RUNTIME_DIR");
	const char *xdg = given("XDG_RUNTIME_DIR");

	/* systemd separates several directories of a unit by colons; our unit has one. */
	if (!dir)
		dir = given("RUNTIME_DIRECTORY");
	if (!dir && xdg)
		return snprintf(out, out_bytes, "%s/outrider", xdg);
	if (!dir && geteuid() == 0)
		return snprintf(out, out_bytes, "/run/outrider");
	if (!dir)
		return snprintf(out, out_bytes, "/tmp/outrider-%lu", (unsigned long)geteuid());
	if (dir[0] != '/' && !getcwd(cwd, sizeof cwd))
		return -1;
	return snprintf(out, out_bytes, "%s%s%s", cwd, cwd[0] ? "/" : "", dir);
}

static int make_parents(char *path, struct error *err)
{
	for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		int failed;

		*slash = '\0';
		failed = mkdir(path, 0755) < 0 && errno != EEXIST ? errno : 0;
		if (failed) {
			error_set(err, failed, "runtime directory: cannot make %s: %s", path,
				strerror(failed));
			*slash = '/';
			return -failed;
		}
		*slash = '/';
	}
	return 0;
}

int peers_runtime_dir(const char *flag, bool make, char *out, size_t out_bytes, struct error *err)
{
	const size_t dir_max = sizeof((struct sockaddr_un *)0)->sun_path - sizeof LONGEST_SOCKET;
	struct stat st;
	int n = find(flag, out, out_bytes), code;

	if (n < 0)
		return error_set(err, errno, "runtime directory: %s", strerror(errno));
	while (n > 1 && (size_t)n < out_bytes && out[n - 1] == '/')
		out[--n] = '\0';
	if ((size_t)n >= out_bytes || (size_t)n > dir_max)
		return error_set(err, ENAMETOOLONG,
			"runtime directory %.128s: its path has %d bytes, sockets in it allow %zu",
			out, n, dir_max);
	if (make) {
		code = make_parents(out, err);
		if (code < 0)
			return code;
		if (mkdir(out, 0700) < 0 && errno != EEXIST)
			return error_set(err, errno, "runtime directory: cannot make %s: %s", out,
				strerror(errno));
	}
	/* No symbolic link of another user: in /tmp somebody could have created one before us. */
	if (lstat(out, &st) == 0 && S_ISLNK(st.st_mode) && st.st_uid != 0 && st.st_uid != geteuid())
		return error_set(err, EPERM,
			"runtime directory %s: a link that belongs to user %lu", out,
			(unsigned long)st.st_uid);
	if (stat(out, &st) < 0)
		return error_set(err, errno, "runtime directory %s: %s", out, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return error_set(err, ENOTDIR, "runtime directory %s: not a directory", out);
	/* Root may look at a service that runs as another user, but not start one there. */
	if (st.st_uid != geteuid() && !(geteuid() == 0 && !make))
		return error_set(err, EPERM,
			"runtime directory %s: belongs to user %lu, not to %lu", out,
			(unsigned long)st.st_uid, (unsigned long)geteuid());
	/* A user who may write there could replace a socket with his own. */
	if (st.st_mode & (S_IWGRP | S_IWOTH))
		return error_set(err, EPERM,
			"runtime directory %s: %s may write to it (mode %o): chmod go-w", out,
			st.st_mode & S_IWOTH ? "anybody" : "its group", st.st_mode & 07777);
	return 0;
}

void peers_lock_path(const char *runtime_dir, const char *name, char *out, size_t out_bytes)
{
	snprintf(out, out_bytes, "%s/%s.lock", runtime_dir, name);
}

void peers_socket_path(const char *runtime_dir, const char *name, char *out, size_t out_bytes)
{
	snprintf(out, out_bytes, "%s/%s.sock", runtime_dir, name);
}

bool peers_runs(const char *runtime_dir, const char *name, pid_t *pid)
{
	char path[300];

	peers_lock_path(runtime_dir, name, path, sizeof path);
	return lock_file_held(path, pid);
}

bool peers_starting(const char *socket_path)
{
	struct timespec now;
	struct stat st;

	if (stat(socket_path, &st) < 0)
		return false;
	clock_gettime(CLOCK_REALTIME, &now);
	return now.tv_sec >= st.st_mtim.tv_sec && now.tv_sec - st.st_mtim.tv_sec < PEERS_START_S;
}

void peers_admin_endpoint(const char *runtime_dir, const char *name, char *out, size_t out_bytes)
{
	snprintf(out, out_bytes, "ipc://%s/%s.ctl", runtime_dir, name);
}

void peers_client_endpoint(const char *runtime_dir, char *out, size_t out_bytes)
{
	snprintf(out, out_bytes, "ipc://%s/client", runtime_dir);
}
