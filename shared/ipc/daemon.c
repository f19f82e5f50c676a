#include "shared/ipc/daemon_private.h"

#include "shared/base/clock.h"
#include "shared/base/descriptors.h"
#include "shared/base/log.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum {
	/* calls of one bus server's handler before the other sources get their turn */
	DRAIN_MAX = 64,
	DRAIN_NS = 10000000, /* and no further call after this time */
	IDLE_MS_MAX = 60000,
};

const char *daemon_name(const struct daemon *daemon)
{
	return daemon->name;
}

const char *daemon_runtime_dir(const struct daemon *daemon)
{
	return daemon->runtime_dir;
}

uint64_t daemon_generation(const struct daemon *daemon)
{
	return daemon->start_ns;
}

static int add_source(struct daemon *daemon, const struct source *source)
{
	for (size_t i = 0; i < SOURCES_MAX; i++) {
		if (daemon->sources[i].used)
			continue;
		daemon->sources[i] = *source;
		daemon->sources[i].used = true;
		daemon->sources[i].serial = ++daemon->serial;
		return 0;
	}
	return -ENOSPC;
}

int daemon_add_fd(struct daemon *daemon, int fd, short events, daemon_handler handler, void *arg)
{
	struct source source = {.fd = fd, .events = events, .handler = handler, .arg = arg};

	return fd < 0 ? -EBADF : add_source(daemon, &source);
}

int daemon_add_server(
	struct daemon *daemon, struct bus_server *server, daemon_handler handler, void *arg)
{
	struct source source = {.server = server,
		.fd = bus_fd(server),
		.events = POLLIN,
		.handler = handler,
		.arg = arg};

	return add_source(daemon, &source);
}

static struct source *find_source(struct daemon *daemon, int fd)
{
	for (size_t i = 0; i < SOURCES_MAX; i++) {
		struct source *source = &daemon->sources[i];

		if (source->used && source->fd == fd)
			return source;
	}
	return NULL;
}

void daemon_set_events(struct daemon *daemon, int fd, short events)
{
	struct source *source = find_source(daemon, fd);

	if (source)
		source->events = events;
}

void daemon_remove_fd(struct daemon *daemon, int fd)
{
	struct source *source = find_source(daemon, fd);

	if (source)
		source->used = false;
}

int daemon_add_timer(struct daemon *daemon, uint64_t period_ns, daemon_handler handler, void *arg)
{
	for (size_t i = 0; i < TIMERS_MAX; i++) {
		struct timer *timer = &daemon->timers[i];

		if (timer->used)
			continue;
		daemon->timer_id = daemon->timer_id == INT32_MAX ? 1 : daemon->timer_id + 1;
		*timer = (struct timer){
			.used = true,
			.id = daemon->timer_id,
			.period_ns = period_ns ? period_ns : 1,
			.next_ns = clock_ns() + period_ns,
			.handler = handler,
			.arg = arg,
		};
		return timer->id;
	}
	return -ENOSPC;
}

void daemon_remove_timer(struct daemon *daemon, int id)
{
	for (size_t i = 0; i < TIMERS_MAX; i++)
		if (daemon->timers[i].used && daemon->timers[i].id == id)
			daemon->timers[i].used = false;
}

void daemon_on_wakeup(struct daemon *daemon, daemon_handler handler, void *arg)
{
	daemon->wakeup = handler;
	daemon->wakeup_arg = arg;
}

void daemon_wakeup(struct daemon *daemon)
{
	uint64_t one = 1;

	/* Release pairs with the acquire in handle_wakeup: the handler sees everything done before
	 * the call, also by callers that found the flag set and made no system call. */
	if (!atomic_exchange_explicit(&daemon->wakeup_pending, true, memory_order_acq_rel))
		if (write(daemon->wakeup_fd, &one, sizeof one) < 0)
			log_error("wake-up of the loop: %s", strerror(errno));
}

static void handle_wakeup(void *arg)
{
	struct daemon *daemon = arg;
	uint64_t n;

	if (read(daemon->wakeup_fd, &n, sizeof n) < 0 && errno != EAGAIN)
		log_error("wake-up of the loop: %s", strerror(errno));
	/* Cleared after the eventfd is emptied and before the handler looks: a caller that sets the
	 * flag from now on writes again, so the handler misses nothing. */
	atomic_exchange_explicit(&daemon->wakeup_pending, false, memory_order_acq_rel);
	if (daemon->wakeup)
		daemon->wakeup(daemon->wakeup_arg);
}

void daemon_on_alive(struct daemon *daemon, bool (*alive)(void *arg), void *arg)
{
	daemon->alive = alive;
	daemon->alive_arg = arg;
	daemon->alive_ns = clock_ns();
}

void daemon_stop(struct daemon *daemon, int exit_status)
{
	atomic_store(&daemon->exit_status, exit_status);
	atomic_store(&daemon->stop, true);
	daemon_wakeup(daemon);
}

static void handle_signal(void *arg)
{
	struct daemon *daemon = arg;
	struct signalfd_siginfo info;

	while (read(daemon->signal_fd, &info, sizeof info) == sizeof info) {
		if (info.ssi_signo == SIGHUP) {
			log_notice("SIGHUP: the configuration is read only at the start");
			continue;
		}
		log_info("%s: stopping", info.ssi_signo == SIGINT ? "SIGINT" : "SIGTERM");
		atomic_store(&daemon->stop, true);
	}
}

bool daemon_is_stopping(struct daemon *daemon)
{
	/* A signal that has arrived but was not read yet counts: a peer that was told to stop at
	 * the same time may be quicker. */
	if (!atomic_load(&daemon->stop))
		handle_signal(daemon);
	return atomic_load(&daemon->stop);
}

static int block_signals(struct daemon *daemon, struct error *err)
{
	struct sigaction ignore = {.sa_handler = SIG_IGN};
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	sigaction(SIGPIPE, &ignore, NULL);
	/* Writing to a file that has reached its size limit must fail, not kill. */
	sigaction(SIGXFSZ, &ignore, NULL);
	daemon->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (daemon->signal_fd < 0)
		return error_set(err, errno, "signalfd: %s", strerror(errno));
	return daemon_add_fd(daemon, daemon->signal_fd, POLLIN, handle_signal, daemon);
}

int daemon_create(const struct daemon_options *options, struct daemon **out, struct error *err)
{
	struct daemon *daemon = calloc(1, sizeof *daemon);
	int code;

	*out = NULL;
	if (!daemon)
		return error_set(
			err, ENOMEM, "%s: no memory for %zu bytes", options->name, sizeof *daemon);
	daemon->signal_fd = daemon->wakeup_fd = daemon->start_fd = daemon->lock_fd = -1;
	pthread_mutex_init(&daemon->state_lock, NULL);
	daemon_collect_passed(daemon);
	daemon->start_ns = daemon->alive_ns = clock_ns();
	daemon->stall_ns = options->watchdog_stall_ns;
	snprintf(daemon->state, sizeof daemon->state, "loading");
	if (strlen(options->name) >= sizeof daemon->name ||
		strlen(options->runtime_dir) >= sizeof daemon->runtime_dir) {
		code = error_set(err, ENAMETOOLONG, "%s in %s: names are too long", options->name,
			options->runtime_dir);
		goto failed;
	}
	snprintf(daemon->name, sizeof daemon->name, "%s", options->name);
	snprintf(daemon->runtime_dir, sizeof daemon->runtime_dir, "%s", options->runtime_dir);
	code = descriptors_need(options->name, 0, err);
	if (code == 0)
		code = block_signals(daemon, err);
	if (code < 0)
		goto failed;
	daemon->wakeup_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (daemon->wakeup_fd < 0) {
		code = error_set(err, errno, "eventfd: %s", strerror(errno));
		goto failed;
	}
	daemon_add_fd(daemon, daemon->wakeup_fd, POLLIN, handle_wakeup, daemon);
	code = daemon_start_watch(daemon, err);
	if (code < 0)
		goto failed;
	*out = daemon;
	return 0;
failed:
	daemon_destroy(&daemon);
	return code;
}

void daemon_destroy(struct daemon **daemon)
{
	struct daemon *d = *daemon;

	if (!d)
		return;
	daemon_start_over(d);
	daemon_knobs_close(d);
	bus_server_close(&d->admin_server);
	if (d->signal_fd >= 0)
		close(d->signal_fd);
	if (d->wakeup_fd >= 0)
		close(d->wakeup_fd);
	if (d->lock_fd >= 0)
		close(d->lock_fd);
	daemon_close_passed(d);
	daemon_close_stored(d);
	pthread_mutex_destroy(&d->state_lock);
	free(d);
	*daemon = NULL;
}

static int next_timeout_ms(const struct daemon *daemon)
{
	uint64_t now_ns = clock_ns(), least_ns = (uint64_t)IDLE_MS_MAX * 1000000u;

	for (size_t i = 0; i < TIMERS_MAX; i++) {
		const struct timer *timer = &daemon->timers[i];

		if (!timer->used)
			continue;
		if (timer->next_ns <= now_ns)
			return 0;
		if (timer->next_ns - now_ns < least_ns)
			least_ns = timer->next_ns - now_ns;
	}
	return (int)((least_ns + 999999) / 1000000u);
}

static void run_timers(struct daemon *daemon)
{
	uint64_t now_ns = clock_ns();

	for (size_t i = 0; i < TIMERS_MAX; i++) {
		struct timer *timer = &daemon->timers[i];

		if (!timer->used || timer->next_ns > now_ns)
			continue;
		/* Counted from now, not from when it was due: a loop that was held up must not fire
		 * the timer in a burst. */
		timer->next_ns = now_ns + timer->period_ns;
		timer->handler(timer->arg);
	}
}

static bool is_current(const struct source *source, uint64_t serial)
{
	return source->used && source->serial == serial;
}

static void run_source(struct source *source, uint64_t serial)
{
	uint64_t end_ns = clock_ns() + DRAIN_NS;
	int calls = 0;

	/* Poll does not show messages that a server has already read. */
	do {
		source->handler(source->arg);
		calls++;
	} while (is_current(source, serial) && source->server && calls < DRAIN_MAX &&
		 clock_ns() < end_ns && bus_pending(source->server));
}

static void poll_once(struct daemon *daemon)
{
	struct pollfd items[SOURCES_MAX];
	uint64_t serials[SOURCES_MAX];
	struct source *sources[SOURCES_MAX];
	nfds_t n = 0;
	int ready, timeout_ms = next_timeout_ms(daemon);

	for (size_t i = 0; i < SOURCES_MAX; i++) {
		struct source *source = &daemon->sources[i];

		if (!source->used)
			continue;
		if (source->server && bus_pending(source->server))
			timeout_ms = 0;
		items[n] = (struct pollfd){.fd = source->fd, .events = source->events};
		serials[n] = source->serial;
		sources[n++] = source;
	}
	ready = poll(items, n, timeout_ms);
	if (ready < 0 && errno != EINTR) {
		log_error("poll of %d sources: %s", (int)n, strerror(errno));
		atomic_store(&daemon->exit_status,
			71); /* EX_OSERR: a loop that cannot wait would spin */
		atomic_store(&daemon->stop, true);
		return;
	}
	/* A handler may have removed a later source, and even put another in its place. */
	for (nfds_t i = 0; i < n && ready >= 0; i++)
		if (is_current(sources[i], serials[i]) &&
			(items[i].revents ||
				(sources[i]->server && bus_pending(sources[i]->server))))
			run_source(sources[i], serials[i]);
}

int daemon_run(struct daemon *daemon)
{
	daemon_start_over(daemon);
	int watchdog = daemon_watchdog_start(daemon);

	while (!atomic_load(&daemon->stop)) {
		poll_once(daemon);
		run_timers(daemon);
		registry_announce(daemon);
	}
	if (watchdog > 0)
		daemon_remove_timer(daemon, watchdog);
	daemon_stopping(daemon);
	return atomic_load(&daemon->exit_status);
}
