/*
 * How much memory experts may take where the operator named no budget: what the machine and the control groups have,
 * less what everything else of the service needs and a reserve. Pure, of figures that are passed in.
 *
 * What the others need the verifier says when it comes (struct slots_needs). Until one has, it is estimated from the model:
 * the weights that are not experts with the routers' 8-bit copies, and KV cache, sessions and drafts of the verifier's defaults. The reserve is for what
 * nobody tells: a draft model, buffers and tables of the four processes, the page cache, the system.
 */
#pragma once

#include "shared/base/memory.h"
#include "shared/spec/kv_plan.h"
#include "shared/spec/slots.h"

/* Of the memory; small machines need as much as others for what does not depend on the model. */
#define ROOM_RESERVE_PART 16
#define ROOM_RESERVE_BYTES_MIN ((uint64_t)256 << 20)

struct room_needs {
	struct slots_needs of; /* any numbers: they may be a peer's */
	bool said; /* by a verifier; else estimated */
};

struct room {
	uint64_t memory; /* what is shared out: all there is, or what is free of it */
	bool free_of_it; /* the latter */
	struct room_needs needs; /* of it; there counts as free */
	uint64_t reserve;
	uint64_t bytes; /* the rest, for experts */
};

/* Of a verifier that has everything by default and nothing yet. */
void room_needs_of(const struct model *model, struct room_needs *out);

/* Of one with such a KV cache, and sessions of so many tokens. */
void room_needs_planned(const struct model *model, const struct kv_plan *plan, uint32_t context,
	struct room_needs *out);

bool room_needs_equal(const struct room_needs *a, const struct room_needs *b);

/* Bytes that nothing but the verifier's end gives back once they are filled: its KV cache and pages. */
uint64_t room_needs_held(const struct room_needs *needs);

/* Of memory that has room for so many bytes of experts beside all that cannot be read again from a file. */
uint64_t room_limit_least(const struct room_needs *needs, uint64_t bytes);

/* had: bytes that slots have already, which are not among limit->available. Memory that the verifier has already is not
 * either (needs->of.there); it fills the rest of its KV cache later, so room for that is left. */
void room_find(const struct memory_limit *limit, const struct room_needs *needs, uint64_t had,
	struct room *out);
