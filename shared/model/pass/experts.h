/*
 * Where a forward pass gets its experts from. The forward asks for the distinct experts of one layer, computes
 * those that are there first and the others as they arrive (SP-MoE section 3, cached-first order), and combines the
 * results in a fixed order, so residency never shows in the output.
 * Implementations: the file's mapping (experts_mapped), the expert-cache's slots (shared/spec/slots.h).
 */
#pragma once

#include "shared/model/arch/model.h"

struct expert_view {
	uint32_t index; /* into the experts[] given to begin */
	const void *gate, *up, *down; /* matrices of the layer's shapes, in this layout: */
	enum matrix_layout layout;
};

struct expert_source;

struct expert_source_ops {
	const char *name;
	/* Pins what is resident of experts[0..n-1] (distinct, ascending), demands the rest. tokens[i]: batch tokens
	 * that chose experts[i]. */
	void (*begin)(struct expert_source *source, uint32_t layer, const uint16_t *experts,
		const uint16_t *tokens, uint32_t n);
	/* Views not yet returned: all resident ones at first, then those that have arrived since; waits for at least
	 * one; 0 when all n were returned. An expert nobody else delivers is read from the file here: never fails. A
	 * file that cannot be read any more returns -EIO. Views of an earlier call are finished with when ready is called
	 * again (their slots may be given to others): so a layer may need more experts than there are slots. */
	int (*ready)(struct expert_source *source, struct expert_view *views);
	/* Unpins. Views are invalid from here on. */
	void (*end)(struct expert_source *source);
};

struct expert_source_stats {
	uint64_t lookups, hits, misses, bytes_loaded, wait_ns; /* running totals */
};

struct expert_source {
	const struct expert_source_ops *ops;
	const struct model *model;
	struct expert_source_stats stats;
};

/* Views straight into the mapping; every look-up hits. */
struct experts_mapped {
	struct expert_source source;
	uint32_t layer, n, returned;
	uint16_t experts[LIMIT_EXPERTS];
};
void experts_mapped_init(struct experts_mapped *mapped, const struct model *model);
