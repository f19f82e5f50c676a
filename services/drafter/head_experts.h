/*
 * The experts of a head's layer (multi-token prediction), from the expert-cache's slots where they
 * are resident, and else from the mapping of the model's file. The cache is told which ones were
 * used, and decides which of them it keeps, within the budget that it has for all layers.
 *
 * The drafter cannot write to the table of slots, so it pins none: an expert may be evicted while a
 * pass reads it. head_experts_sound tells whether that has happened, and the pass is run again. Were
 * it overlooked, a draft would be wrong, which is no more than slow. Used by the draft thread.
 */
#pragma once

#include "services/drafter/hints.h"
#include "shared/model/pass/experts.h"
#include "shared/spec/slots.h"

struct head_experts {
	struct expert_source source;
	struct hints *hints; /* borrowed: has the regions of the cache */
	struct backend *backend;
	uint64_t model; /* fingerprint of the target */
	uint32_t layer; /* of the head, in the cache */
	struct slots_geometry geometry; /* of the head's own layer */
	struct buffer file, arena;
	uint64_t attachment; /* of the regions that `arena` is in; 0: none */
	uint64_t iteration; /* number of the pass */
	bool off; /* reads the file alone, in this pass */
	/* Of the pass in progress: */
	uint16_t experts[LIMIT_EXPERTS];
	uint32_t n, returned;
	struct {
		uint32_t slot;
		uint64_t word;
	} read[LIMIT_EXPERTS];
	uint32_t n_read;
	uint16_t filed[LIMIT_EXPERTS]; /* experts that were read from the file */
	uint32_t n_filed;
	_Atomic uint64_t from_slots, from_file; /* any thread reads them */
};

/* layer: the head's number among the target's layers; model: the target's fingerprint. Borrows the
 * rest. head: the model of the head. */
int head_experts_init(struct head_experts *experts, const struct model *head, uint64_t model,
	uint32_t layer, struct hints *hints, struct backend *backend, struct error *err);
void head_experts_exit(struct head_experts *experts);
/* Call after a pass. Where there is a cache, its slots are the memory for experts, and pages of the
 * file that were read here are dropped. False: an expert was evicted while the pass read it; the
 * next pass reads the file. */
bool head_experts_sound(struct head_experts *experts);
