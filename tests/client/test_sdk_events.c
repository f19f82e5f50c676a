/*
 * Many streams of one client: outrider_next_event and outrider_client_fd against a scripted service (service.h).
 */
#include "client/include/outrider.h"
#include "shared/base/clock.h"
#include "shared/base/patience.h"
#include "shared/ipc/bus.h"
#include "tests/client/service.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { WAIT_MS = 30000, STREAMS = SERVICE_STREAMS };

static int setup(void **state)
{
	struct service *s = service_open(state);

	s->fd = outrider_client_fd(s->sdk);
	assert_true(s->fd >= 0);
	assert_int_equal(outrider_client_fd(s->sdk), s->fd);
	return 0;
}

static int index_of(const struct service *s, const struct outrider_stream *stream)
{
	for (int i = 0; i < STREAMS; i++)
		if (stream && s->streams[i] == stream)
			return i;
	return -1;
}

static void nothing_now(struct service *s)
{
	struct outrider_stream *stream;
	const struct outrider_event *event;

	assert_int_equal(outrider_next_event(s->sdk, 0, &stream, &event), -EAGAIN);
	assert_null(stream);
	assert_null(event);
}

/* So many messages of this kind from the client, which does nothing outside its calls. */
static void hear(struct service *s, Outrider__Envelope__BodyCase kind, int n)
{
	struct patience patience;
	Outrider__Envelope *envelope;

	patience_init(&patience, WAIT_MS);
	while (n > 0 && patience_step_ms(&patience) > 0) {
		if (bus_receive_from(s->socket, &s->client, &envelope, NULL) != 0) {
			nothing_now(s);
			usleep(1000);
			continue;
		}
		n -= envelope->body_case == kind;
		bus_free(&envelope);
	}
	assert_int_equal(n, 0);
}

static void say_tokens(struct service *s, int i, uint32_t first, uint32_t n)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Tokens tokens = OUTRIDER__TOKENS__INIT;
	int32_t ids[64];

	for (uint32_t t = 0; t < n; t++)
		ids[t] = (int32_t)(1000 * i + (int)(first + t));
	tokens.session_uid = outrider_stream_uid(s->streams[i]);
	tokens.first = first;
	tokens.n_ids = n;
	tokens.ids = ids;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_TOKENS;
	envelope.tokens = &tokens;
	assert_int_equal(bus_send_to(s->socket, &s->client, &envelope), 0);
}

static void say_done(struct service *s, int i, uint32_t end, uint32_t n_tokens)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Done done = OUTRIDER__DONE__INIT;
	Outrider__Usage usage = OUTRIDER__USAGE__INIT;

	done.session_uid = outrider_stream_uid(s->streams[i]);
	done.end = end;
	done.usage = &usage;
	usage.output_tokens = n_tokens;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_DONE;
	envelope.done = &done;
	assert_int_equal(bus_send_to(s->socket, &s->client, &envelope), 0);
}

static void say_failure(struct service *s, int i, int code)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Failure failure = OUTRIDER__FAILURE__INIT;

	failure.code = code;
	failure.message = (char *)"no room for this one";
	failure.session_uid = outrider_stream_uid(s->streams[i]);
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_FAILURE;
	envelope.failure = &failure;
	assert_int_equal(bus_send_to(s->socket, &s->client, &envelope), 0);
}

/* All streams are under way, and nothing has come yet. */
static void start(struct service *s)
{
	for (int i = 0; i < STREAMS; i++)
		assert_int_equal(outrider_start(s->sdk, s->request, &s->streams[i]), 0);
	hear(s, OUTRIDER__ENVELOPE__BODY_GENERATE, STREAMS);
	nothing_now(s);
}

/* The next event, waited for by the descriptor alone, is of stream i: tokens from `first` on. */
static void expect(struct service *s, int i, uint32_t first, size_t n)
{
	struct pollfd wait = {.fd = s->fd, .events = POLLIN};
	struct outrider_stream *stream;
	const struct outrider_event *event;
	struct patience patience;
	int code;

	patience_init(&patience, WAIT_MS);
	while ((code = outrider_next_event(s->sdk, 0, &stream, &event)) == -EAGAIN &&
		patience_step_ms(&patience) > 0)
		poll(&wait, 1, WAIT_MS);
	assert_int_equal(code, 0);
	assert_int_equal(index_of(s, stream), i);
	assert_int_equal(event->type, OUTRIDER_EVENT_TOKENS);
	assert_int_equal(event->first, first);
	assert_int_equal(event->n_tokens, n);
	for (size_t t = 0; t < n; t++)
		assert_int_equal(event->tokens[t], 1000 * i + (int)(first + t));
}

/* Until all that was said is in the streams. */
static void arrive(struct service *s)
{
	struct pollfd wait = {.fd = s->fd, .events = POLLIN};

	usleep(100000);
	assert_int_equal(poll(&wait, 1, WAIT_MS), 1);
}

static void streams_that_have_events_take_turns(void **state)
{
	struct service *s = *state;

	start(s);
	say_tokens(s, 0, 0, 2);
	say_tokens(s, 0, 2, 1);
	say_tokens(s, 0, 3, 1);
	say_tokens(s, 1, 0, 5);
	say_tokens(s, 2, 0, 1);
	arrive(s);
	expect(s, 0, 0, 2);
	expect(s, 1, 0, 5);
	expect(s, 2, 0, 1);
	expect(s, 0, 2, 1);
	expect(s, 0, 3, 1);
	nothing_now(s);
	say_tokens(s, 2, 1, 4);
	expect(s, 2, 1, 4);
}

/* What another call has taken in is not lost to whoever waits for the descriptor. */
static void the_descriptor_knows_what_other_calls_took_in(void **state)
{
	struct service *s = *state;
	struct pollfd wait = {.fd = s->fd, .events = POLLIN};
	const struct outrider_event *event;

	start(s);
	say_tokens(s, 1, 0, 3);
	say_tokens(s, 0, 0, 1);
	assert_int_equal(outrider_next(s->streams[0], WAIT_MS, &event), 0);
	assert_int_equal(poll(&wait, 1, 0), 1);
	expect(s, 1, 0, 3);
	/* A call that sends lets ZeroMQ look at what has come. */
	say_tokens(s, 2, 0, 2);
	usleep(100000);
	assert_int_equal(outrider_cancel(s->streams[0]), 0);
	assert_int_equal(poll(&wait, 1, 0), 1);
	expect(s, 2, 0, 2);
	/* And one that takes the event of a stream in the line leaves nothing of it there. */
	say_tokens(s, 1, 3, 1);
	arrive(s);
	assert_int_equal(outrider_next(s->streams[1], WAIT_MS, &event), 0);
	nothing_now(s);
}

/* Wakes of the descriptor within a second in which nothing comes. */
static int wakes(struct service *s)
{
	struct pollfd wait = {.fd = s->fd, .events = POLLIN};
	uint64_t end = clock_ns() + 1000000000u;
	struct outrider_stream *stream;
	const struct outrider_event *event;
	int n = 0;

	for (uint64_t now; (now = clock_ns()) < end;) {
		n += poll(&wait, 1, (int)((end - now) / 1000000) + 1);
		(void)outrider_next_event(s->sdk, 0, &stream, &event);
	}
	return n;
}

static void who_waits_for_the_descriptor_sleeps(void **state)
{
	struct service *s = *state;
	struct pollfd wait = {.fd = s->fd, .events = POLLIN};

	/* ZeroMQ connects. */
	start(s);
	assert_in_range(wakes(s), 1, 20);
	say_done(s, 0, OUTRIDER_END_EOS, 0);
	say_done(s, 1, OUTRIDER_END_EOS, 0);
	say_done(s, 2, OUTRIDER_END_EOS, 0);
	(void)wakes(s);
	/* Nothing is under way, and nothing has to be looked at. */
	assert_int_equal(poll(&wait, 1, 600), 0);
}

static void an_end_and_a_failure_are_told_once(void **state)
{
	struct service *s = *state;
	struct outrider_stream *stream;
	const struct outrider_event *event;
	bool seen[STREAMS] = {false};

	start(s);
	say_tokens(s, 1, 0, 2);
	say_failure(s, 0, EAGAIN);
	say_done(s, 1, OUTRIDER_END_LENGTH, 2);
	say_done(s, 2, OUTRIDER_END_CANCELLED, 0);
	arrive(s);
	for (int n = 0; n < 4; n++) {
		int code = outrider_next_event(s->sdk, WAIT_MS, &stream, &event);
		int i = index_of(s, stream);

		assert_in_range(i, 0, STREAMS - 1);
		assert_false(seen[i]);
		seen[i] = code != 0 || event->type == OUTRIDER_EVENT_DONE;
		assert_int_equal(code, i == 0 ? -EBUSY : 0);
		if (i == 0)
			assert_non_null(strstr(outrider_error(), "no room for this one"));
	}
	assert_true(seen[0] && seen[1] && seen[2]);
	assert_int_equal(outrider_next_event(s->sdk, WAIT_MS, &stream, &event), -ENODATA);
	assert_null(stream);
	/* Whoever asks the stream itself is told again. */
	assert_int_equal(outrider_next(s->streams[0], 0, &event), -EBUSY);
	assert_int_equal(outrider_next_event(s->sdk, 0, &stream, &event), -ENODATA);
}

static void streams_go_on_when_the_service_came_back(void **state)
{
	struct service *s = *state;
	struct outrider_stream *stream;
	const struct outrider_event *event;

	start(s);
	for (int i = 0; i < STREAMS; i++)
		say_tokens(s, i, 0, 4);
	for (int i = 0; i < STREAMS; i++)
		expect(s, i, 0, 4);
	bus_server_close(&s->socket);
	assert_int_equal(outrider_next_event(s->sdk, 300, &stream, &event), -EAGAIN);
	service_begin(s);
	hear(s, OUTRIDER__ENVELOPE__BODY_RESUME, STREAMS);
	/* A repeat is not told again, and one that is freed leaves the line. */
	for (int i = 0; i < STREAMS; i++) {
		say_tokens(s, i, 0, 4);
		say_tokens(s, i, 4, 2);
	}
	arrive(s);
	expect(s, 0, 4, 2);
	bus_server_close(&s->socket);
	outrider_stream_free(&s->streams[1]);
	expect(s, 2, 4, 2);
	nothing_now(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, service_close)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(streams_that_have_events_take_turns),
		TEST(the_descriptor_knows_what_other_calls_took_in),
		TEST(who_waits_for_the_descriptor_sleeps),
		TEST(an_end_and_a_failure_are_told_once),
		TEST(streams_go_on_when_the_service_came_back),
	};

	return cmocka_run_group_tests_name("sdk events", tests, NULL, NULL);
}
