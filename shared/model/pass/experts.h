/*
 * Where a forward pass gets its experts from. The pass asks for the distinct experts of one layer,
 * computes those that are resident first and the others as they arrive (SP-MoE section 3,
 * cached-first order), and combines the results in a fixed order. So residency never shows in the
 * output. Used by the thread of the pass.
 *
 * An expert is given as places of its matrices in a buffer of the back end, not as addresses. What
 * a step reads stays in place until the step's ticket is reached, because steps may be queued and
 * run later. There are two implementations: the mapping of the file (experts_mapped) and the
 * expert-cache's slots (shared/spec/slots.h).
 */
#pragma once

#include "kernels/backend.h"
#include "shared/model/arch/model.h"

struct expert_view {
	uint32_t index; /* into the experts[] that was passed to begin */
	uint32_t slot; /* slot that holds it; EXPERT_NO_SLOT: it lies in the file */
	struct place gate, up, down; /* its matrices, with the layer's shapes and this layout: */
	enum matrix_layout layout;
	bool by_cpu; /* the places are of the host's back end, which computes it (moe_host.c) */
	bool waits; /* the queue waits for its bytes */
};
#define EXPERT_NO_SLOT UINT32_MAX

struct expert_source;

struct expert_source_ops {
	const char *name;
	/* Pins the resident ones of experts[0..n-1] (distinct, ascending) and demands the rest.
	 * tokens[i]: number of the batch's tokens that chose experts[i]. */
	void (*begin)(struct expert_source *source, uint32_t layer, const uint16_t *experts,
		const uint16_t *tokens, uint32_t n);
	/* Fills in views that were not given out yet: first all resident ones, later those that
	 * have arrived since. Waits for at least one. Returns their number; 0: all n were given
	 * out. An expert that nobody delivers is read from the file here, so this fails only with
	 * -EIO, when the file cannot be read any more. Views of an earlier call that `used` was not
	 * told of are finished with when ready is called again; the others when their ticket is
	 * reached. If experts wait for room, ready waits for such tickets. Slots may then be given
	 * to other experts, so a layer may need more experts than there are slots. */
	int (*ready)(struct expert_source *source, struct expert_view *views);
	/* Tells that steps queued in q before t read the views that ready gave last. */
	void (*used)(struct expert_source *source, struct queue *q, ticket t);
	/* No more of this layer is wanted. Releases everything that is finished with: all, once
	 * every ticket is reached. Also called after a pass. */
	void (*end)(struct expert_source *source);
	/* Every expert of every layer lies where the back end computes, and stays there during the
	 * next pass: the number of this arrangement, another one whenever a place has changed. 0: not
	 * so. NULL: never. */
	uint64_t (*settled)(struct expert_source *source);
	/* While they are: where expert `expert` of a layer lies. */
	void (*place)(struct expert_source *source, uint32_t layer, uint16_t expert,
		struct expert_view *view);
	/* Behind a pass of which begin, ready and used were not called, because they are: what a
	 * layer chose; as for begin. */
	void (*chose)(struct expert_source *source, uint32_t layer, const uint16_t *experts,
		const uint16_t *tokens, uint32_t n);
};

struct expert_source_stats {
	uint64_t lookups, hits, misses, bytes_loaded, wait_ns; /* running totals */
};

/* What an expert takes, measured by the pass while it computes: *_expert_ns with one token,
 * *_token_ns for each of several. rows_ns: how long the CPU waits for its inputs, in a pass of up to
 * EXPERT_ROWS_FEW rows; row_ns: for each row of a larger one. 0: not measured yet. */
struct expert_costs {
	double cpu_expert_ns, cpu_token_ns, gpu_expert_ns, gpu_token_ns, rows_ns, row_ns;
};
enum { EXPERT_ROWS_FEW = 64 };

struct expert_source {
	const struct expert_source_ops *ops;
	const struct model *model;
	struct expert_source_stats stats;
	/* Set by the source: it may want some experts computed by the CPU (by_cpu). Set by the pass
	 * before begin: it can do that in this layer. Set by begin: so many it wants computed so. */
	bool cpu_wanted, cpu_can;
	uint32_t n_by_cpu;
	struct expert_costs costs;
};

/* Makes a buffer of the memory in which a model's experts are mapped, or of a device's copy of it. */
int experts_file(
	const struct model *model, struct backend *backend, struct buffer *out, struct error *err);
/* The bytes of that memory. */
size_t experts_file_bytes(const struct model *model);
/* Sets the places of one expert in it; leaves view->index alone. */
void experts_file_view(const struct model *model, const struct buffer *file, uint32_t layer,
	uint32_t expert, struct expert_view *view);

/* Gives views straight into the mapping; every look-up hits. */
struct experts_mapped {
	struct expert_source source;
	struct buffer file;
	uint32_t layer, n, returned;
	uint16_t experts[LIMIT_EXPERTS];
};
/* Borrows model and backend. The weights must not move. */
int experts_mapped_init(struct experts_mapped *mapped, const struct model *model,
	struct backend *backend, struct error *err);
/* Also after experts_mapped_init failed, and for memory of zeros. */
void experts_mapped_exit(struct experts_mapped *mapped);
