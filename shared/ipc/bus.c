#include "shared/ipc/bus.h"

#include "shared/base/clock.h"
#include "shared/base/limits.h"
#include "shared/base/log.h"
#include "shared/base/patience.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

enum {
	QUEUE_MESSAGES = 1000, /* per peer and direction */
	RECONNECT_MS_MIN = 20,
	RECONNECT_MS_MAX = 500,
	CONTEXT_THREADS = 2, /* that ZeroMQ starts for a context: the reaper and one for I/O */
	CLIENT_LINGER_MS = 200, /* time for a client's last message (Cancel) to leave */
};

#ifdef __SANITIZE_THREAD__
/* libzmq is not built with the thread sanitizer, which therefore does not see the queues that order
 * libzmq's threads, and reports each message handed to the I/O thread as a race. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
	return "called_from_lib:libzmq.so\nrace:libzmq.so\n";
}
#endif

const char *bus_ipc_path(const char *endpoint)
{
	return strncmp(endpoint, "ipc://", 6) == 0 ? endpoint + 6 : NULL;
}

static void *wait_for_end(void *arg)
{
	pthread_mutex_t *gate = arg;

	pthread_mutex_lock(gate);
	pthread_mutex_unlock(gate);
	return NULL;
}

/* Tests for the resources whose lack makes libzmq abort: starts as many threads as a context does,
 * all at once, and allocates a megabyte, as a context does for them. The C library keeps the stacks
 * for the threads that follow. */
static int probe_threads(void)
{
	enum { CONTEXT_BYTES = 1 << 20 };
	pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
	pthread_t threads[CONTEXT_THREADS];
	int n = 0, code = 0;

	pthread_mutex_lock(&gate);
	while (code == 0 && n < CONTEXT_THREADS) {
		code = pthread_create(&threads[n], NULL, wait_for_end, &gate);
		n += code == 0;
	}
	void *volatile room = malloc(CONTEXT_BYTES);
	if (code == 0 && room == NULL)
		code = ENOMEM;
	free(room);
	pthread_mutex_unlock(&gate);
	while (n > 0)
		pthread_join(threads[--n], NULL);
	return -code;
}

/* Opens as many descriptors as a context and its first sockets take: without them libzmq aborts. */
static int probe_descriptors(void)
{
	enum { CONTEXT_DESCRIPTORS = 12 };
	int fds[CONTEXT_DESCRIPTORS], n = 0, code = 0;

	while (code == 0 && n < CONTEXT_DESCRIPTORS) {
		fds[n] = eventfd(0, EFD_CLOEXEC);
		code = fds[n] < 0 ? -errno : 0;
		n += code == 0;
	}
	while (n > 0)
		close(fds[--n]);
	return code;
}

int bus_context(void **zmq, struct error *err)
{
	void *first;
	int probed = probe_descriptors();

	*zmq = NULL;
	if (probed < 0)
		return error_set(err, -probed, "no descriptors for ZeroMQ (ulimit -n): %s",
			strerror(-probed));
	if (probe_threads() < 0)
		return error_set(err, ENOMEM, "no memory for the threads of ZeroMQ");
	*zmq = zmq_ctx_new();
	/* The context's threads start with its first socket. */
	first = *zmq ? zmq_socket(*zmq, ZMQ_DEALER) : NULL;
	if (!first) {
		int code = errno;

		if (*zmq)
			zmq_ctx_term(*zmq);
		*zmq = NULL;
		return error_set(err, code, "ZeroMQ context: %s", zmq_strerror(code));
	}
	zmq_close(first);
	return 0;
}

int bus_probe(const char *path, int type, int *pid)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct ucred cred = {0};
	socklen_t n = sizeof cred;
	int fd, code = 0;

	if (strlen(path) >= sizeof address.sun_path)
		return -ENAMETOOLONG;
	memcpy(address.sun_path, path, strlen(path) + 1);
	fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	/* EAGAIN: the backlog is full, so somebody listens. */
	if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0 && errno != EAGAIN)
		code = -errno;
	else if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) < 0)
		cred.pid = 0;
	close(fd);
	if (pid)
		*pid = cred.pid;
	return code;
}

static int set_int(void *socket, int option, int value)
{
	return zmq_setsockopt(socket, option, &value, sizeof value);
}

static int socket_error(const char *endpoint, struct error *err)
{
	int code = errno;

	return error_set(err, code, "%s: %s", endpoint, zmq_strerror(code));
}

static int set_options(void *socket, int linger_ms)
{
	int64_t bytes_max = LIMIT_MESSAGE_CUT;

	/* A larger message ends the connection before any memory is allocated for it. */
	if (zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &bytes_max, sizeof bytes_max) < 0 ||
		set_int(socket, ZMQ_LINGER, linger_ms) < 0 ||
		set_int(socket, ZMQ_SNDHWM, QUEUE_MESSAGES) < 0 ||
		set_int(socket, ZMQ_RCVHWM, QUEUE_MESSAGES) < 0 ||
		set_int(socket, ZMQ_IMMEDIATE, 0) < 0 ||
		set_int(socket, ZMQ_RECONNECT_IVL, RECONNECT_MS_MIN) < 0 ||
		set_int(socket, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MS_MAX) < 0)
		return -errno;
	return 0;
}

static int open_client(
	void *zmq, const char *endpoint, int linger_ms, void **out, struct error *err)
{
	void *socket = zmq_socket(zmq, ZMQ_DEALER);
	int code;

	*out = NULL;
	if (!socket)
		return socket_error(endpoint, err);
	if (set_options(socket, linger_ms) < 0 || zmq_connect(socket, endpoint) < 0) {
		code = socket_error(endpoint, err);
		zmq_close(socket);
		return code;
	}
	*out = socket;
	return 0;
}

int bus_client(void *zmq, const char *endpoint, void **out, struct error *err)
{
	return open_client(zmq, endpoint, CLIENT_LINGER_MS, out, err);
}

void bus_close(void **socket)
{
	if (*socket)
		zmq_close(*socket);
	*socket = NULL;
}

/* Receives one message with any number of frames; keeps the first frame and drops the rest.
 * *n_frames counts all. */
static int receive_frames(void *socket, zmq_msg_t *first, size_t *n_frames)
{
	bool more = true;

	for (*n_frames = 0; more; (*n_frames)++) {
		/* cppcheck-suppress uninitvar ; zmq_msg_init is what initialises it */
		zmq_msg_t extra, *frame = *n_frames == 0 ? first : &extra;
		int rc;

		zmq_msg_init(frame);
		/* The frames of a message arrive together, so only the first can be missing. */
		do
			rc = zmq_msg_recv(frame, socket, ZMQ_DONTWAIT);
		while (rc < 0 && errno == EINTR);
		if (rc < 0) {
			int code = errno;

			zmq_msg_close(frame);
			if (frame == &extra)
				zmq_msg_close(first);
			return -code;
		}
		more = zmq_msg_more(frame) != 0;
		if (frame == &extra)
			zmq_msg_close(&extra);
	}
	return 0;
}

int bus_decode(const void *data, size_t bytes, Outrider__Envelope **envelope, struct error *err)
{
	uint32_t version;

	*envelope = NULL;
	if (bytes > LIMIT_MESSAGE_BYTES)
		return error_set(err, EPROTO, "message of %zu bytes: at most %d are allowed", bytes,
			LIMIT_MESSAGE_BYTES);
	*envelope = outrider__envelope__unpack(NULL, bytes, data);
	if (!*envelope)
		return error_set(err, EPROTO, "message of %zu bytes is not an Envelope", bytes);
	version = (*envelope)->version;
	if (version != BUS_VERSION) {
		bus_free(envelope);
		return error_set(err, EPROTO, "message of version %u, this is version %d", version,
			BUS_VERSION);
	}
	return 0;
}

static int pack(zmq_msg_t *frame, Outrider__Envelope *envelope)
{
	size_t bytes;

	envelope->version = BUS_VERSION;
	bytes = outrider__envelope__get_packed_size(envelope);
	if (bytes > LIMIT_MESSAGE_BYTES)
		return -EMSGSIZE;
	if (zmq_msg_init_size(frame, bytes) < 0)
		return -errno;
	outrider__envelope__pack(envelope, zmq_msg_data(frame));
	return 0;
}

/* Sends the frame and takes it over, whatever it returns. */
static int send_frame(void *socket, zmq_msg_t *frame)
{
	int code;

	do
		code = zmq_msg_send(frame, socket, ZMQ_DONTWAIT) < 0 ? -errno : 0;
	while (code == -EINTR);
	if (code < 0)
		zmq_msg_close(frame);
	return code;
}

int bus_send(void *socket, Outrider__Envelope *envelope)
{
	zmq_msg_t frame;
	int code = pack(&frame, envelope);

	return code < 0 ? code : send_frame(socket, &frame);
}

int bus_receive(void *socket, int timeout_ms, Outrider__Envelope **envelope, struct error *err)
{
	zmq_pollitem_t item = {.socket = socket, .events = ZMQ_POLLIN};
	zmq_msg_t frame;
	size_t n;
	int code;

	*envelope = NULL;
	if (timeout_ms != 0 && zmq_poll(&item, 1, timeout_ms) < 0)
		return -errno;
	code = receive_frames(socket, &frame, &n);
	if (code < 0)
		return code;
	if (n != 1)
		code = error_set(err, EPROTO, "message of %zu frames, expected 1", n);
	else
		code = bus_decode(zmq_msg_data(&frame), zmq_msg_size(&frame), envelope, err);
	zmq_msg_close(&frame);
	return code;
}

void bus_free(Outrider__Envelope **envelope)
{
	if (*envelope)
		outrider__envelope__free_unpacked(*envelope, NULL);
	*envelope = NULL;
}

/* Waits for the reply to request_id. Replies to earlier calls that were given up are skipped. */
static int await(void *socket, const char *endpoint, uint64_t request_id, int timeout_ms,
	const struct bus_late *late, Outrider__Envelope **reply, struct error *err)
{
	struct patience patience;
	int step_ms = -1, code;
	bool told = late == NULL;

	patience_init(&patience, timeout_ms);
	for (;;) {
		if (timeout_ms >= 0)
			step_ms = patience_step_ms(&patience);
		if (!told && patience.limit_ns - patience.left_ns >= late->after_ns) {
			late->tell(late->arg);
			told = true;
		}
		code = bus_receive(socket, step_ms, reply, err);
		if (code == -EINTR || (code == -EAGAIN && step_ms != 0))
			continue;
		if (code == -EAGAIN)
			return error_set(
				err, ETIMEDOUT, "%s: no answer in %d ms", endpoint, timeout_ms);
		if (code < 0)
			return error_prefix(err, code, "%s", endpoint);
		assert(*reply);
		/* A server that could not read the request does not know its id, and answers with
		 * id 0. */
		if ((*reply)->request_id == request_id ||
			((*reply)->request_id == 0 &&
				(*reply)->body_case == OUTRIDER__ENVELOPE__BODY_FAILURE))
			return 0;
		bus_free(reply);
	}
}

int bus_call(void *zmq, const char *endpoint, Outrider__Envelope *request, int timeout_ms,
	const struct bus_late *late, Outrider__Envelope **reply, struct error *err)
{
	const char *path = bus_ipc_path(endpoint);
	void *socket;
	int code;

	*reply = NULL;
	if (path) {
		code = bus_probe(path, SOCK_STREAM, NULL);
		if (code < 0)
			return error_set(err, code == -ENOENT ? ECONNREFUSED : -code,
				"%s: nobody listens: %s", endpoint, strerror(-code));
	}
	code = open_client(zmq, endpoint, 0, &socket, err);
	if (code < 0)
		return code;
	if (request->request_id == 0)
		request->request_id = clock_ns();
	code = bus_send(socket, request);
	if (code < 0)
		code = error_set(err, -code, "%s: cannot send: %s", endpoint, zmq_strerror(-code));
	else
		code = await(socket, endpoint, request->request_id, timeout_ms, late, reply, err);
	bus_close(&socket);
	assert(code < 0 || *reply);
	if (code == 0 && (*reply)->body_case == OUTRIDER__ENVELOPE__BODY_FAILURE) {
		code = error_set(err, EREMOTEIO, "%s", (*reply)->failure->message);
		bus_free(reply);
	}
	return code;
}
