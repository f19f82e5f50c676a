#include "client/sdk/ready.h"

#include "client/sdk/stream.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include <zmq.h>

enum {
	LOOK_MS = 250
}; /* the interval at which silence is checked while the caller waits for the descriptor */

static bool is_waited_for(const struct outrider_stream *stream)
{
	return stream->first || (stream->ended && !stream->told && !stream->failure_told);
}

void ready_add(struct outrider_stream *stream)
{
	struct outrider *client = stream->client;

	if (stream->in_line || !is_waited_for(stream))
		return;
	stream->in_line = true;
	stream->after = NULL;
	*client->line_end = stream;
	client->line_end = &stream->after;
}

static struct outrider_stream *shift(struct outrider *client)
{
	struct outrider_stream *stream = client->line;

	client->line = stream->after;
	if (!client->line)
		client->line_end = &client->line;
	stream->in_line = false;
	return stream;
}

struct outrider_stream *ready_take(struct outrider *client)
{
	while (client->line) {
		struct outrider_stream *stream = shift(client);

		/* outrider_next may have taken everything. */
		if (is_waited_for(stream))
			return stream;
	}
	return NULL;
}

void ready_remove(struct outrider_stream *stream)
{
	struct outrider_stream **link = &stream->client->line;

	if (!stream->in_line)
		return;
	while (*link != stream)
		link = &(*link)->after;
	*link = stream->after;
	if (!*link)
		stream->client->line_end = link;
	stream->in_line = false;
}

static int watch_socket(int epoll, void *socket)
{
	struct epoll_event event = {.events = EPOLLIN};
	size_t bytes = sizeof(int);
	int fd;

	if (zmq_getsockopt(socket, ZMQ_FD, &fd, &bytes) < 0)
		return -errno;
	return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

int ready_open(struct outrider *client, struct error *err)
{
	struct epoll_event event = {.events = EPOLLIN};
	int code = 0;

	client->fd = epoll_create1(EPOLL_CLOEXEC);
	client->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (client->fd < 0 || client->timer < 0 ||
		epoll_ctl(client->fd, EPOLL_CTL_ADD, client->timer, &event) < 0)
		code = -errno;
	if (code == 0)
		code = watch_socket(client->fd, client->socket);
	if (code == 0)
		code = watch_socket(client->fd, client->monitor);
	if (code == 0)
		return 0;
	ready_close(client);
	return error_set(err, -code, "no descriptor to wait for: %s", strerror(-code));
}

void ready_close(struct outrider *client)
{
	if (client->fd >= 0)
		close(client->fd);
	if (client->timer >= 0)
		close(client->timer);
	client->fd = client->timer = -1;
	client->alarm = ALARM_OFF;
}

void ready_look(struct outrider *client)
{
	uint64_t times;

	if (client->fd < 0)
		return;
	if (read(client->timer, &times, sizeof times) == sizeof times && client->alarm == ALARM_NOW)
		client->alarm = ALARM_OFF;
}

static bool has_message(void *socket)
{
	size_t bytes = sizeof(int);
	int events = 0;

	return zmq_getsockopt(socket, ZMQ_EVENTS, &events, &bytes) == 0 && (events & ZMQ_POLLIN);
}

static enum client_alarm wanted(struct outrider *client)
{
	/* ZeroMQ's descriptors signal only what ZeroMQ has not received yet. For what it has
	 * received, in whichever call, it has to be asked. */
	if (has_message(client->socket) || has_message(client->monitor))
		return ALARM_NOW;
	for (const struct outrider_stream *s = client->line; s; s = s->after)
		if (is_waited_for(s))
			return ALARM_NOW;
	return client->n_open > 0 ? ALARM_LATER : ALARM_OFF;
}

void ready_arm(struct outrider *client)
{
	static const struct itimerspec times[] = {
		[ALARM_OFF] = {{0, 0}, {0, 0}},
		[ALARM_NOW] = {{0, 0}, {0, 1}},
		[ALARM_LATER] = {{0, LOOK_MS * 1000000}, {0, LOOK_MS * 1000000}},
	};
	enum client_alarm alarm;

	if (client->fd < 0)
		return;
	alarm = wanted(client);
	if (alarm != client->alarm)
		timerfd_settime(client->timer, 0, &times[alarm], NULL);
	client->alarm = alarm;
}
