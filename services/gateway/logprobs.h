/*
 * Log probabilities as OpenAI's clients read them: of chats a list with an object for each token, of completions an object with a
 * list of each kind. Tokens without text (control tokens, as the one that ends an answer) are left out, as OpenAI does.
 */
#pragma once

#include "services/gateway/exchange.h"

/* Keeps those of an event for the next chunk, or for the whole answer. False: no memory. */
bool logprobs_add(struct choice *choice, const struct outrider_event *event);
/* What was kept, and is then no more; null: nothing was. The caller's. */
json_t *logprobs_take(struct choice *choice);
