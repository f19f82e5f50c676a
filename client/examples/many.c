/*
 * Answers each line of its input with a running Outrider service, all at once, in one thread: epoll waits for the input and for
 * every answer.
 *	cc -o many many.c $(pkg-config --cflags --libs outrider) && printf 'Once\nTwice\n' | ./many
 */
#include <outrider.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

/* One line and its answer so far. */
struct question {
	struct question *next;
	struct outrider_stream *stream;
	char *line, *answer;
	size_t bytes;
};

struct asker {
	struct outrider *client;
	struct question *open; /* those that are being answered */
	char input[65536]; /* what was read and is no whole line yet */
	size_t n_input;
	int input_ended;
};

static int ask(struct asker *asker, const char *line)
{
	struct question *q = calloc(1, sizeof *q);
	struct outrider_request *request = NULL;
	int code = q && (q->line = strdup(line)) ? outrider_request_new(&request) : -ENOMEM;

	if (code == 0)
		code = outrider_request_set_prompt(request, line);
	if (code == 0) {
		outrider_request_set_max_tokens(request, 32);
		code = outrider_start(asker->client, request, &q->stream);
	}
	outrider_request_free(&request);
	if (code < 0) {
		if (q)
			free(q->line);
		free(q);
		return code;
	}
	q->next = asker->open;
	asker->open = q;
	return 0;
}

/* Every whole line of the input is a question. */
static int read_input(struct asker *asker)
{
	ssize_t n =
		read(0, asker->input + asker->n_input, sizeof asker->input - 1 - asker->n_input);
	char *line = asker->input, *end;
	int code = 0;

	if (n <= 0) {
		asker->input_ended = 1;
		return 0;
	}
	asker->n_input += (size_t)n;
	asker->input[asker->n_input] = '\0';
	while (code == 0 && (end = strchr(line, '\n')) != NULL) {
		*end = '\0';
		if (*line)
			code = ask(asker, line);
		line = end + 1;
	}
	asker->n_input = strlen(line);
	memmove(asker->input, line, asker->n_input);
	return code;
}

static void finish(struct asker *asker, struct question *q)
{
	struct question **link = &asker->open;

	while (*link != q)
		link = &(*link)->next;
	*link = q->next;
	outrider_stream_free(&q->stream);
	free(q->line);
	free(q->answer);
	free(q);
}

/* event NULL: the question has failed. */
static void take(
	struct asker *asker, struct outrider_stream *stream, const struct outrider_event *event)
{
	struct question *q = asker->open;

	while (q->stream != stream)
		q = q->next;
	if (!event) {
		fprintf(stderr, "many: %s: %s\n", q->line, outrider_error());
		finish(asker, q);
		return;
	}
	if (event->text_bytes > 0) {
		char *more = realloc(q->answer, q->bytes + event->text_bytes);

		if (more) {
			memcpy(more + q->bytes, event->text, event->text_bytes);
			q->answer = more;
			q->bytes += event->text_bytes;
		}
	}
	if (event->type != OUTRIDER_EVENT_DONE)
		return;
	printf("%s -> ", q->line);
	fwrite(q->answer, 1, q->bytes, stdout);
	putchar('\n');
	fflush(stdout);
	finish(asker, q);
}

/* All that has come, until there is nothing more for now. */
static void take_answers(struct asker *asker)
{
	struct outrider_stream *stream;
	const struct outrider_event *event;

	do {
		outrider_next_event(asker->client, 0, &stream, &event);
		if (stream)
			take(asker, stream, event);
	} while (stream);
}

static int serve(struct asker *asker)
{
	struct epoll_event input = {.events = EPOLLIN, .data.fd = 0}, event;
	struct epoll_event answers = {.events = EPOLLIN};
	int fd = outrider_client_fd(asker->client), epoll = epoll_create1(0), code = 0;
	int in_epoll;

	if (fd < 0 || epoll < 0)
		return fd < 0 ? fd : -errno;
	answers.data.fd = fd;
	epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &answers);
	/* A file cannot be waited for: it is read at once. */
	in_epoll = epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &input) == 0;
	while (code == 0 && (!asker->input_ended || asker->open)) {
		bool is_file = !in_epoll && !asker->input_ended;

		if (!is_file && epoll_wait(epoll, &event, 1, -1) < 1)
			continue;
		if (is_file || event.data.fd == 0)
			code = read_input(asker);
		if (asker->input_ended && in_epoll) {
			epoll_ctl(epoll, EPOLL_CTL_DEL, 0, NULL);
			in_epoll = 0;
		}
		take_answers(asker);
	}
	close(epoll);
	return code;
}

int main(void)
{
	static struct asker asker;
	int code = outrider_connect(NULL, &asker.client);

	if (code == 0)
		code = serve(&asker);
	if (code < 0)
		fprintf(stderr, "many: %s\n", outrider_error());
	while (asker.open)
		finish(&asker, asker.open);
	outrider_close(&asker.client);
	return code < 0;
}
