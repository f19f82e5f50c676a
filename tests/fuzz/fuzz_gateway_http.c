/* Any bytes on a connection of the gateway, which is without a service: it closes the connection, or answers with a status, and a JSON
 * body where it says so. Answers wait in its queue and end when their client has gone. */
#include "services/gateway/generate.h"
#include "services/gateway/server.h"
#include "shared/ipc/daemon.h"
#include "shared/ipc/peers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { ROUNDS_MAX = 200, SENT_MAX = 65536 };

static struct gateway gateway;
static struct gateway_config config = {.listen = "unix:",
	.connections = 16,
	.queue = 64,
	.body_bytes = 32768,
	.request_timeout_ns = INT64_C(1000000000),
	.ping_ns = INT64_C(1000000000)};

static void must(int code)
{
	if (code < 0)
		abort();
}

static void begin(void)
{
	static char folder[] = "/tmp/outrider-fuzz-XXXXXX";
	static char path[sizeof folder + 16];
	struct error err = {""};
	const struct daemon_options options = {.name = PEER_GATEWAY, .runtime_dir = folder};
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	if (!mkdtemp(folder))
		abort();
	must(daemon_create(&options, &gateway.daemon, &err));
	must(outrider_connect(folder, &gateway.client));
	gateway.config = &config;
	pthread_mutex_init(&gateway.watch.mutex, NULL);
	pthread_mutex_init(&gateway.asks.mutex, NULL);
	/* Nobody answers questions: there is no room for any. */
	gateway.asks.n_waiting = ASKS_WAITING;
	/* A socket that nobody uses: connections are given to the server. */
	snprintf(path, sizeof path, "%s/http", folder);
	snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	must(bind(fd, (struct sockaddr *)&address, sizeof address));
	must(listen(fd, 1));
	must(server_open(&gateway, fd, &err));
	unlink(path);
}

/* The first response. */
static void check(const char *text, size_t n)
{
	static const char json[] = "Content-Type: application/json";
	const char *body;
	unsigned status;

	if (n == 0)
		return;
	if (sscanf(text, "HTTP/1.%*1[01] %3u ", &status) != 1 || status < 100 || status > 599)
		abort();
	/* Go on, before the response. */
	if (status == 100)
		return;
	body = strstr(text, "\r\n\r\n");
	const char *length = strstr(text, "Content-Length: ");
	if (!body || !length || length > body ||
		!memmem(text, (size_t)(body - text), json, sizeof json - 1))
		return;
	/* What a HEAD asked for has a length and no body: the next response follows. */
	if (strncmp(body + 4, "HTTP/1.", 7) == 0)
		return;
	size_t left = n - (size_t)(body + 4 - text), said = strtoul(length + 16, NULL, 10);
	if (said == 0 || said > left)
		return;
	json_t *value = json_loadb(body + 4, said, 0, NULL);
	if (!value || (status >= 400 && !json_object_get(value, "error")))
		abort();
	json_decref(value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static char reply[1 << 20];
	const struct sockaddr_un address = {.sun_family = AF_UNIX};
	size_t n = 0, sent = 0;
	int ends[2];

	if (!gateway.daemon)
		begin();
	if (bytes > SENT_MAX)
		return 0;
	must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends));
	if (MHD_add_connection(gateway.http, ends[0], (const struct sockaddr *)&address,
		    sizeof address) != MHD_YES)
		abort();
	for (int i = 0; i < ROUNDS_MAX; i++) {
		ssize_t k =
			sent < bytes ? send(ends[1], data + sent, bytes - sent, MSG_NOSIGNAL) : 0;

		sent = k < 0 && errno != EAGAIN ? bytes : sent + (k > 0 ? (size_t)k : 0);
		if (sent == bytes)
			shutdown(ends[1], SHUT_WR);
		/* No answer is started: there is no service. */
		gateway.queue.rests = true;
		server_run(&gateway);
		generate_tick(&gateway);
		gateway.queue.rests = true;
		k = recv(ends[1], reply + n, sizeof reply - 1 - n, 0);
		if (k == 0 || (k < 0 && errno != EAGAIN))
			break;
		n += k > 0 ? (size_t)k : 0;
	}
	reply[n] = '\0';
	check(reply, n);
	close(ends[1]);
	for (int i = 0; i < 4; i++) {
		server_run(&gateway);
		generate_tick(&gateway);
	}
	return 0;
}
