/*
 * How much memory experts may take when no budget is set: what the machine and the control groups
 * have, less what everything else of the service needs, and less a reserve. Pure: works on figures
 * that are passed in.
 *
 * The verifier tells what the others need when it registers (struct slots_needs). Until then it is
 * estimated from the model: the weights that are not experts, with the routers' 8-bit copies, and
 * the KV cache, sessions and drafts of the verifier's defaults. The reserve is for what nobody
 * tells: a draft model, buffers and tables of the four processes, the page cache, the system.
 */
#pragma once

#include "shared/base/memory.h"
#include "shared/spec/kv_plan.h"
#include "shared/spec/slots.h"

/* The reserve is this part of the memory, but at least ROOM_RESERVE_BYTES_MIN: small machines need
 * as much as others for what does not depend on the model. */
#define ROOM_RESERVE_PART 16
#define ROOM_RESERVE_BYTES_MIN ((uint64_t)256 << 20)

struct room_needs {
	struct slots_needs of; /* may be a peer's, so any numbers */
	bool said; /* told by a verifier; otherwise estimated */
};

struct room {
	uint64_t memory; /* the memory that is divided: all there is, or what is free of it */
	bool free_of_it; /* it is what is free */
	struct room_needs needs; /* taken from it; `there` counts as free */
	uint64_t reserve;
	uint64_t bytes; /* what is left for experts */
};

/* The needs of a verifier with default settings that has not allocated anything yet. */
void room_needs_of(const struct model *model, struct room_needs *out);

/* The needs of a verifier with such a KV cache, and sessions of at most `context` tokens. */
void room_needs_planned(const struct model *model, const struct kv_plan *plan, uint32_t context,
	struct room_needs *out);

bool room_needs_equal(const struct room_needs *a, const struct room_needs *b);

/* Bytes that, once filled, are only returned when the verifier ends: its KV cache and pages. */
uint64_t room_needs_held(const struct room_needs *needs);

/* Least memory with room for this many bytes of experts in addition to everything that cannot be
 * read again from a file. */
uint64_t room_limit_least(const struct room_needs *needs, uint64_t bytes);

/* had: bytes that slots have already, which limit->available does not include. Nor does it include
 * the memory that the verifier has already (needs->of.there). The verifier fills the rest of its KV
 * cache later, so room is left for that. */
void room_find(const struct memory_limit *limit, const struct room_needs *needs, uint64_t had,
	struct room *out);
