/* The drafter's part of the device's memory: it asks for what a draft model needs, and takes all of it,
 * or nothing, when it is told. First the experts give way, if their budget is auto: to the least, if
 * need be. An answer holds until something changes. In the loop's thread. */
#pragma once

#include "services/expert-cache/service.h"
#include "shared/ipc/peer_card.h"

/* What the drafter says of itself. */
void live_drafter_asks(struct service *service, const struct peer_needs *needs);
/* Its connection has ended. Its part is kept for its successor for a few seconds. */
void live_drafter_left(struct service *service);
/* From time to time, before live_device_follow: answers. */
void live_drafter_follow(struct service *service);
/* From time to time: tells the verifier what the drafter's part is, when it has become another. */
void live_drafter_tell(struct service *service);
/* Bytes that count as taken. */
static inline uint64_t live_drafter_bytes(const struct service *service)
{
	return service->drafter.granted ? service->drafter.asked : 0;
}
