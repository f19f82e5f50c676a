/*
 * The body of a completion request: JSON becomes a request of the SDK. Every field is in one table (params.c): those that are taken,
 * those that change nothing here, and those that are known and refused, because leaving them out would change what is asked for.
 * Pure but for the seed of a request that names none.
 */
#pragma once

#include "client/include/outrider.h"
#include "services/gateway/fault.h"

#include <stdbool.h>

enum { PARAMS_CHOICES = 8 }; /* the most answers to one request */

struct params {
	bool chat; /* which of the two end points: set by the caller */
	uint64_t
		idempotency; /* a number made of the request's Idempotency-Key, set by the caller; 0: none */
	struct outrider_request *request; /* owned */
	bool has_input;
	bool stream, include_usage;
	uint32_t n; /* answers */
	bool logprobs; /* of a chat */
	uint32_t top_logprobs; /* that are wanted beside them */
	uint64_t seed; /* of the first; the next have the next numbers */
	char model[256]; /* as it was asked for; "": it was not */
};

/* False: *fault says why, and *params is still to be freed. */
bool params_read(struct params *params, const json_t *body, struct fault *fault);
void params_free(struct params *params);
