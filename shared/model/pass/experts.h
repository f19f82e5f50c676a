/*
 * Where a forward pass gets its experts from. The forward asks for the distinct experts of one layer, computes
 * those that are there first and the others as they arrive (SP-MoE section 3, cached-first order), and combines the
 * results in a fixed order, so residency never shows in the output.
 *
 * An expert is named by the places of its matrices in a buffer of the back end, not by addresses, and what a step reads stays
 * where it is until that step's ticket is reached: steps may be queued and run later.
 * Implementations: the file's mapping (experts_mapped), the expert-cache's slots (shared/spec/slots.h).
 */
#pragma once

#include "kernels/backend.h"
#include "shared/model/arch/model.h"

struct expert_view {
	uint32_t index; /* into the experts[] given to begin */
	uint32_t slot; /* that holds it, EXPERT_NO_SLOT: it lies in the file */
	struct place gate, up, down; /* matrices of the layer's shapes, in this layout: */
	enum matrix_layout layout;
};
#define EXPERT_NO_SLOT UINT32_MAX

struct expert_source;

struct expert_source_ops {
	const char *name;
	/* Pins what is resident of experts[0..n-1] (distinct, ascending), demands the rest. tokens[i]: batch tokens
	 * that chose experts[i]. */
	void (*begin)(struct expert_source *source, uint32_t layer, const uint16_t *experts,
		const uint16_t *tokens, uint32_t n);
	/* Views not yet returned: all resident ones at first, then those that have arrived since; waits for at least
	 * one; 0 when all n were returned. An expert nobody else delivers is read from the file here: never fails. A
	 * file that cannot be read any more returns -EIO. What an earlier call gave and `used` was not told of is finished with
	 * when ready is called again; the rest is when its ticket is reached, and where experts wait for room ready waits for
	 * that. Then slots may be given to others: so a layer may need more experts than there are slots. */
	int (*ready)(struct expert_source *source, struct expert_view *views);
	/* Steps that were queued in q before t read what ready gave last. */
	void (*used)(struct expert_source *source, struct queue *q, ticket t);
	/* Of this layer no more is wanted. Lets go of what is finished with: all, once every ticket is reached. Also called again
	 * behind a pass. */
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

/* The memory that a model's experts are mapped in, as a buffer. */
int experts_file(
	const struct model *model, struct backend *backend, struct buffer *out, struct error *err);
/* Of one expert in it; index stays the caller's. */
void experts_file_view(const struct model *model, const struct buffer *file, uint32_t layer,
	uint32_t expert, struct expert_view *view);

/* Views straight into the mapping; every look-up hits. */
struct experts_mapped {
	struct expert_source source;
	struct buffer file;
	uint32_t layer, n, returned;
	uint16_t experts[LIMIT_EXPERTS];
};
/* Borrows both, and the weights stay where they are. */
int experts_mapped_init(struct experts_mapped *mapped, const struct model *model,
	struct backend *backend, struct error *err);
