/* The best use of a machine's memory for a model, by the services' own rules. No side effects:
 * works on figures that are passed in. */
#pragma once

#include "client/cli/doctor/facts.h"
#include "services/expert-cache/room.h"
#include "shared/base/memory.h"

#include <stdbool.h>

struct plan {
	bool runs; /* there is room for one layer's experts, the KV cache and the sessions */
	bool all; /* and for all experts and the weights of every token */
	bool smaller; /* sessions and context are below the defaults, because more would not fit */
	int64_t sessions;
	uint32_t context; /* tokens of a session */
	uint64_t kv_bytes;
	/* the buffers through which pages of the KV cache go to a disk and come back; 0: none do */
	uint64_t disk_bytes;
	struct room room; /* what is left for experts, and why */
	/* the memory that budget auto takes, and the memory of all experts. Dense: 0 */
	uint64_t budget_bytes, all_bytes;
	double share; /* of the experts in memory; 1 for a dense model */
	uint64_t least_bytes; /* of memory, for the smallest service */
	/* the largest context with which all experts still fit in addition to these sessions; 0:
	 * they do not fit in any case */
	uint32_t context_most;
};

/* to_disk: the service has a directory for pages of the KV cache (prefix_dir). */
void plan_make(const struct facts *facts, const struct memory_limit *limit, bool to_disk,
	struct plan *out);
