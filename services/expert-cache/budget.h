/* How many slots a budget is, and whether this machine can hold them. Pure. */
#pragma once

#include "services/expert-cache/room.h"
#include "shared/base/error.h"
#include "shared/spec/slots.h"

/* The default: nobody named one. */
#define BUDGET_AUTO "auto"

struct budget {
	uint32_t n_slots;
	uint64_t bytes; /* of them */
	uint64_t asked_bytes; /* more, where all experts are less than what was asked for */
};

/* text: "auto", "all", "min", a percentage of the model's experts ("30%", rounded up to whole slots), or bytes of the arena
 * with a suffix as settings have it ("2G", "2GB", rounded down). More than all experts is all of them; less than slots_min is
 * refused with that number. auto is as many as room has, at least slots_min, at most all. */
int budget_slots(const char *text, const struct slots_geometry *geometry, uint64_t room,
	struct budget *out, struct error *err);

bool budget_is_auto(const char *text);

/* Bytes of auto's slots. */
uint64_t budget_automatic(const struct slots_geometry *geometry, uint64_t room);

/* Refuses more than the machine or the control group has, than it has beside what the verifier has said to hold (held), and
 * than is available now beside what the slots have already (had), with the most that is taken and with what auto would take
 * (automatic), or where not even that fits, with the least limit that auto's least and the others do (limit_least; 0: not
 * known). */
int budget_check_memory(const struct budget *budget, const struct memory_limit *limit, uint64_t had,
	uint64_t held, uint64_t automatic, uint64_t limit_least, struct error *err);

/* What there is room for and why, under 512 bytes, with where in it. */
void budget_describe(const struct room *room, const char *where, char *out, size_t out_bytes);

/* One line on a budget that fits: what auto took and why, or that a named one leaves less to the others than they are
 * estimated to need; "" when there is nothing to say. */
void budget_notice(const char *text, const struct budget *budget,
	const struct slots_geometry *geometry, const struct room *room, const char *where,
	char *out, size_t out_bytes);
