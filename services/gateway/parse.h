/* Thoughts and calls in the answers of a chat: what a parser finds becomes chunks of a stream, or parts of the whole answer. */
#pragma once

#include "services/gateway/exchange.h"

/* Gives the choice a parser, where its exchange is to be parsed. False: no memory. */
bool parse_begin(struct choice *choice);
/* Text of the choice, through its parser. False: no memory. */
bool parse_text(struct choice *choice, const char *text, size_t bytes);
/* The text has ended. */
bool parse_end(struct choice *choice);
void parse_free(struct choice *choice);
