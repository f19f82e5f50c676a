/* The facts about a model that `outrider doctor` uses: how much one token reads of it, and how
 * large its parts are. Constant once made. */
#pragma once

#include "shared/measure/floor.h"
#include "shared/spec/slots.h"

struct facts {
	struct model *model; /* owned */
	struct slots_geometry *geometry; /* owned */
	uint64_t bytes; /* of the files */
	uint64_t dense_token_bytes; /* matrices that every token reads */
	uint64_t expert_token_bytes; /* of the experts that a token uses */
	uint64_t kv_token_bytes; /* of the KV cache, for each token of a session */
	uint32_t moe_layers, experts, used; /* experts of a layer, and used by a token; 0: none */
	uint64_t expert_bytes; /* the mean size of one in the file */
	uint32_t hand_overs; /* times that one token's pass gives work to its threads */
};

/* Opens the model. On failure there is nothing to free, and the message names the file. */
int facts_open(const char *path, struct facts *out, struct error *err);
void facts_close(struct facts *facts);

/* The least time of a pass of n tokens behind `depth` others, all with logits. Experts are chosen
 * at random, so the n choices of `used` experts in a layer have fewer distinct ones. -ENOMEM. */
int facts_floor(const struct facts *facts, const struct peaks *peaks, uint32_t n, uint32_t depth,
	struct floor *out);

/* The expected number of distinct experts of one layer that n tokens use, each chosen at random. */
double facts_distinct(const struct facts *facts, uint32_t n);
