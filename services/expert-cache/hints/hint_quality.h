/*
 * How good the hints are: what was foreseen for a layer of a pass, beside what the verifier then used there. Owned by
 * the process; the transfer worker tells it of hints and activations, in whatever order their rings were read; any
 * thread may read the counts. The memory is bounded by the model's shape: the last HINT_PASSES passes of each layer are
 * open, and a pass is counted when it leaves them.
 *
 * recall = found / used, precision = found / hinted, mean lead time = lead_ns / found. Only passes for which a source
 * hinted at all count for it.
 */
#pragma once

#include "shared/spec/slots.h"

enum { HINT_PASSES = 16 };

struct hint_counts {
	_Atomic uint64_t passes; /* of the layer, with hints of this source */
	_Atomic uint64_t used; /* distinct experts used in them */
	_Atomic uint64_t found; /* of those, hinted in time */
	_Atomic uint64_t hinted; /* distinct experts hinted in time */
	_Atomic uint64_t late; /* hints for what the verifier had begun */
	_Atomic uint64_t lead_ns; /* from hint to use, summed over found */
};

struct hint_quality {
	uint32_t n_layers, n_experts, n_words;
	uint64_t newest; /* the largest iteration begun */
	struct hint_counts (
		*counts)[HINT_SOURCES + 1]; /* [n_layers]; the last: of all sources together */
	struct hint_pass *passes; /* [n_layers][HINT_PASSES] */
	uint64_t *bits; /* per pass: experts used, and hinted by each source, n_words each */
	uint32_t *made_us; /* per pass and source: [n_experts] when it was hinted */
};

int hint_quality_init(
	struct hint_quality *quality, uint32_t n_layers, uint32_t n_experts, struct error *err);
void hint_quality_exit(struct hint_quality *quality);

/* The worker's. Indices of layers and experts are in range; everything else may be anything. */
void hint_quality_used(struct hint_quality *quality, uint32_t layer, uint32_t expert,
	uint64_t iteration, uint64_t begun_ns);
/* False: it is about what was begun long ago, or never will be: not to be believed. */
bool hint_quality_hinted(struct hint_quality *quality, const struct slot_hint *hint);

/* Any thread. source HINT_SOURCES: together, an expert counted as often as it was used or hinted by any. */
const struct hint_counts *hint_quality_counts(
	const struct hint_quality *quality, uint32_t layer, unsigned source);
extern const char *const hint_source_names[HINT_SOURCES + 1];
