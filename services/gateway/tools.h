/* Reads the fields of a request that are about tools, as they are met; params.h has what they say.
 * Pure. False: *fault has the reason. */
#pragma once

#include "services/gateway/params.h"

/* Checks a list of tools in the form of chat completions. */
bool tools_check(const json_t *tools, struct fault *fault);
/* Reads tool_choice of chat completions into params. */
bool tools_choose(struct params *params, const json_t *value, struct fault *fault);
/* Call when all fields were read: checks that the function that must be called is among the tools.
 */
bool tools_finish(const struct params *params, struct fault *fault);
/* Checks the calls and the results of calls in message i of a chat. */
bool tools_check_message(const json_t *message, size_t i, struct fault *fault);
