/*
 * What a chat needs to know of the model before it begins: how its template writes thoughts and calls, and whether the prompt ends
 * within a thought. Then the request gets its grammar, and each answer its parser.
 */
#pragma once

#include "services/gateway/gateway.h"

/* Begins the exchange (generate_begin), at once or when the service has said what is to be known. False: its fault says why not. */
bool plan_chat(struct exchange *exchange);
