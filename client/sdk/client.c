#include "client/sdk/client.h"

#include "client/sdk/failure.h"
#include "client/sdk/ready.h"
#include "client/sdk/stream.h"
#include "client/sdk/texts.h"
#include "shared/base/clock.h"
#include "shared/base/patience.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

enum {
	WINDOW_DEFAULT = 512,
	WINDOW_MAX = 65536,
	FIRST_MS_DEFAULT = 5000,
	AWAY_MS_DEFAULT = 60000,
	WAIT_MS_MAX = 86400000,
};

#define MS UINT64_C(1000000)

/* A pause between two looks counts as at most this much silence: a caller that was away did not
 * wait. */
#define STEP_NS_MAX (1000 * MS)

#define MONITOR_ENDPOINT "inproc://outrider-connection"

static int open_sockets(struct outrider *client, struct error *err)
{
	char endpoint[300];
	int code = bus_context(&client->zmq, err);

	if (code < 0)
		return code;
	peers_client_endpoint(client->runtime_dir, endpoint, sizeof endpoint);
	code = bus_client(client->zmq, endpoint, &client->socket, err);
	if (code < 0)
		return code;
	client->monitor = zmq_socket(client->zmq, ZMQ_PAIR);
	if (!client->monitor ||
		zmq_socket_monitor(client->socket, MONITOR_ENDPOINT,
			ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
				ZMQ_EVENT_DISCONNECTED) < 0 ||
		zmq_connect(client->monitor, MONITOR_ENDPOINT) < 0)
		return error_set(err, errno, "ZeroMQ: monitor: %s", zmq_strerror(errno));
	return 0;
}

/* By the clock of file times. */
static uint64_t real_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int client_check(const struct outrider *client)
{
	if (!client)
		return failure_set(EINVAL, "there is no client: did outrider_connect succeed?");
	if (client->owner == getpid())
		return 0;
	return failure_set(EPERM,
		"the client belongs to process %d, which opened it: after fork() a process opens "
		"its own",
		(int)client->owner);
}

int outrider_connect(const char *runtime_dir, struct outrider **out)
{
	struct outrider *client;
	struct error err = {""};
	int code;

	if (!out)
		return failure_null("place for a client");
	*out = NULL;
	client = calloc(1, sizeof *client);
	if (!client)
		return failure_set(ENOMEM, "no memory for a client");
	client->owner = getpid();
	client->line_end = &client->line;
	client->fd = client->timer = -1;
	client->window = WINDOW_DEFAULT;
	client->first_ns = FIRST_MS_DEFAULT * MS;
	client->away_ns = AWAY_MS_DEFAULT * MS;
	client->pumped_ns = clock_ns();
	client->since_ns = real_ns();
	code = peers_runtime_dir(
		runtime_dir, false, client->runtime_dir, sizeof client->runtime_dir, &err);
	if (code == -ENOENT)
		code = error_prefix(&err, -ECONNREFUSED, "no service");
	if (code == 0)
		code = open_sockets(client, &err);
	if (code < 0) {
		outrider_close(&client);
		return failure_take(code, &err);
	}
	*out = client;
	return 0;
}

void outrider_close(struct outrider **out)
{
	struct outrider *client = out ? *out : NULL;

	if (!client)
		return;
	ready_close(client);
	/* ZeroMQ's threads and sockets belong to the parent: to touch them here would disturb it.
	 */
	if (client->owner != getpid()) {
		free(client);
		*out = NULL;
		return;
	}
	if (client->monitor) {
		zmq_socket_monitor(client->socket, NULL, 0);
		zmq_close(client->monitor);
	}
	bus_close(&client->socket);
	if (client->zmq)
		zmq_ctx_term(client->zmq);
	free(client);
	*out = NULL;
}

int outrider_set_window(struct outrider *client, uint32_t tokens)
{
	int code = client_check(client);

	if (code < 0)
		return code;
	if (tokens < 1 || tokens > WINDOW_MAX)
		return failure_set(
			EINVAL, "window %u: allowed are 1 to %d tokens", tokens, WINDOW_MAX);
	client->window = tokens;
	return 0;
}

int outrider_set_wait(struct outrider *client, int64_t first_ms, int64_t away_ms)
{
	int code = client_check(client);

	if (code < 0)
		return code;
	if (first_ms < 0 || first_ms > WAIT_MS_MAX || away_ms < 0 || away_ms > WAIT_MS_MAX)
		return failure_set(EINVAL, "wait: allowed are 0 to %d ms", WAIT_MS_MAX);
	client->first_ns = (uint64_t)first_ms * MS;
	client->away_ns = (uint64_t)away_ms * MS;
	return 0;
}

int outrider_client_fd(struct outrider *client)
{
	struct error err = {""};
	int code = client_check(client);

	if (code < 0)
		return code;
	if (client->fd >= 0)
		return client->fd;
	code = ready_open(client, &err);
	if (code < 0)
		return failure_take(code, &err);
	ready_arm(client);
	return client->fd;
}

int client_send(struct outrider *client, Outrider__Envelope *envelope, uint64_t *number)
{
	int code;

	envelope->request_id = ++client->requests;
	code = bus_send(client->socket, envelope);
	if (code == 0 && number)
		*number = envelope->request_id;
	return code;
}

/* An event has two frames: number and value, then the endpoint. */
static bool read_connection_event(struct outrider *client, uint16_t *event)
{
	unsigned char head[6];
	char endpoint[256];

	if (zmq_recv(client->monitor, head, sizeof head, ZMQ_DONTWAIT) < (int)sizeof *event)
		return false;
	zmq_recv(client->monitor, endpoint, sizeof endpoint, ZMQ_DONTWAIT);
	memcpy(event, head, sizeof *event);
	return true;
}

static void watch_connection(struct outrider *client)
{
	uint16_t event;

	while (read_connection_event(client, &event)) {
		bool was = client->connected;

		client->connected = event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
		client->reached = client->connected || event == ZMQ_EVENT_CONNECTED;
		/* What was sent before the break may be lost, so every stream tells the service
		 * again how far it is. */
		if (client->connected && !was)
			texts_connected(client);
		if (client->connected && !was)
			for (struct outrider_stream *s = client->streams; s; s = s->next)
				stream_connected(s);
	}
}

static struct outrider_stream **bucket_of(struct outrider *client, uint64_t uid)
{
	return &client->buckets[(uid ^ uid >> 32) % CLIENT_BUCKETS];
}

void client_add(struct outrider *client, struct outrider_stream *stream)
{
	struct outrider_stream **bucket = bucket_of(client, stream->uid);

	stream->next = client->streams;
	client->streams = stream;
	stream->in_bucket = *bucket;
	*bucket = stream;
	client->n_open++;
}

void client_remove(struct outrider_stream *stream)
{
	struct outrider *client = stream->client;
	struct outrider_stream **link = &client->streams;

	while (*link != stream)
		link = &(*link)->next;
	*link = stream->next;
	for (link = bucket_of(client, stream->uid); *link != stream; link = &(*link)->in_bucket)
		;
	*link = stream->in_bucket;
	client->n_open -= !stream->ended;
	ready_remove(stream);
}

struct outrider_stream *client_find(struct outrider *client, uint64_t uid)
{
	struct outrider_stream *s = *bucket_of(client, uid);

	while (s && s->uid != uid)
		s = s->in_bucket;
	return s;
}

/* The stream that a message is about. A refusal of a message that the service could not read
 * contains only the request's number. */
static struct outrider_stream *find(struct outrider *client, const Outrider__Envelope *envelope)
{
	uint64_t uid = stream_uid_of(envelope);
	struct outrider_stream *s;

	if (uid != 0)
		return client_find(client, uid);
	if (envelope->body_case != OUTRIDER__ENVELOPE__BODY_FAILURE)
		return NULL;
	for (s = client->streams; s && s->request_id != envelope->request_id; s = s->next)
		;
	return s;
}

static void dispatch(struct outrider *client, Outrider__Envelope *envelope)
{
	struct outrider_stream *stream;

	client->answered = true;
	if (texts_take(client, &envelope))
		return;
	stream = find(client, envelope);
	if (stream)
		stream_handle(stream, &envelope);
	bus_free(&envelope);
}

/* Handles everything in the socket. bus_receive has dropped what does not parse; if that was for
 * us, a gap will show it. */
static void drain(struct outrider *client)
{
	Outrider__Envelope *envelope;
	int code;

	do {
		code = bus_receive(client->socket, 0, &envelope, NULL);
		if (code == 0)
			dispatch(client, envelope);
	} while (code == 0 || code == -EPROTO || code == -EINTR);
}

/* A pause in which this process did not run, and so most likely the service neither, does not count
 * as silence, nor does the time before. But the service's clock, by which it ends late requests,
 * has gone on. */
static void count_silence(struct outrider *client, uint64_t now, bool stood_still)
{
	uint64_t step = now - client->pumped_ns;

	client->pumped_ns = now;
	for (struct outrider_stream *s = client->streams; s; s = s->next) {
		s->waited_ns += step;
		if (stood_still)
			stream_count_anew(s);
		else
			s->silent_ns += step < STEP_NS_MAX ? step : STEP_NS_MAX;
	}
}

void client_pump(struct outrider *client, int timeout_ms)
{
	zmq_pollitem_t items[] = {
		{.socket = client->socket, .events = ZMQ_POLLIN},
		{.socket = client->monitor, .events = ZMQ_POLLIN},
	};
	uint64_t began = clock_ns(), now = began;

	ready_look(client);
	if (timeout_ms != 0) {
		zmq_poll(items, 2, timeout_ms);
		now = clock_ns();
	}
	/* Before silence is judged, because unread messages are not silence. */
	count_silence(client, now, patience_stood_still(timeout_ms, now - began));
	drain(client);
	watch_connection(client);
	for (struct outrider_stream *s = client->streams; s; s = s->next)
		stream_tick(s);
}
