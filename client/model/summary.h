/* What a file's weights cost: how much must stay in memory, how much are experts, how much one
 * token reads. Computed from the tensors' names and the metadata alone, so it works for
 * architectures that the engine does not run. */
#pragma once

#include "shared/model/gguf/gguf.h"

enum { SUMMARY_TYPES = 48 };

struct summary {
	uint64_t bytes; /* of all tensors */
	/* matrices of routed experts, which may be streamed; their biases stay in memory */
	uint64_t expert_bytes;
	uint64_t resident_bytes; /* the rest */
	/* What one token reads: one row of an embedding that is not also the output matrix, and
	 * only the experts that it uses. */
	uint64_t token_resident_bytes, token_expert_bytes;
	uint64_t n_experts, n_used; /* per layer; 0 without experts */
	uint32_t n_moe_layers;
	struct {
		uint64_t n, bytes;
	} types[SUMMARY_TYPES]; /* by GGUF type id */
};

void summary_make(const struct gguf *gguf, struct summary *out);
bool summary_is_expert(const struct gguf_tensor *tensor);
