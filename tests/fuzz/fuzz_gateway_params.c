/* Any bytes as the body of a completion request; the first byte says of which end point. What is refused has a status and a sentence
 * that JSON can carry. */
#include "services/gateway/params.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check(const struct fault *fault)
{
	json_t *error = fault_json(fault);

	if (fault->status < 400 || fault->status > 599 || !fault->message[0] || !error ||
		!json_is_string(json_object_get(json_object_get(error, "error"), "message")))
		abort();
	json_decref(error);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct fault fault = {0};

	if (bytes < 1)
		return 0;
	struct params params = {.chat = data[0] & 1};
	json_t *body = json_loadb((const char *)data + 1, bytes - 1, 0, NULL);
	if (!body)
		return 0;
	bool good = params_read(&params, body, &fault);
	if (good && (!params.request || params.n < 1 || params.n > PARAMS_CHOICES))
		abort();
	if (!good)
		check(&fault);
	params_free(&params);
	json_decref(body);
	return 0;
}
