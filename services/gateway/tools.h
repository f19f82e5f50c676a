/* Fields of a request that are about tools, as they come; params.h keeps what they say. */
#pragma once

#include "services/gateway/params.h"

/* A list of tools as chat completions have them: checked. False: *fault says why not. */
bool tools_check(const json_t *tools, struct fault *fault);
/* tool_choice of chat completions. */
bool tools_choose(struct params *params, const json_t *value, struct fault *fault);
/* When all fields were read: what was chosen is there. */
bool tools_finish(const struct params *params, struct fault *fault);
/* One message of a chat: calls and their results. */
bool tools_check_message(const json_t *message, size_t i, struct fault *fault);
