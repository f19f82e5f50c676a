/*
 * Prepares a chat. Before it begins, the gateway must know how the model's template writes thoughts
 * and calls, and whether the prompt ends within a thought. Then the request gets its grammar, and
 * its answers are parsed. Loop thread.
 */
#pragma once

#include "services/gateway/gateway.h"

/* Begins the exchange (generate_begin), at once or when the service has answered. False: the
 * exchange's fault has the reason. */
bool plan_chat(struct exchange *exchange);
