/* A request as it is filled in: the Generate message that will be sent. */
#pragma once

#include "client/include/outrider.h"
#include "proto/envelope.pb-c.h"

struct outrider_request {
	Outrider__Generate generate; /* everything that it points to is malloc'd */
	Outrider__Sampling sampling;
};

/* About how many bytes the message will have. */
size_t request_bytes(const struct outrider_request *request);
/* A copy of the message, for outrider__generate__free_unpacked; NULL when memory is exhausted. */
Outrider__Generate *request_copy(const struct outrider_request *request);
