/*
 * Stop strings over the text of a session's output, which may begin in one token and end in another. What could
 * still become a stop string is held back, so no client ever sees part of one. The state after n tokens depends
 * on those tokens only: a successor, or a client that resumes, is where its predecessor was. The engine uses it to end
 * a session, the front to cut the text it sends; each has its own stream.
 *
 * A control token is matched by its text, whole: a stop string may be or contain "<|im_start|>", and ends the answer at that
 * token. What is no part of the visible text cannot be matched in part: ">" does not end the answer there.
 *
 * All strings are matched at once (Aho and Corasick, CACM 18(6), 1975), so a byte of output costs the same however many stop
 * strings there are and however long they are.
 */
#pragma once

#include "shared/base/limits.h"
#include "shared/model/text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The stop strings of one request; read-only once made. */
struct text_stops;
/* packed: n checked strings, each with its NUL, one after the other; copied. *out is NULL for none. -ENOMEM. */
int text_stops_create(const char *packed, uint32_t n, struct text_stops **out);
void text_stops_free(struct text_stops **stops);
/* The i-th string; i as in struct text_stream. */
const char *text_stop(const struct text_stops *stops, int i);

struct text_stream {
	int stop; /* index of the stop string that was completed, or -1 */
	uint16_t state; /* what of the stop strings ends the text so far */
	uint16_t n_held; /* that many bytes */
	char held[LIMIT_STOP_BYTES];
	uint8_t flags[LIMIT_STOP_BYTES]; /* of each of them */
};
void text_stream_init(struct text_stream *stream);

/* Takes the bytes of one token; hidden: a control token's, which are matched and never shown. What is safe to show is appended
 * to out (room for n_held + bytes; NULL: not wanted) and *n_out grows by it. Returns true when a stop string was completed: of
 * several the one that began first; the rest of the bytes, and all that would follow, is no part of the answer. */
bool text_feed(struct text_stream *stream, const struct text_stops *stops, const char *piece,
	size_t bytes, bool hidden, char *out, size_t *n_out);
/* The same of a token. */
bool text_feed_token(struct text_stream *stream, const struct text_stops *stops,
	const struct tokenizer *tokenizer, int32_t token, char *out, size_t *n_out);
/* What is held back and became no stop string, when the answer has ended; the stream keeps it. */
void text_held(const struct text_stream *stream, char *out, size_t *n_out);
