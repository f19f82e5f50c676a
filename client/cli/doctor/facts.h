/* What `outrider doctor` knows of a model: how much one token reads of it, and how large its parts are. Read-only after it is made. */
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
	uint64_t expert_bytes; /* the mean of one, as it is in the file */
	uint32_t hand_overs; /* to the threads of a pass, of one token */
};

/* Opens the model. On failure nothing is left to be freed, and the message names the file. */
int facts_open(const char *path, struct facts *out, struct error *err);
void facts_close(struct facts *facts);

/* The least time of a pass of n tokens behind `depth` others, all with logits, with experts chosen at random: each layer's n
 * choices of `used` meet in fewer distinct ones. -ENOMEM. */
int facts_floor(const struct facts *facts, const struct peaks *peaks, uint32_t n, uint32_t depth,
	struct floor *out);

/* Distinct experts of one layer that n tokens use, each chosen at random. */
double facts_distinct(const struct facts *facts, uint32_t n);
