/* What the gateway knows of the model that is served. Plain data. */
#pragma once

#include "services/gateway/thoughts.h"
#include "shared/model/calls/calls.h"

#include <stdint.h>

struct gateway_facts {
	bool known;
	uint64_t generation; /* of the verifier that gave these facts */
	struct calls_format format; /* how its template writes thoughts and calls */
	struct thoughts_marks marks; /* the tokens around its thoughts */
};
