/*
 * Signals while a daemon starts, before daemon_run reads them: a start may hang on a slow or broken
 * disk. A thread waits for the signals. A start that checks daemon_is_stopping has END_MS to end in
 * its own way; after that the process exits at once, which is safe because it may be killed at any
 * moment anyway.
 */
#include "shared/ipc/daemon_private.h"

#include "shared/base/log.h"

#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sysexits.h>
#include <unistd.h>

enum { END_MS = 2000 };

static void *watch(void *arg)
{
	struct daemon *daemon = arg;
	struct pollfd items[] = {{.fd = daemon->start_fd, .events = POLLIN},
		{.fd = daemon->signal_fd, .events = POLLIN}};

	while (!daemon_is_stopping(daemon)) {
		(void)poll(items, 2, -1);
		if (items[0].revents)
			return NULL;
	}
	if (poll(items, 1, END_MS) > 0)
		return NULL;
	log_notice("stopped during its start, which has not finished: it ends now");
	daemon_stopping(daemon);
	_exit(EX_OK);
}

int daemon_start_watch(struct daemon *daemon, struct error *err)
{
	int code;

	daemon->start_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (daemon->start_fd < 0)
		return error_set(err, errno, "eventfd: %s", strerror(errno));
	code = pthread_create(&daemon->start_thread, NULL, watch, daemon);
	if (code == 0)
		return 0;
	close(daemon->start_fd);
	daemon->start_fd = -1;
	return error_thread(err, code, "the thread that hears signals cannot be started");
}

void daemon_start_over(struct daemon *daemon)
{
	if (daemon->start_fd < 0)
		return;
	(void)eventfd_write(daemon->start_fd, 1);
	pthread_join(daemon->start_thread, NULL);
	close(daemon->start_fd);
	daemon->start_fd = -1;
}
