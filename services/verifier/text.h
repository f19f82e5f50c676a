/*
 * Stop strings over the text of a session's output, which may begin in one token and end in another. What could
 * still become a stop string is held back, so no client ever sees part of one. The state after n tokens depends
 * on those tokens only: a successor, or a client that resumes, is where its predecessor was. The engine uses it to end
 * a session, the front to cut the text it sends; each has its own stream.
 */
#pragma once

#include "shared/base/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The patterns of one request. Borrows text, which must be checked (n, and each with its NUL). */
struct text_stops {
	uint32_t n;
	const char (*text)[LIMIT_STOP_BYTES];
	uint8_t bytes[LIMIT_STOPS];
	uint8_t fail[LIMIT_STOPS]
		    [LIMIT_STOP_BYTES]; /* Knuth-Morris-Pratt: longest border of each prefix */
};
void text_stops_init(struct text_stops *stops, const char (*text)[LIMIT_STOP_BYTES], uint32_t n);

struct text_stream {
	int stop; /* index of the stop string that was completed, or -1 */
	uint8_t matched[LIMIT_STOPS]; /* bytes of each that end the text so far */
	uint8_t n_held; /* the longest of them */
	char held[LIMIT_STOP_BYTES];
};
void text_stream_init(struct text_stream *stream);

/* Takes the bytes of one token. What is safe to show is appended to out (room for n_held + bytes; NULL: not wanted)
 * and *n_out grows by it. Returns true when a stop string was completed: of several the one that began first; the
 * rest of the bytes, and all that would follow, is no part of the answer. */
bool text_feed(struct text_stream *stream, const struct text_stops *stops, const char *piece,
	size_t bytes, char *out, size_t *n_out);
