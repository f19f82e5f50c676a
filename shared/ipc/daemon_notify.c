/* The daemon's side of the service manager's protocol, which libsystemd and `outrider up` speak. */
#include "shared/ipc/daemon_private.h"

#include "shared/base/again.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/ipc/peers.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

/* Name in the fd store whose presence says that a process of this name was ready. */
#define READY_NAME "ready"
/* In the environment of a process that runs anew: what it gets from the one before, as "NAME=FD:..". A FD
 * of 0: it does not get that, and the store is not to keep it. */
#define PASSED_ON "OUTRIDER_PASSED_ON"

enum {
	AGAIN_S = 2,
	EXTEND_US = 30 * 1000 * 1000,
	/* time for the manager to close a descriptor that it was told to remove */
	RELEASE_US = 1000 * 1000,
};

/* A predecessor was ready, according to this process's environment; and it was this process. */
static bool predecessor_ready, anew;

static void take_passed(struct daemon *daemon, const char *name, int fd)
{
	struct stored *passed = &daemon->passed[daemon->n_passed];
	struct stat st;

	if (daemon->n_passed == PASSED_MAX || strlen(name) >= sizeof passed->name ||
		fstat(fd, &st) < 0) {
		log_error("descriptor \"%.64s\" passed at start is closed: %s", name,
			daemon->n_passed == PASSED_MAX ? "too many"
						       : "its name is too long or it is not open");
		close(fd);
		return;
	}
	snprintf(passed->name, sizeof passed->name, "%s", name);
	passed->fd = fd;
	passed->dev = st.st_dev;
	passed->ino = st.st_ino;
	passed->listening = S_ISSOCK(st.st_mode);
	predecessor_ready |= strcmp(passed->name, READY_NAME) == 0;
	daemon->n_passed++;
}

/* Makes the manager close everything that it holds under the name. */
static void remove_from_store(const char *name)
{
	char message[64 + LIMIT_NAME];

	snprintf(message, sizeof message, "FDSTOREREMOVE=1\nFDNAME=%s", name);
	sd_notify(0, message);
}

/* What daemon_run_anew has passed. */
static void collect_passed_on(struct daemon *daemon)
{
	char *list = getenv(PASSED_ON);

	if (list == NULL)
		return;
	anew = true;
	for (char *item; (item = strsep(&list, ":")) != NULL;) {
		char *name = strsep(&item, "=");
		long fd = item != NULL ? strtol(item, NULL, 10) : -1;

		if (fd < SD_LISTEN_FDS_START || fd > INT_MAX) {
			remove_from_store(name);
			continue;
		}
		(void)fcntl((int)fd, F_SETFD, FD_CLOEXEC);
		take_passed(daemon, name, (int)fd);
	}
	unsetenv(PASSED_ON);
}

/* Called once, at create. Removes the environment variables, so that children and a second call
 * find nothing. */
void daemon_collect_passed(struct daemon *daemon)
{
	char **names = NULL;
	int n = sd_listen_fds_with_names(1, &names);

	if (n < 0)
		log_error("descriptors passed at start: %s", strerror(-n));
	for (int i = 0; i < n; i++)
		take_passed(daemon, names[i], SD_LISTEN_FDS_START + i);
	for (int i = 0; i < n; i++)
		free(names[i]);
	free(names);
	collect_passed_on(daemon);
}

void daemon_close_passed(struct daemon *daemon)
{
	for (size_t i = 0; i < daemon->n_passed; i++)
		close(daemon->passed[i].fd);
	daemon->n_passed = 0;
}

static int duplicate_passed(struct daemon *daemon, const char *name, bool listening, int *fd)
{
	/* The last of a name counts: the store may hold an older file under it. */
	for (size_t i = daemon->n_passed; i-- > 0;) {
		const struct stored *passed = &daemon->passed[i];

		if (passed->listening != listening || strcmp(passed->name, name) != 0)
			continue;
		*fd = fcntl(passed->fd, F_DUPFD_CLOEXEC, 0);
		return *fd < 0 ? -errno : 0;
	}
	*fd = -1;
	return -ENOENT;
}

int daemon_stored_fd(struct daemon *daemon, const char *name, int *fd)
{
	return duplicate_passed(daemon, name, false, fd);
}

int daemon_listen_fd(struct daemon *daemon, const char *name, int *fd)
{
	return duplicate_passed(daemon, name, true, fd);
}

static struct stored *find_stored(struct daemon *daemon, const char *name)
{
	for (size_t i = 0; i < daemon->n_stored; i++)
		if (strcmp(daemon->stored[i].name, name) == 0)
			return &daemon->stored[i];
	return NULL;
}

/* True when the manager is known to hold a file under this name, stored by us or by a predecessor.
 * *same: it is this file. */
static bool manager_has(struct daemon *daemon, const char *name, const struct stat *st, bool *same)
{
	const struct stored *stored = find_stored(daemon, name);
	bool any = false;

	*same = false;
	if (stored) {
		*same = stored->dev == st->st_dev && stored->ino == st->st_ino;
		return true;
	}
	for (size_t i = 0; i < daemon->n_passed; i++) {
		const struct stored *passed = &daemon->passed[i];

		if (passed->listening || strcmp(passed->name, name) != 0)
			continue;
		/* Two files of one name: replacing both leaves the right one. */
		*same = !any && passed->dev == st->st_dev && passed->ino == st->st_ino;
		any = true;
	}
	return any;
}

/* What the process itself holds of a name in the store. */
static void let_go(struct stored *stored)
{
	if (stored->fd >= 0)
		close(stored->fd);
	stored->fd = -1;
}

void daemon_close_stored(struct daemon *daemon)
{
	for (size_t i = 0; i < daemon->n_stored; i++)
		let_go(&daemon->stored[i]);
	daemon->n_stored = 0;
}

static void remember(struct daemon *daemon, const char *name, int fd, const struct stat *st)
{
	struct stored *stored = find_stored(daemon, name);

	if (stored)
		let_go(stored);
	else if (daemon->n_stored < STORED_MAX)
		stored = &daemon->stored[daemon->n_stored++];
	if (!stored)
		return; /* it is sent again next time */
	snprintf(stored->name, sizeof stored->name, "%s", name);
	stored->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	stored->dev = st->st_dev;
	stored->ino = st->st_ino;
}

void daemon_store_fd(struct daemon *daemon, const char *name, int fd)
{
	char message[64 + LIMIT_NAME];
	struct stat st;
	bool same;
	int code;

	if (strlen(name) >= LIMIT_NAME || fstat(fd, &st) < 0) {
		log_error("fd store: \"%.64s\" cannot be kept: %s", name,
			strlen(name) >= LIMIT_NAME ? "its name is too long" : strerror(errno));
		return;
	}
	if (manager_has(daemon, name, &st, &same)) {
		if (same) {
			remember(daemon, name, fd, &st);
			return;
		}
		remove_from_store(name);
	}
	snprintf(message, sizeof message, "FDSTORE=1\nFDNAME=%s", name);
	code = sd_pid_notify_with_fds(0, 0, message, &fd, 1);
	if (code < 0)
		log_error("fd store: \"%s\": %s", name, strerror(-code));
	else
		remember(daemon, name, fd, &st);
}

/* Closes what was passed under the name, and makes the manager close it. */
static void release(struct daemon *daemon, const char *name)
{
	size_t kept = 0;

	for (size_t i = 0; i < daemon->n_passed; i++)
		if (!daemon->passed[i].listening && strcmp(daemon->passed[i].name, name) == 0)
			close(daemon->passed[i].fd);
		else
			daemon->passed[kept++] = daemon->passed[i];
	daemon->n_passed = kept;
	remove_from_store(name);
}

void daemon_unstore_fd(struct daemon *daemon, const char *name)
{
	struct stat none = {0};
	struct stored *stored = find_stored(daemon, name);
	bool same;

	if (!manager_has(daemon, name, &none, &same))
		return;
	release(daemon, name);
	if (stored) {
		let_go(stored);
		*stored = daemon->stored[--daemon->n_stored];
	}
	(void)sd_notify_barrier(0, RELEASE_US);
}

/* Releases what a predecessor left and nobody has taken over. It would otherwise stay in memory as
 * long as this process and the manager run. */
static void release_left(struct daemon *daemon)
{
	char name[LIMIT_NAME];

	for (size_t i = 0; i < daemon->n_passed;) {
		const struct stored *passed = &daemon->passed[i];

		if (passed->listening || find_stored(daemon, passed->name)) {
			i++;
			continue;
		}
		memcpy(name, passed->name, sizeof name);
		log_notice("\"%s\" of the predecessor is no longer of use", name);
		release(daemon, name);
		i = 0;
	}
	daemon_close_passed(daemon);
}

int daemon_run_anew(struct daemon *daemon, const char *name, const char *value, char **argv)
{
	char list[STORED_MAX * (LIMIT_NAME + 16)] = "";
	int keep[STORED_MAX];
	size_t n_keep = 0, at = 0;

	for (size_t i = 0; i < daemon->n_stored; i++) {
		const struct stored *stored = &daemon->stored[i];
		struct stat st;
		bool passes = stored->fd >= 0 && fstat(stored->fd, &st) == 0 && S_ISREG(st.st_mode);

		if (passes)
			keep[n_keep++] = stored->fd;
		at += (size_t)snprintf(list + at, sizeof list - at, "%s%s=%d", at > 0 ? ":" : "",
			stored->name, passes ? stored->fd : 0);
	}
	if (setenv(PASSED_ON, list, 1) != 0)
		return -errno;
	return again_run(name, value, keep, n_keep, argv);
}

void daemon_set_state(struct daemon *daemon, const char *format, ...)
{
	char state[STATE_BYTES] = "";
	bool changed;
	va_list args;

	va_start(args, format);
	vsnprintf(state, sizeof state, format, args);
	va_end(args);
	for (char *c = state; *c; c++)
		if (*c == '\n')
			*c = ' '; /* A newline would begin another assignment of the protocol. */
	pthread_mutex_lock(&daemon->state_lock);
	changed = strcmp(daemon->state, state) != 0;
	memcpy(daemon->state, state, sizeof state);
	pthread_mutex_unlock(&daemon->state_lock);
	if (changed) {
		log_info("state: %s", state);
		sd_notifyf(0, "STATUS=%s", state);
		/* The loop tells the peers. */
		atomic_fetch_add(&daemon->state_serial, 1);
		daemon_wakeup(daemon);
	}
}

bool daemon_has_manager(void)
{
	return getenv("NOTIFY_SOCKET") != NULL;
}

/* Tells a successor that a process of this name was ready. The manager drops the file when the unit
 * is stopped. */
static void store_ready(struct daemon *daemon)
{
	int fd;

	if (!daemon_has_manager())
		return;
	if (daemon_stored_fd(daemon, READY_NAME, &fd) < 0)
		fd = memfd_create(READY_NAME, MFD_CLOEXEC);
	if (fd < 0)
		return;
	daemon_store_fd(daemon, READY_NAME, fd);
	close(fd);
}

/* True when the fd store says that a predecessor was ready. A process that ends before it collected
 * the store finds this in its environment. */
bool daemon_succeeds(void)
{
	const char *names = getenv("LISTEN_FDNAMES");
	char list[1024], *next = list;

	if (predecessor_ready || names == NULL)
		return predecessor_ready;
	snprintf(list, sizeof list, "%s", names);
	for (char *name; (name = strsep(&next, ":")) != NULL;)
		if (strcmp(name, READY_NAME) == 0)
			return true;
	return false;
}

int daemon_start_failed(int status)
{
	const struct timespec pause = {.tv_sec = AGAIN_S};
	sigset_t ends;

	if (status == EX_OK || !daemon_has_manager() || getenv(PEERS_TOGETHER) != NULL)
		return status;
	if (status == EX_OSERR && daemon_succeeds())
		status = EX_TEMPFAIL;
	if (error_status_is_final(status))
		return status;
	sigemptyset(&ends);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGINT);
	pthread_sigmask(SIG_BLOCK, &ends, NULL);
	(void)sigtimedwait(&ends, NULL, &pause);
	return status;
}

void daemon_ready(struct daemon *daemon)
{
	bool degraded;

	if (atomic_exchange(&daemon->ready, true))
		return;
	store_ready(daemon);
	release_left(daemon);
	pthread_mutex_lock(&daemon->state_lock);
	degraded = strncmp(daemon->state, "degraded", strlen("degraded")) == 0;
	pthread_mutex_unlock(&daemon->state_lock);
	if (!degraded)
		daemon_set_state(daemon, "ready");
	sd_notifyf(0, "READY=1\nMAINPID=%ld", (long)getpid());
}

void daemon_progress(struct daemon *daemon)
{
	if (atomic_load(&daemon->ready))
		return;
	/* The manager knows nothing of a process that runs anew: it is up, and watched. */
	if (anew)
		sd_notify(0, "WATCHDOG=1");
	else
		sd_notifyf(0, "EXTEND_TIMEOUT_USEC=%d", EXTEND_US);
}

void daemon_stopping(struct daemon *daemon)
{
	daemon_set_state(daemon, "stopping");
	registry_announce(daemon);
	sd_notify(0, "STOPPING=1");
}

static bool is_alive(struct daemon *daemon)
{
	uint64_t now_ns = clock_ns();

	if (!daemon->alive || daemon->alive(daemon->alive_arg)) {
		daemon->alive_ns = now_ns;
		return true;
	}
	return now_ns - daemon->alive_ns < daemon->stall_ns;
}

static void feed_watchdog(void *arg)
{
	if (is_alive(arg))
		sd_notify(0, "WATCHDOG=1");
}

/* Starts the watchdog's timer and returns its id, 0 when nobody watches. It fires at a quarter of
 * the watchdog's period, so that a feed may be late, and alive() can be asked again, before the
 * watchdog acts. */
int daemon_watchdog_start(struct daemon *daemon)
{
	uint64_t period_us;

	if (sd_watchdog_enabled(0, &period_us) <= 0)
		return 0;
	feed_watchdog(daemon);
	return daemon_add_timer(daemon, period_us * 1000u / 4, feed_watchdog, daemon);
}
