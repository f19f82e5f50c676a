/*
 * The JSON of completions and chats, as OpenAI's clients read it
 * (platform.openai.com/docs/api-reference/chat, .../completions), with two more objects:
 * "outrider", which tells what speculation did, and "timings", in the form of llama.cpp's server.
 * generate.c and parse.c call this as an answer grows. Each function adds to exchange->out and
 * returns false when memory is exhausted. Loop thread.
 */
#pragma once

#include "services/gateway/exchange.h"

/* An event of a stream (data: {...}) with text of one choice. A chat begins with an event that
 * tells the role. */
bool answer_chunk(struct exchange *exchange, struct choice *choice, const char *text, size_t bytes);
/* The same for a piece of a thought, for the last call in choice->calls, which begins, and for a
 * piece of its arguments. */
bool answer_thought(
	struct exchange *exchange, struct choice *choice, const char *text, size_t bytes);
bool answer_call(struct exchange *exchange, struct choice *choice);
bool answer_arguments(
	struct exchange *exchange, struct choice *choice, const char *text, size_t bytes);
/* The event with finish_reason, when the choice has ended. */
bool answer_chunk_end(struct exchange *exchange, struct choice *choice);
/* The end of a stream, when all choices have ended: the usage, if the request wants it, and data:
 * [DONE]. */
bool answer_stream_end(struct exchange *exchange);
/* The event data: {"error": ...}, for a stream that has begun: its HTTP status cannot change any
 * more. */
bool answer_stream_fault(struct exchange *exchange);
/* The whole response to a request that does not ask for a stream. */
bool answer_whole(struct exchange *exchange);

/* For other forms of answers (responses.c): the model's name, and the usage as in a chat. New
 * references; NULL when memory is exhausted. */
json_t *answer_model(const struct exchange *exchange);
json_t *answer_usage(const struct exchange *exchange);
/* Adds "outrider" and "timings" to body. */
bool answer_add_own(const struct exchange *exchange, json_t *body);
