/*
 * The stop strings of one session and how far its output was matched with them. An output token is matched once, by whoever has the
 * session: the engine, or the front before the engine gets it. What is found decides where the answer ends, and, token by token, how
 * much of the text may be shown: the front only cuts. The record is read after the tokens were published, or the session is done.
 */
#pragma once

#include "services/verifier/state/text.h"
#include "shared/spec/session.h"

/* Whether the token ends the answer by itself, whatever text it has. */
static inline bool stop_match_ends(
	const struct session_request *request, const struct tokenizer *tokenizer, int32_t token)
{
	return !request->ignore_eos && tokenizer_is_eog(tokenizer, token);
}

struct stop_match;

/* For a session of up to n_context tokens. *out is NULL for a request without stop strings. -ENOMEM. */
int stop_match_create(
	const struct session_request *request, uint32_t n_context, struct stop_match **out);
void stop_match_free(struct stop_match **match);

/* The output token of this index, after those before it; one that was matched already is not matched again. ends: it ends the
 * answer by itself. Returns whether a stop string was completed. match NULL: there are none. */
bool stop_match_token(struct stop_match *match, const struct tokenizer *tokenizer, uint32_t index,
	int32_t token, bool ends);
/* All output tokens of a page. */
void stop_match_page(struct stop_match *match, const struct tokenizer *tokenizer,
	const struct session_page *page, uint32_t n_tokens);

/* Of the text of the first n output tokens, how many bytes at its end may not be shown: not yet, or, when a stop string was
 * found, ever. n at most those matched. */
uint32_t stop_match_back(const struct stop_match *match, uint32_t n);
/* The stop string that was found, or NULL. */
const char *stop_match_found(const struct stop_match *match);
