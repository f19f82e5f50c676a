#include "services/gateway/server.h"

#include "services/gateway/generate.h"
#include "services/gateway/page.h"
#include "services/gateway/responses.h"
#include "services/gateway/routes.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/ipc/daemon.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEADERS_MAX = 32768, STREAM_BLOCK = 16384, RUNS_MAX = 16, CROWDED_SHARE = 8 };
#define CROWDED_NS UINT64_C(2000000000)

/* An open connection. libmicrohttpd does not report connections whose request has not arrived, so
 * they are counted here. */
struct connection {
	struct connection *previous, *next;
	int fd;
	uint64_t since_ns; /* since when its next request is awaited */
	bool busy; /* a request has arrived, and its response is not all sent */
	bool closing;
};

static void on_connection(void *arg, struct MHD_Connection *http, void **context,
	enum MHD_ConnectionNotificationCode what)
{
	struct gateway *gateway = arg;
	struct connection *connection = *context;

	if (what == MHD_CONNECTION_NOTIFY_STARTED) {
		const union MHD_ConnectionInfo *info =
			MHD_get_connection_info(http, MHD_CONNECTION_INFO_CONNECTION_FD);

		connection = calloc(1, sizeof *connection);
		if (!connection)
			return;
		connection->fd = info ? info->connect_fd : -1;
		connection->since_ns = clock_ns();
		connection->next = gateway->connections;
		if (connection->next)
			connection->next->previous = connection;
		gateway->connections = connection;
		gateway->metrics.connections++;
		*context = connection;
	} else if (connection) {
		if (connection->previous)
			connection->previous->next = connection->next;
		else
			gateway->connections = connection->next;
		if (connection->next)
			connection->next->previous = connection->previous;
		gateway->metrics.connections--;
		free(connection);
		*context = NULL;
	}
}

static struct connection *connection_of(struct MHD_Connection *http)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(http, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

	return info ? info->socket_context : NULL;
}

static void set_busy(struct gateway *gateway, struct MHD_Connection *http, bool busy)
{
	struct connection *connection = connection_of(http);

	if (!connection)
		return;
	if (busy && !connection->busy)
		gateway->metrics.requests_open++;
	else if (!busy && connection->busy)
		gateway->metrics.requests_open--;
	connection->busy = busy;
	connection->since_ns = clock_ns();
}

/* How long a client may take to send its request. The time is short when few places are left:
 * clients that connect and send nothing, however many, do not keep others waiting for long in the
 * socket's backlog. */
static uint64_t patience_ns(const struct gateway *gateway)
{
	uint64_t places = (uint64_t)gateway->config->connections;
	uint64_t all_ns = (uint64_t)gateway->config->request_timeout_ns;

	if (gateway->metrics.connections <= places - places / CROWDED_SHARE)
		return all_ns;
	return all_ns < CROWDED_NS ? all_ns : CROWDED_NS;
}

void server_tick(struct gateway *gateway)
{
	uint64_t now_ns = clock_ns(), longest_ns = patience_ns(gateway);

	for (struct connection *c = gateway->connections; c; c = c->next)
		if (!c->busy && !c->closing && c->fd >= 0 && now_ns - c->since_ns >= longest_ns) {
			shutdown(c->fd, SHUT_RDWR);
			c->closing = true;
		}
}

void exchange_rest(struct exchange *exchange)
{
	exchange->suspended = true;
	MHD_suspend_connection(exchange->connection);
}

void exchange_wake(struct exchange *exchange)
{
	if (!exchange->suspended)
		return;
	exchange->suspended = false;
	MHD_resume_connection(exchange->connection);
}

static ssize_t read_out(void *arg, uint64_t position, char *to, size_t room)
{
	struct exchange *exchange = arg;
	size_t n = exchange->out.n < room ? exchange->out.n : room;

	(void)position;
	if (n == 0 && exchange->complete)
		return MHD_CONTENT_READER_END_OF_STREAM;
	if (n == 0) {
		exchange_rest(exchange);
		return 0;
	}
	memcpy(to, exchange->out.data, n);
	exchange->gateway->metrics.sent_bytes += n;
	text_drop(&exchange->out, n);
	return (ssize_t)n;
}

static void count(struct exchange *exchange, unsigned status)
{
	if (!exchange->told && status < METRICS_STATUSES)
		exchange->gateway->metrics.responses[status]++;
	exchange->told = true;
}

/* Adds a header whose value is rounded up. */
static void add_number(struct MHD_Response *response, const char *header, double value)
{
	char text[32];

	snprintf(text, sizeof text, "%.0f", ceil(value > 0 ? value : 0));
	MHD_add_response_header(response, header, text);
}

/* OpenAI's headers of limits. What is left is rounded down. */
static void add_limits(struct MHD_Response *response, const struct key *key)
{
	if (key->limits.requests_per_minute) {
		add_number(response, "x-ratelimit-limit-requests", key->limits.requests_per_minute);
		add_number(response, "x-ratelimit-remaining-requests", floor(key->left.requests));
	}
	if (key->limits.tokens_per_minute) {
		add_number(response, "x-ratelimit-limit-tokens", key->limits.tokens_per_minute);
		add_number(response, "x-ratelimit-remaining-tokens", floor(key->left.tokens));
	}
}

static enum MHD_Result send_response(
	struct exchange *exchange, struct MHD_Response *response, unsigned status, const char *type)
{
	const char *origin = exchange->gateway->config->origin;
	enum MHD_Result result;

	if (!response)
		return MHD_NO;
	if (type)
		MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	if (*origin) {
		MHD_add_response_header(response, "Access-Control-Allow-Origin", origin);
		MHD_add_response_header(response, "Access-Control-Allow-Headers",
			"Authorization, Content-Type, Idempotency-Key");
		MHD_add_response_header(
			response, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
	}
	MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
	if (type && strcmp(type, ROUTES_HTML) == 0) {
		MHD_add_response_header(response, "Content-Security-Policy", page_policy);
		MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
		MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
	}
	if (status == MHD_HTTP_UNAUTHORIZED)
		MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
	if (status == MHD_HTTP_TOO_MANY_REQUESTS || status == MHD_HTTP_SERVICE_UNAVAILABLE)
		add_number(response, MHD_HTTP_HEADER_RETRY_AFTER,
			exchange->retry_s > 1 ? exchange->retry_s : 1);
	if (exchange->key)
		add_limits(response, exchange->key);
	if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, POST, OPTIONS");
	result = MHD_queue_response(exchange->connection, status, response);
	MHD_destroy_response(response);
	exchange->responding = true;
	count(exchange, status);
	return result;
}

/* A response that is complete in exchange->out. */
static struct MHD_Response *whole(struct exchange *exchange)
{
	const struct text *out = &exchange->out;

	exchange->gateway->metrics.sent_bytes += out->n;
	return MHD_create_response_from_buffer(
		out->n, out->n ? out->data : "", MHD_RESPMEM_MUST_COPY);
}

static enum MHD_Result send_fault(struct exchange *exchange)
{
	struct text *out = &exchange->out;

	if (exchange->responses)
		responses_rename(&exchange->fault);
	text_drop(out, out->n);
	if (!text_add_json(out, fault_json(&exchange->fault), "", "\n"))
		return MHD_NO;
	return send_response(exchange, whole(exchange), exchange->fault.status, ROUTES_JSON);
}

/* Sends what there is, or rests until there is something. */
static enum MHD_Result respond(struct exchange *exchange)
{
	struct text *out = &exchange->out;

	if (exchange->fault.status)
		return send_fault(exchange);
	if (exchange->params.stream && (out->n > 0 || exchange->complete)) {
		struct MHD_Response *response = MHD_create_response_from_callback(
			MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_out, exchange, NULL);

		if (response) {
			MHD_add_response_header(
				response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
			MHD_add_response_header(response, "X-Accel-Buffering", "no");
		}
		return send_response(
			exchange, response, MHD_HTTP_OK, "text/event-stream; charset=utf-8");
	}
	if (exchange->complete)
		return send_response(exchange, whole(exchange), MHD_HTTP_OK, exchange->route->type);
	exchange_rest(exchange);
	return MHD_YES;
}

/* False when the limits of its key do not let the request begin. Only POST counts; other requests
 * merely look. */
static bool within_limits(struct exchange *exchange)
{
	struct key *key = exchange->key;
	enum limits_which which;

	if (!key || strcmp(exchange->route->method, MHD_HTTP_METHOD_POST) != 0)
		return true;
	which = limits_begin(&key->limits, &key->left, clock_ns(), &exchange->retry_s);
	exchange->limited = which == LIMITS_NONE;
	if (exchange->limited)
		return true;
	const uint32_t limits[LIMITS_KINDS] = {
		[LIMITS_REQUESTS] = key->limits.requests_per_minute,
		[LIMITS_CONCURRENT] = key->limits.concurrent,
		[LIMITS_TOKENS] = key->limits.tokens_per_minute,
	};
	exchange->gateway->metrics.limited[which]++;
	return fault_set(&exchange->fault, MHD_HTTP_TOO_MANY_REQUESTS, NULL, "rate_limit_exceeded",
		"your API key has reached its limit: %s is %u; try again in %.1f s",
		limits_names[which], limits[which], exchange->retry_s);
}

static bool dispatch(struct exchange *exchange)
{
	struct gateway *gateway = exchange->gateway;
	const char *key = MHD_lookup_connection_value(
		exchange->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);

	exchange->dispatched = true;
	exchange->begun_ns = exchange->sent_ns = clock_ns();
	set_busy(exchange->gateway, exchange->connection, true);
	if (exchange->fault.status)
		return false;
	if (!exchange->route->open && !keys_allow(&gateway->keys, key, &exchange->key))
		return fault_set(&exchange->fault, MHD_HTTP_UNAUTHORIZED, NULL, "invalid_api_key",
			key ? "the API key is not one that is allowed here"
			    : "you must send an API key: Authorization: Bearer KEY");
	if (exchange->body_too_large)
		return fault_set(&exchange->fault, MHD_HTTP_CONTENT_TOO_LARGE, NULL,
			"request_too_large", "the body has more than %lld bytes",
			(long long)gateway->config->body_bytes);
	if (exchange->body.failed)
		return fault_set(&exchange->fault, MHD_HTTP_INTERNAL_SERVER_ERROR, NULL,
			"internal_error", "no memory for the body");
	return within_limits(exchange) && exchange->route->handle(exchange);
}

static struct exchange *begin(
	struct gateway *gateway, struct MHD_Connection *http, const char *method, const char *path)
{
	struct exchange *exchange = calloc(1, sizeof *exchange);
	bool known;

	if (!exchange)
		return NULL;
	exchange->gateway = gateway;
	exchange->connection = http;
	exchange->route = routes_find(method, path, &known);
	if (!exchange->route)
		fault_set(&exchange->fault,
			known ? MHD_HTTP_METHOD_NOT_ALLOWED : MHD_HTTP_NOT_FOUND, NULL,
			known ? "method_not_allowed" : "not_found",
			known ? "%.8s is not possible with %.64s"
			      : "unknown request: %.8s %.64s; outrider-gateway(8) lists what "
				"it knows",
			method, path);
	return exchange;
}

static void take_body(struct exchange *exchange, const char *data, size_t n)
{
	exchange->gateway->metrics.received_bytes += n;
	if (exchange->body.n + n > (size_t)exchange->gateway->config->body_bytes) {
		exchange->body_too_large = true;
		text_free(&exchange->body);
	}
	if (!exchange->body_too_large)
		text_add(&exchange->body, data, n);
}

/* Answers a browser's question, before its request, whether it may send it (CORS). */
static enum MHD_Result allow(struct exchange *exchange)
{
	exchange->fault.status = 0;
	return send_response(exchange,
		MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT), MHD_HTTP_NO_CONTENT,
		NULL);
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *http, const char *path,
	const char *method, const char *version, const char *data, size_t *bytes, void **context)
{
	struct exchange *exchange = *context;

	(void)version;
	if (!exchange) {
		*context = begin(arg, http, method, path);
		return *context ? MHD_YES : MHD_NO;
	}
	if (*bytes > 0) {
		take_body(exchange, data, *bytes);
		*bytes = 0;
		return MHD_YES;
	}
	if (!exchange->dispatched) {
		if (strcmp(method, MHD_HTTP_METHOD_OPTIONS) == 0 &&
			exchange->gateway->config->origin[0])
			return allow(exchange);
		dispatch(exchange);
	}
	return respond(exchange);
}

static void on_completed(
	void *arg, struct MHD_Connection *http, void **context, enum MHD_RequestTerminationCode how)
{
	struct exchange *exchange = *context;

	set_busy(arg, http, false);
	if (!exchange)
		return;
	if (how != MHD_REQUEST_TERMINATED_COMPLETED_OK)
		count(exchange, 499);
	ask_forget(exchange);
	generate_end(exchange);
	if (exchange->limited)
		limits_end(&exchange->key->left);
	keys_release(exchange->key);
	responses_free(exchange);
	params_free(&exchange->params);
	text_free(&exchange->body);
	text_free(&exchange->out);
	free(exchange);
	*context = NULL;
}

static void on_message(void *arg, const char *format, va_list args)
	__attribute__((format(printf, 2, 0)));

static void on_message(void *arg, const char *format, va_list args)
{
	char text[256];

	(void)arg;
	vsnprintf(text, sizeof text, format, args);
	text[strcspn(text, "\n")] = '\0';
	log_debug("libmicrohttpd: %s", text);
}

static void on_ready(void *arg)
{
	server_run(arg);
}

int server_open(struct gateway *gateway, int listen_fd, struct error *err)
{
	const union MHD_DaemonInfo *info;

	gateway->http = MHD_start_daemon(
		MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | MHD_USE_TCP_FASTOPEN,
		0, NULL, NULL, on_request, gateway, MHD_OPTION_EXTERNAL_LOGGER, on_message, NULL,
		MHD_OPTION_LISTEN_SOCKET, listen_fd, MHD_OPTION_CONNECTION_LIMIT,
		(unsigned)gateway->config->connections, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
		(size_t)HEADERS_MAX, MHD_OPTION_NOTIFY_COMPLETED, on_completed, gateway,
		MHD_OPTION_NOTIFY_CONNECTION, on_connection, gateway, MHD_OPTION_END);
	if (!gateway->http)
		return error_set(err, EIO, "the HTTP server could not be started on %s",
			gateway->config->listen);
	info = MHD_get_daemon_info(gateway->http, MHD_DAEMON_INFO_EPOLL_FD);
	if (!info || daemon_add_fd(gateway->daemon, info->epoll_fd, POLLIN, on_ready, gateway) < 0)
		return error_set(err, EIO, "the HTTP server cannot be watched");
	return 0;
}

void server_run(struct gateway *gateway)
{
	MHD_UNSIGNED_LONG_LONG ms;

	/* Repeated while it has something to do at once, which its descriptor does not show. */
	for (int i = 0; i < RUNS_MAX; i++) {
		MHD_run(gateway->http);
		if (MHD_get_timeout(gateway->http, &ms) != MHD_YES || ms > 0)
			return;
	}
}

void server_close(struct gateway *gateway)
{
	const union MHD_DaemonInfo *info;

	if (!gateway->http)
		return;
	info = MHD_get_daemon_info(gateway->http, MHD_DAEMON_INFO_EPOLL_FD);
	if (info)
		daemon_remove_fd(gateway->daemon, info->epoll_fd);
	/* Connections that rest must be woken before they can be closed. */
	for (struct exchange *exchange = gateway->exchanges; exchange; exchange = exchange->next)
		exchange_wake(exchange);
	MHD_stop_daemon(gateway->http);
	gateway->http = NULL;
}
