/* Completions: an exchange runs streams of the SDK, and their events become its response. On the loop's thread. */
#pragma once

#include "services/gateway/exchange.h"

/* The body as JSON, a new reference; its bytes are freed. NULL: the exchange's fault says what is wrong with it. */
json_t *generate_json(struct exchange *exchange);
/* The body is there: what it asks for becomes exchange->params. false: the exchange's fault says what is wrong with it. */
bool generate_read(struct exchange *exchange);
/* Starts the streams, or has them wait until the service has room. false: the exchange's fault says why not. */
bool generate_begin(struct exchange *exchange);
/* The client's descriptor is readable, or time has passed: all events that are there. */
void generate_pump(struct gateway *gateway);
/* Comments on streams that have had nothing to send, and the end of those whose client has gone. */
void generate_tick(struct gateway *gateway);
/* Cancels what runs of the exchange, and leaves the lists. */
void generate_end(struct exchange *exchange);
