/* How many slots a budget is, and whether this machine can hold them. Pure, but for the reading of /proc/meminfo. */
#pragma once

#include "shared/base/error.h"
#include "shared/spec/slots.h"

struct budget {
	uint32_t n_slots;
	uint64_t bytes; /* of them */
	uint64_t asked_bytes; /* more, where all experts are less than what was asked for */
};

/* text: "all", "min", a percentage of the model's experts ("30%", rounded up to whole slots), or bytes of the arena with
 * a suffix K, M or G ("2G", rounded down). More than all experts is all of them; less than slots_min is refused with
 * that number. */
int budget_slots(const char *text, const struct slots_geometry *geometry, struct budget *out,
	struct error *err);

/* Refuses more than the machine or the control group has, and more than is available now beside what the slots have
 * already (had_bytes). */
int budget_check_memory(const struct budget *budget, uint64_t had_bytes, struct error *err);
