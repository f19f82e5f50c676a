/*
 * Questions that the service answers with a text, tokens or what its model is. One at a time: the call that asks waits, and takes in
 * meanwhile what arrives for the client's streams.
 */
#pragma once

#include "client/sdk/client.h"

/* Whether it is the answer to the question that waits; then it is kept and *envelope nulled, or freed. */
bool texts_take(struct outrider *client, Outrider__Envelope **envelope);
/* The question may have been lost with the connection before: it is asked again. */
void texts_connected(struct outrider *client);
