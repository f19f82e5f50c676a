/*
 * The server's half of ZMTP 3 with the NULL mechanism, which is what libzmq's sockets speak (RFC 37/ZMTP 3.1,
 * RFC 23/ZMTP 3.0): a parser of one connection's bytes that keeps nothing but where it is. It does no input or output
 * and takes no memory. A message here has one frame of at most LIMIT_MESSAGE_BYTES. Any other is counted, and its content
 * is thrown away as it arrives, so that its sender can be told why; beyond LIMIT_MESSAGE_CUT the connection is broken.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	ZMTP_GREETING_BYTES = 64,
	ZMTP_HEADER_BYTES = 9, /* at most, of a frame */
	ZMTP_COMMAND_BYTES = 1024, /* at most, of a command */
	ZMTP_PING_BYTES = 16, /* at most, of a ping's context */
};

enum zmtp_phase { ZMTP_AT_GREETING, ZMTP_AT_HANDSHAKE, ZMTP_AT_TRAFFIC };

/* All zero for a new connection. */
struct zmtp {
	enum zmtp_phase phase;
	bool more; /* the frame that is being thrown away is not its message's last */
	uint64_t skip; /* bytes of it that are still to come */
	uint64_t frames, bytes; /* of the message that is arriving and cannot be taken */
};

enum zmtp_what {
	ZMTP_MORE, /* nothing can be said before more bytes have come */
	ZMTP_GREETED, /* the client's greeting is right: send zmtp_ready */
	ZMTP_OPEN, /* the handshake is complete */
	ZMTP_PING, /* send a pong with this context */
	ZMTP_MESSAGE,
	ZMTP_BROKEN, /* close the connection */
};

struct zmtp_event {
	const uint8_t *data; /* of a message or ping; NULL: a message that cannot be taken */
	uint64_t bytes; /* its size */
	uint64_t frames; /* of a message */
	size_t want; /* ZMTP_MORE: how many bytes must lie there together before it can go on */
	const char *why; /* ZMTP_BROKEN */
};

/* What the bytes say next. *used of them are done with; event->data points into them. */
enum zmtp_what zmtp_step(struct zmtp *zmtp, const uint8_t *data, size_t bytes, size_t *used,
	struct zmtp_event *event);

/* What a server says first, and when it has been greeted. */
extern const uint8_t zmtp_greeting[ZMTP_GREETING_BYTES];
extern const uint8_t zmtp_ready[];
extern const size_t zmtp_ready_bytes;

/* The header of a message's only frame; returns its length. */
size_t zmtp_header(uint8_t out[ZMTP_HEADER_BYTES], size_t bytes);
/* A whole pong; returns its length. */
size_t zmtp_pong(
	uint8_t out[ZMTP_HEADER_BYTES + 5 + ZMTP_PING_BYTES], const uint8_t *context, size_t bytes);
