/*
 * The experts of layers that draft, from the expert-cache's slots where they are resident, and else
 * from the mapping of the model's file: those of a head's layers (multi-token prediction), or of the
 * target's own layers (skip.h). For a head the cache is told which ones were used, and decides which
 * of them it keeps, within the budget that it has for all layers. Of the target's layers the verifier
 * tells it what is used: a drafter that reads them changes nothing in what the cache keeps.
 *
 * The drafter cannot write to the table of slots, so it pins none: an expert may be evicted while a
 * pass reads it. head_experts_sound tells whether that has happened, and the pass is run again. Were
 * it overlooked, a draft would be wrong, which is no more than slow. Used by the draft thread.
 */
#pragma once

#include "services/drafter/hints.h"
#include "shared/model/pass/experts.h"
#include "shared/model/pass/forward.h"
#include "shared/spec/slots.h"

/* Where the experts of a source's layers are. */
struct head_experts_of {
	uint64_t model; /* the target's fingerprint */
	uint32_t n_cached; /* layers of the cache, if it has this model's; 0: never from a cache */
	uint16_t layer[LIMIT_LAYERS]; /* number in the cache of each of the source's layers */
	/* The cache is told what is used: no pass of the verifier uses these layers. */
	bool tells;
};

struct head_experts {
	struct expert_source source;
	struct head_experts_of of;
	struct hints *hints; /* borrowed: has the regions of the cache */
	struct backend *backend;
	struct slots_geometry geometry; /* of the source's layers */
	struct buffer file, arena;
	uint64_t attachment; /* of the regions that `arena` is in; 0: none */
	bool off; /* reads the file alone, in this pass */
	/* Of the layer in progress: */
	uint32_t layer; /* of the source's */
	uint16_t experts[LIMIT_EXPERTS];
	uint32_t n, returned;
	/* Of the pass in progress: */
	struct head_expert {
		uint16_t layer, expert;
		uint32_t slot; /* SLOT_NONE: it was read from the file */
		uint64_t word;
	} * read; /* [n_read_max] owned */
	uint32_t n_read, n_read_max;
	_Atomic uint64_t from_slots, from_file; /* any thread reads them */
};

/* source: the model of the head, or of the target's layers. Copies `of`, borrows the rest. -ENOMEM. */
int head_experts_init(struct head_experts *experts, const struct model *source,
	const struct head_experts_of *of, struct hints *hints, struct backend *backend,
	struct error *err);
void head_experts_exit(struct head_experts *experts);
/* Runs a pass that reads such experts, once more if one was evicted while it was read. As forward_run. */
int head_experts_run(struct head_experts *experts, struct forward *forward,
	const struct batch_token *batch, uint32_t n);
/* Call after a pass. Where there is a cache, its slots are the memory for experts, and pages of the
 * file that were read here are dropped. False: an expert was evicted while the pass read it; the
 * next pass reads the file. */
bool head_experts_sound(struct head_experts *experts);
