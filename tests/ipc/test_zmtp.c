#include "shared/base/limits.h"
#include "shared/ipc/zmtp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GREETING = ZMTP_GREETING_BYTES };

static const uint8_t client_ready[] = "\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06"
				      "DEALER";

/* What some bytes bring on a connection of which the handshake is complete. */
static enum zmtp_what after_handshake(
	struct zmtp *zmtp, const void *data, size_t bytes, size_t *used, struct zmtp_event *event)
{
	*zmtp = (struct zmtp){.phase = ZMTP_AT_TRAFFIC};
	return zmtp_step(zmtp, data, bytes, used, event);
}

static void a_client_shakes_hands(void **state)
{
	struct zmtp zmtp = {0};
	struct zmtp_event event;
	size_t used;

	(void)state;
	for (size_t n = 0; n < GREETING; n++) {
		assert_int_equal(zmtp_step(&zmtp, zmtp_greeting, n, &used, &event), ZMTP_MORE);
		assert_int_equal(used, 0);
		assert_int_equal(event.want, GREETING);
	}
	assert_int_equal(zmtp_step(&zmtp, zmtp_greeting, GREETING, &used, &event), ZMTP_GREETED);
	assert_int_equal(used, GREETING);
	assert_int_equal(
		zmtp_step(&zmtp, client_ready, sizeof client_ready - 1, &used, &event), ZMTP_OPEN);
	assert_int_equal(used, sizeof client_ready - 1);
	/* Its own greeting and READY are such as it takes. */
	assert_int_equal(zmtp_ready_bytes, sizeof client_ready - 1);
}

static void strangers_are_told_apart(void **state)
{
	static const struct {
		const char *bytes;
		size_t n;
		const char *why;
	} cases[] = {
		{"GET / HTTP/1.1", 14, "does not speak"},
		{"\xff\0\0\0\0\0\0\0\1\x7e", 10, "does not speak"},
		{"\xff\0\0\0\0\0\0\0\1\x7f\1", 11, "before 3.0"},
		{"\xff\0\0\0\0\0\0\0\1\x7f\3\0CURVE\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 32,
			"mechanism"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct zmtp zmtp = {0};
		struct zmtp_event event;
		size_t used;

		assert_int_equal(zmtp_step(&zmtp, (const uint8_t *)cases[i].bytes, cases[i].n,
					 &used, &event),
			ZMTP_BROKEN);
		assert_non_null(strstr(event.why, cases[i].why));
	}
}

static void handshakes_of_others_are_refused(void **state)
{
	static const struct {
		const char *bytes;
		size_t n;
	} cases[] = {
		{"\4\x19\5READY\x0bSocket-Type\0\0\0\3PUB", 27},
		{"\4\x19\5READY\x0bSocket-Type\xff\xff\xff\xffPUB", 27},
		{"\4\x0a\5READY\xffSock", 12}, {"\4\7\5READY\0", 9}, {"\4\6\5ERROR", 8},
		{"\4\0", 2}, {"\0\1m", 3}, /* a message */
		{"\5\6\5READY", 8}, /* flags that a command does not have */
		{"\6\0\0\0\0\0\0\4\1", 9}, /* longer than any */
	};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct zmtp zmtp = {.phase = ZMTP_AT_HANDSHAKE};
		struct zmtp_event event;
		size_t used;

		assert_int_equal(zmtp_step(&zmtp, (const uint8_t *)cases[i].bytes, cases[i].n,
					 &used, &event),
			ZMTP_BROKEN);
	}
}

static void a_message_is_handed_out_whole(void **state)
{
	static const size_t sizes[] = {0, 1, 255, 256, 70000, LIMIT_MESSAGE_BYTES};
	uint8_t *data = calloc(1, ZMTP_HEADER_BYTES + LIMIT_MESSAGE_BYTES + 1);

	(void)state;
	assert_non_null(data);
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		size_t header = zmtp_header(data, sizes[i]), whole = header + sizes[i], used;
		struct zmtp_event event;
		struct zmtp zmtp;

		assert_int_equal(after_handshake(&zmtp, data, whole - 1, &used, &event), ZMTP_MORE);
		assert_int_equal(event.want, whole);
		assert_int_equal(
			after_handshake(&zmtp, data, whole + 1, &used, &event), ZMTP_MESSAGE);
		assert_int_equal(used, whole);
		assert_ptr_equal(event.data, data + header);
		assert_int_equal(event.bytes, sizes[i]);
		assert_int_equal(event.frames, 1);
	}
	free(data);
}

/* Frames of these sizes, of one message, given in pieces. */
static enum zmtp_what skip_frames(
	struct zmtp *zmtp, const uint64_t *sizes, size_t n, struct zmtp_event *event)
{
	static const uint8_t zeros[1 << 16];
	enum zmtp_what what = ZMTP_MORE;
	size_t used;

	for (size_t i = 0; i < n && what == ZMTP_MORE; i++) {
		uint8_t header[ZMTP_HEADER_BYTES] = {(uint8_t)(2 | (i + 1 < n))};

		for (size_t b = 0; b < 8; b++)
			header[1 + b] = (uint8_t)(sizes[i] >> (56 - 8 * b));
		what = zmtp_step(zmtp, header, sizeof header, &used, event);
		for (uint64_t left = sizes[i]; left > 0 && what == ZMTP_MORE; left -= used) {
			size_t piece = left < sizeof zeros ? (size_t)left : sizeof zeros;

			what = zmtp_step(zmtp, zeros, piece, &used, event);
			assert_int_equal(used, piece);
		}
	}
	return what;
}

static void what_cannot_be_taken_is_counted_and_thrown_away(void **state)
{
	static const uint64_t large[] = {LIMIT_MESSAGE_BYTES + 1}, cut[] = {LIMIT_MESSAGE_CUT};
	static const uint64_t three[] = {1, 0, 5000};
	struct zmtp zmtp = {.phase = ZMTP_AT_TRAFFIC};
	struct zmtp_event event;
	size_t used;

	(void)state;
	assert_int_equal(skip_frames(&zmtp, large, 1, &event), ZMTP_MESSAGE);
	assert_null(event.data);
	assert_int_equal(event.bytes, LIMIT_MESSAGE_BYTES + 1);
	assert_int_equal(skip_frames(&zmtp, cut, 1, &event), ZMTP_MESSAGE);
	assert_int_equal(event.bytes, LIMIT_MESSAGE_CUT);
	assert_int_equal(skip_frames(&zmtp, three, 3, &event), ZMTP_MESSAGE);
	assert_null(event.data);
	assert_int_equal(event.frames, 3);
	assert_int_equal(event.bytes, 5001);
	/* And the next is a message as any. */
	assert_int_equal(
		zmtp_step(&zmtp, (const uint8_t *)"\0\1m", 3, &used, &event), ZMTP_MESSAGE);
	assert_int_equal(event.frames, 1);
}

static void a_message_without_an_end_breaks_its_connection(void **state)
{
	static const uint64_t one[] = {LIMIT_MESSAGE_CUT + 1}, wrapping[] = {100, UINT64_MAX};
	static const uint64_t many[] = {LIMIT_MESSAGE_CUT / 2, LIMIT_MESSAGE_CUT / 2, 1, 1};
	static const uint8_t empty[2] = {1, 0};
	struct zmtp zmtp = {.phase = ZMTP_AT_TRAFFIC};
	struct zmtp_event event;
	enum zmtp_what what = ZMTP_MORE;
	size_t used, n = 0;

	(void)state;
	assert_int_equal(skip_frames(&zmtp, one, 1, &event), ZMTP_BROKEN);
	zmtp = (struct zmtp){.phase = ZMTP_AT_TRAFFIC};
	assert_int_equal(skip_frames(&zmtp, many, 4, &event), ZMTP_BROKEN);
	zmtp = (struct zmtp){.phase = ZMTP_AT_TRAFFIC};
	assert_int_equal(skip_frames(&zmtp, wrapping, 2, &event), ZMTP_BROKEN);
	zmtp = (struct zmtp){.phase = ZMTP_AT_TRAFFIC};
	for (; what == ZMTP_MORE && n < LIMIT_MESSAGE_CUT; n++)
		what = zmtp_step(&zmtp, empty, sizeof empty, &used, &event);
	assert_int_equal(what, ZMTP_BROKEN);
}

static void a_ping_brings_a_pong(void **state)
{
	static const uint8_t ping[] = "\4\x0a\4PING\0\7abc",
			     long_one[] = "\4\x18\4PING\0\7aaaaaaaaaaaaaaaaa";
	uint8_t pong[ZMTP_HEADER_BYTES + 5 + ZMTP_PING_BYTES];
	struct zmtp_event event;
	struct zmtp zmtp;
	size_t used;

	(void)state;
	assert_int_equal(after_handshake(&zmtp, ping, sizeof ping - 1, &used, &event), ZMTP_PING);
	assert_int_equal(used, sizeof ping - 1);
	assert_int_equal(zmtp_pong(pong, event.data, (size_t)event.bytes), 10);
	assert_memory_equal(pong, "\4\x08\4PONGabc", 10);
	assert_int_equal(
		after_handshake(&zmtp, long_one, sizeof long_one - 1, &used, &event), ZMTP_BROKEN);
	/* What is not known asks for nothing. */
	assert_int_equal(after_handshake(&zmtp, "\4\x0b\x09SUBSCRIBEx\0\1m", 16, &used, &event),
		ZMTP_MESSAGE);
	assert_int_equal(after_handshake(&zmtp, "\4\7\5ERROR\0", 9, &used, &event), ZMTP_BROKEN);
	assert_int_equal(after_handshake(&zmtp, "\x10\1x", 3, &used, &event), ZMTP_BROKEN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_client_shakes_hands),
		cmocka_unit_test(strangers_are_told_apart),
		cmocka_unit_test(handshakes_of_others_are_refused),
		cmocka_unit_test(a_message_is_handed_out_whole),
		cmocka_unit_test(what_cannot_be_taken_is_counted_and_thrown_away),
		cmocka_unit_test(a_message_without_an_end_breaks_its_connection),
		cmocka_unit_test(a_ping_brings_a_pong),
	};

	return cmocka_run_group_tests_name("zmtp", tests, NULL, NULL);
}
