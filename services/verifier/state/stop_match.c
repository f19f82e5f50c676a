#include "services/verifier/state/stop_match.h"

#include <errno.h>
#include <stdlib.h>

struct stop_match {
	struct text_stops *stops;
	struct text_stream stream;
	uint32_t n; /* output tokens matched */
	uint32_t found_at; /* index of the token that completed a stop string; UINT32_MAX: none */
	uint32_t back[]; /* [n] the results of stop_match_back(index + 1) */
};

int stop_match_create(
	const struct session_request *request, uint32_t n_context, struct stop_match **out)
{
	struct stop_match *match;

	*out = NULL;
	if (request->n_stops == 0)
		return 0;
	match = calloc(1, sizeof(*match) + n_context * sizeof(match->back[0]));
	if (match == NULL)
		return -ENOMEM;
	int rc = text_stops_create(request->stops, request->n_stops, &match->stops);
	if (rc != 0) {
		free(match);
		return rc;
	}
	text_stream_init(&match->stream, request->control_text);
	match->found_at = UINT32_MAX;
	*out = match;
	return 0;
}

void stop_match_free(struct stop_match **match)
{
	if (*match == NULL)
		return;
	text_stops_free(&(*match)->stops);
	free(*match);
	*match = NULL;
}

bool stop_match_token(struct stop_match *match, const struct tokenizer *tokenizer, uint32_t index,
	int32_t token, bool ends)
{
	if (match == NULL)
		return false;
	if (index < match->n)
		return index >= match->found_at;
	/* A token that ends the answer and has no text completes no stop string. */
	if ((!ends || tokenizer_piece(tokenizer, token, false).bytes > 0) &&
		text_feed_token(&match->stream, match->stops, tokenizer, token) &&
		match->found_at == UINT32_MAX)
		match->found_at = index;
	match->back[index] = match->stream.back;
	match->n = index + 1;
	return index >= match->found_at;
}

void stop_match_page(struct stop_match *match, const struct tokenizer *tokenizer,
	const struct session_page *page, uint32_t n_tokens)
{
	for (uint32_t i = page->n_prompt; match != NULL && i < n_tokens; i++)
		stop_match_token(match, tokenizer, i - page->n_prompt, page->tokens[i],
			stop_match_ends(&page->request, tokenizer, page->tokens[i]));
}

uint32_t stop_match_back(const struct stop_match *match, uint32_t n)
{
	return match != NULL && n > 0 ? match->back[n - 1] : 0;
}

const char *stop_match_found(const struct stop_match *match)
{
	if (match == NULL || match->stream.stop < 0)
		return NULL;
	return text_stop(match->stops, match->stream.stop);
}
