/*
 * /v1/responses (platform.openai.com/docs/api-reference/responses): text and calls of functions. A request becomes that of a chat; its answer
 * becomes items, and the events of a stream. Nothing is stored: an earlier response cannot be named, its items are sent again.
 */
#pragma once

#include "services/gateway/exchange.h"

struct responses;

/* Handler of the route. */
bool responses_handle(struct exchange *exchange);
/* The body of a chat that asks for the same; a new reference. NULL: *fault says why not, with the names of responses. */
json_t *responses_read(const json_t *body, struct fault *fault);
/* Names in a fault of the chat become those of responses. */
void responses_rename(struct fault *fault);

/* What is found in the answer, in its order. False: no memory. */
bool responses_content(struct exchange *exchange, const char *text, size_t bytes);
bool responses_thought(struct exchange *exchange, const char *text, size_t bytes);
/* The last of the choice's calls. */
bool responses_call(struct exchange *exchange, const struct choice *choice);
/* The answer has ended: what is left to send. */
bool responses_end(struct exchange *exchange);
/* The exchange's fault, in a stream that has begun. */
bool responses_fault(struct exchange *exchange);
void responses_free(struct exchange *exchange);
