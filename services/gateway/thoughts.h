/*
 * How many tokens of an answer were thoughts: those between the tokens that open and close a thought, which are not counted themselves.
 * It goes by tokens, not by texts, so the number is the same however tokens are put into events. Plain data.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { THOUGHTS_NO_TOKEN = -1 };

/* The tokens of a model. NO_TOKEN: its text is no single token; without `close`, nothing is counted. */
struct thoughts_marks {
	int32_t open, close;
	/* Harmony, where a thought is a message whose channel is `word`; open is then what ends its head. */
	int32_t channel, word, start;
};

struct thoughts_count {
	bool within, over; /* a thought; it was closed, and there is one only (tags) */
	bool channel, analysis; /* the last token was `channel`; the message's channel is `word` */
	uint32_t n_seen; /* tokens of the answer so far */
	uint32_t n; /* of thoughts */
};

/* The next tokens of an answer. */
void thoughts_add(struct thoughts_count *count, const struct thoughts_marks *marks,
	const int32_t *tokens, size_t n);
