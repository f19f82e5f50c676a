/*
 * How good the hints are: compares what was predicted for a layer of a pass with what the verifier
 * then used there. Owned by the process. The transfer worker reports hints and activations, in
 * whatever order it read their rings; any thread may read the counts. The memory is bounded by the
 * model's shape: the last HINT_PASSES passes of each layer are open, and a pass is counted when it
 * leaves them.
 *
 * recall = found / used, precision = found / hinted, mean lead time = lead_ns / found. A source is
 * judged only by passes for which it hinted at all.
 */
#pragma once

#include "shared/spec/slots.h"

enum { HINT_PASSES = 16 };

struct hint_counts {
	_Atomic uint64_t passes; /* passes of the layer with hints from this source */
	_Atomic uint64_t used; /* distinct experts used in them */
	_Atomic uint64_t found; /* of these, hinted in time */
	_Atomic uint64_t hinted; /* distinct experts hinted in time */
	_Atomic uint64_t late; /* hints for passes that the verifier had already begun */
	_Atomic uint64_t lead_ns; /* time from hint to use, summed over `found` */
};

struct hint_quality {
	uint32_t n_layers, n_experts, n_words;
	uint64_t newest; /* largest iteration that has begun */
	struct hint_counts (
		*counts)[HINT_SOURCES + 1]; /* [n_layers]; the last entry: all sources together */
	struct hint_pass *passes; /* [n_layers][HINT_PASSES] */
	/* for each pass: experts used, and experts hinted by each source; n_words words each */
	uint64_t *bits;
	uint32_t *made_us; /* for each pass and source: [n_experts] time of the hint */
};

int hint_quality_init(
	struct hint_quality *quality, uint32_t n_layers, uint32_t n_experts, struct error *err);
void hint_quality_exit(struct hint_quality *quality);

/* For the worker. Layers and experts must be in range; everything else may have any value. */
void hint_quality_used(struct hint_quality *quality, uint32_t layer, uint32_t expert,
	uint64_t iteration, uint64_t begun_ns);
/* False: the hint is for something that began long ago, or that will never come; do not believe it.
 */
bool hint_quality_hinted(struct hint_quality *quality, const struct slot_hint *hint);

/* Any thread. source HINT_SOURCES: all together, where an expert counts once however many sources
 * hinted it. */
const struct hint_counts *hint_quality_counts(
	const struct hint_quality *quality, uint32_t layer, unsigned source);
extern const char *const hint_source_names[HINT_SOURCES + 1];
