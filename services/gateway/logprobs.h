/*
 * Log probabilities in the form that OpenAI's clients read: for chats a list with an object per
 * token, for completions an object with a list of each kind. Tokens without text (control tokens,
 * such as the token that ends an answer) are left out, as OpenAI does.
 */
#pragma once

#include "services/gateway/exchange.h"

/* Keeps the log probabilities of an event for the next chunk, or for the whole answer. False:
 * memory is exhausted. */
bool logprobs_add(struct choice *choice, const struct outrider_event *event);
/* Takes what was kept; null: nothing was. A new reference. */
json_t *logprobs_take(struct choice *choice);
