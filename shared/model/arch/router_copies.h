/*
 * The routers of a model in 8 bits (Q8_0), for those who only rank experts by them: a quarter of a float32 router's bytes
 * have to come from memory. What the forward pass computes never depends on them. A router that is quantised in the file,
 * whose rows are no whole blocks, or whose shape is not the model's, is used as it is. Read by any thread once made.
 */
#pragma once

#include "kernels/backend.h"
#include "shared/model/arch/model.h"

struct router_copies {
	struct matrix *
		matrix; /* [n_layers], [n_experts][n_embd] each; of layers without experts nothing */
	unsigned char *blocks; /* of all copies */
	size_t bytes; /* of them */
};

/* What the copies of a model's routers take. */
size_t router_copies_bytes(const struct model *model);
/* Borrows model, reads every router once. -ENOMEM. */
int router_copies_init(struct router_copies *copies, const struct model *model,
	struct backend *backend, struct error *err);
void router_copies_exit(struct router_copies *copies);
