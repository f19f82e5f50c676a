/*
 * Completions as OpenAI's clients read them (platform.openai.com/docs/api-reference/chat, .../completions), with two more objects:
 * "outrider", which says what speculation did, and "timings", as llama.cpp's server has them. Each adds to exchange->out; false: no
 * memory.
 */
#pragma once

#include "services/gateway/exchange.h"

/* data: {...}, for text of one choice; the first of a chat's chunks tells the role. */
bool answer_chunk(struct exchange *exchange, struct choice *choice, const char *text, size_t bytes);
/* The same of a thought, and of the last of choice->calls, whole. */
bool answer_thought(
	struct exchange *exchange, struct choice *choice, const char *text, size_t bytes);
bool answer_call(struct exchange *exchange, struct choice *choice);
/* data: {...} with finish_reason, when the choice has ended. */
bool answer_chunk_end(struct exchange *exchange, struct choice *choice);
/* When all have ended: the usage, if it was asked for, and data: [DONE]. */
bool answer_stream_end(struct exchange *exchange);
/* data: {"error": ...}: the response has begun, and its status cannot be changed. */
bool answer_stream_fault(struct exchange *exchange);
/* The whole response of a request that is no stream. */
bool answer_whole(struct exchange *exchange);

/* For other forms of answers. New references, NULL without memory: the model's name; the usage, as in a chat. */
json_t *answer_model(const struct exchange *exchange);
json_t *answer_usage(const struct exchange *exchange);
/* Adds "outrider" and "timings". False: no memory. */
bool answer_add_own(const struct exchange *exchange, json_t *body);
