/* load: the requests of a plan, sent and awaited in one loop. */
#include "bench/src/load.h"

#include "bench/src/workload.h"
#include "shared/base/clock.h"
#include "shared/base/descriptors.h"
#include "shared/base/rand.h"

#include <ctype.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

/* Descriptors of a connection: ZeroMQ's threads and sockets, and the client's own. */
enum { CLIENT_DESCRIPTORS = 16, ANSWER_MS = 10000, EVENTS = 64 };
#define WAIT_S 1.0
#define NS 1e-9

struct client {
	struct outrider *client;
	struct outrider_stream *stream; /* of the request `at` */
	size_t at;
	double again_s; /* when it sends its request again; 0: it does not */
};

struct loop {
	const struct load_options *options;
	const struct load_plan *plan;
	struct load_run *run;
	struct load_prompts prompts;
	struct outrider_model_info *info;
	int32_t *corpus, *tokens; /* owned; tokens: room for the longest prompt */
	struct workload_prompts texts; /* instead of tokens, where there is a workload */
	struct outrider_request *request; /* of the prompts of tokens */
	struct client *clients; /* [n_clients], owned */
	uint32_t *free; /* a ring of the clients that are free, owned */
	uint32_t n_clients, n_free, free_at;
	uint32_t n_again; /* clients that were refused and will send again */
	size_t next, ended;
	uint64_t begun_ns, told_ns;
	int epoll;
};

static int sdk_error(int code, struct error *err)
{
	return error_set(err, -code, "%s", outrider_error());
}

static double now_s(const struct loop *l)
{
	return (double)(clock_ns() - l->begun_ns) * NS;
}

/* The reason's number. Reasons are alike if they differ in numbers only. */
static uint32_t reason_of(struct load_run *run, const char *text)
{
	char plain[LOAD_REASON_BYTES];
	size_t n = 0;
	uint32_t i = 0;

	for (; *text && n < sizeof plain - 1; text++)
		if (!isdigit((unsigned char)*text))
			plain[n++] = *text;
		else if (n == 0 || plain[n - 1] != 'N')
			plain[n++] = 'N';
	plain[n] = '\0';
	while (i < run->n_reasons && strcmp(run->reasons[i].text, plain) != 0)
		i++;
	if (i == LOAD_REASONS) {
		i--;
		strcpy(run->reasons[i].text, "other reasons");
	} else if (i == run->n_reasons) {
		run->n_reasons++;
		memcpy(run->reasons[i].text, plain, n + 1);
	}
	run->reasons[i].n++;
	return i;
}

/* The request `at` has ended; its client is free for another one. why: of a failure, else NULL. */
static void end(struct loop *l, struct client *c, enum load_outcome outcome, const char *why)
{
	struct load_result *r = &l->run->results[c->at];

	r->outcome = outcome;
	r->done_s = now_s(l);
	if (why != NULL)
		r->reason = reason_of(l->run, why);
	outrider_stream_free(&c->stream);
	l->free[(l->free_at + l->n_free++) % l->n_clients] = (uint32_t)(c - l->clients);
	l->ended++;
}

/* The request of a client could not be sent, or has failed. */
static void fail(struct loop *l, struct client *c, int code)
{
	if (code != -EBUSY || l->options->retry_ms == 0) {
		end(l, c, LOAD_FAILED, outrider_error());
		return;
	}
	outrider_stream_free(&c->stream);
	c->again_s = now_s(l) + l->options->retry_ms * 1e-3;
	l->n_again++;
	l->run->refused++;
}

static void take_usage(struct client *c, struct load_result *r)
{
	struct outrider_usage usage;

	if (outrider_usage(c->stream, &usage) < 0)
		return;
	r->prompt_tokens = usage.prompt_tokens;
	r->cached = usage.cached_tokens;
	r->iterations = usage.iterations;
}

static void take(struct loop *l, struct client *c, const struct outrider_event *event)
{
	struct load_result *r = &l->run->results[c->at];

	if (event->n_tokens > 0) {
		r->last_s = now_s(l);
		r->first_s = r->tokens == 0 ? r->last_s : r->first_s;
		r->tokens += (uint32_t)event->n_tokens;
	}
	if (event->type == OUTRIDER_EVENT_DONE) {
		take_usage(c, r);
		if (event->end == OUTRIDER_END_ERROR)
			end(l, c, LOAD_FAILED, event->message);
		else if (event->end == OUTRIDER_END_DEADLINE || r->tokens == 0)
			end(l, c, LOAD_FAILED, outrider_end_name(event->end));
		else
			end(l, c, LOAD_ANSWERED, NULL);
	} else if (r->tokens >= r->leaves_at) {
		end(l, c, LOAD_LEFT, NULL);
	}
}

static void take_all(struct loop *l, struct client *c)
{
	const struct outrider_event *event;
	struct outrider_stream *stream;

	for (;;) {
		int code = outrider_next_event(c->client, 0, &stream, &event);

		if (!stream)
			return;
		if (code == 0)
			take(l, c, event);
		else
			fail(l, c, code);
	}
}

/* The request of arrival `at`, borrowed. */
static int make_request(struct loop *l, size_t at, struct outrider_request **out)
{
	const struct load_arrival *a = &l->plan->arrivals[at];
	int code = 0;

	*out = l->texts.n > 0 ? l->texts.request[at % l->texts.n] : l->request;
	if (l->texts.n == 0) {
		load_prompt(&l->prompts, l->plan, at, l->tokens);
		code = outrider_request_set_tokens(*out, l->tokens, a->prompt_tokens);
	}
	outrider_request_set_max_tokens(*out, a->output_tokens);
	outrider_request_set_seed(*out, l->options->seed + at);
	return code;
}

/* Whether, and after how many tokens, the client of a request leaves. */
static uint32_t leaves_at(const struct loop *l, size_t at)
{
	double leaves = rand_uniform(l->options->seed, RAND_ACCEPT, at, 0);
	double when = rand_uniform(l->options->seed, RAND_ACCEPT, at, 1);

	if (leaves * 100 >= l->options->leave)
		return UINT32_MAX;
	return (uint32_t)(when * l->plan->arrivals[at].output_tokens);
}

static void send_request(struct loop *l, struct client *c)
{
	struct outrider_request *request = NULL;
	int code = make_request(l, c->at, &request);

	if (code == 0)
		code = outrider_start(c->client, request, &c->stream);
	if (code < 0)
		fail(l, c, code);
	else if (l->run->results[c->at].leaves_at == 0)
		end(l, c, LOAD_LEFT, NULL);
}

static void send_next(struct loop *l)
{
	struct client *c = &l->clients[l->free[l->free_at]];
	struct load_result *r = &l->run->results[l->next];

	l->free_at = (l->free_at + 1) % l->n_clients;
	l->n_free--;
	if (l->n_clients - l->n_free > l->run->in_progress_most)
		l->run->in_progress_most = l->n_clients - l->n_free;
	c->at = l->next++;
	r->sent_s = now_s(l);
	r->due_s = l->plan->closed ? r->sent_s : l->plan->arrivals[c->at].due_s;
	r->leaves_at = leaves_at(l, c->at);
	send_request(l, c);
}

/* Sends what was refused before, and is due again. Returns how long that leaves, in seconds. */
static double send_again(struct loop *l)
{
	double least = WAIT_S, now = now_s(l);

	for (uint32_t i = 0; l->n_again > 0 && i < l->n_clients; i++) {
		struct client *c = &l->clients[i];

		if (c->again_s > 0 && c->again_s <= now) {
			c->again_s = 0;
			l->n_again--;
			send_request(l, c);
		}
		if (c->again_s > 0)
			least = fmin(least, c->again_s - now);
	}
	return fmax(least, 0);
}

/* Sends what is due. Returns how long the loop may wait, in seconds. */
static double send_due(struct loop *l)
{
	const struct load_options *o = l->options;
	double wait_s = send_again(l);

	/* Clients that wait for each answer begin nothing more when the time is over. */
	if (l->plan->closed && o->seconds > 0 && now_s(l) >= o->seconds) {
		l->ended += l->plan->n - l->next;
		l->next = l->plan->n;
	}
	while (l->next < l->plan->n && l->n_free > 0) {
		double more = l->plan->arrivals[l->next].due_s - now_s(l);

		if (more > 0 && !l->plan->closed)
			return fmin(wait_s, more);
		send_next(l);
	}
	return wait_s;
}

/* Waits until a client has something, for at most this long. */
static void wait_for(const struct loop *l, double seconds)
{
	struct pollfd any = {.fd = l->epoll, .events = POLLIN};
	struct timespec time = {.tv_sec = (time_t)seconds};

	time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
	ppoll(&any, 1, &time, NULL);
}

static void progress(struct loop *l)
{
	uint64_t now = clock_ns();

	if (!isatty(STDERR_FILENO) || now - l->told_ns < UINT64_C(1000000000))
		return;
	l->told_ns = now;
	fprintf(stderr, "\r\033[K%.0f s: %zu of %zu sent, %u in progress ", now_s(l), l->next,
		l->plan->n, l->n_clients - l->n_free);
}

static int serve(struct loop *l, struct error *err)
{
	struct epoll_event events[EVENTS];

	l->begun_ns = clock_ns();
	while (l->ended < l->plan->n) {
		double wait_s = send_due(l);

		if (l->ended < l->plan->n)
			wait_for(l, wait_s);
		int n = epoll_wait(l->epoll, events, EVENTS, 0);
		if (n < 0 && errno != EINTR)
			return error_set(err, errno, "epoll: %s", strerror(errno));
		for (int i = 0; i < n; i++)
			take_all(l, &l->clients[events[i].data.u32]);
		progress(l);
	}
	l->run->seconds = now_s(l);
	if (isatty(STDERR_FILENO))
		fputs("\r\033[K", stderr);
	return 0;
}

static int connect_client(struct loop *l, uint32_t i, struct error *err)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
	int code = outrider_connect(l->options->runtime_dir, &l->clients[i].client);
	int fd = code < 0 ? code : outrider_client_fd(l->clients[i].client);

	if (fd < 0)
		return sdk_error(fd, err);
	if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, fd, &event) < 0)
		return error_set(err, errno, "epoll: %s", strerror(errno));
	l->free[l->n_free++] = i;
	return 0;
}

/* All of a file, with a NUL behind it, owned by the caller. */
static char *read_text(const char *path, struct error *err)
{
	FILE *file = fopen(path, "re");
	char *text = NULL;
	size_t capacity = 0;

	if (!file || getdelim(&text, &capacity, '\0', file) <= 0) {
		error_set(err, errno ? errno : EINVAL, "%s: %s", path,
			file && !ferror(file) ? "it is empty" : strerror(errno));
		free(text);
		text = NULL;
	}
	if (file)
		fclose(file);
	return text;
}

static int read_corpus(struct loop *l, struct error *err)
{
	char *text = read_text(l->options->corpus, err);
	size_t n = 0;

	if (!text)
		return errno ? -errno : -EINVAL;
	int code = outrider_tokenize(l->clients[0].client, text, 0, ANSWER_MS, &l->corpus, &n);
	free(text);
	if (code < 0)
		return sdk_error(code, err);
	l->prompts.corpus = l->corpus;
	l->prompts.n_corpus = n;
	return n > 0 ? 0 : error_set(err, EINVAL, "%s: it has no tokens", l->options->corpus);
}

/* The service's model says which tokens there are, and whether all requests fit. */
static int ask_model(struct loop *l, struct error *err)
{
	int code = outrider_model_info(l->clients[0].client, ANSWER_MS, &l->info);

	if (code < 0)
		return sdk_error(code, err);
	l->prompts = (struct load_prompts){
		.vocabulary = l->info->vocabulary,
		.avoid = l->info->eog,
		.n_avoid = l->info->n_eog,
		.first = l->info->bos,
		.shared = l->options->shared,
		.groups = l->options->groups,
		.seed = l->options->seed,
	};
	if (l->info->n_eog >= l->info->vocabulary)
		return error_set(err, EINVAL, "the model has only tokens that end a text");
	return l->options->corpus ? read_corpus(l, err) : 0;
}

static int set_up_request(struct loop *l, struct outrider_request *request)
{
	const struct load_options *o = l->options;
	int code = outrider_request_set_temperature(request, o->temperature);

	if (code == 0)
		code = outrider_request_set_draft_method(request, o->drafter);
	if (code == 0)
		code = outrider_request_set_k(request, o->k == UINT32_MAX ? -1 : (int)o->k);
	outrider_request_set_ignore_eos(request, true);
	return code;
}

static int make_requests(struct loop *l, struct error *err)
{
	int code = outrider_request_new(&l->request);
	uint32_t longest = 1;

	for (size_t i = 0; i < l->plan->n; i++)
		if (l->plan->arrivals[i].prompt_tokens > longest)
			longest = l->plan->arrivals[i].prompt_tokens;
	l->tokens = calloc(longest, sizeof *l->tokens);
	if (!l->tokens)
		return error_set(err, ENOMEM, "no memory for a prompt");
	if (code == 0)
		code = set_up_request(l, l->request);
	if (code == 0 && l->options->workload)
		code = workload_prompts_read(l->options->workload, SIZE_MAX, &l->texts, err);
	if (code < 0 && err->text[0])
		return code;
	for (size_t i = 0; code == 0 && i < l->texts.n; i++)
		code = set_up_request(l, l->texts.request[i]);
	return code < 0 ? sdk_error(code, err) : 0;
}

static int set_up(struct loop *l, struct error *err)
{
	l->epoll = epoll_create1(EPOLL_CLOEXEC);
	l->clients = calloc(l->n_clients, sizeof *l->clients);
	l->free = calloc(l->n_clients, sizeof *l->free);
	l->run->results = calloc(l->plan->n, sizeof *l->run->results);
	if (l->epoll < 0 || !l->clients || !l->free || !l->run->results)
		return error_set(err, ENOMEM, "no memory for the clients");
	int code = descriptors_need(
		"outrider-bench", (uint64_t)l->n_clients * CLIENT_DESCRIPTORS, err);
	for (uint32_t i = 0; code == 0 && i < l->n_clients; i++)
		code = connect_client(l, i, err);
	if (code == 0)
		code = ask_model(l, err);
	return code == 0 ? make_requests(l, err) : code;
}

static void tear_down(struct loop *l)
{
	for (uint32_t i = 0; l->clients && i < l->n_clients; i++) {
		outrider_stream_free(&l->clients[i].stream);
		outrider_close(&l->clients[i].client);
	}
	workload_prompts_free(&l->texts);
	outrider_request_free(&l->request);
	outrider_model_info_free(&l->info);
	outrider_free(l->corpus);
	free(l->tokens);
	free(l->clients);
	free(l->free);
	if (l->epoll >= 0)
		close(l->epoll);
}

int load_run(const struct load_options *options, const struct load_plan *plan, struct load_run *run,
	struct error *err)
{
	struct loop l = {.options = options,
		.plan = plan,
		.run = run,
		.n_clients = options->clients,
		.epoll = -1};

	run->n = plan->n;
	int code = set_up(&l, err);
	if (code == 0)
		code = serve(&l, err);
	tear_down(&l);
	return code;
}
