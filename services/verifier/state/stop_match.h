/*
 * The stop strings of one session, and how far its output was matched with them. Each output token
 * is matched once, by the side that has the session: the engine, or the front before the engine
 * gets it. The result decides where the answer ends and, token by token, how much of the text may
 * be shown, so the front only has to cut it there. Read the record only after the tokens were
 * published, or the session is done.
 */
#pragma once

#include "services/verifier/state/text.h"
#include "shared/spec/session.h"

/* Whether the token ends the answer whatever its text is. */
static inline bool stop_match_ends(
	const struct session_request *request, const struct tokenizer *tokenizer, int32_t token)
{
	return !request->ignore_eos && tokenizer_is_eog(tokenizer, token);
}

struct stop_match;

/* For a session of up to n_context tokens. *out is NULL for a request without stop strings.
 * -ENOMEM. */
int stop_match_create(
	const struct session_request *request, uint32_t n_context, struct stop_match **out);
void stop_match_free(struct stop_match **match);

/* Matches the output token of this index, whose predecessors came before. A token that was matched
 * already is skipped. ends: as stop_match_ends says. Returns whether a stop string was completed.
 * match NULL: there are none. */
bool stop_match_token(struct stop_match *match, const struct tokenizer *tokenizer, uint32_t index,
	int32_t token, bool ends);
/* Matches all output tokens of a page. */
void stop_match_page(struct stop_match *match, const struct tokenizer *tokenizer,
	const struct session_page *page, uint32_t n_tokens);

/* How many bytes at the end of the first n output tokens' text may not be shown: not yet, or never,
 * when a stop string was found. n is at most the number of matched tokens. */
uint32_t stop_match_back(const struct stop_match *match, uint32_t n);
/* The stop string that was found, or NULL. */
const char *stop_match_found(const struct stop_match *match);
