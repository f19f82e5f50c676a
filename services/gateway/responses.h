/*
 * /v1/responses (platform.openai.com/docs/api-reference/responses): text and calls of functions. A
 * request is turned into the request of a chat. The chat's answer is turned into items, or into the
 * events of a stream. Nothing is stored: a request cannot refer to an earlier response, and must
 * contain its items again. Loop thread.
 */
#pragma once

#include "services/gateway/exchange.h"

struct responses;

/* Handler of the route. */
bool responses_handle(struct exchange *exchange);
/* Returns the body of a chat that asks for the same; a new reference. NULL: *fault has the reason,
 * with the field names of responses. */
json_t *responses_read(const json_t *body, struct fault *fault);
/* Replaces field names of chats in a fault by the names that responses use. */
void responses_rename(struct fault *fault);

/* Call with what is found in the answer, in its order: pieces of content and of thoughts. False:
 * memory is exhausted. */
bool responses_content(struct exchange *exchange, const char *text, size_t bytes);
bool responses_thought(struct exchange *exchange, const char *text, size_t bytes);
/* The last of the choice's calls begins; a piece of its arguments. */
bool responses_call(struct exchange *exchange, const struct choice *choice);
bool responses_arguments(struct exchange *exchange, const char *text, size_t bytes);
/* Call when the answer has ended: adds what is left to send. */
bool responses_end(struct exchange *exchange);
/* Adds the exchange's fault to a stream that has begun. */
bool responses_fault(struct exchange *exchange);
void responses_free(struct exchange *exchange);
