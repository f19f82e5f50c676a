/*
 * Finds thoughts and calls in the answers of a chat (shared/model/calls), and makes them chunks of
 * a stream or parts of the whole answer. Called by generate.c. Loop thread.
 */
#pragma once

#include "services/gateway/exchange.h"

/* Gives the choice a parser, if the answers of its exchange are parsed. False: memory is exhausted.
 */
bool parse_begin(struct choice *choice);
/* Passes the next piece of the answer through the choice's parser. False: memory is exhausted. */
bool parse_text(struct choice *choice, const char *text, size_t bytes);
/* Call when the text has ended: handles what the parser still held back. False: as above. */
bool parse_end(struct choice *choice);
void parse_free(struct choice *choice);
