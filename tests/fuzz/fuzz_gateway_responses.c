/* Any bytes as the body of /v1/responses: it becomes the body of a chat, which is read. What is refused has a status and a sentence
 * that JSON can carry, with the names of responses. */
#include "services/gateway/params.h"
#include "services/gateway/responses.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check(struct fault *fault)
{
	responses_rename(fault);
	json_t *error = fault_json(fault);

	if (fault->status < 400 || fault->status > 599 || !fault->message[0] || !error ||
		strncmp(fault->param, "messages", strlen("messages")) == 0 ||
		!json_is_string(json_object_get(json_object_get(error, "error"), "message")))
		abort();
	json_decref(error);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct fault fault = {0};
	struct params params = {.chat = true};
	json_t *body = json_loadb((const char *)data, bytes, 0, NULL), *chat;

	if (!body)
		return 0;
	chat = responses_read(body, &fault);
	if (!chat) {
		check(&fault);
	} else {
		if (!json_is_array(json_object_get(chat, "messages")))
			abort();
		bool good = params_read(&params, chat, &fault);
		if (good && (!params.request || params.n != 1))
			abort();
		if (!good)
			check(&fault);
		params_free(&params);
	}
	json_decref(chat);
	json_decref(body);
	return 0;
}
