/* Converts a budget setting to a number of slots, and checks whether this machine can hold them.
 * Pure. */
#pragma once

#include "services/expert-cache/room.h"
#include "shared/base/error.h"
#include "shared/spec/slots.h"

/* The default, when no budget is set. */
#define BUDGET_AUTO "auto"

struct budget {
	uint32_t n_slots;
	uint64_t bytes; /* size of these slots */
	uint64_t asked_bytes; /* what was asked for; more than bytes if all experts take less */
};

/* text: "auto", "all", "min", a percentage of the model's experts ("30%", rounded up to whole
 * slots), or bytes with a suffix as in settings ("2G", "2GB", rounded down). More than all experts
 * becomes all. Less than slots_min is refused, with that number in the message. auto is as many as
 * `room` bytes hold, at least slots_min and at most all. */
int budget_slots(const char *text, const struct slots_geometry *geometry, uint64_t room,
	struct budget *out, struct error *err);

bool budget_is_auto(const char *text);

/* Bytes of the slots that auto gives. */
uint64_t budget_automatic(const struct slots_geometry *geometry, uint64_t room);

/* Refuses a budget that is more than the machine or the control group has; or more than they have
 * in addition to what the verifier holds (held); or more than is available now in addition to what
 * the slots have already (had). The message gives the largest possible budget and that of auto
 * (automatic). If not even that fits, it gives the lowest memory limit with which the least auto
 * budget and the others would fit (limit_least; 0: unknown). */
int budget_check_memory(const struct budget *budget, const struct memory_limit *limit, uint64_t had,
	uint64_t held, uint64_t automatic, uint64_t limit_least, struct error *err);

/* Describes how much room there is and why, in under 512 bytes. where: what sets the limit. */
void budget_describe(const struct room *room, const char *where, char *out, size_t out_bytes);

/* One line about a budget that fits: what auto took and why, or that a named budget leaves the
 * others less than they are estimated to need. "" when there is nothing to report. */
void budget_notice(const char *text, const struct budget *budget,
	const struct slots_geometry *geometry, const struct room *room, const char *where,
	char *out, size_t out_bytes);
