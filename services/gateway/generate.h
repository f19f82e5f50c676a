/* Completions: an exchange runs streams of the SDK, whose events become its response. Loop thread.
 */
#pragma once

#include "services/gateway/exchange.h"

/* The body as JSON, a new reference; frees the body's bytes. NULL: the exchange's fault has the
 * reason. */
json_t *generate_json(struct exchange *exchange);
/* Reads the parameters in the body into exchange->params. False: the exchange's fault has the
 * reason. */
bool generate_read(struct exchange *exchange);
/* Starts the streams, or queues them until the service has room. False: the exchange's fault has
 * the reason. */
bool generate_begin(struct exchange *exchange);
/* Handles all events that are there. Call when the client's descriptor is readable, or time has
 * passed. */
void generate_pump(struct gateway *gateway);
/* Adds comments to streams that had nothing to send, and ends streams whose client is gone. */
void generate_tick(struct gateway *gateway);
/* Cancels the running streams of the exchange, and takes it out of the lists. */
void generate_end(struct exchange *exchange);
