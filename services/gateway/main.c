/* outrider-gateway: OpenAI's HTTP interface in front of a service. Start-up, and the order of the
 * shutdown. */
#include "services/gateway/generate.h"
#include "services/gateway/listen.h"
#include "services/gateway/server.h"
#include "services/gateway/live.h"
#include "shared/base/clock.h"
#include "shared/base/descriptors.h"
#include "shared/base/log.h"
#include "shared/base/options.h"
#include "shared/base/standard.h"
#include "shared/ipc/daemon.h"
#include "shared/ipc/peers.h"

#include <poll.h>
#include <sysexits.h>
#include <unistd.h>

enum { CLIENT_WINDOW = 64, TICKS_PER_SECOND = 10 };
#define TICK_NS (1000000000u / TICKS_PER_SECOND)

/* The number of responses with a status of at least `least`. */
static uint64_t responses(const struct metrics *metrics, size_t least)
{
	uint64_t n = 0;

	for (size_t i = least; i < METRICS_STATUSES; i++)
		n += metrics->responses[i];
	return n;
}

static void on_events(void *arg)
{
	struct gateway *gateway = arg;

	generate_pump(gateway);
	server_run(gateway);
}

static void on_tick(void *arg)
{
	struct gateway *gateway = arg;

	if (++gateway->ticks % TICKS_PER_SECOND == 0) {
		live_tick(gateway);
		rate_note(&gateway->rate, clock_ns(), responses(&gateway->metrics, 0));
	}
	generate_pump(gateway);
	generate_tick(gateway);
	server_tick(gateway);
	server_run(gateway);
}

static void on_detail(void *arg, struct daemon_details *to)
{
	const struct gateway *gateway = arg;
	const struct metrics *metrics = &gateway->metrics;
	uint64_t all = responses(metrics, 0), ns;
	uint64_t recent = rate_grown(&gateway->rate, clock_ns(), all, &ns);

	daemon_detail(to, "listen", "%s", gateway->config->listen);
	daemon_detail(to, "keys", "%zu", gateway->keys.n);
	daemon_detail(to, "connections", "%llu", (unsigned long long)metrics->connections);
	daemon_detail(to, "open", "%llu", (unsigned long long)metrics->requests_open);
	daemon_detail(to, "answers_running", "%u", gateway->queue.running);
	daemon_detail(to, "answers_waiting", "%u", gateway->queue.n);
	daemon_detail(to, "responses", "%llu", (unsigned long long)all);
	daemon_detail(to, "recent_responses", "%llu", (unsigned long long)recent);
	daemon_detail(to, "recent_ns", "%llu", (unsigned long long)ns);
	daemon_detail(to, "errors", "%llu", (unsigned long long)responses(metrics, 400));
	daemon_detail(
		to, "completion_tokens", "%llu", (unsigned long long)metrics->completion_tokens);
}

static int open_client(struct gateway *gateway, struct error *err)
{
	int code = outrider_connect(daemon_runtime_dir(gateway->daemon), &gateway->client);

	if (code == 0)
		code = outrider_set_window(gateway->client, CLIENT_WINDOW);
	if (code < 0)
		return error_set(err, -code, "%s", outrider_error());
	code = outrider_client_fd(gateway->client);
	if (code < 0)
		return error_set(err, -code, "%s", outrider_error());
	if (daemon_add_fd(gateway->daemon, code, POLLIN, on_events, gateway) < 0 ||
		daemon_add_timer(gateway->daemon, TICK_NS, on_tick, gateway) < 0)
		return error_set(err, ENOSPC, "too many sources of events");
	return 0;
}

/* Opens the HTTP server on a socket that the service manager passed, or on one of our own. */
static int open_server(struct gateway *gateway, struct error *err)
{
	int fd;

	if (daemon_listen_fd(gateway->daemon, "http", &fd) < 0)
		fd = listen_open(gateway->config->listen, err);
	return fd < 0 ? fd : server_open(gateway, fd, err);
}

static int serve(struct gateway *gateway, struct gateway_config *config,
	const struct options *options, struct error *err)
{
	int code = open_client(gateway, err);

	if (code == 0)
		code = open_server(gateway, err);
	if (code == 0)
		code = watch_start(&gateway->watch, daemon_runtime_dir(gateway->daemon), err);
	if (code == 0)
		code = asks_start(
			&gateway->asks, gateway, daemon_runtime_dir(gateway->daemon), err);
	if (code == 0)
		code = live_open(gateway, config, options, err);
	if (code == 0)
		code = daemon_admin_open(gateway->daemon, NULL, NULL, err);
	if (code < 0)
		return code;
	daemon_on_detail(gateway->daemon, on_detail, gateway);
	log_notice("serving HTTP on %s%s", gateway->config->listen,
		gateway->keys.n ? ", with API keys" : "");
	/* So that a request that comes at once is not refused. */
	watch_settle(&gateway->watch);
	daemon_ready(gateway->daemon);
	return daemon_run(gateway->daemon);
}

static void stop(struct gateway *gateway)
{
	server_close(gateway);
	asks_stop(&gateway->asks);
	watch_stop(&gateway->watch);
	outrider_close(&gateway->client);
	keys_free(&gateway->keys);
}

static const struct options_spec spec = {
	.program = "outrider-gateway",
	.summary = "Serves OpenAI's HTTP interface, for a service that runs on this machine.",
	.config_path = OUTRIDER_SYSCONFDIR "/outrider/gateway.conf",
	.keys = gateway_keys,
	.shortcuts = {{"listen", "listen", "ADDR:PORT",
		"the address that HTTP clients connect to"}},
};

/* Checks everything that can be checked before anything is opened; reads the keys. */
static int check(struct gateway *gateway, struct error *err)
{
	int code = live_check(gateway->config, err);

	return code ? code : keys_read(&gateway->keys, gateway->config->keys, err);
}

int main(int argc, char **argv)
{
	static struct gateway gateway;
	static struct gateway_config config;
	struct options options;
	struct error err = {""};
	char runtime_dir[256];
	int status;

	standard_begin();
	log_init("gateway", 0);
	gateway.config = &config;
	int r = options_read(&spec, argc, argv, &options, &config, stdout, &err);
	if (r == 1)
		r = check(&gateway, &err) < 0 ? -ENOEXEC : !options.check;
	if (r < 0)
		log_error("%s", err.text);
	if (r < 1)
		return options_exit_status(r);
	log_set_verbosity(options.verbosity);
	r = peers_runtime_dir(options.runtime_dir, true, runtime_dir, sizeof runtime_dir, &err);
	if (r == 0) {
		struct daemon_options daemon = {.name = PEER_GATEWAY, .runtime_dir = runtime_dir};

		r = daemon_create(&daemon, &gateway.daemon, &err);
	}
	if (r == 0)
		r = descriptors_need(PEER_GATEWAY, (uint64_t)config.connections, &err);
	if (r == 0)
		r = serve(&gateway, &config, &options, &err);
	if (r < 0)
		log_error("%s", err.text);
	status = r < 0 ? error_exit_status(r) : r;
	stop(&gateway);
	if (gateway.daemon)
		daemon_destroy(&gateway.daemon);
	return r < 0 ? daemon_start_failed(status) : status;
}
