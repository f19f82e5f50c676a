/*
 * The SDK against a scripted service (service.h).
 */
#include "client/include/outrider.h"
#include "shared/base/clock.h"
#include "shared/base/patience.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"
#include "tests/client/service.h"
#include "tests/stopped.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <zmq.h>

#include <cmocka.h>

enum { WAIT_MS = 30000 };

static int setup(void **state)
{
	service_open(state);
	return 0;
}

/* What the client says next, of this kind; others are passed over. Lets the SDK look at its clock meanwhile. */
static Outrider__Envelope *hear(struct service *s, Outrider__Envelope__BodyCase kind)
{
	struct patience patience;
	const struct outrider_event *event;
	Outrider__Envelope *envelope;

	patience_init(&patience, WAIT_MS);
	while (patience_step_ms(&patience) > 0) {
		int code = bus_receive_from(s->socket, &s->client, &envelope, NULL);

		if (code == 0 && envelope->body_case == kind)
			return envelope;
		if (code == 0)
			bus_free(&envelope);
		else if (s->stream)
			assert_int_equal(outrider_next(s->stream, 5, &event), -EAGAIN);
		else
			usleep(1000);
	}
	fail_msg("the client did not send message %d", (int)kind);
	return NULL;
}

static void forget(Outrider__Envelope *envelope)
{
	bus_free(&envelope);
}

static void say(struct service *s, Outrider__Envelope *envelope)
{
	assert_int_equal(bus_send_to(s->socket, &s->client, envelope), 0);
}

static void say_tokens(struct service *s, uint32_t first, uint32_t n)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Tokens tokens = OUTRIDER__TOKENS__INIT;
	int32_t ids[64];
	char text[65];

	for (uint32_t i = 0; i < n; i++) {
		ids[i] = (int32_t)(100 + first + i);
		text[i] = (char)('a' + (first + i) % 26);
	}
	tokens.session_uid = outrider_stream_uid(s->stream);
	tokens.first = first;
	tokens.n_ids = n;
	tokens.ids = ids;
	tokens.text.len = n;
	tokens.text.data = (uint8_t *)text;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_TOKENS;
	envelope.tokens = &tokens;
	say(s, &envelope);
}

static void say_accepted_with(
	struct service *s, uint64_t generation, uint64_t engine, uint32_t arithmetic)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Accepted accepted = OUTRIDER__ACCEPTED__INIT;

	accepted.session_uid = outrider_stream_uid(s->stream);
	accepted.generation = generation;
	accepted.engine = engine;
	accepted.arithmetic = arithmetic;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_ACCEPTED;
	envelope.accepted = &accepted;
	say(s, &envelope);
}

static void say_accepted_by(struct service *s, uint64_t generation, uint64_t engine)
{
	say_accepted_with(s, generation, engine, 0);
}

static void say_accepted(struct service *s, uint64_t generation)
{
	say_accepted_by(s, generation, 77);
}

static void say_done(struct service *s, uint32_t end, uint32_t output_tokens)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Done done = OUTRIDER__DONE__INIT;
	Outrider__Usage usage = OUTRIDER__USAGE__INIT;
	uint32_t k_used[] = {3, 4};

	done.session_uid = outrider_stream_uid(s->stream);
	done.end = end;
	done.usage = &usage;
	usage.output_tokens = output_tokens;
	usage.n_k_used = 2;
	usage.k_used = k_used;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_DONE;
	envelope.done = &done;
	say(s, &envelope);
}

static void say_failure(struct service *s, int code, const char *message, uint64_t request_id)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Failure failure = OUTRIDER__FAILURE__INIT;
	char text[128];

	snprintf(text, sizeof text, "%s", message);
	failure.code = code;
	failure.message = text;
	failure.session_uid = outrider_stream_uid(s->stream);
	envelope.request_id = request_id;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_FAILURE;
	envelope.failure = &failure;
	say(s, &envelope);
}

static void start(struct service *s)
{
	Outrider__Envelope *heard;

	assert_int_equal(outrider_start(s->sdk, s->request, &s->stream), 0);
	heard = hear(s, OUTRIDER__ENVELOPE__BODY_GENERATE);
	assert_true(heard->generate->session_uid != 0);
	assert_true(heard->generate->session_uid == outrider_stream_uid(s->stream));
	assert_int_equal(heard->generate->input_case, OUTRIDER__GENERATE__INPUT_TOKENS);
	assert_int_equal(heard->generate->tokens->n_ids, 3);
	forget(heard);
	say_accepted(s, 1);
}

static const struct outrider_event *next(struct service *s)
{
	const struct outrider_event *event;

	if (outrider_next(s->stream, WAIT_MS, &event) < 0)
		fail_msg("%s", outrider_error());
	return event;
}

static void expect_tokens(struct service *s, uint32_t first, uint32_t n)
{
	const struct outrider_event *event = next(s);

	assert_int_equal(event->type, OUTRIDER_EVENT_TOKENS);
	assert_int_equal(event->first, first);
	assert_int_equal(event->n_tokens, n);
	assert_int_equal(event->text_bytes, n);
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(event->tokens[i], 100 + first + i);
		assert_int_equal(event->text[i], 'a' + (first + i) % 26);
	}
}

static void expect_done(struct service *s, enum outrider_end end)
{
	const struct outrider_event *event = next(s);

	assert_int_equal(event->type, OUTRIDER_EVENT_DONE);
	assert_int_equal(event->end, end);
	assert_int_equal(outrider_next(s->stream, 0, &event), -ENODATA);
}

static void expect_resume(struct service *s, uint32_t have)
{
	Outrider__Envelope *heard = hear(s, OUTRIDER__ENVELOPE__BODY_RESUME);

	assert_true(heard->resume->session_uid == outrider_stream_uid(s->stream));
	assert_int_equal(heard->resume->have, have);
	assert_true(heard->resume->credit > have);
	forget(heard);
}

static void tokens_and_usage_come_through(void **state)
{
	struct service *s = *state;
	struct outrider_usage usage;

	start(s);
	say_tokens(s, 0, 3);
	say_tokens(s, 3, 2);
	say_done(s, OUTRIDER_END_EOS, 5);
	expect_tokens(s, 0, 3);
	assert_int_equal(outrider_usage(s->stream, &usage), -EBUSY);
	expect_tokens(s, 3, 2);
	expect_done(s, OUTRIDER_END_EOS);
	assert_int_equal(outrider_usage(s->stream, &usage), 0);
	assert_int_equal(usage.output_tokens, 5);
	assert_int_equal(usage.n_k_used, 2);
	assert_int_equal(usage.k_used[1], 4);
}

static void repeated_tokens_are_dropped(void **state)
{
	struct service *s = *state;

	start(s);
	say_tokens(s, 0, 3);
	say_tokens(s, 0, 3);
	say_tokens(s, 1, 2);
	say_tokens(s, 3, 1);
	expect_tokens(s, 0, 3);
	expect_tokens(s, 3, 1);
}

static void a_gap_is_asked_for_once(void **state)
{
	struct service *s = *state;
	Outrider__Envelope *heard;
	const struct outrider_event *event;
	struct bus_address nobody;

	start(s);
	say_tokens(s, 0, 2);
	expect_tokens(s, 0, 2);
	say_tokens(s, 4, 2);
	say_tokens(s, 6, 2);
	expect_resume(s, 2);
	assert_int_equal(outrider_next(s->stream, 50, &event), -EAGAIN);
	assert_int_equal(bus_receive_from(s->socket, &nobody, &heard, NULL), -EAGAIN);
	say_tokens(s, 2, 6);
	expect_tokens(s, 2, 6);
}

static void tokens_that_overlap_are_asked_for_again(void **state)
{
	struct service *s = *state;

	start(s);
	say_tokens(s, 0, 4);
	expect_tokens(s, 0, 4);
	say_tokens(s, 2, 4);
	expect_resume(s, 4);
}

static void an_end_before_the_last_token_is_not_the_end(void **state)
{
	struct service *s = *state;

	start(s);
	say_tokens(s, 0, 2);
	expect_tokens(s, 0, 2);
	say_done(s, OUTRIDER_END_LENGTH, 4);
	expect_resume(s, 2);
	say_tokens(s, 2, 2);
	say_done(s, OUTRIDER_END_LENGTH, 4);
	expect_tokens(s, 2, 2);
	expect_done(s, OUTRIDER_END_LENGTH);
}

static void a_service_that_never_sends_the_rest_is_broken(void **state)
{
	struct service *s = *state;
	const struct outrider_event *event;

	start(s);
	for (int i = 0; i < 4; i++)
		say_done(s, OUTRIDER_END_LENGTH, 4);
	assert_int_equal(outrider_next(s->stream, WAIT_MS, &event), -EPROTO);
	assert_non_null(strstr(outrider_error(), "4 tokens"));
}

static void silence_makes_it_ask(void **state)
{
	struct service *s = *state;
	uint64_t before;

	start(s);
	say_tokens(s, 0, 2);
	expect_tokens(s, 0, 2);
	before = clock_ns();
	expect_resume(s, 2);
	assert_true(clock_ns() - before >= 200 * UINT64_C(1000000));
}

static void an_answer_is_not_gone_on_with_by_another_model(void **state)
{
	struct service *s = *state;
	const struct outrider_event *event;

	start(s);
	/* Before anything has come, one model is as good as another. */
	say_accepted_by(s, 2, 78);
	say_tokens(s, 0, 3);
	expect_tokens(s, 0, 3);
	say_accepted_by(s, 3, 78);
	say_tokens(s, 3, 2);
	expect_tokens(s, 3, 2);
	say_accepted_by(s, 4, 79);
	say_tokens(s, 5, 2);
	assert_int_equal(outrider_next(s->stream, WAIT_MS, &event), -ESTALE);
	assert_non_null(strstr(outrider_error(), "another model"));
	/* And the service is told that nobody waits for the rest. */
	Outrider__Envelope *heard = NULL;
	struct patience patience;
	bool cancelled = false;
	patience_init(&patience, WAIT_MS);
	while (!cancelled && patience_step_ms(&patience) > 0)
		if (bus_receive_from(s->socket, &s->client, &heard, NULL) == 0) {
			cancelled = heard->body_case == OUTRIDER__ENVELOPE__BODY_CANCEL;
			forget(heard);
		}
	assert_true(cancelled);
}

static void an_answer_is_not_gone_on_with_in_another_arithmetic(void **state)
{
	struct service *s = *state;
	const struct outrider_event *event;

	start(s);
	say_accepted_with(s, 2, 78, 2);
	say_tokens(s, 0, 3);
	expect_tokens(s, 0, 3);
	/* The service is told of it with what is asked for again. */
	Outrider__Envelope *heard = hear(s, OUTRIDER__ENVELOPE__BODY_RESUME);
	assert_int_equal(heard->resume->arithmetic, 2);
	forget(heard);
	/* One that does not say, as older ones do, may go on with it. */
	say_accepted_with(s, 3, 78, 0);
	say_tokens(s, 3, 2);
	expect_tokens(s, 3, 2);
	say_accepted_with(s, 4, 78, 2);
	say_tokens(s, 5, 1);
	expect_tokens(s, 5, 1);
	say_accepted_with(s, 5, 79, 3);
	assert_int_equal(outrider_next(s->stream, WAIT_MS, &event), -ESTALE);
	assert_non_null(strstr(outrider_error(), "begun with arithmetic 2"));
	assert_non_null(strstr(outrider_error(), "with arithmetic 3"));
}

static void a_restart_is_invisible(void **state)
{
	struct service *s = *state;
	struct outrider_usage usage;

	start(s);
	say_tokens(s, 0, 2);
	expect_tokens(s, 0, 2);
	service_die(s);
	service_begin(s);
	expect_resume(s, 2);
	say_accepted(s, 2);
	say_tokens(s, 2, 2);
	say_done(s, OUTRIDER_END_EOS, 4);
	expect_tokens(s, 2, 2);
	expect_done(s, OUTRIDER_END_EOS);
	assert_int_equal(outrider_usage(s->stream, &usage), 0);
	assert_int_equal(usage.restarts, 1);
}

static void a_service_that_forgot_gets_the_same_request(void **state)
{
	struct service *s = *state;
	Outrider__Envelope *heard;

	start(s);
	say_tokens(s, 0, 2);
	expect_tokens(s, 0, 2);
	service_die(s);
	service_begin(s);
	heard = hear(s, OUTRIDER__ENVELOPE__BODY_RESUME);
	say_failure(s, ENOENT, "no such session", heard->request_id);
	forget(heard);
	heard = hear(s, OUTRIDER__ENVELOPE__BODY_GENERATE);
	assert_true(heard->generate->session_uid == outrider_stream_uid(s->stream));
	assert_int_equal(heard->generate->have, 2);
	assert_int_equal(heard->generate->tokens->n_ids, 3);
	forget(heard);
	say_accepted(s, 2);
	say_tokens(s, 2, 1);
	expect_tokens(s, 2, 1);
}

static void a_refusal_is_an_error_with_its_reason(void **state)
{
	struct service *s = *state;
	const struct outrider_event *event;
	Outrider__Envelope *heard;

	assert_int_equal(outrider_start(s->sdk, s->request, &s->stream), 0);
	heard = hear(s, OUTRIDER__ENVELOPE__BODY_GENERATE);
	say_failure(s, EAGAIN, "the queue is full: 32 wait", heard->request_id);
	forget(heard);
	assert_int_equal(outrider_next(s->stream, WAIT_MS, &event), -EBUSY);
	assert_string_equal(outrider_error(), "the queue is full: 32 wait");
}

/* A service that sends no Envelopes, and messages of several frames, which a bus server does not: a ROUTER of libzmq's. */
static void send_noise(struct service *s)
{
	void *zmq = zmq_ctx_new(), *router = zmq_socket(zmq, ZMQ_ROUTER);
	const struct outrider_event *event;
	unsigned char noise[300], address[64], heard[4096];
	int n_address = -1;

	for (size_t i = 0; i < sizeof noise; i++)
		noise[i] = (unsigned char)(i * 37 + 11);
	assert_int_equal(zmq_bind(router, s->endpoint), 0);
	for (int i = 0; i < WAIT_MS / 5 && n_address < 0; i++) {
		assert_int_equal(outrider_next(s->stream, 5, &event), -EAGAIN);
		n_address = zmq_recv(router, address, sizeof address, ZMQ_DONTWAIT);
	}
	assert_true(n_address > 0);
	assert_true(zmq_recv(router, heard, sizeof heard, 0) > 0);
	for (size_t n = 0; n < sizeof noise; n += 50) {
		zmq_send(router, address, (size_t)n_address, ZMQ_SNDMORE);
		zmq_send(router, noise, n, n % 100 ? ZMQ_SNDMORE : 0);
		if (n % 100)
			zmq_send(router, noise, 7, 0);
	}
	assert_int_equal(outrider_next(s->stream, 100, &event), -EAGAIN);
	zmq_close(router);
	zmq_ctx_term(zmq);
}

static void rubbish_changes_nothing(void **state)
{
	struct service *s = *state;
	Outrider__Envelope other = OUTRIDER__ENVELOPE__INIT;
	Outrider__Tokens tokens = OUTRIDER__TOKENS__INIT;

	start(s);
	service_die(s);
	send_noise(s);
	service_begin(s);
	expect_resume(s, 0);
	say_accepted(s, 1);
	/* A session that is not ours. */
	tokens.session_uid = outrider_stream_uid(s->stream) + 1;
	other.body_case = OUTRIDER__ENVELOPE__BODY_TOKENS;
	other.tokens = &tokens;
	say(s, &other);
	say_tokens(s, 0, 2);
	expect_tokens(s, 0, 2);
}

static void who_does_not_read_grants_nothing(void **state)
{
	struct service *s = *state;
	Outrider__Envelope *heard;
	struct bus_address nobody;

	assert_int_equal(outrider_set_window(s->sdk, 8), 0);
	assert_int_equal(outrider_start(s->sdk, s->request, &s->stream), 0);
	heard = hear(s, OUTRIDER__ENVELOPE__BODY_GENERATE);
	assert_int_equal(heard->generate->credit, 8);
	forget(heard);
	say_accepted(s, 1);
	say_tokens(s, 0, 4);
	say_tokens(s, 4, 4);
	usleep(100000);
	assert_int_equal(bus_receive_from(s->socket, &nobody, &heard, NULL), -EAGAIN);
	expect_tokens(s, 0, 4);
	/* Nothing may be taken while listening: what is here is the test. */
	struct outrider_stream *stream = s->stream;

	s->stream = NULL;
	heard = hear(s, OUTRIDER__ENVELOPE__BODY_CREDIT);
	s->stream = stream;
	assert_int_equal(heard->credit->credit, 12);
	forget(heard);
	expect_tokens(s, 4, 4);
}

static void a_cancel_is_sent_and_answered(void **state)
{
	struct service *s = *state;
	Outrider__Envelope *heard;

	start(s);
	assert_int_equal(outrider_cancel(s->stream), 0);
	heard = hear(s, OUTRIDER__ENVELOPE__BODY_CANCEL);
	forget(heard);
	say_done(s, OUTRIDER_END_CANCELLED, 0);
	expect_done(s, OUTRIDER_END_CANCELLED);
}

static void streams_of_one_client_do_not_mix(void **state)
{
	struct service *s = *state;
	struct outrider_stream *first;

	start(s);
	first = s->stream;
	start(s);
	say_tokens(s, 0, 3);
	expect_tokens(s, 0, 3);
	struct outrider_stream *second = s->stream;

	s->stream = first;
	say_tokens(s, 0, 1);
	s->stream = second;
	say_tokens(s, 3, 1);
	expect_tokens(s, 3, 1);
	s->stream = first;
	expect_tokens(s, 0, 1);
	outrider_stream_free(&second);
}

static void a_service_that_stays_away_is_an_error(void **state)
{
	struct service *s = *state;
	const struct outrider_event *event;

	assert_int_equal(outrider_set_wait(s->sdk, 300, 400), 0);
	start(s);
	say_tokens(s, 0, 1);
	expect_tokens(s, 0, 1);
	service_die(s);
	assert_int_equal(outrider_next(s->stream, WAIT_MS, &event), -ETIMEDOUT);
}

static void no_service_is_an_error_soon(void **state)
{
	struct service *s = *state;
	const struct outrider_event *event;

	service_die(s);
	assert_int_equal(outrider_set_wait(s->sdk, 200, 60000), 0);
	assert_int_equal(outrider_start(s->sdk, s->request, &s->stream), 0);
	assert_int_equal(outrider_next(s->stream, WAIT_MS, &event), -ECONNREFUSED);
	assert_non_null(strstr(outrider_error(), s->dir));
}

/* Three seconds of silence are too many, and it is stopped for more; the service is too, which is this thread. */
static void a_time_in_which_it_was_stopped_is_no_silence(void **state)
{
	enum { TIMES = 4, MS = 1300, LIMIT_MS = 3000 };
	struct service *s = *state;
	const struct outrider_event *event;
	pid_t other;

	assert_int_equal(outrider_set_wait(s->sdk, LIMIT_MS, LIMIT_MS), 0);
	start(s);
	other = stopped_begin(TIMES, MS, 0);
	assert_true(other > 0);
	while (waitpid(other, NULL, WNOHANG) == 0)
		assert_int_equal(outrider_next(s->stream, 100, &event), -EAGAIN);
	say_tokens(s, 0, 1);
	expect_tokens(s, 0, 1);
}

static void a_resumed_stream_begins_where_told(void **state)
{
	struct service *s = *state;

	assert_int_equal(outrider_resume(s->sdk, 77, 5, &s->stream), 0);
	expect_resume(s, 5);
	say_accepted(s, 3);
	say_tokens(s, 5, 2);
	expect_tokens(s, 5, 2);
}

static void wrong_values_are_refused_by_name(void **state)
{
	struct service *s = *state;

	assert_int_equal(outrider_request_set_k(s->request, 64), -EINVAL);
	assert_non_null(strstr(outrider_error(), "0 to 63"));
	assert_int_equal(outrider_request_set_temperature(s->request, -1), -EINVAL);
	assert_int_equal(outrider_request_set_draft_method(s->request, "magic"), -EINVAL);
	assert_non_null(strstr(outrider_error(), "magic"));
	assert_non_null(strstr(outrider_error(),
		"auto, none, ngram, model, replay, eagle3, mtp, mtp-lora and layer-skip"));
	assert_int_equal(outrider_request_set_temperature(s->request, 1e-40f), -EINVAL);
	assert_int_equal(outrider_request_add_message(s->request, "robot", "x"), -EINVAL);
	assert_int_equal(outrider_request_add_message_json(s->request, "[1]"), -EINVAL);
	assert_int_equal(outrider_request_set_variables(s->request, "\"x\""), -EINVAL);
	assert_int_equal(outrider_request_add_stop(s->request, ""), -EINVAL);
	assert_int_equal(outrider_request_add_logit_bias(s->request, -1, 1), -EINVAL);
	assert_int_equal(outrider_set_window(s->sdk, 0), -EINVAL);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, service_close)

/* What ZeroMQ could not have is named, whatever it was. */
static void a_status_without_descriptors_says_what_is_missing(void **state)
{
	struct outrider_status *status;
	struct rlimit limit;
	int code;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	const struct rlimit none = {.rlim_cur = 3, .rlim_max = limit.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	code = outrider_status("/nonexistent", 10, &status);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(code, -EMFILE);
	assert_null(status);
	assert_non_null(strstr(outrider_error(), strerror(EMFILE)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(tokens_and_usage_come_through),
		TEST(repeated_tokens_are_dropped),
		TEST(a_gap_is_asked_for_once),
		TEST(tokens_that_overlap_are_asked_for_again),
		TEST(an_end_before_the_last_token_is_not_the_end),
		TEST(a_service_that_never_sends_the_rest_is_broken),
		TEST(silence_makes_it_ask),
		TEST(a_restart_is_invisible),
		TEST(an_answer_is_not_gone_on_with_by_another_model),
		TEST(an_answer_is_not_gone_on_with_in_another_arithmetic),
		TEST(a_service_that_forgot_gets_the_same_request),
		TEST(a_refusal_is_an_error_with_its_reason),
		TEST(rubbish_changes_nothing),
		TEST(who_does_not_read_grants_nothing),
		TEST(a_cancel_is_sent_and_answered),
		TEST(streams_of_one_client_do_not_mix),
		TEST(a_service_that_stays_away_is_an_error),
		TEST(no_service_is_an_error_soon),
		TEST(a_time_in_which_it_was_stopped_is_no_silence),
		TEST(a_resumed_stream_begins_where_told),
		TEST(wrong_values_are_refused_by_name),
		cmocka_unit_test(a_status_without_descriptors_says_what_is_missing),
	};

	return cmocka_run_group_tests_name("sdk", tests, NULL, NULL);
}
