/* A request under construction: the Generate message that will be sent. */
#pragma once

#include "client/include/outrider.h"
#include "proto/envelope.pb-c.h"

struct outrider_request {
	Outrider__Generate generate; /* everything in it is malloc'd */
	Outrider__Sampling sampling;
};

/* What it takes to send it, about. */
size_t request_bytes(const struct outrider_request *request);
/* A copy of the message, to be freed with outrider__generate__free_unpacked; NULL without memory. */
Outrider__Generate *request_copy(const struct outrider_request *request);
