/* Finds the budget that results from a setting and the memory: when the process starts, when it
 * takes over a predecessor's slots, when the setting changes, and when a verifier tells what it
 * takes. Called in the loop thread; transfer.h puts the budget in force. */
#pragma once

#include "services/expert-cache/budget.h"
#include "services/expert-cache/service.h"

/* Sets out->budget to what text means. had: bytes that slots have; service->needs: what the others
 * need; out->limit: set by the caller. -ENOMEM when that memory is not available. */
int settle(const struct service *service, const char *text, uint64_t had, struct settled *out,
	struct error *err);

/* From a predecessor's region: how many bytes of their needs the others already had when they told
 * them. 0 when there is no region (-1), or nobody told. The descriptor stays the caller's. */
uint64_t settle_there(int recovered_fd);

/* What the budget in force means now, when it cannot be refused: a verifier has registered and
 * takes what it takes. */
void settle_beside(const struct service *service, struct settled *out);

/* The same when only the limit differs from service->settled. auto grows when a higher limit has
 * the memory for it, and shrinks when a lower one forbids what it has. What others use at this
 * moment does not count. */
void settle_within(const struct service *service, struct settled *out);

/* Slots of an auto budget for a process that took over a predecessor's: as many as that had, if the
 * machine has the memory. What is free now tells little, because the predecessor's slots and the
 * verifier's memory are taken from it. Otherwise service->budget. */
uint32_t settle_again(const struct service *service);

/* Logs what was taken and why, if there is anything to report. */
void settle_say(const struct service *service, const char *text, const struct settled *settled);
