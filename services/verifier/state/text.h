/*
 * Stop strings over the text of a session's output, which may begin in one token and end in
 * another. Text that could still become a stop string is held back, so no client ever sees part of
 * one. The state after n tokens depends on those tokens only, so a successor, or a client that
 * resumes, is where its predecessor was. stop_match.h keeps the results of a session.
 *
 * A control token is matched by its text as a whole: a stop string may be or contain
 * "<|im_start|>", and ends the answer at that token. Text that is not visible cannot be matched in
 * part: ">" does not end the answer there.
 *
 * All strings are matched at once (Aho and Corasick, CACM 18(6), 1975), so a byte of output costs
 * the same however many stop strings there are and however long they are.
 */
#pragma once

#include "shared/base/limits.h"
#include "shared/model/text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The stop strings of one request; read-only once made. */
struct text_stops;
/* packed: n checked strings one after the other, each with its NUL; copied. *out is NULL for n = 0.
 * -ENOMEM. */
int text_stops_create(const char *packed, uint32_t n, struct text_stops **out);
void text_stops_free(struct text_stops **stops);
/* The i-th string, as counted by struct text_stream. */
const char *text_stop(const struct text_stops *stops, int i);

struct text_stream {
	int stop; /* index of the stop string that was completed, or -1 */
	/* Bytes at the end of the visible text so far that may not be shown: they may become part
	 * of a stop string or, when one was completed, are part of it or behind it. */
	uint32_t back;
	bool shown; /* control tokens are part of the visible text */
	uint16_t state; /* of the automaton: which beginnings of stop strings end the text so far */
	uint16_t n_held; /* number of bytes in flags, hidden ones included */
	uint8_t flags[LIMIT_STOP_BYTES]; /* of each of the last n_held bytes */
};
/* shown: control tokens are part of the visible text; they are matched in either case. */
void text_stream_init(struct text_stream *stream, bool shown);

/* Takes the bytes of one token. hidden: they are a control token's, which are matched but not
 * shown, unless the stream shows all. Returns true when a stop string was completed; of several,
 * the one that began first. The rest of the bytes, and all that would follow, is then no part of
 * the answer. When the answer ends without a stop string, what was held back is part of it. */
bool text_feed(struct text_stream *stream, const struct text_stops *stops, const char *piece,
	size_t bytes, bool hidden);
/* The same for a token. */
bool text_feed_token(struct text_stream *stream, const struct text_stops *stops,
	const struct tokenizer *tokenizer, int32_t token);
