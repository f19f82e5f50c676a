/*
 * Questions that the service answers with a text, tokens or facts about its model. One at a time:
 * the call that asks waits for the answer, and in the meantime handles what arrives for the
 * client's streams.
 */
#pragma once

#include "client/sdk/client.h"

/* True when the envelope belongs to a question: the answer to the waiting one is kept, and
 * *envelope set to NULL; any other is freed. */
bool texts_take(struct outrider *client, Outrider__Envelope **envelope);
/* Asks the question again, because it may have been lost with the former connection. */
void texts_connected(struct outrider *client);
