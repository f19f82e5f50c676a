/*
 * How much memory experts may take where the operator named no budget: what the machine and the control groups have,
 * less what everything else of the service needs and a reserve. Pure, of figures that are passed in.
 *
 * The others' needs are known as far as the model tells them: the weights that are not experts, and the verifier's KV cache with
 * its defaults (one that was made larger is for the operator to leave room for, with a budget of his own). The reserve is
 * for what it does not tell: a draft model, buffers and tables of the four processes, the page cache, the system.
 */
#pragma once

#include "shared/base/memory.h"
#include "shared/model/model.h"

/* Of the memory; small machines need as much as others for what does not depend on the model. */
#define ROOM_RESERVE_PART 16
#define ROOM_RESERVE_BYTES_MIN ((uint64_t)256 << 20)

struct room_needs {
	uint64_t weights, kv; /* bytes */
};

struct room {
	uint64_t memory; /* what is shared out: all there is, or what is free of it */
	bool free_of_it; /* the latter */
	uint64_t weights, kv,
		reserve; /* of it; weights 0 where memory that is free is without them already */
	uint64_t bytes; /* the rest, for experts */
};

void room_needs_of(const struct model *model, struct room_needs *out);

/* had: bytes that slots have already, which are not among limit->available. running: the verifier has its weights, so what is
 * available is without them; at start they are still to come. It fills its KV cache later, so room for that is left in any
 * case. */
void room_find(const struct memory_limit *limit, const struct room_needs *needs, uint64_t had,
	bool running, struct room *out);
