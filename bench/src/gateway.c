#include "bench/src/gateway.h"

#include "bench/src/options.h"
#include "client/include/outrider.h"
#include "client/model/args.h"
#include "shared/base/clock.h"
#include "shared/base/cpu_name.h"
#include "shared/base/median.h"

#include <errno.h>
#include <jansson.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sysexits.h>
#include <unistd.h>

enum { ROUNDS_MOST = 10000, REPLY_BYTES = 8 << 20 };

struct options {
	const char *runtime_dir, *http, *prompt, *format;
	uint32_t rounds, tokens, k;
	bool json, help;
};

/* The times of one answer, from the request on. */
struct answer {
	double first_s, whole_s;
};

struct bench {
	struct options options;
	struct outrider *client;
	struct outrider_request *request;
	int fd; /* a connection that stays open; -1: none */
	char *reply; /* [REPLY_BYTES], owned */
	struct answer *sdk, *http; /* [rounds], owned */
};

static double seconds_since(uint64_t begun_ns)
{
	return (double)(clock_ns() - begun_ns) * 1e-9;
}

static int open_http(struct bench *b, struct error *err)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	const char *colon = strrchr(b->options.http, ':');
	struct addrinfo *address;
	char host[256];
	int on = 1;

	if (!colon)
		return error_set(
			err, EINVAL, "--http: expected ADDRESS:PORT, not \"%s\"", b->options.http);
	snprintf(host, sizeof host, "%.*s", (int)(colon - b->options.http), b->options.http);
	int code = getaddrinfo(host, colon + 1, &hints, &address);
	if (code)
		return error_set(err, EINVAL, "--http %s: %s", b->options.http, gai_strerror(code));
	b->fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	code = b->fd < 0 || connect(b->fd, address->ai_addr, address->ai_addrlen) < 0 ||
			       setsockopt(b->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0
		       ? error_set(err, errno, "--http %s: %s", b->options.http, strerror(errno))
		       : 0;
	freeaddrinfo(address);
	return code;
}

static int open_sdk(struct bench *b, struct error *err)
{
	int code = outrider_connect(b->options.runtime_dir, &b->client);

	if (code == 0)
		code = outrider_request_new(&b->request);
	if (code == 0)
		code = outrider_request_set_prompt(b->request, b->options.prompt);
	if (code == 0)
		code = outrider_request_set_temperature(b->request, 1);
	if (code == 0)
		code = outrider_request_set_k(b->request, (int)b->options.k);
	if (code < 0)
		return error_set(err, -code, "%s", outrider_error());
	outrider_request_set_max_tokens(b->request, b->options.tokens);
	outrider_request_set_ignore_eos(b->request, true);
	return 0;
}

static int ask_sdk(struct bench *b, uint32_t seed, struct answer *out, struct error *err)
{
	const struct outrider_event *event = NULL;
	struct outrider_stream *stream;
	uint64_t begun_ns = clock_ns();
	uint32_t n = 0;

	outrider_request_set_seed(b->request, seed);
	outrider_request_set_uid(b->request, 0);
	int code = outrider_start(b->client, b->request, &stream);
	if (code < 0)
		return error_set(err, -code, "%s", outrider_error());
	do {
		code = outrider_next(stream, -1, &event);
		if (code == 0 && n == 0 && event->n_tokens > 0)
			out->first_s = seconds_since(begun_ns);
		n += code == 0 ? (uint32_t)event->n_tokens : 0;
	} while (code == 0 && event->type != OUTRIDER_EVENT_DONE);
	out->whole_s = seconds_since(begun_ns);
	if (code < 0)
		error_set(err, -code, "%s", outrider_error());
	else if (n != b->options.tokens)
		code = error_set(err, EPROTO, "%u tokens instead of %u", n, b->options.tokens);
	outrider_stream_free(&stream);
	return code;
}

/* Reads the response to the end of its last chunk; *first_s: when the first event arrived. */
static int read_reply(struct bench *b, uint64_t begun_ns, struct answer *out, struct error *err)
{
	static const char end[] = "\r\n0\r\n\r\n";
	size_t n = 0;

	out->first_s = 0;
	do {
		ssize_t more = recv(b->fd, b->reply + n, REPLY_BYTES - 1 - n, 0);

		if (more <= 0)
			return error_set(err, more < 0 ? errno : EPROTO, "the gateway: %s",
				more < 0 ? strerror(errno) : "it closed the connection");
		n += (size_t)more;
		b->reply[n] = '\0';
		if (out->first_s == 0 && strstr(b->reply, "data: {"))
			out->first_s = seconds_since(begun_ns);
		if (n >= 12 && strncmp(b->reply, "HTTP/1.1 200", 12) != 0)
			return error_set(err, EPROTO, "the gateway: %.300s", b->reply);
	} while (n < sizeof end || strcmp(b->reply + n - sizeof end + 1, end) != 0);
	out->whole_s = seconds_since(begun_ns);
	return 0;
}

static int ask_http(struct bench *b, uint32_t seed, struct answer *out, struct error *err)
{
	char want[64], request[1024];
	json_t *body = json_pack("{s:s, s:i, s:i, s:f, s:b, s:b, s:{s:b}, s:{s:i}}", "prompt",
		b->options.prompt, "max_tokens", (int)b->options.tokens, "seed", (int)seed,
		"temperature", 1.0, "ignore_eos", 1, "stream", 1, "stream_options", "include_usage",
		1, "outrider", "k", (int)b->options.k);
	char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;

	json_decref(body);
	if (!text)
		return error_set(err, EINVAL, "--prompt: not UTF-8");
	int n = snprintf(request, sizeof request,
		"POST /v1/completions HTTP/1.1\r\nHost: outrider\r\nContent-Length: %zu\r\n\r\n%s",
		strlen(text), text);
	free(text);
	if ((size_t)n >= sizeof request)
		return error_set(err, EINVAL, "--prompt: it is too long");
	uint64_t begun_ns = clock_ns();
	if (send(b->fd, request, (size_t)n, MSG_NOSIGNAL) != n)
		return error_set(err, errno, "the gateway: %s", strerror(errno));
	int code = read_reply(b, begun_ns, out, err);
	snprintf(want, sizeof want, "\"completion_tokens\":%u", b->options.tokens);
	if (code == 0 && !strstr(b->reply, want))
		code = error_set(
			err, EPROTO, "the gateway did not give %u tokens", b->options.tokens);
	return code;
}

/* Alternates both ways, each first in every second round, so that changes of the machine affect
 * both. */
static int measure(struct bench *b, struct error *err)
{
	struct answer warm;
	int code = ask_sdk(b, 0, &warm, err);

	if (code == 0)
		code = ask_http(b, 0, &warm, err);
	for (uint32_t i = 0; code == 0 && i < b->options.rounds; i++) {
		if (i % 2)
			code = ask_http(b, i + 1, &b->http[i], err);
		if (code == 0)
			code = ask_sdk(b, i + 1, &b->sdk[i], err);
		if (code == 0 && i % 2 == 0)
			code = ask_http(b, i + 1, &b->http[i], err);
	}
	return code;
}

struct sums {
	double sdk_rate, http_rate, ratio, sdk_first_ms, http_first_ms, first_more_ms;
};

/* Medians over the rounds; ratio and difference are those of each pair. */
static int sum(const struct bench *b, struct sums *out)
{
	size_t n = b->options.rounds;
	double *v = calloc(6 * n, sizeof *v);

	if (!v)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		const struct answer *s = &b->sdk[i], *h = &b->http[i];

		v[i] = b->options.tokens / s->whole_s;
		v[n + i] = b->options.tokens / h->whole_s;
		v[2 * n + i] = s->whole_s / h->whole_s;
		v[3 * n + i] = s->first_s * 1e3;
		v[4 * n + i] = h->first_s * 1e3;
		v[5 * n + i] = (h->first_s - s->first_s) * 1e3;
	}
	*out = (struct sums){median(v, n), median(v + n, n), median(v + 2 * n, n),
		median(v + 3 * n, n), median(v + 4 * n, n), median(v + 5 * n, n)};
	free(v);
	return 0;
}

static void print(const struct bench *b, const struct sums *s)
{
	char cpu[CPU_NAME_BYTES];
	const struct options *o = &b->options;

	cpu_name(cpu);
	if (o->json) {
		json_t *all = json_pack("{s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "cpu",
			cpu, "rounds", (int)o->rounds, "tokens", (int)o->tokens, "k", (int)o->k,
			"sdk_tokens_per_s", s->sdk_rate, "http_tokens_per_s", s->http_rate, "ratio",
			s->ratio, "sdk_first_ms", s->sdk_first_ms, "http_first_ms",
			s->http_first_ms, "first_more_ms", s->first_more_ms);

		json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
		putchar('\n');
		json_decref(all);
		return;
	}
	printf("%s\n%u answers of %u tokens each way, in turn, K = %u; medians\n\n", cpu, o->rounds,
		o->tokens, o->k);
	printf("%-6s %10s %16s\n", "", "tokens/s", "first token, ms");
	printf("%-6s %10.1f %16.3f\n", "SDK", s->sdk_rate, s->sdk_first_ms);
	printf("%-6s %10.1f %16.3f\n\n", "HTTP", s->http_rate, s->http_first_ms);
	printf("HTTP : SDK, of each pair: %.3f of the tokens/s; the first token %.3f ms later\n",
		s->ratio, s->first_more_ms);
}

static int run(struct bench *b, struct error *err)
{
	struct sums sums = {0};

	b->reply = malloc(REPLY_BYTES);
	b->sdk = calloc(b->options.rounds, sizeof *b->sdk);
	b->http = calloc(b->options.rounds, sizeof *b->http);
	if (!b->reply || !b->sdk || !b->http)
		return error_set(err, ENOMEM, "no memory");
	int code = open_sdk(b, err);
	if (code == 0)
		code = open_http(b, err);
	if (code == 0)
		code = measure(b, err);
	if (code == 0 && sum(b, &sums) < 0)
		code = error_set(err, ENOMEM, "no memory");
	if (code == 0)
		print(b, &sums);
	return code;
}

static int parse(struct options *o, int argc, char **argv, struct error *err)
{
	const struct arg args[] = {
		{"http", ARG_STRING, &o->http, 0, 0, "ADDR:PORT",
			"where outrider-gateway listens, default 127.0.0.1:8080"},
		{"runtime-dir", ARG_STRING, &o->runtime_dir, 0, 0, "DIR",
			"runtime directory of the service"},
		{"rounds", ARG_U32, &o->rounds, 1, ROUNDS_MOST, "N",
			"answers each way, default 40"},
		{"tokens", ARG_U32, &o->tokens, 2, 100000, "N", "tokens of each, default 400"},
		{"k", ARG_U32, &o->k, 0, 63, "K", "draft length, default 0"},
		{"prompt", ARG_STRING, &o->prompt, 0, 0, "TEXT", "default: In the beginning"},
		{"format", ARG_FORMAT, &o->format, 0, 0, "text|json",
			"output format, default text"},
		{"help", ARG_FLAG, &o->help, 0, 0, NULL, "print this text"},
		{0},
	};
	int rc = args_parse(argc, argv, args, err);

	if (rc == 0 && o->help) {
		puts("usage: outrider-bench gateway [OPTIONS]\n\n"
		     "Measures what HTTP costs: a running service is asked for the same answers\n"
		     "through the SDK and through outrider-gateway, in turn. Both times count "
		     "from\n"
		     "sending the request; HTTP has one connection, which stays open.\n");
		args_help(args, stdout);
		return 0;
	}
	return rc ? rc : option_format(o->format, &o->json, err);
}

int bench_gateway(int argc, char **argv)
{
	struct bench b = {.fd = -1,
		.options = {.http = "127.0.0.1:8080",
			.rounds = 40,
			.tokens = 400,
			.prompt = "In the beginning",
			.format = "text"}};
	struct error err = {""};
	int rc = parse(&b.options, argc, argv, &err);
	bool usage = rc < 0;

	if (rc == 0 && !b.options.help)
		rc = run(&b, &err);
	if (rc < 0)
		fprintf(stderr, "outrider-bench gateway: %s\n", err.text);
	outrider_request_free(&b.request);
	outrider_close(&b.client);
	if (b.fd >= 0)
		close(b.fd);
	free(b.reply);
	free(b.sdk);
	free(b.http);
	return rc == 0 ? EX_OK : usage ? EX_USAGE : error_exit_status(rc);
}
