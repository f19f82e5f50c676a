/* Which budget comes out of a setting and the memory there is: when the process starts, takes over a predecessor's slots, is
 * changed, or a verifier says what it takes. Called in the loop thread; transfer.h puts it in force. */
#pragma once

#include "services/expert-cache/budget.h"
#include "services/expert-cache/service.h"

/* had: bytes that slots have. service->needs are the others', out->limit is the caller's, out->budget what text means with
 * these; -ENOMEM when that cannot be had. */
int settle(const struct service *service, const char *text, uint64_t had, struct settled *out,
	struct error *err);

/* Bytes of what the others need that they had already when they said so in a predecessor's region: 0 where it is none (-1), or
 * nobody has said. The descriptor stays the caller's. */
uint64_t settle_there(int recovered_fd);

/* What the budget in force means now, where there is no saying no: a verifier has come that takes what it takes. */
void settle_beside(const struct service *service, struct settled *out);

/* The same where nothing but the limit is another than service->settled's: auto becomes more where a higher limit has the memory
 * for it, and less where a lower one forbids what it has. What others use at this moment takes nothing from it. */
void settle_within(const struct service *service, struct settled *out);

/* Slots of budget auto for who took over a predecessor's: as many as that had, as long as the machine has the memory, since what
 * is free now says little: the predecessor's slots and the verifier's memory are taken from it. Else service->budget. */
uint32_t settle_again(const struct service *service);

/* Says what was taken and why, if there is anything to say. */
void settle_say(const struct service *service, const char *text, const struct settled *settled);
