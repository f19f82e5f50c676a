#include "shared/ipc/zmtp.h"

#include "shared/base/limits.h"

#include <string.h>

enum {
	FLAG_MORE = 1,
	FLAG_LONG = 2,
	FLAG_COMMAND = 4,
	VERSION_AT = 10, /* in the greeting; the signature comes before it */
	MECHANISM_AT = 12,
	MECHANISM_BYTES = 20,
	/* The least that each further frame of a message counts for, so that empty frames cannot go
	 * on for ever. */
	FRAME_COST = 16,
};

const uint8_t zmtp_greeting[ZMTP_GREETING_BYTES] = {
	0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1, 'N', 'U', 'L', 'L'};
const uint8_t zmtp_ready[] = "\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06ROUTER";
const size_t zmtp_ready_bytes = sizeof zmtp_ready - 1;

static_assert(sizeof zmtp_ready - 1 == 2 + 0x1c, "the command's length is that of its content");

static enum zmtp_what broken(struct zmtp_event *event, const char *why)
{
	event->why = why;
	return ZMTP_BROKEN;
}

static enum zmtp_what more(struct zmtp_event *event, size_t want)
{
	event->want = want;
	return ZMTP_MORE;
}

static uint64_t read_number(const uint8_t *data, size_t bytes)
{
	uint64_t number = 0;

	for (size_t i = 0; i < bytes; i++)
		number = number << 8 | data[i];
	return number;
}

/* Judges the bytes that have come at once: a stranger may never send all 64. */
static enum zmtp_what take_greeting(struct zmtp *zmtp, const uint8_t *data, size_t bytes,
	size_t *used, struct zmtp_event *event)
{
	static const uint8_t mechanism[MECHANISM_BYTES] = "NULL";

	/* The eight bytes between are a length to clients of older versions; they mean nothing
	 * here. */
	if ((bytes > 0 && data[0] != 0xff) || (bytes >= VERSION_AT && !(data[VERSION_AT - 1] & 1)))
		return broken(event, "it does not speak ZeroMQ's protocol");
	if (bytes > VERSION_AT && data[VERSION_AT] < 3)
		return broken(event, "it speaks ZMTP of a version before 3.0");
	if (bytes >= MECHANISM_AT + MECHANISM_BYTES &&
		memcmp(data + MECHANISM_AT, mechanism, MECHANISM_BYTES) != 0)
		return broken(event, "it asks for another security mechanism than NULL");
	if (bytes < ZMTP_GREETING_BYTES)
		return more(event, ZMTP_GREETING_BYTES);
	*used = ZMTP_GREETING_BYTES;
	zmtp->phase = ZMTP_AT_HANDSHAKE;
	return ZMTP_GREETED;
}

static bool same(const uint8_t *data, size_t bytes, const char *text)
{
	return bytes == strlen(text) && memcmp(data, text, bytes) == 0;
}

/* Checks the properties of a READY: names and values, each preceded by its length. */
static bool may_connect(const uint8_t *data, size_t bytes)
{
	static const char *const types[] = {"DEALER", "REQ", "ROUTER"};
	bool good = true;

	while (bytes > 0) {
		size_t n_name = data[0];
		const uint8_t *name = data + 1, *value;
		uint64_t n_value;

		if (n_name == 0 || bytes < 1 + n_name + 4)
			return false;
		n_value = read_number(name + n_name, 4);
		value = name + n_name + 4;
		if (n_value > bytes - 1 - n_name - 4)
			return false;
		if (same(name, n_name, "Socket-Type")) {
			good = false;
			for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
				good |= same(value, (size_t)n_value, types[i]);
		}
		data = value + n_value;
		bytes -= 1 + n_name + 4 + (size_t)n_value;
	}
	return good;
}

/* Takes a command. Returns ZMTP_MORE for one that needs no answer. */
static enum zmtp_what take_command(
	struct zmtp *zmtp, const uint8_t *data, size_t bytes, struct zmtp_event *event)
{
	size_t n_name = bytes > 0 ? data[0] : 0;
	const uint8_t *name, *rest;

	if (n_name == 0 || n_name > bytes - 1)
		return broken(event, "a command has no name");
	name = data + 1;
	rest = name + n_name;
	bytes -= 1 + n_name;
	if (zmtp->phase == ZMTP_AT_HANDSHAKE) {
		if (!same(name, n_name, "READY") || !may_connect(rest, bytes))
			return broken(event, "its handshake is not that of a client");
		zmtp->phase = ZMTP_AT_TRAFFIC;
		return ZMTP_OPEN;
	}
	if (same(name, n_name, "ERROR"))
		return broken(event, "it reports an error");
	if (!same(name, n_name, "PING"))
		return ZMTP_MORE;
	/* Before the context: how long the client lets its connection be silent. */
	if (bytes < 2 || bytes > 2 + ZMTP_PING_BYTES)
		return broken(event, "its ping is malformed");
	event->data = rest + 2;
	event->bytes = bytes - 2;
	return ZMTP_PING;
}

/* Called at the end of a discarded frame. ZMTP_MORE: its message continues. */
static enum zmtp_what end_skipped(struct zmtp *zmtp, struct zmtp_event *event)
{
	if (zmtp->more)
		return ZMTP_MORE;
	event->data = NULL;
	event->bytes = zmtp->bytes;
	event->frames = zmtp->frames;
	zmtp->frames = zmtp->bytes = 0;
	return ZMTP_MESSAGE;
}

struct frame {
	uint8_t flags;
	size_t header;
	uint64_t bytes;
};

static bool read_header(const uint8_t *data, size_t bytes, struct frame *out)
{
	size_t n_length = bytes > 0 && data[0] & FLAG_LONG ? 8 : 1;

	out->header = 1 + n_length;
	if (bytes < out->header)
		return false;
	out->flags = data[0];
	out->bytes = read_number(data + 1, n_length);
	return true;
}

/* Takes the beginning of a frame. ZMTP_MORE with want 0: the frame is handled, or is being
 * discarded. */
static enum zmtp_what take_frame(struct zmtp *zmtp, const uint8_t *data, size_t bytes, size_t *used,
	struct zmtp_event *event)
{
	struct frame frame;

	if (bytes > 0 && data[0] & ~(FLAG_MORE | FLAG_LONG | FLAG_COMMAND))
		return broken(event, "a frame has flags that ZMTP does not have");
	if (!read_header(data, bytes, &frame))
		return more(event, frame.header);
	if (frame.flags & FLAG_COMMAND) {
		if (frame.flags & FLAG_MORE || frame.bytes > ZMTP_COMMAND_BYTES)
			return broken(event, "a command is too long");
		if (bytes - frame.header < frame.bytes)
			return more(event, frame.header + (size_t)frame.bytes);
		*used = frame.header + (size_t)frame.bytes;
		event->want = 0;
		return take_command(zmtp, data + frame.header, (size_t)frame.bytes, event);
	}
	if (zmtp->phase != ZMTP_AT_TRAFFIC)
		return broken(event, "it sends messages before the handshake");
	if (frame.bytes > LIMIT_MESSAGE_CUT ||
		zmtp->bytes + frame.bytes + zmtp->frames * FRAME_COST > LIMIT_MESSAGE_CUT)
		return broken(event, "a message is larger than any that is answered");
	if (zmtp->frames == 0 && !(frame.flags & FLAG_MORE) && frame.bytes <= LIMIT_MESSAGE_BYTES) {
		if (bytes - frame.header < frame.bytes)
			return more(event, frame.header + (size_t)frame.bytes);
		*used = frame.header + (size_t)frame.bytes;
		event->data = data + frame.header;
		event->bytes = frame.bytes;
		event->frames = 1;
		return ZMTP_MESSAGE;
	}
	*used = frame.header;
	zmtp->frames++;
	zmtp->bytes += frame.bytes;
	zmtp->skip = frame.bytes;
	zmtp->more = (frame.flags & FLAG_MORE) != 0;
	event->want = 0;
	return zmtp->skip > 0 ? ZMTP_MORE : end_skipped(zmtp, event);
}

enum zmtp_what zmtp_step(struct zmtp *zmtp, const uint8_t *data, size_t bytes, size_t *used,
	struct zmtp_event *event)
{
	*used = 0;
	*event = (struct zmtp_event){0};
	if (zmtp->phase == ZMTP_AT_GREETING)
		return take_greeting(zmtp, data, bytes, used, event);
	for (;;) {
		enum zmtp_what what;
		size_t n;

		if (zmtp->skip > 0) {
			n = bytes - *used < zmtp->skip ? bytes - *used : (size_t)zmtp->skip;
			*used += n;
			zmtp->skip -= n;
			if (zmtp->skip > 0)
				return more(event, 1);
			what = end_skipped(zmtp, event);
		} else {
			n = 0;
			what = take_frame(zmtp, data + *used, bytes - *used, &n, event);
			*used += n;
			if (what == ZMTP_MORE && event->want > 0)
				return what;
		}
		if (what != ZMTP_MORE)
			return what;
	}
}

size_t zmtp_header(uint8_t out[ZMTP_HEADER_BYTES], size_t bytes)
{
	if (bytes < 256) {
		out[0] = 0;
		out[1] = (uint8_t)bytes;
		return 2;
	}
	out[0] = FLAG_LONG;
	for (size_t i = 0; i < 8; i++)
		out[1 + i] = (uint8_t)((uint64_t)bytes >> (56 - 8 * i));
	return ZMTP_HEADER_BYTES;
}

size_t zmtp_pong(
	uint8_t out[ZMTP_HEADER_BYTES + 5 + ZMTP_PING_BYTES], const uint8_t *context, size_t bytes)
{
	static const uint8_t name[] = {4, 'P', 'O', 'N', 'G'};
	size_t n = zmtp_header(out, sizeof name + bytes);

	out[0] |= FLAG_COMMAND;
	memcpy(out + n, name, sizeof name);
	memcpy(out + n + sizeof name, context, bytes);
	return n + sizeof name + bytes;
}
