/* How a machine's memory is best shared out for a model, by the services' own rules. Pure, of figures that are passed in. */
#pragma once

#include "client/cli/doctor/facts.h"
#include "services/expert-cache/room.h"
#include "shared/base/memory.h"

#include <stdbool.h>

struct plan {
	bool runs; /* one layer's experts, the KV cache and the sessions have room */
	bool all; /* and so do all experts, and the weights of every token */
	bool smaller; /* sessions and context are less than the defaults: more would not fit */
	int64_t sessions;
	uint32_t context; /* tokens of a session */
	uint64_t kv_bytes;
	struct room room; /* what is left for experts, and why */
	uint64_t budget_bytes, all_bytes; /* what budget auto takes; of all experts. Dense: 0 */
	double share; /* of the experts in memory; of a dense model 1 */
	uint64_t least_bytes; /* of memory, for the smallest service */
	uint32_t
		context_most; /* with which all experts still fit beside these sessions; 0: they do not anyway */
};

void plan_make(const struct facts *facts, const struct memory_limit *limit, struct plan *out);
