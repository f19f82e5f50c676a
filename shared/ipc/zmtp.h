/*
 * The server's half of ZMTP 3 with the NULL mechanism, which libzmq's sockets speak (RFC 37/ZMTP
 * 3.1, RFC 23/ZMTP 3.0): a parser for the bytes of one connection, which keeps only its position.
 * It does no input or output and allocates no memory. A message has one frame of at most
 * LIMIT_MESSAGE_BYTES. The content of any other message is counted and discarded as it arrives, so
 * that its sender can be told why. Beyond LIMIT_MESSAGE_CUT the connection is broken.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	ZMTP_GREETING_BYTES = 64,
	ZMTP_HEADER_BYTES = 9, /* of a frame, at most */
	ZMTP_COMMAND_BYTES = 1024, /* of a command, at most */
	ZMTP_PING_BYTES = 16, /* of a ping's context, at most */
};

enum zmtp_phase { ZMTP_AT_GREETING, ZMTP_AT_HANDSHAKE, ZMTP_AT_TRAFFIC };

/* One connection's parser. All zero for a new connection. */
struct zmtp {
	enum zmtp_phase phase;
	bool more; /* the frame that is being discarded is not the last of its message */
	uint64_t skip; /* bytes of that frame still to come */
	uint64_t frames, bytes; /* of the arriving message that cannot be taken */
};

enum zmtp_what {
	ZMTP_MORE, /* it needs more bytes */
	ZMTP_GREETED, /* the client's greeting is correct: send zmtp_ready */
	ZMTP_OPEN, /* the handshake is complete */
	ZMTP_PING, /* send a pong with this context */
	ZMTP_MESSAGE,
	ZMTP_BROKEN, /* protocol error: close the connection */
};

struct zmtp_event {
	const uint8_t *data; /* content of a message or ping; NULL: the message cannot be taken */
	uint64_t bytes; /* size of the content */
	uint64_t frames; /* of a message */
	size_t want; /* ZMTP_MORE: how many contiguous bytes it needs to continue */
	const char *why; /* ZMTP_BROKEN: the reason */
};

/* Parses the next bytes and returns what they are. *used bytes were consumed; event->data points
 * into `data`. */
enum zmtp_what zmtp_step(struct zmtp *zmtp, const uint8_t *data, size_t bytes, size_t *used,
	struct zmtp_event *event);

/* What a server sends first, and what it sends after the client's greeting. */
extern const uint8_t zmtp_greeting[ZMTP_GREETING_BYTES];
extern const uint8_t zmtp_ready[];
extern const size_t zmtp_ready_bytes;

/* Writes the header of a message's only frame; returns its length. */
size_t zmtp_header(uint8_t out[ZMTP_HEADER_BYTES], size_t bytes);
/* Writes a whole pong; returns its length. */
size_t zmtp_pong(
	uint8_t out[ZMTP_HEADER_BYTES + 5 + ZMTP_PING_BYTES], const uint8_t *context, size_t bytes);
